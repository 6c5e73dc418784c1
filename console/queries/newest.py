"""The newest records of partitions: where to look for them, and which of those found are shown. No I/O.

Offsets say which record of a partition is the newest, and timestamps which of several partitions', so some of each are
looked at. A step goes forward and is bounded. Where a few steps do not get to the end, the next ones leave out most of
what is left, so that the newest are among what is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from console.formats.record_lines import Line
from console.queries.record_scan import Found, Positions, Span

STEPS_WHOLE, STEPS_MAX = 4, 9
"""With nothing left out, and in all: of 2,000 offsets nothing is left after five times a quarter of the rest."""
OFFSETS_MAX = 2_000
OF_EACH_MIN = 5  # records of each partition, while there are no more offsets than the limit
CHARACTERS_MAX = 8 << 20


class Coverage(NamedTuple):
    """What was looked at of `offsets` for the newest, and how many records were left out for their size."""

    offsets: int
    unread: int
    too_large: int


def begin(places: Span, rows: int) -> dict[int, int]:
    """Where to begin in each partition."""
    filled = max(1, sum(places.ends[one] > first for one, first in places.begins.items()))
    each = min(rows, max(OF_EACH_MIN, 4 * rows // filled), max(1, OFFSETS_MAX // filled))
    return {one: max(first, places.ends[one] - each) for one, first in places.begins.items()}


def nearer(at: Positions, ends: Positions) -> dict[int, int]:
    """Nearer to the ends, but at none of them yet."""
    return {one: max(place, ends[one] - max(1, (ends[one] - place) // 4)) for one, place in at.items()}


def between(at: Positions, ends: Mapping[int, int]) -> int:
    return sum(max(0, ends[one] - place) for one, place in at.items())


def newest_rows(found: Iterable[Found], rows: int) -> list[Found]:
    """At most so many, the newest first: of others no lines need to be made."""
    order = sorted(found, key=lambda one: (-one.record.timestamp, one.partition, -one.record.offset))
    return order[:rows]


def newest(lines: Iterable[Line], rows: int) -> list[Line]:
    """The newest first: at most so many, and no more than a page can hold."""
    ordered = sorted(lines, key=lambda one: (-one.timestamp, one.partition, -one.offset))[:rows]
    characters = 0
    for number, one in enumerate(ordered):
        characters += one.characters
        if number and characters > CHARACTERS_MAX:
            return ordered[:number]
    return ordered
