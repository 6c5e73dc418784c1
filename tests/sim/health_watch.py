"""What the metadata may say of sick brokers: at most one is put aside at a time, and no ISR pays for it."""

from __future__ import annotations

from common.pacing import at_once
from kraft.image.metadata import MetadataImage
from kraft.metadata_log import MetadataLog, frames_in
from kraft.records import BrokerRegistrationChangeRecord, Cause, HealthState, PartitionChangeRecord
from tests.sim.invariants import Coverage, InvariantBroken

BYTES_MAX = 1 << 30
DETECTED = (Cause.NO_CLIENT_TRAFFIC, Cause.SLOWER_THAN_PEERS)
ASIDE = (HealthState.DEMOTED, HealthState.SLOW)


class OneBrokerAside:
    """Reads each committed record once. `min_insync` is that of all topics but the `lossy` ones."""

    def __init__(self, coverage: Coverage, min_insync: int, lossy: tuple[str, ...]) -> None:
        self._coverage = coverage
        self._min_insync = min_insync
        self._lossy = lossy

    def moved(self, before: MetadataImage, image: MetadataImage, log: MetadataLog) -> None:
        """`log` is that of the node whose image became the newest; a snapshot may have left it without the records."""
        aside = sorted(
            broker.broker_id
            for broker in image.brokers.values()
            if broker.health.state in ASIDE and broker.health.cause in DETECTED
        )
        if len(aside) > 1:
            raise InvariantBroken(self, f"brokers {aside} are put aside at once")
        data = log.read(before.next_offset, BYTES_MAX) if before.offset >= 0 else None
        for frame in frames_in(memoryview(data or b"")):
            for record in at_once(frame.decoding()).records:
                if isinstance(record, BrokerRegistrationChangeRecord) and record.health is not None:
                    self._coverage.add(f"health: {record.health.state.name.lower()}")
                elif isinstance(record, PartitionChangeRecord) and record.cause in DETECTED and record.isr is not None:
                    self._shrunk(image, record, len(record.isr))

    def _shrunk(self, image: MetadataImage, record: PartitionChangeRecord, left: int) -> None:
        topic = image.topics.get_by_id(record.topic_id)
        partition = topic.partitions.get(record.partition) if topic is not None else None
        if topic is None or partition is None or topic.name in self._lossy:
            return
        if left < min(self._min_insync, partition.settled_replica_count):
            where = f"{topic.name}-{record.partition}"
            raise InvariantBroken(self, f"{left} replicas of {where} stay in sync, for another is put aside")
