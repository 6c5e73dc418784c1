"""The operator's board: what is wrong now, then why."""

from __future__ import annotations

from tests.boards.panels import BY_NODE, RATE, Board, Query, Row, number, panel

WRONG = Row(
    "What is wrong now",
    (
        number(
            "Alarms",
            "Those that are raised now. docs/monitoring.md says what to do about each.",
            'count(ALERTS{alertstate="firing", alertname=~"Tidelog.*"}) or vector(0)',
            red=1,
        ),
        number("Nodes that do not answer", "TidelogNodeDown.", 'count(up{job="tidelog"} == 0) or vector(0)', red=1),
        number("Offline partitions", "Without a leader.", "max(tidelog_cluster_offline_partitions)", red=1),
        number(
            "Partitions that refuse acks=all",
            "Their ISR is below min.insync.replicas.",
            "sum(tidelog_under_min_isr_partitions)",
            red=1,
        ),
        number(
            "Under-replicated partitions",
            "Their ISR lacks a replica.",
            "sum(tidelog_under_replicated_partitions)",
            red=1,
        ),
        number(
            "Active controllers",
            "One; more for a moment while another takes over.",
            "sum(tidelog_controller_active)",
        ),
    ),
)

OBJECTIVES = Row(
    "Objectives",
    (
        panel(
            "Error budget that is left, of three days",
            "1 is all of it; below 0 the objective was missed.",
            "percentunit",
            Query("1 - tidelog:slo_errors:ratio_rate3d / on (slo) tidelog:slo_budget:ratio", "{{slo}}"),
        ),
        panel(
            "How fast budgets burn, over an hour",
            "At 1 a budget lasts exactly its month.",
            "none",
            Query("tidelog:slo_errors:ratio_rate1h / on (slo) tidelog:slo_budget:ratio", "{{slo}}"),
        ),
        panel(
            "Produce requests that failed, by error",
            "Requests a second; also those that are the client's fault.",
            "reqps",
            Query(f"sum by (error) (rate(tidelog_produce_failures_total{RATE})) or vector(0)", "{{error}}"),
        ),
        panel(
            "Fetch requests that failed, by error",
            "Clients' requests a second; also those that are the client's fault.",
            "reqps",
            Query(f"sum by (error) (rate(tidelog_fetch_failures_total{RATE})) or vector(0)", "{{error}}"),
        ),
    ),
)

TRAFFIC = Row(
    "Traffic",
    (
        panel(
            "Bytes of clients",
            "In from clients, out to them, without replication.",
            "Bps",
            Query(f"sum by (direction) (rate(tidelog_client_bytes_total{RATE}))", "{{direction}}"),
        ),
        panel(
            "Requests by API",
            "The ten most frequent.",
            "reqps",
            Query(f"topk(10, sum by (api) (rate(tidelog_api_requests_total{RATE})))", "{{api}}"),
        ),
        panel(
            "Time of Produce",
            "From its handling to its response; with acks=all that waits for the ISR.",
            "s",
            *[
                Query(
                    f"histogram_quantile({quantile}, sum by (le) (rate(tidelog_produce_latency_seconds_bucket{RATE})))",
                    f"p{100 * quantile:g}",
                )
                for quantile in (0.5, 0.95, 0.99)
            ],
        ),
        panel(
            "Time of Produce by broker, p99",
            "One that stands out has a slow disk, or a slow follower.",
            "s",
            Query(
                f"histogram_quantile(0.99, sum by (le, instance) (rate(tidelog_produce_latency_seconds_bucket{RATE})))",
                BY_NODE,
            ),
        ),
        panel(
            "Time that clients had to wait, by reason",
            "Seconds in a second. docs/quotas.md explains the reasons.",
            "none",
            Query(f"sum by (reason) (rate(tidelog_client_throttled_seconds_total{RATE})) or vector(0)", "{{reason}}"),
        ),
        panel(
            "Connections",
            "Open ones, of each node.",
            "none",
            Query("tidelog_connections", BY_NODE),
            Query("tidelog_proxy_connections", BY_NODE),
        ),
        panel(
            "Connections and logins that failed, by cause",
            "A scanner, a client without TLS, an expired key.",
            "none",
            Query(
                f"sum by (cause) (rate(tidelog_connections_refused_total{RATE})) or vector(0)", "connection: {{cause}}"
            ),
            Query(
                f"sum by (cause) (rate(tidelog_authentication_failures_total{RATE})) or vector(0)", "login: {{cause}}"
            ),
        ),
    ),
)

BROKERS = Row(
    "Brokers",
    (
        panel("Load", "0 to 1, over a minute.", "percentunit", Query("tidelog_broker_load", BY_NODE)),
        panel(
            "How long requests wait",
            "Before a broker begins with them.",
            "s",
            Query("tidelog_broker_queue_wait_seconds", BY_NODE),
        ),
        panel(
            "CPU time",
            "Of each process; its event loop uses one core at most.",
            "percentunit",
            Query(f"rate(tidelog_process_cpu_seconds_total{RATE})", BY_NODE),
        ),
        panel("Memory", "Resident.", "bytes", Query("tidelog_process_resident_bytes", BY_NODE)),
        panel(
            "Disk that is used",
            "At the end Produce is refused.",
            "percentunit",
            Query("1 - tidelog_disk_free_bytes / tidelog_disk_size_bytes", BY_NODE),
        ),
        panel(
            "Trouble with disks",
            "Bytes that wait for a slow one, and the age of the oldest operation that has not ended.",
            "none",
            Query("tidelog_unwritten_bytes", "waiting: {{instance}}"),
            Query("tidelog_storage_stuck_seconds", "seconds: {{instance}}"),
        ),
        panel(
            "Callbacks that held an event loop",
            "For 20 ms or more, in a minute.",
            "none",
            Query(f"60 * sum by (instance) (rate(tidelog_loop_held_seconds_count{RATE})) or 0 * up", BY_NODE),
        ),
        panel(
            "Health",
            "1 for the state that a broker is in.",
            "none",
            Query("max by (broker, state) (tidelog_broker_health)", "{{broker}}: {{state}}"),
        ),
    ),
)

