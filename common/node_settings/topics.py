"""Topics and logs: a broker's own settings, and the defaults of topic settings."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from common.settings import (
    CLUSTER_WIDE,
    DAY_MS,
    HOUR_MS,
    KIB,
    MIB,
    MINUTE_MS,
    Declared,
    declared,
    field_of,
    seconds,
    setting,
)
from common.topic_settings import TOPIC_SETTINGS


def topic_default(topic_setting: str, doc: str = "") -> Any:
    """The broker setting that gives a topic setting its default. Type, default, range and, if empty, `doc` are the
    topic setting's."""
    of_topic = TOPIC_SETTINGS[topic_setting]
    own = replace(of_topic, name=of_topic.synonyms[0], doc=doc or of_topic.doc, synonyms=())
    return field_of(Declared(own, None))


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """Settings of all topics."""

    # fmt: off
    auto_create_topics_enable: bool = setting("auto.create.topics.enable", "boolean", True,
        "Whether a request for an unknown topic creates it.")
    num_partitions: int = setting("num.partitions", "int", 1, "Partitions of a topic created without a count.", 1)
    default_replication_factor: int = setting("default.replication.factor", "int", 1,
        "Replicas of a topic created without a count; `tidelog up` sets min(3, brokers).", 1, 32767)
    min_insync_replicas: int = topic_default("min.insync.replicas",
        "How many in-sync replicas acks=all needs; `tidelog up` sets 2 from three brokers on.")
    unclean_leader_election_enable: bool = topic_default("unclean.leader.election.enable",
        "Whether a replica that is not in sync may lead.")
    delete_topic_enable: bool = setting("delete.topic.enable", "boolean", True, "Whether topics can be deleted.")
    message_max_bytes: int = topic_default("max.message.bytes")
    compression_type: str = topic_default("compression.type", "The codec that batches are stored with.")
    compression_gzip_level: int = topic_default("compression.gzip.level", "The level of gzip recompression.")
    compression_lz4_level: int = topic_default("compression.lz4.level")
    compression_zstd_level: int = topic_default("compression.zstd.level")
    inflated_bytes_max: int = setting("tidelog.inflated.bytes.max", "int", 64 * MIB,
        "The most bytes that a compressed batch may inflate to where the broker has to read its records.", 1 * MIB)
    # fmt: on


