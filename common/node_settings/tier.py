"""The tier: its object store, and the brokers' writes and reads."""

from dataclasses import dataclass

from common.settings import CLUSTER_WIDE, DAY_MS, GIB, HOUR_MS, KIB, MIB, setting


@dataclass(frozen=True, slots=True)
class TierSettings:
    """The object store and the work on it."""

    # fmt: off
    uri: str = setting("tidelog.tier.uri", "string", "",
        "The object store that holds the tier: s3://bucket/prefix?endpoint=…&region=… or file:///directory, the same "
        "on every node; empty means none. `tidelog up` sets a directory.")
    enable: bool = setting("tidelog.tier.enable", "boolean", False,
        "Whether new topics are tiered (remote.storage.enable) unless they say otherwise.", update=CLUSTER_WIDE)
    roll_ms: int = setting("tidelog.tier.roll.ms", "long", 600_000,
        "The age at which a segment of a tiered topic is closed, so that it can be copied.", 1, update=CLUSTER_WIDE)
    interval_ms: int = setting("tidelog.tier.interval.ms", "long", 1_000,
        "How often led partitions are checked for segments to copy.", 10)
    copies_max: int = setting("tidelog.tier.copy.threads", "int", 4,
        "Segments that one broker copies at a time.", 1, 1_000)
    copy_bytes_per_second: int = setting("tidelog.tier.copy.bytes.per.second", "long", 0,
        "Bytes per second that one broker copies; 0 is unlimited.", 0)
    delete_delay_ms: int = setting("tidelog.tier.delete.delay.ms", "long", DAY_MS,
        "How long objects stay in the store after retention, DeleteRecords or their topic's deletion removed them.",
        0)
    manifest_keep_ms: int = setting("tidelog.tier.manifest.keep.ms", "long", HOUR_MS,
        "How long superseded versions of a manifest stay, for readers that still use them.", 0)
    sweep_interval_ms: int = setting("tidelog.tier.sweep.interval.ms", "long", HOUR_MS,
        "How often the store is searched for unreferenced objects.", 1_000)
    sweep_age_ms: int = setting("tidelog.tier.sweep.age.ms", "long", DAY_MS,
        "The age at which an unreferenced object or a proposal without a decision is removed; longer than any copy or "
        "Spark job takes.", 1_000)
    proposals_interval_ms: int = setting("tidelog.tier.proposals.interval.ms", "long", 5_000,
        "How often the store is checked for proposals of Spark jobs to replace segments.", 10)
    erase_grace_ms: int = setting("tidelog.tier.erase.grace.ms", "long", 60_000,
        "How long objects with erased records stay, for reads under way.", 0)
    export_interval_ms: int = setting("tidelog.tier.export.interval.ms", "long", 60_000,
        "How often changed metadata and committed offsets are written to the store, for a rebuild from it.",
        1_000)
    spark_schedule: str = setting("tidelog.spark.schedule", "string", "",
        "Spark jobs that the active controller starts, like 'every 6h: compact --topic planes; 30 3 * * 1-5: verify': "
        "an interval or the five fields of cron in UTC, then the job as `tidelog spark` takes it; empty means none.")
    # fmt: on


@dataclass(frozen=True, slots=True)
class TierStateSettings:
    """The internal topic of the tier's state."""

    # fmt: off
    partitions: int = setting("tidelog.tier.state.partitions", "int", 50, "Partitions of __tier_state.", 1)
    replication_factor: int = setting("tidelog.tier.state.replication.factor", "int", 3,
        "Replicas of __tier_state, at most one per broker.", 1, 32767)
    segment_bytes: int = setting("tidelog.tier.state.segment.bytes", "int", 100 * MIB,
        "Segment size of __tier_state.", 1024)
    # fmt: on


@dataclass(frozen=True, slots=True)
class TierReads:
    """Limits on reading from the tier."""

    # fmt: off
    remote_fetch_max_wait_ms: int = setting("remote.fetch.max.wait.ms", "int", 500,
        "How long a fetch waits for a download from the tier; the download goes on afterwards.", 1,
        update=CLUSTER_WIDE)
    remote_list_offsets_request_timeout_ms: int = setting("remote.list.offsets.request.timeout.ms", "long", 30_000,
        "How long a look-up by time may search the tier.", 1, update=CLUSTER_WIDE)
    tier_read_concurrency: int = setting("tidelog.tier.read.concurrency", "int", 8,
        "Concurrent downloads from the tier.", 1, 1_000)
    tier_read_memory_bytes: int = setting("tidelog.tier.read.memory.bytes", "long", 64 * MIB,
        "Bytes of downloads from the tier that are under way.", 1 * MIB)
    tier_chunk_bytes: int = setting("tidelog.tier.chunk.bytes", "int", 4 * MIB,
        "Bytes of one download from the tier.", 64 * KIB, 256 * MIB)
    tier_prefetch_bytes: int = setting("tidelog.tier.prefetch.bytes", "long", 16 * MIB,
        "Bytes fetched from the tier ahead of a sequential reader.", 0)
    tier_index_bytes: int = setting("tidelog.tier.index.bytes", "long", 32 * MIB,
        "Memory for indexes of tiered segments.", 1 * MIB)
    tier_cache_bytes: int = setting("tidelog.tier.cache.bytes", "long", GIB,
        "Local disk for the cache of the tier, which is emptied when the broker starts.", 16 * MIB)
    tier_cache_open_files_max: int = setting("tidelog.tier.cache.open.files.max", "int", 128,
        "Files of that cache kept open.", 4)
    # fmt: on
