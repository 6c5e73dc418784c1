"""Settings as people write them: NAME=VALUE, a line each. No I/O."""

from __future__ import annotations

from common.settings import SettingError

LINES_MAX = 200


def parse_lines(text: str) -> dict[str, str]:
    """Raises SettingError."""
    found: dict[str, str] = {}
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > LINES_MAX:
        raise SettingError(f"at most {LINES_MAX} settings at once")
    for line in lines:
        name, sign, value = line.partition("=")
        if not sign or not name.strip():
            raise SettingError(f"{line[:80]!r}: it must be NAME=VALUE")
        if name.strip() in found:
            raise SettingError(f"{name.strip()} is given twice")
        found[name.strip()] = value.strip()
    return found
