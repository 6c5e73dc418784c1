"""Failures of unauthenticated connections, counted by cause and logged once per cause and address in `LOG_AGAIN_S`."""

from __future__ import annotations

import logging
from collections.abc import Callable

LOG_AGAIN_S = 60.0
REMEMBERED_MAX = 1_000


class FailureLog:
    """Counts and logs failures. `now` returns the loop's time."""

    def __init__(self, log: logging.Logger, message: str, now: Callable[[], float]) -> None:
        self._log = log
        self._message = message
        self._now = now
        self._logged: dict[tuple[str, str], float] = {}
        self._suppressed: dict[tuple[str, str], int] = {}
        self.counts: dict[str, int] = {}

    def report(self, cause: str, ip: str, **details: object) -> None:
        """`cause` is one of a fixed set; `details` go into the log."""
        self.counts[cause] = self.counts.get(cause, 0) + 1
        key, now = (cause, ip), self._now()
        logged = self._logged.pop(key, None)
        if logged is not None and now - logged < LOG_AGAIN_S:
            self._logged[key] = logged
            self._suppressed[key] = self._suppressed.get(key, 0) + 1
            return
        while len(self._logged) >= REMEMBERED_MAX:
            oldest = next(iter(self._logged))
            del self._logged[oldest]
            self._suppressed.pop(oldest, None)
        self._logged[key] = now
        suppressed = self._suppressed.pop(key, 0)
        more = {"more_since": suppressed} if suppressed else {}
        self._log.warning(self._message, extra={"peer": ip, "reason": cause, **details, **more})
