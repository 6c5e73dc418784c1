"""The audit of administrative acts."""

from dataclasses import dataclass

from common.settings import DAY_MS, MIB, setting


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """A broker's journal, the topic `__audit` and its export."""

    # fmt: off
    journal_max_bytes: int = setting("tidelog.audit.journal.max.bytes", "long", 64 * MIB,
        "Bytes of a broker's audit journal; when the cluster accepts no events for so long that it is full, the "
        "oldest are dropped, and an event reports how many.", 1 * MIB)
    topic_num_partitions: int = setting("tidelog.audit.topic.num.partitions", "int", 4, "Partitions of __audit.", 1)
    topic_replication_factor: int = setting("tidelog.audit.topic.replication.factor", "int", 3,
        "Replicas of __audit, at most one per broker.", 1, 32767)
    topic_segment_bytes: int = setting("tidelog.audit.topic.segment.bytes", "int", 100 * MIB,
        "Segment size of __audit.", 1024)
    topic_retention_ms: int = setting("tidelog.audit.topic.retention.ms", "long", 7 * DAY_MS,
        "How long events stay in __audit; -1 keeps them.", -1)
    export_retention_ms: int = setting("tidelog.audit.export.retention.ms", "long", 90 * DAY_MS,
        "How long exported events stay in the object store; -1 keeps them.", -1)
    # fmt: on
