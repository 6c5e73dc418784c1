"""How long producers wait when a leader dies: `python -m bench.failover BOOTSTRAP ROUNDS` driven by its caller.

The gap is the longest time without an acknowledgement after the blow, seen by an idempotent producer with acks=all
that sends 500 records a second to one partition.
"""

from __future__ import annotations

import itertools
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

QUIET_S = 0.5
RECOVERY_TIMEOUT_S = 60.0


def _end_of(consumer: Consumer, partition: TopicPartition) -> int:
    """The client asks the leader that it knows once; this asks again where leadership has just moved."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, timeout=30)[1])
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class SteadyLoad:
    """A numbered stream of records to one partition, and when each was acknowledged."""

    def __init__(
        self, bootstrap: str, topic: str = "", replicas: int = 3, client: Mapping[str, int] | None = None
    ) -> None:
        """`topic` is made, with `min.insync.replicas` one below its replicas; a name is drawn where none is given.
        `client`: other settings of the producer."""
        self.bootstrap = bootstrap
        self.topic = topic or f"failover-{uuid.uuid4().hex[:6]}"
        self.acknowledged: list[int] = []
        self.moments: list[float] = []
        self.errors: Counter[str] = Counter()
        self._admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic(self.topic, 1, replicas, config={"min.insync.replicas": str(replicas - 1)})
        self._admin.create_topics([new])[self.topic].result(60)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 2,
                "message.timeout.ms": 120_000,
                "request.timeout.ms": 1_000,  # a frozen broker keeps its connections: only the client can tell
                "socket.timeout.ms": 1_500,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 200,
                "topic.metadata.refresh.fast.interval.ms": 50,
                **(client or {}),
            }
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(self.topic, str(number).encode(), on_delivery=self._delivered)
            number += 1
            self._producer.poll(0.002)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors[error.name()] += 1
        else:
            self.acknowledged.append(int(message.value() or b"-1"))
            self.moments.append(time.monotonic())

    def leader(self) -> int:
        return int(self._admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions[0].leader)

    def isr(self) -> list[int]:
        return list(self._admin.list_topics(self.topic, timeout=10).topics[self.topic].partitions[0].isrs)

    def wait_flowing(self) -> None:
        """Until acknowledgements have come without a pause for half a second."""
        deadline = time.monotonic() + RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline:
            recent = [m for m in self.moments[-200:] if m > time.monotonic() - QUIET_S]
            if len(recent) > 20:
                return
            time.sleep(0.05)
        raise TimeoutError("the load does not flow")

    def gap(self, blow: Callable[[], None], watch_s: float) -> float:
        """Seconds of the longest silence after `blow`."""
        began = time.monotonic()
        blow()
        deadline = began + RECOVERY_TIMEOUT_S
        while time.monotonic() < deadline:
            now = time.monotonic()
            if now - began > watch_s and self.moments[-1] > began and now - self.moments[-1] < QUIET_S:
                break
            time.sleep(0.05)
        return self.longest_silence(began)

    def longest_silence(self, since: float) -> float:
        """Seconds of the longest time without an acknowledgement since then."""
        after = [since, *[m for m in list(self.moments) if m > since]]
        return max((b - a for a, b in itertools.pairwise(after)), default=RECOVERY_TIMEOUT_S)

    def finish(self) -> dict[str, Any]:
        """Stop, read everything back, and count what is lost, doubled or out of order."""
        self._stop.set()
        self._thread.join()
        unflushed = self._producer.flush(120)
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False}
        )
        end = _end_of(consumer, TopicPartition(self.topic, 0))
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        seen: list[int] = []
        deadline, position = time.monotonic() + 60, 0
        while position < end and time.monotonic() < deadline:
            for message in consumer.consume(5_000, 1.0):
                if not message.error():
                    seen.append(int(message.value() or b"-1"))
                    position = (message.offset() or 0) + 1
        consumer.close()
        counts = Counter(seen)
        return {
            "acknowledged": len(self.acknowledged),
            "lost": sum(1 for n in self.acknowledged if not counts[n]),
            "doubled": sum(1 for count in counts.values() if count > 1),
            "reordered": sum(1 for a, b in itertools.pairwise(seen) if b < a),
            "unflushed": unflushed,
            "errors": dict(self.errors),
        }
