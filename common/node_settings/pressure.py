"""What one broker serves at most, and how it holds tenants back then."""

from dataclasses import dataclass

from common.settings import LONG_MAX, seconds, setting


@dataclass(frozen=True, slots=True)
class PressureSettings:
    """Limits of a broker as a whole. docs/quotas.md explains it."""

    # fmt: off
    enable: bool = setting("tidelog.broker.pressure.enable", "boolean", True,
        "Whether a broker that is at one of its limits holds tenants back, in proportion to their quotas.")
    dry_run: bool = setting("tidelog.broker.pressure.dry.run", "boolean", False,
        "Whether it only logs and counts that it would.")
    ingress: int = setting("tidelog.broker.ingress.bytes.per.second", "long", 0,
        "Bytes per second that clients may send to the broker; 0 is the bandwidth.per.broker of its cell.", 0, LONG_MAX)
    egress: int = setting("tidelog.broker.egress.bytes.per.second", "long", 0,
        "Bytes per second that clients may be sent; 0 is the bandwidth.per.broker of its cell.", 0, LONG_MAX)
    queue_wait_s: float = setting("tidelog.broker.queue.wait.ms", "int", 50,
        "How long requests may wait on average, over a second, before the broker begins with them; 0 is unlimited.",
        0, 60_000, read_as=seconds)
    # fmt: on