@dataclass(frozen=True, slots=True)
class BrokerLogSettings:
    """Settings of the logs of one broker."""

    # fmt: off
    log_segment_bytes: int = topic_default("segment.bytes")
    log_roll_ms: int = topic_default("segment.ms")
    log_roll_jitter_ms: int = topic_default("segment.jitter.ms", "Random milliseconds taken off log.roll.ms.")
    log_retention_ms: int = topic_default("retention.ms")
    log_retention_minutes: int = setting("log.retention.minutes", "int", -1,
        "log.retention.ms in minutes, where that is not set; -1 is unset.", -1)
    log_retention_hours: int = setting("log.retention.hours", "int", -1,
        "log.retention.ms in hours, where neither other is set; -1 is unset.", -1)
    log_retention_bytes: int = topic_default("retention.bytes")
    log_retention_check_interval_ms: int = setting("log.retention.check.interval.ms", "long", 300_000,
        "How often retention is applied.", 1)
    log_cleanup_policy: tuple[str, ...] = topic_default("cleanup.policy", "Delete, compact, or both.")
    log_index_interval_bytes: int = topic_default("index.interval.bytes")
    log_index_size_max_bytes: int = topic_default("segment.index.bytes")
    log_segment_delete_delay_ms: int = topic_default("file.delete.delay.ms", "How long a deleted segment's file stays.")
    log_flush_interval_messages: int = topic_default("flush.messages", "An fsync after this many records.")
    log_flush_interval_ms: int = topic_default("flush.ms")
    checkpoint_interval_ms: int = setting("log.flush.offset.checkpoint.interval.ms", "int", 60_000,
        "How often recovery points are written.", 1)
    log_message_timestamp_type: str = topic_default("message.timestamp.type", "Whose time is kept.")
    log_message_timestamp_before_max_ms: int = topic_default("message.timestamp.before.max.ms",
        "How far a timestamp may lie behind.")
    log_message_timestamp_after_max_ms: int = topic_default("message.timestamp.after.max.ms",
        "How far a timestamp may lie ahead.")
    log_local_retention_bytes: int = topic_default("local.retention.bytes",
        "Bytes kept on the brokers of a tiered topic.")
    log_local_retention_ms: int = topic_default("local.retention.ms",
        "Milliseconds kept on the brokers of a tiered topic.")
    log_cleaner_enable: bool = setting("log.cleaner.enable", "boolean", True, "Whether compacted topics are compacted.")
    log_cleaner_backoff_ms: int = setting("log.cleaner.backoff.ms", "long", 15_000,
        "How often the cleaner looks for work.", 1, update=CLUSTER_WIDE)
    log_cleaner_dedupe_buffer_size: int = setting("log.cleaner.dedupe.buffer.size", "long", 128 * MIB,
        "Memory of the cleaner's offset map.", 64 * KIB, update=CLUSTER_WIDE)
    log_cleaner_io_max_bytes_per_second: float = setting("log.cleaner.io.max.bytes.per.second", "double", 1.0e12,
        "How fast the cleaner reads and writes.", 1, update=CLUSTER_WIDE)
    log_cleaner_delete_retention_ms: int = topic_default("delete.retention.ms", "How long tombstones stay.")
    log_cleaner_min_cleanable_ratio: float = topic_default("min.cleanable.dirty.ratio",
        "The dirty share that starts a compaction.")
    log_cleaner_min_compaction_lag_ms: int = topic_default("min.compaction.lag.ms",
        "The shortest time a record stays uncompacted.")
    log_cleaner_max_compaction_lag_ms: int = topic_default("max.compaction.lag.ms",
        "The longest time a record stays uncompacted.")
    log_records_check: str = topic_default("tidelog.records.check",
        "How far the records of a produced batch are checked: the first ones (head) or each of them (all).")
    free_bytes_min: int = setting("log.dir.free.bytes.min", "long", 256 * MIB,
        "Free bytes of the disk below which Produce is rejected; below twice as many it is throttled.", 0)
    recovery_threads: int = setting("num.recovery.threads.per.data.dir", "int", 2,
        "Threads that recover logs after an unclean stop; a change counts from the next start.", 1, 64,
        update=CLUSTER_WIDE)
    open_files_max: int = setting("tidelog.log.open.files.max", "int", 2_000, "Segment and index files kept open.", 16)
    unwritten_bytes_max: int = setting("tidelog.log.unwritten.bytes.max", "long", 64 * MIB,
        "Bytes that wait for a slow disk before appends are rejected.", 1 * MIB)
    slow_write_s: float = setting("tidelog.log.slow.write.ms", "int", 50,
        "A write longer than this sends the next ones to a thread.", 1,
        read_as=seconds)
    producer_id_expiration_ms: int = setting("producer.id.expiration.ms", "int", DAY_MS,
        "How long an idle producer's sequence state is kept.", 1, update=CLUSTER_WIDE)
    producers_expire_s: float = setting("producer.id.expiration.check.interval.ms", "int", 600_000,
        "How often producers that were idle for producer.id.expiration.ms are removed.", 1, read_as=seconds)
    producers_per_partition_max: int = setting("tidelog.producers.per.partition.max", "int", 100_000,
        "Producers whose state one partition keeps.", 10)
    producers_max: int = setting("tidelog.producers.max", "int", 1_000_000,
        "Producers whose state this broker keeps, over all partitions; beyond it the longest idle one is dropped. "
        "Each takes 300 to 700 bytes.", 10)
    # fmt: on


def with_retention(given: Mapping[str, Any]) -> dict[str, Any]:
    """`given` with `log.retention.ms` by the finest unit given, as in Apache Kafka."""
    found, wanted = dict(given), declared(BrokerLogSettings, "log_retention_ms").name
    hours = declared(BrokerLogSettings, "log_retention_hours").name
    minutes = declared(BrokerLogSettings, "log_retention_minutes").name
    if wanted not in given:
        for name, unit_ms in ((hours, HOUR_MS), (minutes, MINUTE_MS)):
            if given.get(name, -1) >= 0:  # minutes come last and so take precedence over hours
                found[wanted] = given[name] * unit_ms
    return found
