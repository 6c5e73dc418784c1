"""Metrics of the tier on a broker: copies, deletions, reads."""

from common.metric_catalogue.metric import Area, counter, gauge, info

COPIES = Area(
    "Tier: copies and deletions",
    "Of the partitions that a broker leads. `tidelog tier status` has the same by partition, with the causes.",
    (
        gauge("tidelog_tier_partitions", "Led partitions that are tiered.", info("how many there are.")),
        gauge(
            "tidelog_tier_unclaimed_partitions",
            "Led tiered partitions whose claim is not answered: nothing of them is copied, deleted or read back.",
            "Above 0 for minutes: `tidelog tier status` names the cause.",
        ),
        gauge(
            "tidelog_tier_copy_lag_bytes",
            "Bytes of closed segments that the tier does not hold yet.",
            "If it grows, the store is slow or refuses: see `tidelog_tier_refused_since_timestamp_seconds`.",
        ),
        gauge(
            "tidelog_tier_copy_lag_seconds",
            "For how long the partition that has waited longest has had a closed segment to copy.",
            "Above an hour: `tidelog tier status` names partitions and causes. Local disks keep what waits.",
        ),
        gauge(
            "tidelog_tier_undecided_bytes",
            "Those bytes that wait for the end of a transaction: the tier has only what is decided.",
            "See `tidelog_open_transaction_age_seconds`.",
        ),
        counter("tidelog_tier_copied_segments_total", "Segments copied.", info("the usual rate.")),
        counter("tidelog_tier_copied_bytes_total", "Bytes of objects written.", info("the usual rate.")),
        counter(
            "tidelog_tier_copy_failures_total",
            "Attempts to copy a segment that failed, at reading it, at uploading it or at writing the tier's state.",
            "A few pass. If it grows steadily, the log names the cause.",
        ),
        gauge(
            "tidelog_tier_refused_since_timestamp_seconds",
            "Since when, in seconds since 1970, the object store has taken nothing; 0 while it does.",
            "Check the store, its credentials and the network to it.",
        ),
        counter("tidelog_tier_deleted_segments_total", "Segments deleted.", info("retention works.")),
        counter("tidelog_tier_deleted_bytes_total", "Bytes of objects deleted.", info("retention works.")),
        counter(
            "tidelog_tier_delete_failures_total",
            "Deletions that failed and were tried again.",
            "If it grows steadily, the store refuses deletions: check the credentials' rights.",
        ),
        counter(
            "tidelog_tier_replicas_started_again_total",
            "Replicas that began once more where they had begun before: their leader's log contradicts the tier.",
            "Run `tidelog tier check`.",
        ),
        counter(
            "tidelog_tier_replicas_started_total",
            "Replicas that began where the tier ends.",
            info("a new replica copies only what is not tiered."),
        ),
        counter(
            "tidelog_tier_proposals_accepted_total",
            "Swaps that jobs proposed and that were made.",
            info("compaction and erasure progress."),
        ),
        counter(
            "tidelog_tier_proposals_refused_total",
            "Proposals that were refused, each with a verdict that says why.",
            "The job's output has the verdict.",
        ),
    ),
)

READS = Area(
    "Tier: reads",
    "Of a broker's clients that read what is no longer on its disk.",
    (
        counter(
            "tidelog_tier_fetched_bytes_total",
            "Bytes of records that clients were given from the tier.",
            info("how much is read back."),
        ),
        counter(
            "tidelog_tier_downloaded_bytes_total",
            "Bytes read from the object store.",
            "Far above what clients were given: the cache is too small (`tidelog.tier.cache.bytes`).",
        ),
        counter("tidelog_tier_downloads_total", "Downloads that succeeded.", info("the usual rate.")),
        counter(
            "tidelog_tier_download_failures_total",
            "Downloads that failed: the store did not answer, or an object is missing or damaged.",
            "If it grows, `tidelog tier status` shows the last one; `tidelog tier check` finds what is missing.",
        ),
        gauge("tidelog_tier_downloads_running", "Downloads under way.", info("at most a setting's worth.")),
        gauge(
            "tidelog_tier_downloads_queued",
            "Downloads that wait for a place.",
            "Above 0 for minutes: more readers than the store's bandwidth or the setting allow.",
        ),
        gauge("tidelog_tier_reads_waiting", "Reads that wait for a download.", "See the one before."),
        gauge("tidelog_tier_cache_bytes", "Local disk that the cache takes.", info("bounded by a setting.")),
        counter(
            "tidelog_tier_cache_evictions_total",
            "Chunks that made room for others.",
            "Thousands a minute with `tidelog_tier_downloaded_bytes_total`: the cache is too small.",
        ),
        gauge("tidelog_tier_cache_open_files", "Files of the cache that are open.", info("bounded.")),
        gauge("tidelog_tier_index_bytes", "Memory of tiered segments' indexes.", info("bounded by a setting.")),
        gauge("tidelog_tier_readers", "Clients that read from the tier lately.", info("who reads old records.")),
    ),
)
