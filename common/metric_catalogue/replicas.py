"""Metrics of a broker's partitions: replication, transactions, logs and disks."""

from common.metric_catalogue.metric import Area, counter, gauge, info

PARTITIONS = Area(
    "Partitions and replication",
    "Of one broker. The controller's figures, of the whole cluster, are under [Cluster](#cluster).",
    (
        gauge("tidelog_partitions", "Replicas on this broker.", info("how much it holds.")),
        gauge(
            "tidelog_leader_partitions",
            "Partitions that this broker leads.",
            "0 on a broker that serves for minutes: see `tidelog brokers health`, it may be put aside.",
        ),
        gauge(
            "tidelog_under_replicated_partitions",
            "Led partitions whose ISR lacks a replica, other than those that a reassignment adds.",
            "Find the broker that is missing: `tidelog brokers list`. If none is, a follower is slow: `tidelog brokers "
            "health`.",
        ),
        gauge(
            "tidelog_under_min_isr_partitions",
            "Led partitions whose ISR is below min.insync.replicas.",
            "Producers with acks=all are refused. Bring the missing brokers back at once.",
        ),
        gauge(
            "tidelog_isr_changes_pending",
            "ISR changes not answered yet.",
            "More than a few for seconds: the controller does not answer.",
        ),
        counter(
            "tidelog_isr_shrinks_total",
            "Proposals of this leader to take replicas out of an ISR.",
            "If shrinks and expansions alternate for minutes, a follower is at its limit: `tidelog brokers health`.",
        ),
        counter(
            "tidelog_isr_expansions_total",
            "Proposals of this leader to take a replica into an ISR.",
            "See the one before.",
        ),
        gauge(
            "tidelog_replicas_without_leader",
            "Following replicas without a leader to fetch from.",
            "See `tidelog_cluster_offline_partitions`.",
        ),
        gauge(
            "tidelog_replicas_held_up",
            "Following replicas whose leader refuses their fetches, or sends what cannot be appended.",
            "The follower's log names partition and cause; `docs/operations.md` says what to do.",
        ),
        gauge(
            "tidelog_replicas_without_room",
            "Replicas whose logs could not be made, because the disk is full or no file can be opened.",
            "Free disk space, or raise the limit of open files.",
        ),
        counter(
            "tidelog_replication_received_bytes_total",
            "Bytes of leaders' answers to this broker's fetches.",
            info("how fast it follows."),
        ),
        gauge(
            "tidelog_metadata_offset",
            "The end of the metadata, on a controller of the committed metadata.",
            "A broker that stays behind the active controller: see `tidelog_metadata_heard_seconds`.",
        ),
        gauge(
            "tidelog_metadata_heard_seconds",
            "Seconds since a controller with a known leader last reported the end of the metadata.",
            "Above 5: the quorum has no leader, or this broker does not reach it.",
        ),
    ),
)

TRANSACTIONS = Area(
    "Transactions and producers",
    "See [transactions](transactions.md).",
    (
        gauge(
            "tidelog_open_transaction_partitions",
            "Led partitions in which a transaction is open: readers of committed records, and the tier, stop before "
            "it.",
            info("transactions come and go."),
        ),
        gauge(
            "tidelog_open_transaction_age_seconds",
            "For how long the oldest open transaction has stopped them, in a partition that this broker leads.",
            "Above `transaction.max.timeout.ms` (900 s): it hangs. `tidelog transactions doctor` names it.",
        ),
        gauge(
            "tidelog_producers",
            "Idempotent producers that this broker remembers, over all partitions.",
            "Near `tidelog.producers.max`: see the next one.",
        ),
        counter(
            "tidelog_producers_forgotten_total",
            "Producers that were forgotten because of tidelog.producers.max.",
            "If it grows, clients make new producers for every record, or the limit is too low.",
        ),
    ),
)

LOGS = Area(
    "Logs and disks",
    "Of one broker.",
    (
        gauge("tidelog_disk_size_bytes", "Size of the disk with the logs.", info("the divisor of the next one.")),
        gauge(
            "tidelog_disk_free_bytes",
            "What is free of it.",
            "Below 15 %: shorten retention, tier more, or add a broker. Below `log.dir.free.bytes.min` Produce is "
            "refused.",
        ),
        gauge(
            "tidelog_lacks_room",
            "1 while the disk is too full to append, so that others lead where they have room.",
            "Free disk space now: retention, DeleteRecords, or another disk.",
        ),
        gauge("tidelog_open_files", "Open segment files.", info("a cache of bounded size.")),
        gauge(
            "tidelog_pinned_files",
            "Segment files in replies that were not sent yet.",
            info("slow consumers hold files open."),
        ),
        counter(
            "tidelog_files_opened_total",
            "Segment files opened.",
            "Thousands a second: more files are read than are kept open; raise the limit of open files.",
        ),
        counter("tidelog_log_flushes_total", "Logs brought to the device.", info("the usual rate.")),
        counter(
            "tidelog_disk_slowdowns_total",
            "How often the disk became slow.",
            "If it grows, look at the device: its latency, its queue, its neighbours.",
        ),
        gauge(
            "tidelog_unwritten_bytes",
            "Bytes that wait for a slow disk.",
            "If it stays above 0, the disk does not keep up with what is produced.",
        ),
        gauge(
            "tidelog_uncleanable_partitions",
            "Logs that are not compacted any more because they are damaged.",
            "The broker's log names them. Move the replica away and back, so that it is copied again.",
        ),
        gauge(
            "tidelog_stray_logs",
            "Directories of logs that were set aside, as they are no known replica's. They never go by themselves.",
            "Remove them when you are sure that no records are missing.",
        ),
    ),
)
