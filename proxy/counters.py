"""The counters that every worker publishes, in their order in shared memory, and their metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from common.metrics import Metrics
from proxy.failures import CAUSES, FailureLog
from proxy.listener import ProxyListener
from proxy.opening import Reception

PLAIN = (
    "tidelog_proxy_connections_accepted_total",
    "tidelog_proxy_connections_opened_total",
    "tidelog_proxy_handshakes_total",
    "tidelog_proxy_bytes_up_total",
    "tidelog_proxy_bytes_down_total",
    "tidelog_proxy_accept_pauses_files_total",
    "tidelog_proxy_accept_pauses_full_total",
    "tidelog_proxy_accept_pauses_rate_total",
    "tidelog_proxy_log_lines_dropped_total",
    "tidelog_proxy_certificate_reload_failures_total",
)
GAUGES = (
    "tidelog_proxy_connections",
    "tidelog_proxy_connections_opening",
)
REFUSED = "tidelog_proxy_connections_refused_total"
COUNT = len(PLAIN) + len(GAUGES) + len(CAUSES)


def worker_counters(
    listener: ProxyListener, reception: Reception, failures: FailureLog, reload_failures: int
) -> list[int]:
    """A worker's counters in the order of PLAIN, GAUGES and CAUSES."""
    tally = listener.tally
    up, down = listener.moved_bytes()
    return [
        tally.accepted,
        tally.opened,
        reception.handshakes,
        up,
        down,
        tally.file_pauses,
        tally.full_pauses,
        tally.rate_pauses,
        failures.lines_dropped,
        reload_failures,
        listener.relays,
        listener.openings,
        *(failures.counts[cause] for cause in CAUSES),
    ]


def register_counters(metrics: Metrics, read: Callable[[], Sequence[int]]) -> None:
    """`read` returns the sums over all workers, in the same order."""

    def one(number: int) -> Callable[[], float]:
        return lambda: read()[number]

    for number, name in enumerate(PLAIN):
        metrics.counter(name, one(number))
    for number, name in enumerate(GAUGES, len(PLAIN)):
        metrics.gauge(name, one(number))

    def refused() -> Iterable[tuple[dict[str, str], float]]:
        values = read()[len(PLAIN) + len(GAUGES) :]
        return [({"cause": cause.value}, value) for cause, value in zip(CAUSES, values, strict=True)]

    metrics.family(REFUSED, refused)


def add_counters(parts: Iterable[Sequence[int]]) -> list[int]:
    """Sums over workers."""
    return [sum(column) for column in zip([0] * COUNT, *parts, strict=True)]


def without_gauges(counters: Sequence[int]) -> list[int]:
    """The counters that outlive a worker's end."""
    gauges = range(len(PLAIN), len(PLAIN) + len(GAUGES))
    return [0 if number in gauges else value for number, value in enumerate(counters)]
