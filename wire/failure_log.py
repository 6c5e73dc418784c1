"""Failures of unauthenticated connections: all are counted by cause; the log has one per cause and address in a while.

A peer that floods a node with such failures must not flood its log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

SAID_AGAIN_S = 60.0
REMEMBERED_MAX = 1_000


class FailureLog:
    """`now` is the loop's time."""

    def __init__(self, log: logging.Logger, message: str, now: Callable[[], float]) -> None:
        self._log = log
        self._message = message
        self._now = now
        self._said: dict[tuple[str, str], float] = {}
        self._unsaid: dict[tuple[str, str], int] = {}
        self.counts: dict[str, int] = {}

    def report(self, cause: str, ip: str, **details: object) -> None:
        """`cause` is one of few; details are for people."""
        self.counts[cause] = self.counts.get(cause, 0) + 1
        key, now = (cause, ip), self._now()
        said = self._said.pop(key, None)
        if said is not None and now - said < SAID_AGAIN_S:
            self._said[key] = said
            self._unsaid[key] = self._unsaid.get(key, 0) + 1
            return
        while len(self._said) >= REMEMBERED_MAX:
            oldest = next(iter(self._said))
            del self._said[oldest]
            self._unsaid.pop(oldest, None)
        self._said[key] = now
        unsaid = self._unsaid.pop(key, 0)
        more = {"more_since": unsaid} if unsaid else {}
        self._log.warning(self._message, extra={"peer": ip, "reason": cause, **details, **more})
