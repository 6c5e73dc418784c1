"""Parses and prints times in commands: ISO 8601 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from tidelog.output import EXIT_USAGE, fail


def milliseconds(option: str, text: str) -> int:
    """Milliseconds since 1970 from ISO 8601 (UTC without a zone) or such a number; ends the command for anything
    else."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} is a time like 2013-07-01T12:00:00Z or milliseconds since 1970, not {text!r}", EXIT_USAGE)
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def utc(ms: int) -> str:
    """With a resolution of seconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
