"""Metrics of a broker as a server: requests, connections, its event loop's load, its clients' use."""

from common.metric_catalogue.metric import DIRECTION, KINDS_MAX, Area, Label, Metric, counter, gauge, info

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CAUSE = Label("cause", "one of a fixed list", KINDS_MAX)
ERROR = Label("error", "the name of Apache Kafka's error code", KINDS_MAX)

REQUESTS = Area(
    "Requests",
    "What a broker is asked for, and how soon and how well it answers.",
    (
        counter(
            "tidelog_requests_total",
            "Requests handled.",
            info("it shows the load, and which of the brokers has it."),
        ),
        counter(
            "tidelog_api_requests_total",
            "Requests of clients and other nodes, by API.",
            "If one API is far above its usual rate, find the tenant by `tidelog load` (`--tenants`); clients in a "
            "retry loop repeat Metadata, FindCoordinator or JoinGroup.",
            Label("api", "the name of the API", KINDS_MAX),
        ),
        Metric(
            "tidelog_produce_latency_seconds",
            "histogram",
            "From the begin of a Produce request's handling to its response, which with acks=all waits for the ISR.",
            "Compare brokers. One slow broker: its disk or load (`tidelog_broker_load`). All: a slow follower, see "
            "`tidelog brokers health`.",
            buckets=LATENCY_BUCKETS,
        ),
        counter(
            "tidelog_produce_failures_total",
            "Produce requests with at least one rejected batch, by the first error.",
            "NOT_LEADER_OR_FOLLOWER passes by itself. NOT_ENOUGH_REPLICAS: bring brokers back. KAFKA_STORAGE_ERROR: "
            "the disk. Others are the clients' own: read the error.",
            ERROR,
        ),
        counter(
            "tidelog_fetch_responses_total",
            "Fetch requests of clients that were answered; those of followers are not counted.",
            info("what `tidelog_fetch_failures_total` is a share of."),
        ),
        counter(
            "tidelog_fetch_failures_total",
            "Fetch requests of clients with an error, or with one in at least one partition, by the first error.",
            "NOT_LEADER_OR_FOLLOWER and errors of fetch sessions pass by themselves. KAFKA_STORAGE_ERROR: the disk, or "
            "the tier. OFFSET_NOT_AVAILABLE that stays: the tier. OFFSET_OUT_OF_RANGE: a consumer is behind the "
            "retention. Others are the clients' own: read the error.",
            ERROR,
        ),
        counter(
            "tidelog_long_requests_seconds_total",
            "Seconds that the event loop worked on clients' long requests.",
            "If it takes most of `tidelog_loop_busy_seconds_total`, clients send requests with very many partitions: "
            "fewer topics for each client, or more brokers.",
        ),
        gauge(
            "tidelog_fetch_sessions",
            "Incremental fetch sessions.",
            info("each consumer and follower has one."),
        ),
        counter(
            "tidelog_fetch_session_evictions_total",
            "Fetch sessions evicted.",
            "A steady rate means more consumers than `max.incremental.fetch.session.cache.slots`: raise it.",
        ),
    ),
)

LOAD = Area(
    "Load of a broker",
    "How near a broker is to saturation, over about a minute, as of its last report.",
    (
        gauge(
            "tidelog_broker_load",
            "How near this broker is to saturation, from 0 to 1: by how busy it is, and by how long requests wait.",
            "Above 0.8 for long: let the balancer move leaderships (`tidelog balance status`), or add a broker.",
        ),
        gauge(
            "tidelog_broker_queue_wait_seconds",
            "Mean time that a request waits before this broker begins with it.",
            "See `tidelog_broker_load`.",
        ),
        gauge(
            "tidelog_loop_busy_ratio",
            "Share of time in which the event loop works on requests, less the fixed cost of its turns.",
            "See `tidelog_broker_load`.",
        ),
        counter(
            "tidelog_loop_jobs_total",
            "Frames and steps of new connections that the event loop has handled.",
            info("the divisor of the next three."),
        ),
        counter("tidelog_loop_wait_seconds_total", "Time that they waited before that.", info("load follows from it.")),
        counter("tidelog_loop_service_seconds_total", "Time that they took.", info("load follows from it.")),
        counter("tidelog_loop_service_squares_total", "Its squares, added up.", info("load follows from it.")),
        counter(
            "tidelog_loop_busy_seconds_total",
            "Time in which the loop worked on requests, less the fixed cost of its turns.",
            info("load follows from it."),
        ),
        counter(
            "tidelog_broker_pressure_seconds_total",
            "Time for which this broker held tenants back, by which of its limits it was at.",
            "If it grows for long, the broker has too much: move tenants or leaderships, or add a broker.",
            Label("limit", "the limit", 10),
        ),
        gauge(
            "tidelog_broker_tenants_held",
            "Tenants that this broker holds back because it is at one of its limits.",
            "See `tidelog_broker_pressure_seconds_total`.",
        ),
        gauge(
            "tidelog_broker_queue_factor",
            "Part of the time of the event loop that tenants may use; below 1 after requests waited for too long.",
            "See `tidelog_broker_pressure_seconds_total`.",
        ),
    ),
)

