"""What the balancer of the active controller sees and waits for: soft state, shown to operators."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Look(Struct, frozen=True):
    """What a look at the loads found. `reason`: why an operation should begin, which fills `brokers` if there are any;
    "" if none should. `looks`: of each goal and broker beyond its trigger, how many looks in turn have found it so.
    `obstacle`: why nothing could be judged. `moves`: of the plan."""

    reason: str = ""
    brokers: tuple[int, ...] = ()
    looks: Mapping[tuple[str, int], int] = {}
    obstacle: str = ""
    moves: int = 0


class BalanceStatus:
    """Forgotten with the leadership."""

    def __init__(self) -> None:
        self._waits: dict[int, str] = {}
        self._looked_to: dict[int, Mapping[int, int]] = {}
        self.look = Look()
        """The newest one."""
        self.next_look_s = 0.0
        """Of the monotonic clock."""

    def restart(self, next_look_s: float) -> None:
        self._waits.clear()
        self._looked_to.clear()
        self.look = Look()
        self.next_look_s = next_look_s

    def looked(self, look: Look, next_look_s: float) -> None:
        self.look, self.next_look_s = look, next_look_s

    def waits_for(self, operation: int, reason: str) -> None:
        """Why the operation begins nothing now; "" if it does not wait."""
        if reason:
            self._waits[operation] = reason
        else:
            self._waits.pop(operation, None)

    def drained_to(self, operation: int, looked_to: Mapping[int, int]) -> None:
        """Where the next step of a drain begins to look, by leaving broker; empty if it keeps to what was said."""
        if looked_to:
            self._looked_to[operation] = looked_to

    def drain_from(self, operation: int) -> Mapping[int, int]:
        return self._looked_to.get(operation, {})

    def has_ended(self, operation: int) -> None:
        self._waits.pop(operation, None)
        self._looked_to.pop(operation, None)

    def reason(self, operation: int) -> str | None:
        return self._waits.get(operation)
