"""Every topic setting: Kafka's names, types, defaults and ranges (TopicConfig and LogConfig of Apache Kafka 4.1)."""

from common.settings import LONG_MAX, Catalogue, Setting

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
THROTTLED = r"\*|[0-9]+:[0-9]+"
THROTTLED_TEXT = "* for all, or a list of PARTITION:BROKER"


def _topic(name: str, type_name: str, default: object, doc: str, *synonyms: str, **bounds: object) -> Setting:
    return Setting(name, type_name, default, doc, update="cluster-wide", synonyms=synonyms, **bounds)  # type: ignore[arg-type]


TOPIC_SETTINGS = Catalogue(
    [
        _topic(
            "cleanup.policy",
            "list",
            ("delete",),
            "Old segments are deleted by time and size, or compacted to the newest record of each key, or both.",
            "log.cleanup.policy",
            choices=("delete", "compact"),
        ),
        _topic(
            "compression.type",
            "string",
            "producer",
            "The codec that batches are stored with; 'producer' keeps what the producer chose.",
            "compression.type",
            choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        ),
        _topic("compression.gzip.level", "int", -1, "The level of gzip recompression; -1 is the codec's default.",
               "compression.gzip.level", low=-1, high=9),
        _topic("compression.lz4.level", "int", 9, "The level of lz4 recompression.", "compression.lz4.level",
               low=1, high=17),
        _topic("compression.zstd.level", "int", 3, "The level of zstd recompression.", "compression.zstd.level",
               low=-131072, high=22),
        _topic("delete.retention.ms", "long", DAY_MS, "How long a compacted topic keeps tombstones and markers.",
               "log.cleaner.delete.retention.ms", low=0),
        _topic("file.delete.delay.ms", "long", 60_000, "How long a deleted segment's file stays on the disk.",
               "log.segment.delete.delay.ms", low=0),
        _topic("flush.messages", "long", LONG_MAX, "An fsync after this many records; 1 acknowledges only what is on "
               "the device.", "log.flush.interval.messages", low=1),
        _topic("flush.ms", "long", LONG_MAX, "An fsync after this long.", "log.flush.interval.ms", low=0),
        _topic("follower.replication.throttled.replicas", "list", (), "Replicas that keep to "
               "follower.replication.throttled.rate while they follow.", pattern=THROTTLED,
               pattern_text=THROTTLED_TEXT),
        _topic("index.interval.bytes", "int", 4096, "Bytes between two entries of the offset index.",
               "log.index.interval.bytes", low=0),
        _topic("leader.replication.throttled.replicas", "list", (), "Replicas whose leader keeps to "
               "leader.replication.throttled.rate.", pattern=THROTTLED, pattern_text=THROTTLED_TEXT),
        _topic("local.retention.bytes", "long", -2, "Bytes kept on the brokers of a tiered topic; -2 means "
               "retention.bytes.", "log.local.retention.bytes", low=-2),
        _topic("local.retention.ms", "long", -2, "Milliseconds kept on the brokers of a tiered topic; -2 means "
               "retention.ms.", "log.local.retention.ms", low=-2),
        _topic("max.compaction.lag.ms", "long", LONG_MAX, "The longest time that a record stays uncompacted.",
               "log.cleaner.max.compaction.lag.ms", low=1),
        _topic("max.message.bytes", "int", 1_048_588, "The largest batch that is accepted.", "message.max.bytes",
               low=0),
        _topic("message.timestamp.after.max.ms", "long", HOUR_MS, "How far a record's timestamp may lie ahead of the "
               "broker's clock.", "log.message.timestamp.after.max.ms", low=0),
        _topic("message.timestamp.before.max.ms", "long", LONG_MAX, "How far a record's timestamp may lie behind the "
               "broker's clock.", "log.message.timestamp.before.max.ms", low=0),
        _topic("message.timestamp.type", "string", "CreateTime", "Whether the client's or the broker's time is kept.",
               "log.message.timestamp.type", choices=("CreateTime", "LogAppendTime")),
        _topic("min.cleanable.dirty.ratio", "double", 0.5, "The share of uncompacted bytes that starts a compaction.",
               "log.cleaner.min.cleanable.ratio", low=0, high=1),
        _topic("min.compaction.lag.ms", "long", 0, "The shortest time that a record stays uncompacted.",
               "log.cleaner.min.compaction.lag.ms", low=0),
        _topic("min.insync.replicas", "int", 1, "How many in-sync replicas acks=all needs. The cluster's default is 2 "
               "from three brokers on.", "min.insync.replicas", low=1),
        _topic("preallocate", "boolean", False, "Without effect: segments grow as they are written.", "log.preallocate",
               inert=True),
        _topic("remote.log.copy.disable", "boolean", False, "Whether segments of a tiered topic are copied no more: "
               "the tier stays readable, and brokers keep what is not in it by retention.ms and retention.bytes."),
        _topic("remote.storage.enable", "boolean", False, "Whether closed segments are copied to the object "
               "store. A new topic is given tidelog.tier.enable; it cannot be switched off again, copying can: "
               "remote.log.copy.disable."),
        _topic("retention.bytes", "long", -1, "Bytes kept per partition; -1 is without bound.", "log.retention.bytes",
               low=-1),
        _topic("retention.ms", "long", 7 * DAY_MS, "Milliseconds that a closed segment is kept; -1 is for ever.",
               "log.retention.ms", low=-1),
        _topic("segment.bytes", "int", 1 << 30, "The size at which a segment is closed.", "log.segment.bytes",
               low=1024),
        _topic("segment.index.bytes", "int", 10 << 20, "The size of an index at which its segment is closed.",
               "log.index.size.max.bytes", low=4),
        _topic("segment.jitter.ms", "long", 0, "Random milliseconds taken off segment.ms, so that segments do not all "
               "close at once.", "log.roll.jitter.ms", low=0),
        _topic("segment.ms", "long", 7 * DAY_MS, "The age at which a segment is closed.", "log.roll.ms", low=1),
        _topic("tidelog.records.check", "string", "head", "How far a produced batch is looked into: head, its first "
               "records, for next to nothing; all, each record, which takes the leader many times the CPU.",
               "tidelog.log.records.check", choices=("head", "all")),
        _topic("unclean.leader.election.enable", "boolean", False, "Whether a replica that is not in sync may lead, at "
               "the cost of acknowledged records.", "unclean.leader.election.enable"),
    ]
)  # fmt: skip
