"""Where a group's committed offsets are moved to, and what it reads again or skips by that. No I/O.

The options are those of Apache Kafka's `kafka-consumer-groups.sh --reset-offsets`; an offset outside of its partition
becomes the nearer end.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from common.settings import INT_MAX, LONG_MAX
from tidelog.admin.transaction_doctor import Place

EARLIEST, LATEST, CURRENT, OFFSET, SHIFT, TIME, LISTED = (
    "earliest", "latest", "current", "offset", "shift", "time", "listed",
)  # fmt: skip
_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


class BadReset(Exception):
    """An option or a file cannot be used; the text says why."""


class Target(NamedTuple):
    """`number` is an offset, a distance or a time in milliseconds; `listed` is from a file."""

    kind: str
    number: int = 0
    listed: Mapping[Place, int] = {}


class Move(NamedTuple):
    """One partition. `current` is None where the group has committed nothing."""

    place: Place
    current: int | None
    new: int
    begin: int
    end: int

    @property
    def reads_again(self) -> int:
        """Offsets, from what is committed back to the new one. What is not committed is read for the first time."""
        return 0 if self.current is None else max(0, min(self.current, self.end) - self.new)

    @property
    def skips(self) -> int:
        """Offsets that no member of the group will have read."""
        return max(0, self.new - (self.begin if self.current is None else max(self.current, self.begin)))

    @property
    def effect(self) -> str:
        if self.reads_again:
            return f"reads {self.reads_again} again"
        return f"skips {self.skips}" if self.skips else "nothing"


def planned(
    target: Target,
    places: Iterable[Place],
    current: Mapping[Place, int],
    begins: Mapping[Place, int],
    ends: Mapping[Place, int],
    at_time: Mapping[Place, int],
) -> list[Move]:
    """A move of each partition. Raises BadReset for one whose leader does not answer."""
    moves = []
    for place in sorted(set(places)):
        if place not in begins or place not in ends:
            raise BadReset(f"{place}: its leader does not answer")
        begin, end, now = begins[place], ends[place], current.get(place)
        new = _wanted(target, place, now, begin, end, at_time)
        moves.append(Move(place, now, max(begin, min(new, end)), begin, end))
    return moves


def _wanted(
    target: Target, place: Place, current: int | None, begin: int, end: int, at_time: Mapping[Place, int]
) -> int:
    if target.kind == SHIFT and current is None:
        raise BadReset(f"{place}: the group has committed nothing from which --shift-by could count")
    found = at_time.get(place, -1)
    return {
        EARLIEST: begin,
        LATEST: end,
        CURRENT: end if current is None else current,
        OFFSET: target.number,
        SHIFT: (current or 0) + target.number,
        TIME: end if found < 0 else found,
        LISTED: target.listed.get(place, begin),
    }[target.kind]


def parse_topic(text: str) -> tuple[str, list[int] | None]:
    """`TOPIC` or `TOPIC:0,1`. Raises BadReset."""
    name, colon, listed = text.partition(":")
    if not name or (colon and not all(_is_number(one, INT_MAX) for one in listed.split(","))):
        raise BadReset(f"--topic {text!r}: it must be TOPIC or TOPIC:0,1,…")
    return name, [int(one) for one in listed.split(",")] if colon else None


def parse_duration(text: str) -> int:
    """Milliseconds of `PnDTnHnMnS`. Raises BadReset."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groupdict().values()) or text.endswith("T") or len(text) > 40:
        raise BadReset(f"--by-duration {text!r}: it must be like P1DT2H30M")
    seconds = sum(float(found) * _SECONDS[unit] for unit, found in match.groupdict().items() if found)
    return round(seconds * 1000)


def parse_csv(text: str) -> dict[Place, int]:
    """Lines `topic,partition,offset`, as `csv_text` writes them. Raises BadReset, which names the line."""
    found: dict[Place, int] = {}
    for number, row in enumerate(_rows(text), 1):
        if not row:
            continue
        if len(row) != 3 or not row[0] or not _is_number(row[1], INT_MAX) or not _is_number(row[2], LONG_MAX):
            raise BadReset(f"line {number}: it must be topic,partition,offset")
        place = Place(row[0], int(row[1]))
        if place in found:
            raise BadReset(f"line {number}: {place} is listed twice")
        found[place] = int(row[2])
    return found


def _rows(text: str) -> Iterator[list[str]]:
    """Raises BadReset."""
    rows = csv.reader(io.StringIO(text))
    try:
        yield from rows
    except csv.Error as error:  # a field above the library's bound, for one
        raise BadReset(f"line {rows.line_num}: {error}") from None


def csv_text(moves: Sequence[Move]) -> str:
    return "".join(f"{move.place.topic},{move.place.partition},{move.new}\n" for move in moves)


def _is_number(text: str, most: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most


def chosen(
    wanted: Sequence[tuple[str, list[int] | None]], known: Iterable[Place], committed: Iterable[Place] | None
) -> list[Place]:
    """The partitions of `--topic`, or with `committed` all partitions of the topics that a group has read. Raises
    BadReset for one that is not there."""
    by_topic: dict[str, list[Place]] = {}
    for place in known:
        by_topic.setdefault(place.topic, []).append(place)
    if committed is not None:
        return [place for topic in sorted({one.topic for one in committed}) for place in by_topic.get(topic, [])]
    found: list[Place] = []
    for topic, partitions in wanted:
        if topic not in by_topic:
            raise BadReset(f"there is no topic {topic}")
        places = by_topic[topic] if partitions is None else [Place(topic, one) for one in partitions]
        if absent := sorted(set(places) - set(by_topic[topic])):
            raise BadReset(f"there is no partition {absent[0]}")
        found += places
    return found
