"""Metrics of controllers: the cluster as the metadata has it, the quorum, brokers' health, balance and exports."""

from common.metric_catalogue.metric import BROKER, DIRECTION, Area, Label, counter, gauge, info

CLUSTER = Area(
    "Cluster",
    "Of the whole cluster, as a controller has it in its committed metadata. Each controller shows them; take the "
    "largest, or that of the active one.",
    (
        gauge("tidelog_topics", "Topics of the cluster.", info("how many there are.")),
        gauge("tidelog_cluster_partitions", "Partitions of the cluster.", info("how many there are.")),
        gauge(
            "tidelog_cluster_offline_partitions",
            "Partitions without a leader: they can be neither read nor written.",
            "Bring back a broker that `tidelog topics describe` calls eligible. If their disks are lost, "
            "`tidelog topics elect` and an unclean election: acknowledged records are lost then.",
        ),
        gauge(
            "tidelog_cluster_under_replicated_partitions",
            "Partitions whose ISR lacks a replica.",
            "See `tidelog_under_replicated_partitions`, which says whose.",
        ),
        gauge(
            "tidelog_cluster_reassigning_partitions",
            "Partitions whose replicas are being moved.",
            info("a move under way; `tidelog balance status` shows how far it is."),
        ),
        gauge(
            "tidelog_cluster_misplaced_leaders",
            "Partitions that their preferred replica does not lead.",
            info("leadership returns by itself, every `leader.imbalance.check.interval.seconds`."),
        ),
        gauge("tidelog_brokers", "Registered brokers.", info("how many there are.")),
        gauge(
            "tidelog_brokers_fenced",
            "Registered brokers that are fenced.",
            "Start them, or remove those that are gone for good: `tidelog brokers remove`.",
        ),
        counter(
            "tidelog_broker_silences_total",
            "Brokers fenced for their silence.",
            "Each is a broker that died or hung: read its log.",
        ),
        gauge("tidelog_tenants", "Tenants of the cluster.", info("how many there are.")),
        gauge(
            "tidelog_broker_client_bytes_per_second",
            "Bytes a second that a broker's clients send (in) and are sent (out), as it reported last.",
            info("how the load is spread."),
            BROKER,
            DIRECTION,
        ),
        gauge(
            "tidelog_broker_client_busy_ratio",
            "Share of a broker's event loop that its clients' requests take, as it reported last.",
            info("how the load is spread."),
            BROKER,
        ),
        gauge(
            "tidelog_cluster_load",
            "Load of the most loaded live broker, from 0 to 1; missing while a live broker's is unknown.",
            "Above 0.8 for long: add a broker.",
        ),
        gauge(
            "tidelog_cell_load",
            "Load of a cell: the largest of its brokers' mean load and its shares of replicas and bandwidth.",
            "Above 0.8 for long: move tenants (`tidelog tenants move`), or add a broker to the cell.",
            Label("cell", "the cell's name", 1_000),
        ),
    ),
)

QUORUM = Area(
    "Controllers and their quorum",
    "Of one controller.",
    (
        gauge(
            "tidelog_controller_active",
            "1 on the active controller.",
            "If it is 1 nowhere, a majority of controllers is down or cut off: start them.",
        ),
        gauge("tidelog_quorum_voters", "Voters of the quorum.", info("the divisor of the next one.")),
        gauge(
            "tidelog_quorum_voters_reached",
            "On the active controller: voters that have answered within the last seconds, itself included.",
            "Fewer than all: start or reach the missing controller; one more may be the last.",
        ),
        gauge(
            "tidelog_quorum_term",
            "The consensus term, which is the controller epoch.",
            "If it grows every few minutes, controllers lose each other: network, or a disk that syncs slowly.",
        ),
        counter(
            "tidelog_quorum_canvasses_total",
            "Pre-votes that this voter asked for, having no leader.",
            "See `tidelog_quorum_term`.",
        ),
        counter(
            "tidelog_quorum_candidacies_total",
            "Elections that this voter stood for.",
            "See `tidelog_quorum_term`.",
        ),
        counter("tidelog_quorum_applied_total", "Entries that this voter applied.", info("the rate of changes.")),
        gauge("tidelog_quorum_journal_bytes", "Bytes of this voter's journal.", info("snapshots shorten it.")),
        counter("tidelog_quorum_journal_syncs_total", "Syncs of the journal.", info("one for each batch of changes.")),
        counter("tidelog_quorum_snapshots_total", "Snapshots of the state.", info("they shorten the journal.")),
        gauge(
            "tidelog_metadata_tail_batches",
            "Committed batches kept in memory for brokers to fetch.",
            info("bounded."),
        ),
    ),
)

