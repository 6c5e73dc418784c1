"""A producer or a consumer of librdkafka that runs until its standard input ends, then says how it was throttled."""

from __future__ import annotations

import json
import sys
import threading

from confluent_kafka import Consumer, KafkaError, Message, Producer


def main(role: str, bootstrap: str, topic: str, name: str) -> None:
    throttled_ms: list[float] = []
    failed = 0
    ended = threading.Event()

    def throttled(event: object) -> None:
        throttled_ms.append(event.throttle_time * 1000)  # type: ignore[attr-defined]

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal failed
        failed += error is not None

    def wait_for_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait_for_end, daemon=True).start()
    settings = {"bootstrap.servers": bootstrap, "client.id": name, "throttle_cb": throttled}
    if role == "produce":
        producer = Producer({**settings, "on_delivery": delivered})
        while not ended.is_set():
            try:
                producer.produce(topic, bytes(1000), partition=0)
                producer.poll(0)
            except BufferError:
                producer.poll(0.1)
    else:
        reading = {"group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False}
        consumer = Consumer({**settings, **reading})
        consumer.subscribe([topic])
        while not ended.is_set():
            failed += sum(message.error() is not None for message in consumer.consume(1000, timeout=0.1))
    print(json.dumps({"throttled": len(throttled_ms), "throttled_ms": sum(throttled_ms), "failed": failed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5])
