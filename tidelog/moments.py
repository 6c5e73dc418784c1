"""Parses and prints times in commands: ISO 8601 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime

from tidelog.output import EXIT_USAGE, fail

LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, the last that ISO 8601 and Python's times can say."""


def milliseconds(option: str, text: str) -> int:
    """Milliseconds since 1970 from ISO 8601 (UTC without a zone) or such a number; ends the command for anything
    else. A time before 1970 is 0: no record is older, and to brokers negative times mean the end or other places."""
    if text.isascii() and text.isdigit():
        if len(text) > len(str(LATEST_MS)) or int(text) > LATEST_MS:
            fail(f"{option} {text}: it must be at most {LATEST_MS} milliseconds since 1970", EXIT_USAGE)
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        fail(f"{option} is a time like 2013-07-01T12:00:00Z or milliseconds since 1970, not {text!r}", EXIT_USAGE)
    found = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    return min(max(found, 0), LATEST_MS)


def utc(ms: int) -> str:
    """With a resolution of seconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
