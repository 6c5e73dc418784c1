"""Regular expressions that clients and operators send: RE2, so they match in time linear in the text, whatever they
are. The library is imported on first use.

Linear is not short. Where RE2 remembers too many states it follows all of them at once, and a byte then takes up to
10 ns for each instruction of the pattern's program. RE2 reads a pattern while it holds the interpreter's lock, also in
a thread, and matches without it. So patterns are bounded by what it takes to read them, long matches belong in a
thread, and short ones cost what `Matcher.cost` says.
"""

from __future__ import annotations

from typing import Any

PATTERN_LENGTH_MAX = 1_000
UNICODE_CLASSES_MAX = 20  # RE2 takes up to 0.3 ms to read one
PATTERN_BYTES_MAX = 256 << 10  # memory of a compiled pattern
SHORT_PATTERN_BYTES_MAX = 64 << 10  # of one that is matched on an event loop: 256 bytes take 9 ms at most
PER_UNIT = 100  # bytes times instructions
MATCH_COST = 5


class Matcher:
    """Whether a name matches a pattern as a whole."""

    __slots__ = ("_pattern", "_size")

    def __init__(self, pattern: Any) -> None:
        self._pattern = pattern
        self._size: int = pattern.programsize

    def __call__(self, name: str) -> bool:
        return self._pattern.fullmatch(name) is not None

    def cost(self, name: str) -> int:
        """What it takes to match `name`, in units of `common.pacing`."""
        return MATCH_COST + len(name.encode()) * self._size // PER_UNIT


def unicode_classes(text: str) -> int:
    """How many classes of Unicode, such as \\p{Greek}, a pattern names at most."""
    return text.count("\\p") + text.count("\\P")


def matcher(text: str, bytes_max: int = PATTERN_BYTES_MAX) -> Matcher:
    """Raises ValueError, with the reason, for no pattern of RE2, and for one that is too large. A pattern that takes
    more than `bytes_max` of memory is."""
    import re2  # noqa: PLC0415

    if len(text) > PATTERN_LENGTH_MAX:
        raise ValueError(f"a pattern may have {PATTERN_LENGTH_MAX} characters")
    if unicode_classes(text) > UNICODE_CLASSES_MAX:
        raise ValueError(f"a pattern may have {UNICODE_CLASSES_MAX} classes of Unicode (\\p, \\P)")
    options = re2.Options()
    options.max_mem = bytes_max
    options.log_errors = False
    options.never_capture = True  # whether it matches is all that is asked
    try:
        return Matcher(re2.compile(text, options))
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        said = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        if said.startswith("pattern too large"):
            said = f"the pattern is too large: compiled it may take {bytes_max >> 10} KiB; shorten its repetitions"
        raise ValueError(said) from error
    finally:
        re2.purge()  # the library would keep the last 128 patterns of all clients
