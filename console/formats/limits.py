"""Limits as people write them: NAME=NUMBER or NAME=default, a line each; and roles of keys. No I/O."""

from __future__ import annotations

from common.settings import LONG_MAX, SettingError
from console.formats.setting_lines import parse_lines

DEFAULT = -1
DIGITS_MAX = len(str(LONG_MAX))


def parse_limits(text: str) -> dict[str, int]:
    """`default` is -1, which restores the default. Raises SettingError."""
    limits = {}
    for name, value in parse_lines(text).items():
        if value == "default":
            limits[name] = DEFAULT
        elif value.isascii() and value.isdigit() and len(value) <= DIGITS_MAX and int(value) <= LONG_MAX:
            limits[name] = int(value)
        else:
            raise SettingError(f"{name}: it must be a number from 0 to {LONG_MAX}, or default")
    return limits
