"""Metrics of every node as a process, and of proxies."""

from common.metric_catalogue.metric import Area, Label, Metric, counter, gauge, info

NODES = Area(
    "Every node",
    "Brokers and controllers; proxies have the first ones.",
    (
        gauge(
            "tidelog_node_info",
            "1, with what this node is.",
            "Two versions for longer than an upgrade: finish it.",
            Label("role", "`broker`, `controller` or `proxy`", 1),
            Label("version", "of Tidelog", 1),
        ),
        gauge(
            "tidelog_process_start_timestamp_seconds",
            "When the process started, in seconds since 1970.",
            "A recent start that you did not make: the log before it says why.",
        ),
        counter("tidelog_process_cpu_seconds_total", "CPU time of the process.", info("how busy it is.")),
        gauge(
            "tidelog_process_resident_bytes",
            "Memory of the process.",
            "If it grows for days: keep a `tidelog bundle` before you restart it.",
        ),
        Metric(
            "tidelog_loop_held_seconds",
            "summary",
            "Callbacks that held the event loop for 20 ms of CPU time or more, by where.",
            "Others waited meanwhile. The log has the stack; report it.",
            (Label("what", "the function, of at most 100; `other` for the rest", 101),),
        ),
        gauge(
            "tidelog_storage_stuck_seconds",
            "Age of the oldest write or flush of a thread, or turn of the event loop, that has not ended.",
            "Above 5: the disk does not answer; at `tidelog.health.storage.stuck.ms` the node ends.",
        ),
        counter(
            "tidelog_trace_spans_total",
            "Spans of sampled requests, by what became of them; see `tidelog.tracing.endpoint`.",
            "`dropped`: the collector is slow or away; requests are not held up by it.",
            Label("outcome", "`sent`, `dropped` or `refused`", 3),
        ),
    ),
)

_PAUSES = "Raise the limit that its name says, or add a proxy."

PROXIES = Area(
    "Proxies",
    "Sums over a proxy's workers. See [proxy](proxy.md).",
    (
        counter("tidelog_proxy_connections_accepted_total", "Connections accepted from clients.", info("usual rate.")),
        counter(
            "tidelog_proxy_connections_opened_total",
            "Connections that came through to a broker.",
            "Far fewer than accepted: see what was refused, by cause.",
        ),
        counter("tidelog_proxy_handshakes_total", "Handshakes completed with clients.", info("the usual rate.")),
        counter("tidelog_proxy_bytes_up_total", "Bytes passed from clients to brokers.", info("throughput.")),
        counter("tidelog_proxy_bytes_down_total", "Bytes passed from brokers to clients.", info("throughput.")),
        counter(
            "tidelog_proxy_accept_pauses_files_total", "Times that accepting paused for want of descriptors.", _PAUSES
        ),
        counter(
            "tidelog_proxy_accept_pauses_full_total", "Times that accepting paused at a limit of connections.", _PAUSES
        ),
        counter(
            "tidelog_proxy_accept_pauses_rate_total",
            "Times that accepting paused at the rate of new connections.",
            _PAUSES,
        ),
        counter(
            "tidelog_proxy_log_lines_dropped_total",
            "Lines about refused connections that were not written.",
            info("the counters have them all."),
        ),
        counter(
            "tidelog_proxy_certificate_reload_failures_total",
            "Certificate files that could not be used.",
            "The log names the file and what is wrong with it; the old one still serves.",
        ),
        gauge("tidelog_proxy_connections", "Open connections.", info("how many there are.")),
        gauge(
            "tidelog_proxy_connections_opening",
            "Connections that are not through to a broker yet.",
            "Hundreds for long: brokers do not answer, or a flood.",
        ),
        counter(
            "tidelog_proxy_connections_refused_total",
            "Connections that came to nothing, by cause.",
            "docs/proxy.md explains the causes.",
            Label("cause", "one of a fixed list", 50),
        ),
        gauge(
            "tidelog_proxy_certificate_ends_seconds",
            "When the first certificate ends, in seconds since 1970; 0 is not known.",
            "Less than two weeks ahead: replace the file, which the proxy reads again by itself within seconds.",
        ),
        gauge("tidelog_proxy_tenants", "Tenants that are routed.", info("as many as `tidelog_tenants`.")),
        gauge("tidelog_proxy_brokers", "Brokers that are known.", "0: the proxy has not heard of the cluster yet."),
        gauge("tidelog_proxy_workers", "Worker processes.", "Fewer than set: the log says why one died."),
    ),
)