HEALTH = Area(
    "Health of brokers",
    "See [health](health.md).",
    (
        gauge(
            "tidelog_broker_health",
            "1 for the state that a broker's health is in.",
            "Anything but `healthy`: `tidelog brokers health` says why; docs/health.md says what to do.",
            BROKER,
            Label("state", "see docs/health.md", 10),
        ),
        counter(
            "tidelog_mitigations_total",
            "Brokers that this controller has put aside by itself, by state.",
            "Each is a sick machine: look at it before the next one.",
            Label("state", "see docs/health.md", 10),
        ),
        gauge(
            "tidelog_health_fail_safe",
            "1 on the active controller while it does nothing about a sick broker, because that could do harm.",
            "Decide yourself: `tidelog brokers health` has the reason, docs/health.md the steps.",
        ),
        counter(
            "tidelog_usage_reports_received_total",
            "Requests with brokers' reports of their clients' use, by what became of them.",
            "`absurd`: a broker's clock or memory is broken, restart it.",
            Label("verdict", "one of a fixed list", 10),
        ),
        gauge(
            "tidelog_usage_known",
            "1 on the active controller once every live broker has reported its use, or had the time to.",
            info("0 for seconds after an election."),
        ),
    ),
)

BALANCE = Area(
    "Balance",
    "See [balancing](balancing.md).",
    (
        gauge("tidelog_balance_operations", "The balancer's operations that have not ended.", info("work under way.")),
        gauge("tidelog_balance_moves_running", "Moves that run.", info("work under way.")),
        counter(
            "tidelog_balance_moves_begun_total",
            "Moves that this controller began while it was active.",
            "Thousands a day on a quiet cluster: `tidelog balance status` has the reasons.",
        ),
        counter("tidelog_balance_moves_done_total", "Moves that came to their end.", info("the usual rate.")),
        counter(
            "tidelog_balance_moves_undone_total",
            "Moves that were cancelled, or overtaken by another request.",
            "If most are undone, somebody else reassigns partitions at the same time.",
        ),
        counter(
            "tidelog_balance_bytes_total",
            "Bytes of the replicas that moves were to copy.",
            info("what balancing costs."),
        ),
        counter(
            "tidelog_balance_tenant_moves_total",
            "Tenants whose move off an overloaded cell this controller began while it was active.",
            info("cells relieve each other."),
        ),
        gauge(
            "tidelog_cells_exhausted",
            "Overloaded cells, as the active controller's last look found them, of which no other cell can take a "
            "tenant.",
            "Above 0: add brokers.",
        ),
        gauge(
            "tidelog_balance_uneven_goals",
            "Goals that the active controller's last look found beyond their trigger.",
            "Above 0 for hours: `tidelog balance status` says what hinders it.",
        ),
    ),
)

EXPORTS = Area(
    "Audit and exports",
    "See [audit](audit.md) and [operations](operations.md#the-tier).",
    (
        counter("tidelog_audit_events_total", "Acts that were written to the audit journal.", info("the usual rate.")),
        counter(
            "tidelog_audit_events_shipped_total",
            "Events that __audit has acknowledged.",
            info("it follows the one before."),
        ),
        counter(
            "tidelog_audit_events_lost_total",
            "Events that went because the journal was full.",
            "Any: the audit has a hole. Bring `__audit` back, see `tidelog_audit_ship_failures`.",
        ),
        gauge(
            "tidelog_audit_ship_failures",
            "Failed attempts since events were last shipped.",
            "If it grows, the partition of `__audit` has no leader or too few replicas.",
        ),
        gauge(
            "tidelog_audit_export_trouble_since_timestamp_seconds",
            "Since when, in seconds since 1970, a broker could not export the partitions of `__audit` that it leads; "
            "0 while it can, or need not.",
            "Check the object store.",
        ),
        gauge(
            "tidelog_controller_audit_export_trouble_since_timestamp_seconds",
            "Since when, in seconds since 1970, this controller could not export the acts that the metadata shows; 0 "
            "while it can, or need not.",
            "Check the object store.",
        ),
        gauge(
            "tidelog_controller_export_trouble_since_timestamp_seconds",
            "Since when, in seconds since 1970, the metadata could not be exported; 0 while it can, or need not.",
            "Check the object store: a rebuilt cluster would be as old as the last export.",
        ),
        counter(
            "tidelog_controller_spark_jobs_failed_total",
            "Scheduled Spark jobs that ended with an exit code other than 0, since this controller started.",
            "The controller's log has the job's output.",
        ),
    ),
)
