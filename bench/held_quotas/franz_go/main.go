// A producer or a consumer of franz-go that runs until its standard input ends, then says how often and for how long
// the broker throttled it.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// throttles counts what brokers answer: the hook gets each throttle time.
type throttles struct{ count, milliseconds atomic.Int64 }

func (t *throttles) OnBrokerThrottle(_ kgo.BrokerMetadata, interval time.Duration, _ bool) {
	t.count.Add(1)
	t.milliseconds.Add(interval.Milliseconds())
}

func main() {
	role, bootstrap, topic, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	seen := &throttles{}
	options := []kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.ClientID(name), kgo.WithHooks(seen)}
	if role == "produce" {
		options = append(options, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(kgo.NoCompression()))
	} else {
		options = append(options, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		panic(err)
	}
	running, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var failed atomic.Int64
	for value := make([]byte, 1000); running.Err() == nil; {
		if role == "produce" {
			client.Produce(running, &kgo.Record{Value: value}, func(_ *kgo.Record, err error) {
				if err != nil && running.Err() == nil {
					failed.Add(1)
				}
			})
		} else {
			client.PollFetches(running).EachError(func(_ string, _ int32, err error) {
				if running.Err() == nil {
					failed.Add(1)
				}
			})
		}
	}
	fmt.Printf("{\"throttled\": %d, \"throttled_ms\": %d, \"failed\": %d}\n",
		seen.count.Load(), seen.milliseconds.Load(), failed.Load())
	os.Exit(0)
}
