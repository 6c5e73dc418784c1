"""Every setting of a node: Apache Kafka's names where Kafka has the setting (4.1), else `tidelog.…`.

One catalogue serves brokers and controllers, as one `server.properties` does for Kafka: each node reads what
concerns it. The topic defaults among them (`log.…`, `min.insync.replicas`, …) are the synonyms that
`common.topic_settings` names.
"""

from common.inert_settings import INERT_SETTINGS
from common.proxy_settings import PROXY_SETTINGS
from common.security_settings import SECURITY_SETTINGS
from common.settings import INT_MAX, LONG_MAX, Catalogue, Setting
from common.tenant_settings import ACCESS_SETTINGS, TENANT_SETTINGS
from common.tls_settings import ACCEPT_SETTINGS, TLS_SETTINGS

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
DYNAMIC = "cluster-wide"


def _s(name: str, type_name: str, default: object, doc: str, low: float | None = None, high: float | None = None,
       update: str = "read-only", choices: tuple[str, ...] = ()) -> Setting:  # fmt: skip
    return Setting(name, type_name, default, doc, low, high, choices, update)


_NODE = [
    _s("node.id", "int", -1, "The id of this node.", -1),
    _s("process.roles", "list", (), "What this node is: broker, controller or proxy.",
       choices=("broker", "controller", "proxy")),
    _s("log.dirs", "string", "tidelog-data", "The directory of this node's data; one directory."),
    _s("broker.rack", "string", "", "The rack (availability zone) of this broker.", update="read-only"),
    _s("listeners", "list", (), "NAME://host:port for each listener."),
    _s("advertised.listeners", "list", (), "What clients are told to connect to; the listeners when empty."),
    _s("inter.broker.listener.name", "string", "INTERNAL", "The listener that nodes use among themselves."),
    _s("tidelog.tenant.listeners", "list", (), "The listeners whose clients are tenants; the others but the internal "
       "one are for operators. They are SASL_SSL and stand behind proxies."),
    _s("controller.quorum.voters", "list", (), "id@host:port of every voter of the metadata quorum, the same on each "
       "node; the port of its internal listener."),
    _s("tidelog.quorum.voters", "list", (), "id@host:port of every voter's consensus port, the same on each."),
    _s("tidelog.cluster.secret.file", "string", "", "The file with the secret by which nodes know each other."),
    _s("tidelog.internal.allow.plaintext", "boolean", False, "Says that the network between the nodes is private, so "
       "that the nodes' listeners may leave loopback without TLS."),
    _s("tidelog.metrics.listener", "string", "127.0.0.1:0", "host:port of /metrics, /healthz and /readyz."),
    _s("tidelog.log.level", "string", "info", "The least level that is logged.",
       choices=("debug", "info", "warning", "error")),
    _s("tidelog.controllers.replace.voter", "boolean", False, "Lets a controller with an empty directory join although "
       "the other voters hold state; they must all be healthy."),
]  # fmt: skip

_CONNECTIONS = [
    _s("socket.request.max.bytes", "int", 100 * MIB, "The longest request frame.", 1024),
    _s("connections.max.idle.ms", "long", 600_000, "How long a silent connection is kept.", 0),
    _s("queued.max.request.bytes", "long", 256 * MIB, "Bytes of requests in work, over all connections.", 1 * MIB),
    _s("tidelog.connection.request.bytes.max", "long", 128 * MIB, "Request bytes in work on one connection.", 1 * MIB),
    _s("tidelog.connection.requests.max", "int", 128, "Requests in work on one connection.", 1, 100_000),
    _s("tidelog.connection.reply.bytes.max", "long", 64 * MIB, "Unsent reply bytes of one connection at which no more "
       "of its requests are read.", 64 * KIB),
    _s("tidelog.answer.bytes.max", "long", 128 * MIB, "The longest answer, Fetch aside; a request with a longer one "
       "closes its connection.", 64 * KIB),
    _s("tidelog.metadata.cache.bytes.max", "long", 64 * MIB, "Written answers to Metadata that are kept for others who "
       "ask the same.", 0),
    _s("tidelog.reply.bytes.max", "long", 512 * MIB, "Unsent reply bytes over all connections.", 1 * MIB),
    _s("tidelog.connection.stall.ms", "long", 30_000, "How long a reader that owes its replies may take nothing before "
       "it is closed.", 100),
    _s("tidelog.peer.log.lines.max", "int", 10, "Lines in a minute about connections from one address that were closed "
       "because they broke the protocol; more are counted.", 0),
    _s("request.timeout.ms", "int", 30_000, "How long a node waits for another's answer.", 1),
]  # fmt: skip

