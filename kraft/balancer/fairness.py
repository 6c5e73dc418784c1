"""What would be fair for each broker where racks bound what a broker can have. No I/O.

With as many racks as replicas, each rack has one replica of every partition, so the brokers of a rack with few of them
have more than others, whatever is moved. To compare them with the mean of all would ask for the impossible.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

HALVINGS = 60


class RackShare(Struct, frozen=True):
    """The live brokers of a rack: their `size` added up, and the least and the most that all of them can have."""

    size: float
    least: float
    most: float


def fair_values(total: float, racks: Sequence[RackShare]) -> list[float]:
    """What each rack's brokers should have, for one of size, so that all have `total`: the same everywhere except
    where a rack's bounds forbid it."""
    size = sum(rack.size for rack in racks)
    if size <= 0 or total <= 0:
        return [0.0] * len(racks)
    even = total / size
    if all(rack.least <= even * rack.size <= rack.most for rack in racks):
        return [even] * len(racks)
    low, high = 0.0, max(total / rack.size for rack in racks if rack.size > 0)
    for _ in range(HALVINGS):
        level = (low + high) / 2
        if sum(_held(rack, level) for rack in racks) < total:
            low = level
        else:
            high = level
    held = [_held(rack, high) for rack in racks]
    rest = total / sum(held) if sum(held) > 0 else 0.0  # not 1 only if the bounds contradict the total
    return [rest * amount / rack.size if rack.size > 0 else 0.0 for rack, amount in zip(racks, held, strict=True)]


def _held(rack: RackShare, level: float) -> float:
    return min(max(level * rack.size, rack.least), max(rack.most, rack.least))
