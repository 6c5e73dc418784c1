"""The balancer: whether it acts by itself, how often it looks, and how much moves at a time."""

from dataclasses import dataclass

from common.settings import LONG_MAX, setting


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """Settings of the balancer, which the active controller runs."""

    # fmt: off
    enable: bool = setting("tidelog.balance.enable", "boolean", True,
        "Whether the active controller begins to balance by itself. What an operator asks for (`tidelog balance run`, "
        "`tidelog brokers add`, `drain`) is done in any case.")
    dry_run: bool = setting("tidelog.balance.dry.run", "boolean", False,
        "Whether the balancer only logs what it would begin by itself.")
    bytes_per_second: int = setting("tidelog.balance.bytes.per.second", "long", 50_000_000,
        "Bytes per second that each broker sends and fetches for the balancer's moves; 0 is unlimited.", 0, LONG_MAX)
    moves_max: int = setting("tidelog.balance.moves.max", "int", 20,
        "Partitions that the balancer moves at the same time.", 1, 1_000)
    # fmt: on
