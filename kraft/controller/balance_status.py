"""What the balancer of the active controller sees and waits for: soft state, shown to operators."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
from msgspec import Struct

from kraft.balancer.cell_relief import Relief


class Look(Struct, frozen=True):
    """What a look at the loads found. `reason`: why an operation should begin, which fills `brokers` if there are any;
    "" if none should. `looks`: of each goal and broker beyond its trigger, how many looks in turn have found it so.
    `obstacle`: why nothing could be judged. `moves`: of the plan."""

    reason: str = ""
    brokers: tuple[int, ...] = ()
    looks: Mapping[tuple[str, int], int] = {}
    obstacle: str = ""
    moves: int = 0


class CellOverload(Struct, frozen=True):
    """An overloaded cell. `since_s`: of the monotonic clock; `is_due`: for long enough; `waits`: why its tenants stay
    nevertheless; `relief`: who would leave, as it is now."""

    cell: str
    load: float
    since_s: float
    is_due: bool
    relief: Relief
    waits: str = ""


class CellsLook(Struct, frozen=True):
    """The overloaded cells that a look found, at `now_s` of the monotonic clock."""

    overloads: tuple[CellOverload, ...] = ()
    now_s: float = 0.0

    @property
    def exhausted(self) -> list[str]:
        """Cells that are overloaded for long enough, and that no other one can relieve."""
        return [one.cell for one in self.overloads if one.is_due and one.relief.is_exhausted]


class BalanceStatus:
    """Forgotten with the leadership."""

    def __init__(self) -> None:
        self._waits: dict[int, str] = {}
        self._looked_to: dict[int, Mapping[int, int]] = {}
        self.look = Look()
        """The newest one."""
        self.next_look_s = 0.0
        """Of the monotonic clock."""
        self.cells = CellsLook()
        self.next_cells_s = 0.0

    def restart(self, next_look_s: float) -> None:
        self._waits.clear()
        self._looked_to.clear()
        self.look = Look()
        self.cells = CellsLook()
        self.next_look_s = self.next_cells_s = next_look_s

    def looked_at_cells(self, look: CellsLook, next_look_s: float) -> None:
        self.cells, self.next_cells_s = look, next_look_s

    def tenants_moved(self, cells: Collection[str], now_s: float) -> None:
        """Their loads change, and show it only after a while: overloads of these cells begin again."""
        overloads = [
            msgspec.structs.replace(one, since_s=now_s, is_due=False) if one.cell in cells else one
            for one in self.cells.overloads
        ]
        self.cells = CellsLook(tuple(overloads), self.cells.now_s)

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
