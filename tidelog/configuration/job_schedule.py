"""`tidelog.spark.schedule`: which Spark jobs the active controller starts, and when. Pure.

Entries stand between semicolons, each `WHEN: JOB OPTIONS`. WHEN is `every 6h` (s, m, h or d; at the multiples of it
since 1970) or the five fields of cron in UTC (minute, hour, day of month, month, day of week). Times depend on nothing
but the clock, so a controller that takes over goes on where the last one was; what falls due while no controller is
active, is left out.

    every 6h: compact --topic planes; 30 3 * * 1-5: verify
"""

from __future__ import annotations

import re
import shlex
from datetime import UTC, datetime, timedelta

from msgspec import Struct

JOBS = ("compact", "verify", "export", "read")  # not erase: its key file should not be kept
ENTRIES_MAX = 100
DAYS_AHEAD_MAX = 366 * 8 + 1  # the 29th of February comes within
_EVERY = re.compile(r"every\s+(\d{1,9})\s*([smhd])")
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_FIELDS = (("minute", 0, 59), ("hour", 0, 23), ("day of month", 1, 31), ("month", 1, 12), ("day of week", 0, 7))
_PART = re.compile(r"(\*|\d{1,2}(?:-\d{1,2})?)(?:/(\d{1,2}))?")


class ScheduleError(ValueError):
    """The text is no schedule; the message says why."""


class Every(Struct, frozen=True):
    """At the multiples of `seconds` since 1970."""

    seconds: int

    def after(self, moment_s: int) -> int:
        return (moment_s // self.seconds + 1) * self.seconds


class Cron(Struct, frozen=True):
    """As cron: when both days are restricted, either is enough. Sunday is 0."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    def after(self, moment_s: int) -> int | None:
        """None when it never comes, like the 30th of February."""
        first = datetime.fromtimestamp((moment_s // 60 + 1) * 60, UTC)
        for ahead in range(DAYS_AHEAD_MAX):
            day = first.date() + timedelta(days=ahead)
            if day.month not in self.months or not self._has_day(day.day, day.isoweekday() % 7):
                continue
            for hour in sorted(self.hours):
                for minute in sorted(self.minutes):
                    found = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
                    if found >= first:
                        return int(found.timestamp())
        return None

    def _has_day(self, day: int, weekday: int) -> bool:
        if self.any_day or self.any_weekday:
            return (self.any_day or day in self.days) and (self.any_weekday or weekday in self.weekdays)
        return day in self.days or weekday in self.weekdays


class Entry(Struct, frozen=True):
    """`words` are the job's name and its options."""

    text: str
    when: Every | Cron
    words: tuple[str, ...]


def parse_schedule(text: str) -> list[Entry]:
    """Raises ScheduleError."""
    entries = [_entry(part.strip()) for part in text.split(";") if part.strip()]
    if len(entries) > ENTRIES_MAX:
        raise ScheduleError(f"{len(entries)} entries: at most {ENTRIES_MAX} are possible")
    return entries


def _entry(text: str) -> Entry:
    when, colon, job = text.partition(":")
    try:
        words = tuple(shlex.split(job))
    except ValueError as error:
        raise ScheduleError(f"{text!r}: {error}") from error
    if not colon or not words:
        raise ScheduleError(f"{text!r}: an entry is WHEN: JOB OPTIONS")
    if words[0] not in JOBS:
        raise ScheduleError(f"{text!r}: the job is one of {', '.join(JOBS)}, not {words[0]!r}")
    return Entry(text, _when(when.strip()), words)


def _when(text: str) -> Every | Cron:
    if every := _EVERY.fullmatch(text):
        seconds = int(every[1]) * _UNIT_S[every[2]]
        if not seconds:
            raise ScheduleError(f"{text!r}: an interval is at least a second")
        return Every(seconds)
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ScheduleError(f"{text!r}: when is like 'every 6h', or five fields of cron")
    sets = [_field(field, *bounds) for field, bounds in zip(fields, _FIELDS, strict=True)]
    weekdays = frozenset(day % 7 for day in sets[4])
    cron = Cron(sets[0], sets[1], sets[2], sets[3], weekdays, fields[2] == "*", fields[4] == "*")
    if cron.after(0) is None:
        raise ScheduleError(f"{text!r}: that moment never comes")
    return cron


def _field(text: str, name: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None:
            raise ScheduleError(f"{part!r} is no {name}: use numbers, ranges, lists, * and /step")
        span, step = match[1], int(match[2] or 1)
        first, last = (low, high) if span == "*" else _bounds(span, match[2] is not None, high)
        if not (low <= first <= last <= high and step):
            raise ScheduleError(f"{part!r} is no {name}: from {low} to {high}")
        found.update(range(first, last + 1, step))
    return frozenset(found)


def _bounds(span: str, has_step: bool, high: int) -> tuple[int, int]:
    first, dash, last = span.partition("-")
    if dash:
        return int(first), int(last)
    return int(first), high if has_step else int(first)