CONNECTIONS = Area(
    "Connections and logins",
    "Who comes in, and who does not.",
    (
        gauge("tidelog_connections", "Open connections.", "Near `max.connections`: find who opens them."),
        gauge(
            "tidelog_connection_openings",
            "Connections whose TLS handshake or PROXY header is under way.",
            "Hundreds for long: a flood of new connections, see `tidelog_connections_refused_total`.",
        ),
        counter(
            "tidelog_connections_refused_total",
            "Connections that ended before their first request, by cause.",
            "A rise is a scanner, a client without TLS or certificate, or a load balancer's check.",
            CAUSE,
        ),
        counter(
            "tidelog_connections_throttled_total",
            "Connections that had to wait, because their address or tenant connects too fast.",
            "Find the client that reconnects in a loop; it lacks a backoff.",
            Label("of", "what the rate belongs to", 10),
        ),
        gauge(
            "tidelog_certificate_expires_seconds",
            "When the certificate of a broker's or a controller's listener ends, in seconds since 1970.",
            "Less than two weeks ahead: replace the file; the node reads it again by itself.",
            Label("listener", "the listener's name", 100),
        ),
        counter("tidelog_authentications_total", "Authentications that succeeded.", info("the usual rate of logins.")),
        counter(
            "tidelog_authentication_failures_total",
            "Authentications that failed and sessions that were ended, by cause.",
            "A sudden rise: an expired key, or somebody guesses. `tidelog audit` names principals and addresses.",
            CAUSE,
        ),
        gauge(
            "tidelog_authentications_queued",
            "Checks of passwords and tokens that wait or are under way.",
            "Hundreds for long: a storm of logins; they are served in turn.",
        ),
        counter(
            "tidelog_network_probes_total",
            "Probes of other brokers' client listeners, by outcome.",
            "Unanswered on one broker only: its way out is cut. Of all brokers towards one: that one is not reached.",
            Label("outcome", "`answered` or `unanswered`", 2),
        ),
        gauge(
            "tidelog_lacks_clients",
            "1 while neither clients nor other brokers' probes reach this broker, although its heartbeats are "
            "answered.",
            "Look at its client network, its advertised address and the machines between.",
        ),
    ),
)

CLIENTS = Area(
    "Use by clients",
    "Sums over all clients of a broker, as of its last report. Replication is not in them.",
    (
        counter(
            "tidelog_client_bytes_total",
            "Bytes that clients sent (in) and were sent (out), without replication.",
            info("throughput."),
            DIRECTION,
        ),
        counter(
            "tidelog_client_busy_seconds_total",
            "Time of the event loop that clients' requests took.",
            info("the rest of the loop's time is replication and upkeep."),
        ),
        counter(
            "tidelog_client_throttled_seconds_total",
            "Time that clients had to wait, by reason.",
            "`docs/quotas.md` says what each reason means.",
            Label("reason", "why, see docs/quotas.md", KINDS_MAX),
        ),
        counter(
            "tidelog_usage_reports_total",
            "Reports of clients' use to the active controller, by outcome.",
            "If they fail for minutes while the controller is active, look at the broker's log.",
            Label("outcome", "one of a fixed list", 10),
        ),
    ),
)

_CLIENT = (
    Label("metric", "the client's name of the metric", 100_000),
    Label("tenant", "the tenant's id, empty for operators' clients", 100_000),
    Label("client_id", "as the client sent it", 100_000),
    Label("client_instance_id", "the client's own", 100_000),
    Label("client_software_name", "the client's own", 100_000),
    Label("client_software_version", "the client's own", 100_000),
)

CLIENT_METRICS = Area(
    "Metrics that clients push",
    "See [client metrics](client-metrics.md). Their series are bounded as a whole by `tidelog.telemetry.series.max`, "
    "of a tenant by `tidelog.telemetry.tenant.series.max`; what is beyond is dropped and counted.",
    (
        Metric(
            "tidelog_client_metric",
            "gauge",
            "What clients measure, as they pushed it last, by metric, tenant and client.",
            info("the client's side of what this page measures."),
            _CLIENT,
            own_labels=True,
        ),
        Metric(
            "tidelog_client_metric_total",
            "counter",
            "What clients count, by metric, tenant and client; since this broker knows the client.",
            info("the client's side of what this page measures."),
            _CLIENT,
            own_labels=True,
        ),
        counter(
            "tidelog_telemetry_dropped_total",
            "Data points of clients' metrics that are not shown: beyond a bound, not asked for, or of a kind that is "
            "not shown.",
            "If it grows, subscribe to fewer metrics, or raise `tidelog.telemetry.series.max`.",
        ),
        gauge("tidelog_telemetry_series", "Series of clients' metrics.", "See `tidelog_telemetry_dropped_total`."),
        gauge(
            "tidelog_telemetry_clients",
            "Clients with their subscriptions.",
            info("how many clients this broker remembers."),
        ),
        counter("tidelog_telemetry_pushes_total", "Pushes of metrics that were taken.", info("the usual rate.")),
        counter(
            "tidelog_telemetry_refused_total",
            "Requests about clients' metrics that were refused, by error.",
            "THROTTLING_QUOTA_EXCEEDED: clients push too often. TELEMETRY_TOO_LARGE: subscribe to less.",
            ERROR,
        ),
    ),
)