REPLICATION = Row(
    "Replication",
    (
        panel("Led partitions", "Of each broker.", "none", Query("tidelog_leader_partitions", BY_NODE)),
        panel(
            "Partitions without all replicas",
            "By their leader.",
            "none",
            Query("tidelog_under_replicated_partitions", BY_NODE),
        ),
        panel(
            "Changes of ISRs",
            "Replicas that leave and return in a second.",
            "none",
            Query(f"sum(rate(tidelog_isr_shrinks_total{RATE}))", "leave"),
            Query(f"sum(rate(tidelog_isr_expansions_total{RATE}))", "return"),
        ),
        panel(
            "Bytes that followers fetch",
            "Of each broker.",
            "Bps",
            Query(f"rate(tidelog_replication_received_bytes_total{RATE})", BY_NODE),
        ),
        panel(
            "Replicas that make no progress",
            "Held up, without a leader, or without room.",
            "none",
            Query("tidelog_replicas_held_up", "held up: {{instance}}"),
            Query("tidelog_replicas_without_leader", "no leader: {{instance}}"),
            Query("tidelog_replicas_without_room", "no room: {{instance}}"),
        ),
        panel(
            "Open transactions",
            "How long the oldest has been open, by broker.",
            "s",
            Query("tidelog_open_transaction_age_seconds", BY_NODE),
        ),
    ),
)

CONTROLLERS = Row(
    "Controllers",
    (
        panel(
            "Who is active",
            "1 for the active controller.",
            "none",
            Query("tidelog_controller_active", BY_NODE),
        ),
        panel(
            "Voters",
            "And those that the active controller hears.",
            "none",
            Query("max(tidelog_quorum_voters)", "voters"),
            Query("max(tidelog_quorum_voters_reached)", "reached"),
        ),
        panel("Term", "It grows with each election.", "none", Query("tidelog_quorum_term", BY_NODE)),
        panel(
            "Changes of the metadata",
            "Entries that each voter applies in a second.",
            "none",
            Query(f"rate(tidelog_quorum_applied_total{RATE})", BY_NODE),
        ),
        panel(
            "How far brokers are behind in the metadata",
            "Records.",
            "none",
            Query("scalar(max(tidelog_metadata_offset)) - tidelog_metadata_offset", BY_NODE),
        ),
        panel(
            "When brokers heard a controller",
            "Seconds ago.",
            "s",
            Query("tidelog_metadata_heard_seconds", BY_NODE),
        ),
        panel(
            "Topics and partitions",
            "Of the cluster.",
            "none",
            Query("max(tidelog_topics)", "topics"),
            Query("max(tidelog_cluster_partitions)", "partitions"),
            Query("max(tidelog_cluster_reassigning_partitions)", "being moved"),
            Query("max(tidelog_cluster_misplaced_leaders)", "not led by the preferred"),
        ),
    ),
)

BALANCE = Row(
    "Balance",
    (
        panel(
            "Moves",
            "That run, and that ended in a second.",
            "none",
            Query("max(tidelog_balance_moves_running)", "running"),
            Query(f"sum(rate(tidelog_balance_moves_done_total{RATE}))", "done"),
            Query(f"sum(rate(tidelog_balance_moves_undone_total{RATE}))", "undone"),
        ),
        panel(
            "Goals beyond their trigger",
            "Work for the balancer.",
            "none",
            Query("max(tidelog_balance_uneven_goals)", "goals"),
            Query("max(tidelog_cells_exhausted)", "exhausted cells"),
        ),
        panel("Load of cells", "0 to 1.", "percentunit", Query("max by (cell) (tidelog_cell_load)", "{{cell}}")),
    ),
)

GROUPS = Row(
    "Groups",
    (
        panel(
            "Groups",
            "All, and those that have not read everything.",
            "none",
            Query("sum(tidelog_groups)", "groups"),
            Query("sum(tidelog_groups_lagging)", "behind"),
        ),
        panel(
            "Records behind",
            "Of the ten groups that are furthest.",
            "none",
            Query("topk(10, max by (tenant, group) (tidelog_group_lag_records))", "{{tenant}} {{group}}"),
        ),
        panel(
            "Time behind",
            "Of the ten groups that are furthest.",
            "s",
            Query("topk(10, max by (tenant, group) (tidelog_group_lag_seconds))", "{{tenant}} {{group}}"),
        ),
    ),
)

OPERATOR_BOARD = Board(
    "tidelog-operator",
    "Tidelog: operator",
    "What is wrong now, and why. docs/metrics.md has each metric, docs/monitoring.md each alarm.",
    (WRONG, OBJECTIVES, TRAFFIC, BROKERS, REPLICATION, CONTROLLERS, BALANCE, GROUPS),
)
