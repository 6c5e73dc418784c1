"""`--from`: where a consumer begins in each partition. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from common.settings import LONG_MAX
from tidelog.moments import milliseconds
from tidelog.output import EXIT_USAGE, fail

WORDS = ("earliest", "latest")


class Start(NamedTuple):
    """One of: a word, an offset (from the end if negative), or a time in milliseconds."""

    word: str = ""
    offset: int | None = None
    time_ms: int | None = None


def parse_start(text: str) -> Start:
    """Ends the command for anything else."""
    if text in WORDS:
        return Start(text)
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdigit():
        if len(digits) > len(str(LONG_MAX)) or int(digits) > LONG_MAX:
            fail(f"--from {text}: it is no offset", EXIT_USAGE)
        return Start(offset=int(text)) if text != "-0" else Start("latest")
    return Start(time_ms=milliseconds("--from", text.removeprefix("@")))


class Misplaced(Exception):
    """An offset lies outside of a partition; the text says where it begins and ends."""


def positions(
    start: Start,
    begins: Mapping[int, int],
    ends: Mapping[int, int],
    at_time: Callable[[int], Mapping[int, int | None]],
) -> dict[int, int]:
    """The first offset of each partition. Raises Misplaced."""
    if start.word == "earliest":
        return dict(begins)
    if start.word == "latest":
        return dict(ends)
    if start.time_ms is not None:
        found = at_time(start.time_ms)
        return {one: ends[one] if (offset := found.get(one)) is None else offset for one in ends}
    assert start.offset is not None
    if start.offset < 0:
        return {one: max(begins[one], ends[one] + start.offset) for one in ends}
    for one, end in ends.items():
        if not begins[one] <= start.offset <= end:
            raise Misplaced(f"partition {one} begins at {begins[one]} and ends at {end}")
    return dict.fromkeys(ends, start.offset)
