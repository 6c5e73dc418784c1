"""The balancer: whether it acts by itself, how often it looks, and how much moves at a time."""

from dataclasses import dataclass

from common.settings import INT_MAX, LONG_MAX, setting


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Settings of the balancer, which the active controller runs."""

    # fmt: off
    enable: bool = setting("tidelog.balance.enable", "boolean", True,
        "Whether the active controller begins to balance by itself. What an operator asks for (`tidelog balance run`, "
        "`tidelog brokers add`, `drain`) is done in any case.")
    dry_run: bool = setting("tidelog.balance.dry.run", "boolean", False,
        "Whether the balancer only logs what it would begin by itself.")
    interval_ms: int = setting("tidelog.balance.interval.ms", "int", 60_000,
        "How often the balancer looks at the loads. It begins to level them when three looks in turn find them uneven, "
        "and at once for a broker that is beyond a limit.", 100, INT_MAX)
    bytes_per_second: int = setting("tidelog.balance.bytes.per.second", "long", 50_000_000,
        "Bytes per second that each broker sends and fetches for the balancer's moves; 0 is unlimited.", 0, LONG_MAX)
    moves_max: int = setting("tidelog.balance.moves.max", "int", 20,
        "Partitions that the balancer moves at the same time.", 1, 1_000)
    leader_moves_max: int = setting("tidelog.balance.leader.moves.per.minute", "int", 10,
        "Leaderships that the balancer moves in a minute.", 1, 10_000)
    rest_ms: int = setting("tidelog.balance.partition.rest.ms", "long", 1_800_000,
        "How long a partition that the balancer has moved stays where it is.", 0, LONG_MAX)
    cells_enable: bool = setting("tidelog.balance.cells.enable", "boolean", True,
        "Whether the active controller moves tenants off overloaded cells by itself; `tidelog.balance.enable` must be "
        "on too.")
    cells_overload_ms: int = setting("tidelog.balance.cells.overload.ms", "long", 600_000,
        "How long a cell's load is above 0.8 before tenants leave it.", 0, LONG_MAX)
    tenant_moves_max: int = setting("tidelog.balance.tenant.moves.max", "int", 2,
        "Tenants that move to another cell at the same time, those included that operators move; while as many do, the "
        "balancer begins no further one.", 1, 1_000)
    # fmt: on
