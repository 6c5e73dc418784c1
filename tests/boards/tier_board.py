"""The board about the tier: whether segments get there, whether they come back, and what the store does."""

from __future__ import annotations

from tests.boards.panels import BY_NODE, RATE, Board, Query, Row, number, panel

SUMMARY = Row(
    "Now",
    (
        number("Tiered partitions", "That brokers lead.", "sum(tidelog_tier_partitions)"),
        number("Waiting to be copied", "Closed segments.", "sum(tidelog_tier_copy_lag_bytes)", "bytes"),
        number("Longest wait", "Of a closed segment.", "max(tidelog_tier_copy_lag_seconds)", "s", red=900),
        number(
            "Brokers that the store refuses",
            "It takes nothing from them.",
            "count(tidelog_tier_refused_since_timestamp_seconds > 0) or vector(0)",
            red=1,
        ),
        number("Unclaimed partitions", "Nothing of them is copied.", "sum(tidelog_tier_unclaimed_partitions)", red=1),
        number(
            "Exports that fail",
            "Of audit and metadata.",
            'count({__name__=~"tidelog_.*export_trouble_since_timestamp_seconds"} > 0) or vector(0)',
            red=1,
        ),
    ),
)

COPIES = Row(
    "Copies",
    (
        panel("Bytes waiting", "By broker.", "bytes", Query("tidelog_tier_copy_lag_bytes", BY_NODE)),
        panel("Longest wait", "By broker.", "s", Query("tidelog_tier_copy_lag_seconds", BY_NODE)),
        panel(
            "Waiting for a transaction",
            "Bytes that cannot be copied before it ends.",
            "bytes",
            Query("tidelog_tier_undecided_bytes", BY_NODE),
        ),
        panel("Copied", "Bytes a second.", "Bps", Query(f"rate(tidelog_tier_copied_bytes_total{RATE})", BY_NODE)),
        panel(
            "Attempts that failed",
            "Copies and deletions in a second; each is tried again.",
            "none",
            Query(f"rate(tidelog_tier_copy_failures_total{RATE})", "copies: {{instance}}"),
            Query(f"rate(tidelog_tier_delete_failures_total{RATE})", "deletions: {{instance}}"),
        ),
        panel(
            "Deleted by retention",
            "Bytes a second.",
            "Bps",
            Query(f"rate(tidelog_tier_deleted_bytes_total{RATE})", BY_NODE),
        ),
        panel(
            "Freshness objective",
            "Share of three days in which something waited for longer than 15 minutes; 1 % may be.",
            "percentunit",
            Query('tidelog:slo_errors:ratio_rate3d{slo="tier_freshness"}', "of three days"),
        ),
        panel(
            "Swaps of jobs",
            "Compaction and erasure: accepted and refused in a second.",
            "none",
            Query(f"sum(rate(tidelog_tier_proposals_accepted_total{RATE}))", "accepted"),
            Query(f"sum(rate(tidelog_tier_proposals_refused_total{RATE}))", "refused"),
        ),
    ),
)

READS = Row(
    "Reads",
    (
        panel(
            "Bytes",
            "Given to clients, and read from the store for that.",
            "Bps",
            Query(f"sum(rate(tidelog_tier_fetched_bytes_total{RATE}))", "to clients"),
            Query(f"sum(rate(tidelog_tier_downloaded_bytes_total{RATE}))", "from the store"),
        ),
        panel(
            "Downloads",
            "That run, and that wait for a place.",
            "none",
            Query("sum(tidelog_tier_downloads_running)", "running"),
            Query("sum(tidelog_tier_downloads_queued)", "queued"),
            Query("sum(tidelog_tier_reads_waiting)", "reads that wait"),
        ),
        panel(
            "Downloads that failed",
            "In a second.",
            "none",
            Query(f"rate(tidelog_tier_download_failures_total{RATE})", BY_NODE),
        ),
        panel("Cache", "Local disk that it takes.", "bytes", Query("tidelog_tier_cache_bytes", BY_NODE)),
        panel(
            "Chunks that made room",
            "In a second; many with many downloads: the cache is too small.",
            "none",
            Query(f"rate(tidelog_tier_cache_evictions_total{RATE})", BY_NODE),
        ),
        panel("Readers", "Clients that read from the tier lately.", "none", Query("tidelog_tier_readers", BY_NODE)),
    ),
)

TIER_BOARD = Board(
    "tidelog-tier",
    "Tidelog: tier",
    "Whether segments get to the object store and back. `tidelog tier status` has the same by partition.",
    (SUMMARY, COPIES, READS),
)
