"""Consumer groups and their offsets."""

from dataclasses import dataclass

from common.settings import INT_MAX, MIB, MINUTE_MS, setting


def minutes_as_ms(minutes: int) -> int:
    return minutes * MINUTE_MS


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of group coordinators."""

    # fmt: off
    group_min_session_timeout_ms: int = setting("group.min.session.timeout.ms", "int", 6_000,
        "The shortest session timeout of a member.", 1)
    group_max_session_timeout_ms: int = setting("group.max.session.timeout.ms", "int", 1_800_000,
        "The longest session timeout of a member.", 1)
    group_initial_rebalance_delay_ms: int = setting("group.initial.rebalance.delay.ms", "int", 3_000,
        "How long an empty group waits for further members.", 0)
    group_max_size: int = setting("group.max.size", "int", INT_MAX, "Members of one group.", 1)
    offsets_topic_num_partitions: int = setting("offsets.topic.num.partitions", "int", 50,
        "Partitions of __consumer_offsets.", 1)
    offsets_topic_replication_factor: int = setting("offsets.topic.replication.factor", "int", 3,
        "Replicas of __consumer_offsets, at most one per broker; controllers add missing ones when more brokers join, "
        "and need the same value.", 1, 32767)
    offsets_topic_segment_bytes: int = setting("offsets.topic.segment.bytes", "int", 100 * MIB,
        "Segment size of __consumer_offsets.", 1024)
    offsets_retention_ms: int = setting("offsets.retention.minutes", "int", 10_080,
        "How long offsets of an empty group are kept.", 1, read_as=minutes_as_ms)
    offsets_retention_check_interval_ms: int = setting("offsets.retention.check.interval.ms", "long", 600_000,
        "How often expired offsets are looked for.", 1)
    offset_metadata_max_bytes: int = setting("offset.metadata.max.bytes", "int", 4_096,
        "Bytes of metadata beside a committed offset.", 0)
    coordinator_standby_bytes_max: int = setting("tidelog.coordinator.standby.bytes.max", "long", 256 * MIB,
        "Memory for the committed offsets of partitions that others lead, so that this broker serves at once when it "
        "is elected. Offsets that do not fit are loaded then.", 0)
    offsets_commit_timeout_ms: int = setting("offsets.commit.timeout.ms", "int", 5_000,
        "How long a commit waits for its replicas.", 1)
    # fmt: on