_TOPICS = [
    _s("auto.create.topics.enable", "boolean", True, "Whether asking for an unknown topic creates it."),
    _s("num.partitions", "int", 1, "Partitions of a topic that does not say.", 1),
    _s("default.replication.factor", "int", 1, "Replicas of a topic that does not say; `tidelog up` sets min(3, "
       "brokers).", 1, 32767),
    _s("min.insync.replicas", "int", 1, "How many in-sync replicas acks=all needs; `tidelog up` sets 2 from three "
       "brokers on.", 1, update=DYNAMIC),
    _s("unclean.leader.election.enable", "boolean", False, "Whether a replica that is not in sync may lead.",
       update=DYNAMIC),
    _s("delete.topic.enable", "boolean", True, "Whether topics can be deleted."),
    _s("message.max.bytes", "int", 1_048_588, "The largest batch that is accepted.", 0, update=DYNAMIC),
    _s("compression.type", "string", "producer", "The codec that batches are stored with.", update=DYNAMIC,
       choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")),
    _s("compression.gzip.level", "int", -1, "The level of gzip recompression.", -1, 9, DYNAMIC),
    _s("compression.lz4.level", "int", 9, "The level of lz4 recompression.", 1, 17, DYNAMIC),
    _s("compression.zstd.level", "int", 3, "The level of zstd recompression.", -131072, 22, DYNAMIC),
    _s("tidelog.inflated.bytes.max", "int", 64 * MIB, "How far a compressed batch may inflate where the broker has to "
       "look into it.", 1 * MIB),
]  # fmt: skip

_LOG = [
    _s("log.segment.bytes", "int", GIB, "The size at which a segment is closed.", 1024, update=DYNAMIC),
    _s("log.roll.ms", "long", 7 * DAY_MS, "The age at which a segment is closed.", 1, update=DYNAMIC),
    _s("log.roll.jitter.ms", "long", 0, "Random milliseconds taken off log.roll.ms.", 0, update=DYNAMIC),
    _s("log.retention.ms", "long", 7 * DAY_MS, "Milliseconds that a closed segment is kept; -1 is for ever.", -1,
       update=DYNAMIC),
    _s("log.retention.minutes", "int", -1, "As log.retention.ms, in minutes; where that is not set. -1 is unset.", -1),
    _s("log.retention.hours", "int", -1, "As log.retention.ms, in hours; where neither other is. -1 is unset.", -1),
    _s("log.retention.bytes", "long", -1, "Bytes kept per partition; -1 is without bound.", -1, update=DYNAMIC),
    _s("log.retention.check.interval.ms", "long", 300_000, "How often retention is looked at.", 1),
    _s("log.cleanup.policy", "list", ("delete",), "Delete, compact, or both.", update=DYNAMIC,
       choices=("delete", "compact")),
    _s("log.index.interval.bytes", "int", 4096, "Bytes between two entries of the offset index.", 0, update=DYNAMIC),
    _s("log.index.size.max.bytes", "int", 10 * MIB, "The size of an index at which its segment is closed.", 4,
       update=DYNAMIC),
    _s("log.segment.delete.delay.ms", "long", 60_000, "How long a deleted segment's file stays.", 0, update=DYNAMIC),
    _s("log.flush.interval.messages", "long", LONG_MAX, "An fsync after this many records.", 1, update=DYNAMIC),
    _s("log.flush.interval.ms", "long", LONG_MAX, "An fsync after this long.", 0, update=DYNAMIC),
    _s("log.flush.offset.checkpoint.interval.ms", "int", 60_000, "How often recovery points are written.", 1),
    _s("log.message.timestamp.type", "string", "CreateTime", "Whose time is kept.", update=DYNAMIC,
       choices=("CreateTime", "LogAppendTime")),
    _s("log.message.timestamp.before.max.ms", "long", LONG_MAX, "How far a timestamp may lie behind.", 0,
       update=DYNAMIC),
    _s("log.message.timestamp.after.max.ms", "long", HOUR_MS, "How far a timestamp may lie ahead.", 0, update=DYNAMIC),
    _s("log.local.retention.bytes", "long", -2, "Bytes kept on the brokers of a tiered topic.", -2, update=DYNAMIC),
    _s("log.local.retention.ms", "long", -2, "Milliseconds kept on the brokers of a tiered topic.", -2, update=DYNAMIC),
    _s("log.cleaner.enable", "boolean", True, "Whether compacted topics are compacted."),
    _s("log.cleaner.backoff.ms", "long", 15_000, "How often the cleaner looks for work.", 1, update=DYNAMIC),
    _s("log.cleaner.dedupe.buffer.size", "long", 128 * MIB, "Memory of the cleaner's offset map.", 64 * KIB,
       update=DYNAMIC),
    _s("log.cleaner.io.max.bytes.per.second", "double", 1.0e12, "How fast the cleaner reads and writes.", 1,
       update=DYNAMIC),
    _s("log.cleaner.delete.retention.ms", "long", DAY_MS, "How long tombstones stay.", 0, update=DYNAMIC),
    _s("log.cleaner.min.cleanable.ratio", "double", 0.5, "The dirty share that starts a compaction.", 0, 1, DYNAMIC),
    _s("log.cleaner.min.compaction.lag.ms", "long", 0, "The shortest time a record stays uncompacted.", 0,
       update=DYNAMIC),
    _s("log.cleaner.max.compaction.lag.ms", "long", LONG_MAX, "The longest time a record stays uncompacted.", 1,
       update=DYNAMIC),
    _s("tidelog.log.records.check", "string", "head", "How far a produced batch is looked into: its first records "
       "(head) or each of them (all).", update=DYNAMIC, choices=("head", "all")),
    _s("log.dir.free.bytes.min", "long", 256 * MIB, "Free bytes of the disk below which Produce is refused; below "
       "twice as many it is throttled.", 0),
    _s("num.recovery.threads.per.data.dir", "int", 2, "Threads that recover logs after an unclean stop; a change "
       "counts from the next start.", 1, 64, update=DYNAMIC),
    _s("tidelog.log.open.files.max", "int", 2_000, "Segment and index files kept open.", 16),
    _s("tidelog.log.unwritten.bytes.max", "long", 64 * MIB, "Bytes that wait for a slow disk before appends are "
       "refused.", 1 * MIB),
    _s("tidelog.log.slow.write.ms", "int", 50, "A write longer than this sends the next ones to a thread.", 1),
    _s("producer.id.expiration.ms", "int", DAY_MS, "How long an idle producer's sequence state is kept.", 1,
       update=DYNAMIC),
    _s("tidelog.producers.per.partition.max", "int", 100_000, "Producers whose state one partition keeps.", 10),
    _s("tidelog.producers.max", "int", 1_000_000, "Producers whose state this broker keeps, over all partitions; "
       "beyond it the one idle for longest is forgotten. It takes 300 to 700 bytes each.", 10),
]  # fmt: skip

_REPLICATION = [
    _s("replica.lag.time.max.ms", "long", 30_000, "How long a follower may stay behind before it leaves the ISR.", 1),
    _s("replica.fetch.max.bytes", "int", MIB, "Bytes of one partition in a follower's fetch.", 0),
    _s("replica.fetch.min.bytes", "int", 1, "Bytes that a follower's fetch waits for.", 1),
    _s("replica.fetch.wait.max.ms", "int", 500, "How long a follower's fetch waits; the same on all brokers. "
       "Coordinators show nothing once a follower has been silent for twice as long, at least 1 s.", 1, 30_000),
    _s("replica.fetch.response.max.bytes", "int", 10 * MIB, "Bytes of a follower's fetch.", 0),
    _s("replica.fetch.backoff.ms", "int", 200, "Pause after a failed fetch.", 0),
    _s("replica.high.watermark.checkpoint.interval.ms", "long", 5_000, "How often high watermarks are written.", 1),
    _s("replica.selector.class", "string", "org.apache.kafka.common.replica.RackAwareReplicaSelector",
       "How a consumer's replica is chosen; an empty value always answers the leader.",
       choices=("", "org.apache.kafka.common.replica.RackAwareReplicaSelector",
                "org.apache.kafka.common.replica.LeaderSelector")),
    _s("fetch.max.bytes", "int", 55 * MIB, "Bytes of one consumer fetch.", 1024),
    _s("max.incremental.fetch.session.cache.slots", "int", 1_000, "Fetch sessions of consumers.", 0),
    _s("leader.replication.throttled.rate", "long", LONG_MAX, "Bytes a second that this broker sends to the throttled "
       "replicas that are not in sync.", 0, update=DYNAMIC),
    _s("follower.replication.throttled.rate", "long", LONG_MAX, "Bytes a second that this broker fetches for its "
       "throttled replicas that are not in sync.", 0, update=DYNAMIC),
    _s("auto.leader.rebalance.enable", "boolean", True, "Whether leadership returns to the preferred replica."),
    _s("leader.imbalance.check.interval.seconds", "long", 300, "How often preferred leaders are looked at.", 1),
    _s("controlled.shutdown.enable", "boolean", True, "Whether leadership moves before a broker stops."),
    _s("tidelog.broker.cordoned", "boolean", False, "Whether new replicas stay away from this broker; `tidelog brokers "
       "drain` sets it.", update="per-broker"),
    _s("tidelog.controlled.shutdown.timeout.ms", "int", 20_000, "How long a stop waits for leadership to move.", 1),
]  # fmt: skip

_CONTROLLER = [
    _s("broker.session.timeout.ms", "int", 3_000, "Silence after which a broker is fenced.", 100),
    _s("broker.heartbeat.interval.ms", "int", 500, "How often a broker is heard.", 10),
    _s("tidelog.broker.suspicion.ms", "int", 300, "How long a broker whose heartbeat connection closed has to be heard "
       "again before it is fenced.", 10),
    _s("controller.quorum.election.timeout.ms", "int", 1_000, "The shortest silence of the leader after which a voter "
       "asks the others whether it should be replaced, and for how long after its last word a voter refuses to.", 50),
    _s("controller.quorum.fetch.timeout.ms", "int", 2_000, "The longest such silence, drawn by chance between the two; "
       "and after so long without the answers of a majority a leader resigns.", 50),
    _s("metadata.log.max.record.bytes.between.snapshots", "long", 20 * MIB, "Bytes of metadata between snapshots; a "
       "controller has them in memory.", 16 * MIB),
    _s("tidelog.metadata.tail.bytes.max", "long", 32 * MIB, "Bytes of committed metadata that a controller keeps in "
       "memory for brokers to follow; who is further behind gets a snapshot.", 1 * MIB),
    _s("tidelog.metadata.tail.batches.max", "int", 20_000, "The same, in batches.", 100),
    _s("tidelog.metadata.rebuild.file", "string", "", "What `tidelog tier rebuild` wrote: the metadata with which "
       "controllers begin that have none. The same file on each."),
]  # fmt: skip

_GROUPS = [
    _s("group.min.session.timeout.ms", "int", 6_000, "The shortest session timeout of a member.", 1),
    _s("group.max.session.timeout.ms", "int", 1_800_000, "The longest session timeout of a member.", 1),
    _s("group.initial.rebalance.delay.ms", "int", 3_000, "How long an empty group waits for further members.", 0),
    _s("group.max.size", "int", INT_MAX, "Members of one group.", 1),
    _s("offsets.topic.num.partitions", "int", 50, "Partitions of __consumer_offsets.", 1),
    _s("offsets.topic.replication.factor", "int", 3, "Replicas of __consumer_offsets, at most the brokers there are; "
       "controllers add what is missing when more come, and need the same value.", 1, 32767),
    _s("offsets.topic.segment.bytes", "int", 100 * MIB, "Segment size of __consumer_offsets.", 1024),
    _s("offsets.retention.minutes", "int", 10_080, "How long offsets of an empty group are kept.", 1),
    _s("offsets.retention.check.interval.ms", "long", 600_000, "How often expired offsets are looked for.", 1),
    _s("offset.metadata.max.bytes", "int", 4_096, "Bytes of metadata beside a committed offset.", 0),
    _s("tidelog.coordinator.standby.bytes.max", "long", 256 * MIB, "Memory for the committed offsets of partitions "
       "that others lead, so that this broker serves at once when it is elected. What does not fit is loaded then.", 0),
    _s("offsets.commit.timeout.ms", "int", 5_000, "How long a commit waits for its replicas.", 1),
]  # fmt: skip

_TIER = [
    _s("tidelog.tier.uri", "string", "", "The object store that holds the tier: s3://bucket/prefix?endpoint=…&region=… "
       "or file:///directory, the same on every node; empty means none. `tidelog up` sets a directory."),
    _s("tidelog.tier.enable", "boolean", False, "Whether new topics are tiered (remote.storage.enable) unless they say "
       "otherwise.", update=DYNAMIC),
    _s("tidelog.tier.roll.ms", "long", 600_000, "The age at which a segment of a tiered topic is closed, so that it "
       "can be copied.", 1, update=DYNAMIC),
    _s("tidelog.tier.interval.ms", "long", 1_000, "How often led partitions are looked at for segments to copy.", 10),
    _s("tidelog.tier.copy.threads", "int", 4, "Segments that one broker copies at a time.", 1, 1_000),
    _s("tidelog.tier.copy.bytes.per.second", "long", 0, "How fast one broker copies; 0 is without limit.", 0),
    _s("tidelog.tier.delete.delay.ms", "long", DAY_MS, "How long objects stay in the store after retention, "
       "DeleteRecords or the deletion of their topic ended them.", 0),
    _s("tidelog.tier.manifest.keep.ms", "long", HOUR_MS, "How long superseded versions of a manifest stay, for readers "
       "that have begun with them.", 0),
    _s("tidelog.tier.sweep.interval.ms", "long", HOUR_MS, "How often the store is looked through for objects that "
       "nothing names.", 1_000),
    _s("tidelog.tier.sweep.age.ms", "long", DAY_MS, "How old an object that nothing names has to be before it is "
       "removed, and a proposal without a verdict: longer than "
       "any copy and any Spark job takes.", 1_000),
    _s("tidelog.tier.proposals.interval.ms", "long", 5_000, "How often the store is asked for what Spark jobs propose: "
       "segments in the place of others.", 10),
    _s("tidelog.tier.erase.grace.ms", "long", 60_000, "How long objects stay whose records were erased by their keys, "
       "for reads under way.", 0),
    _s("tidelog.tier.export.interval.ms", "long", 60_000, "How often metadata and committed offsets that have changed "
       "are written to the store, for a rebuild from it.", 1_000),
    _s("tidelog.spark.schedule", "string", "", "Spark jobs that the active controller starts, like 'every 6h: compact "
       "--topic planes; 30 3 * * 1-5: verify': an interval or the five fields of cron in UTC, then the job as `tidelog "
       "spark` takes it; empty means none."),
]  # fmt: skip

_TIER_STATE = [
    _s("tidelog.tier.state.partitions", "int", 50, "Partitions of __tier_state.", 1),
    _s("tidelog.tier.state.replication.factor", "int", 3, "Replicas of __tier_state, at most the brokers there are.",
       1, 32767),
    _s("tidelog.tier.state.segment.bytes", "int", 100 * MIB, "Segment size of __tier_state.", 1024),
]  # fmt: skip

_AUDIT = [
    _s("tidelog.audit.journal.max.bytes", "long", 64 * MIB, "What a broker's audit journal may hold; when the cluster "
       "takes nothing for so long that it is full, the oldest events go, and an event says how many.", 1 * MIB),
    _s("tidelog.audit.topic.num.partitions", "int", 4, "Partitions of __audit.", 1),
    _s("tidelog.audit.topic.replication.factor", "int", 3, "Replicas of __audit, at most the brokers there are.",
       1, 32767),
    _s("tidelog.audit.topic.segment.bytes", "int", 100 * MIB, "Segment size of __audit.", 1024),
    _s("tidelog.audit.topic.retention.ms", "long", 7 * DAY_MS, "How long events stay in __audit; -1 keeps them.", -1),
    _s("tidelog.audit.export.retention.ms", "long", 90 * DAY_MS, "How long exported events stay in the object store; "
       "-1 keeps them.", -1),
]  # fmt: skip

_TIER_READS = [
    _s("remote.fetch.max.wait.ms", "int", 500, "How long a fetch waits for what has to be downloaded from the tier; "
       "the download goes on.", 1, update=DYNAMIC),
    _s("remote.list.offsets.request.timeout.ms", "long", 30_000, "How long a look-up by time may search the tier.", 1,
       update=DYNAMIC),
    _s("tidelog.tier.read.concurrency", "int", 8, "Downloads from the tier at one time.", 1, 1_000),
    _s("tidelog.tier.read.memory.bytes", "long", 64 * MIB, "Bytes of downloads from the tier that are under way.",
       1 * MIB),
    _s("tidelog.tier.chunk.bytes", "int", 4 * MIB, "What is downloaded from the tier at once.", 64 * KIB, 256 * MIB),
    _s("tidelog.tier.prefetch.bytes", "long", 16 * MIB, "What is fetched from the tier ahead of a reader that reads in "
       "sequence.", 0),
    _s("tidelog.tier.index.bytes", "long", 32 * MIB, "Memory for indexes of tiered segments.", 1 * MIB),
    _s("tidelog.tier.cache.bytes", "long", GIB, "Local disk for what is read from the tier; emptied when the broker "
       "starts.", 16 * MIB),
    _s("tidelog.tier.cache.open.files.max", "int", 128, "Files of that cache kept open.", 4),
]  # fmt: skip

NODE_SETTINGS = Catalogue(
    [
        *_NODE,
        *TLS_SETTINGS,
        *ACCEPT_SETTINGS,
        *INERT_SETTINGS,
        *SECURITY_SETTINGS,
        *_CONNECTIONS,
        *_TOPICS,
        *_LOG,
        *_REPLICATION,
        *_CONTROLLER,
        *_GROUPS,
        *_TIER,
        *_TIER_STATE,
        *_AUDIT,
        *_TIER_READS,
        *ACCESS_SETTINGS,
        *TENANT_SETTINGS,
        *PROXY_SETTINGS,
    ]
)
