"""Numbers, sizes and times as pages show them. No I/O."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
NOTHING = "\u2013"


def count(value: Any) -> str:
    """A whole number in groups of three."""
    return NOTHING if value is None else f"{int(value):,}".replace(",", "\u202f")


def size(value: Any) -> str:
    """Bytes, in the largest unit that leaves a digit before the point."""
    if value is None or value < 0:
        return NOTHING
    number = float(value)
    for unit in UNITS:
        if number < 1024 or unit == UNITS[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError


def percent(value: Any) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def duration(milliseconds: Any) -> str:
    """The two largest units of a time."""
    if milliseconds is None or milliseconds < 0:
        return NOTHING
    if milliseconds < 1000:
        return f"{int(milliseconds)} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    parts = [(int(seconds // 86_400), "d"), (int(seconds // 3600 % 24), "h"), (int(seconds // 60 % 60), "min"),
             (int(seconds % 60), "s")]  # fmt: skip
    first = next(at for at, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def moment(milliseconds: Any) -> str:
    """UTC, to the millisecond if it has any."""
    if milliseconds is None or milliseconds < 0:
        return NOTHING
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return NOTHING
    return at.strftime("%Y-%m-%d %H:%M:%S") + (f".{milliseconds % 1000:03d}" if milliseconds % 1000 else "")


def listed(values: Any) -> str:
    return ", ".join(str(one) for one in values) or NOTHING


FILTERS = {one.__name__: one for one in (count, size, percent, duration, moment, listed)}
