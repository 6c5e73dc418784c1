"""Regular expressions that clients and operators send: RE2, so they match in time linear in the text, whatever they
are. The library is imported on first use."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

PATTERN_LENGTH_MAX = 1_000
PATTERN_BYTES_MAX = 1 << 20  # memory of a compiled pattern


@cache
def _options() -> Any:
    """A pattern that takes more memory is refused, and none is logged."""
    import re2  # noqa: PLC0415

    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    return options


def matcher(text: str) -> Callable[[str], bool]:
    """Whether a name matches the pattern as a whole. Raises ValueError, with the reason, for no pattern of RE2."""
    import re2  # noqa: PLC0415

    if len(text) > PATTERN_LENGTH_MAX:
        raise ValueError(f"a pattern may have {PATTERN_LENGTH_MAX} characters")
    try:
        pattern = re2.compile(text, _options())
    except re2.error as error:
        raise ValueError(str(error)) from error
    return lambda name: pattern.fullmatch(name) is not None
