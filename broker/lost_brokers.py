"""Brokers that were lost a moment ago: producers and consumers go on seeing their names."""

from __future__ import annotations

from collections.abc import Callable

from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage


class LostBrokers:
    """Which brokers were fenced without a shutdown within the last session timeout.

    Apache Kafka's Metadata names a dead broker until its session has ended. Here the leaders have moved long before;
    but librdkafka from 2.10 on forgets a broker that Metadata no longer names, and a producer that still takes it for
    the coordinator of its consumer's group waits for it for minutes (librdkafka issue 5511). While the broker is named
    the producer asks for the new coordinator.
    """

    def __init__(self, session_timeout_s: float, now: Callable[[], float]) -> None:
        self._session_timeout_s = session_timeout_s
        self._now = now
        self._until: dict[int, float] = {}

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """A broker that came back, was removed, or was shut down is not lost."""
        for broker_id, before in delta.brokers_changed.items():
            after = image.brokers.get(broker_id)
            if after is None or not after.fenced:
                self._until.pop(broker_id, None)
            elif before is not None and before.is_active:
                self._until[broker_id] = self._now() + self._session_timeout_s

    def is_recent(self, broker_id: int) -> bool:
        return self._now() < self._until.get(broker_id, 0.0)
