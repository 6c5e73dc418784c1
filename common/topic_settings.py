"""Every topic setting: Kafka's names, types, defaults and ranges (TopicConfig and LogConfig of Apache Kafka 4.1)."""

from dataclasses import dataclass
from typing import Any

from common.settings import CLUSTER_WIDE, DAY_MS, GIB, HOUR_MS, LONG_MAX, MIB, Catalogue, Given, setting

_THROTTLED = r"\*|[0-9]+:[0-9]+"
_THROTTLED_TEXT = "* for all, or a list of PARTITION:BROKER"


def topic_setting(name: str, type_name: str, default: Given, doc: str, *synonyms: str, **more: Any) -> Given:
    """A setting that may change at any time. `synonyms`: the broker settings that give it its default."""
    declared: Given = setting(name, type_name, default, doc, update=CLUSTER_WIDE, synonyms=synonyms, **more)
    return declared


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of one topic. Sizes in bytes, times in milliseconds; -1 is unlimited."""

    # fmt: off
    cleanup_policy: tuple[str, ...] = topic_setting("cleanup.policy", "list", ("delete",),
        "Old segments are deleted by time and size, or compacted to the newest record of each key, or both.",
        "log.cleanup.policy", choices=("delete", "compact"))
    compression_type: str = topic_setting("compression.type", "string", "producer",
        "The codec that batches are stored with; 'producer' keeps what the producer chose.", "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"))
    compression_gzip_level: int = topic_setting("compression.gzip.level", "int", -1,
        "The level of gzip recompression; -1 is the codec's default.", "compression.gzip.level", low=-1, high=9)
    compression_lz4_level: int = topic_setting("compression.lz4.level", "int", 9,
        "The level of lz4 recompression.", "compression.lz4.level", low=1, high=17)
    compression_zstd_level: int = topic_setting("compression.zstd.level", "int", 3,
        "The level of zstd recompression.", "compression.zstd.level", low=-131072, high=22)
    delete_retention_ms: int = topic_setting("delete.retention.ms", "long", DAY_MS,
        "How long a compacted topic keeps tombstones and markers.", "log.cleaner.delete.retention.ms", low=0)
    file_delete_delay_ms: int = topic_setting("file.delete.delay.ms", "long", 60_000,
        "How long a deleted segment's file stays on the disk.", "log.segment.delete.delay.ms", low=0)
    flush_messages: int = topic_setting("flush.messages", "long", LONG_MAX,
        "An fsync after this many records; 1 acknowledges only what is on the device.", "log.flush.interval.messages",
        low=1)
    flush_ms: int = topic_setting("flush.ms", "long", LONG_MAX,
        "An fsync after this long.", "log.flush.interval.ms", low=0)
    follower_replication_throttled_replicas: tuple[str, ...] = topic_setting(
        "follower.replication.throttled.replicas", "list", (),
        "Replicas that keep to follower.replication.throttled.rate while they follow.", pattern=_THROTTLED,
        pattern_text=_THROTTLED_TEXT)
    index_interval_bytes: int = topic_setting("index.interval.bytes", "int", 4096,
        "Bytes between two entries of the offset index.", "log.index.interval.bytes", low=0)
    leader_replication_throttled_replicas: tuple[str, ...] = topic_setting(
        "leader.replication.throttled.replicas", "list", (),
        "Replicas whose leader keeps to leader.replication.throttled.rate.", pattern=_THROTTLED,
        pattern_text=_THROTTLED_TEXT)
    local_retention_bytes: int = topic_setting("local.retention.bytes", "long", -2,
        "Bytes kept on the brokers of a tiered topic; -2 means retention.bytes.", "log.local.retention.bytes", low=-2)
    local_retention_ms: int = topic_setting("local.retention.ms", "long", -2,
        "Milliseconds kept on the brokers of a tiered topic; -2 means retention.ms.", "log.local.retention.ms", low=-2)
    max_compaction_lag_ms: int = topic_setting("max.compaction.lag.ms", "long", LONG_MAX,
        "The longest time that a record stays uncompacted.", "log.cleaner.max.compaction.lag.ms", low=1)
    max_message_bytes: int = topic_setting("max.message.bytes", "int", 1_048_588,
        "The largest batch that is accepted.", "message.max.bytes", low=0)
    message_timestamp_after_max_ms: int = topic_setting("message.timestamp.after.max.ms", "long", HOUR_MS,
        "How far a record's timestamp may lie ahead of the broker's clock.", "log.message.timestamp.after.max.ms",
        low=0)
    message_timestamp_before_max_ms: int = topic_setting("message.timestamp.before.max.ms", "long", LONG_MAX,
        "How far a record's timestamp may lie behind the broker's clock.", "log.message.timestamp.before.max.ms", low=0)
    message_timestamp_type: str = topic_setting("message.timestamp.type", "string", "CreateTime",
        "Whether the client's or the broker's time is kept.", "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"))
    min_cleanable_dirty_ratio: float = topic_setting("min.cleanable.dirty.ratio", "double", 0.5,
        "The share of uncompacted bytes that starts a compaction.", "log.cleaner.min.cleanable.ratio", low=0, high=1)
    min_compaction_lag_ms: int = topic_setting("min.compaction.lag.ms", "long", 0,
        "The shortest time that a record stays uncompacted.", "log.cleaner.min.compaction.lag.ms", low=0)
    min_insync_replicas: int = topic_setting("min.insync.replicas", "int", 1,
        "How many in-sync replicas acks=all needs. The cluster's default is 2 from three brokers on.",
        "min.insync.replicas", low=1)
    preallocate: bool = topic_setting("preallocate", "boolean", False,
        "Without effect: segments grow as they are written.", "log.preallocate", inert=True)
    remote_log_copy_disable: bool = topic_setting("remote.log.copy.disable", "boolean", False,
        "Whether copying segments of a tiered topic is stopped: the tier stays readable, and brokers keep records that "
        "are not in it by retention.ms and retention.bytes.")
    remote_log_delete_on_disable: bool = topic_setting("remote.log.delete.on.disable", "boolean", False,
        "Whether remote.storage.enable may be set to false: the topic's segments in the tier are then deleted, and its "
        "log starts where the brokers' local logs start.")
    remote_storage_enable: bool = topic_setting("remote.storage.enable", "boolean", False,
        "Whether closed segments are copied to the object store. A new topic gets tidelog.tier.enable. Switching it "
        "off requires remote.log.delete.on.disable=true; remote.log.copy.disable keeps the copied segments.")
    retention_bytes: int = topic_setting("retention.bytes", "long", -1,
        "Bytes kept per partition; -1 is unlimited.", "log.retention.bytes", low=-1)
    retention_ms: int = topic_setting("retention.ms", "long", 7 * DAY_MS,
        "Milliseconds that a closed segment is kept; -1 is for ever.", "log.retention.ms", low=-1)
    segment_bytes: int = topic_setting("segment.bytes", "int", GIB,
        "The size at which a segment is closed.", "log.segment.bytes", low=1024)
    segment_index_bytes: int = topic_setting("segment.index.bytes", "int", 10 * MIB,
        "The size of an index at which its segment is closed.", "log.index.size.max.bytes", low=4)
    segment_jitter_ms: int = topic_setting("segment.jitter.ms", "long", 0,
        "Random milliseconds taken off segment.ms, so that segments do not all close at once.", "log.roll.jitter.ms",
        low=0)
    segment_ms: int = topic_setting("segment.ms", "long", 7 * DAY_MS,
        "The age at which a segment is closed.", "log.roll.ms", low=1)
    tidelog_records_check: str = topic_setting("tidelog.records.check", "string", "head",
        "How far the records of a produced batch are checked: head, the first ones, for next to nothing; all, each "
        "record, which takes the leader many times the CPU.", "tidelog.log.records.check", choices=("head", "all"))
    tidelog_tier_generation: int = topic_setting("tidelog.tier.generation", "int", 0,
        "How often tiering was disabled. The controllers count it; users cannot set it.", low=0)
    unclean_leader_election_enable: bool = topic_setting("unclean.leader.election.enable", "boolean", False,
        "Whether a replica that is not in sync may lead, at the cost of acknowledged records.",
        "unclean.leader.election.enable")
    # fmt: on


TOPIC_SETTINGS = Catalogue([TopicSettings])
