"""Failed connections: counted by cause, logged once per cause and address, in bounded memory."""

from __future__ import annotations

import logging
from collections import OrderedDict
from enum import StrEnum

logger = logging.getLogger(__name__)

REMEMBERED_MAX = 4_096  # pairs of cause and address
LOG_AGAIN_S = 600.0
LINES_PER_SECOND = 20.0  # a flood from many addresses must not fill the log's disk
LINES_BURST = 100.0


class Cause(StrEnum):
    """Why a connection was refused or failed before it reached a broker; the label of its counter."""

    ADDRESS_DENIED = "address denied"
    ADDRESS_CONNECTIONS = "too many connections of the address"
    ADDRESS_RATE = "too many new connections of the address"
    BAD_HELLO = "malformed hello"
    NO_SERVER_NAME = "no server name"
    UNKNOWN_NAME = "unknown server name"
    UNKNOWN_BROKER = "unknown broker"
    TENANT_DENIED = "address denied by the tenant"
    TENANT_CONNECTIONS = "too many connections of the tenant"
    TENANT_RATE = "too many new connections of the tenant"
    HANDSHAKE = "handshake failed"
    TIMEOUT = "too slow"
    EVICTED = "evicted for a newer connection"
    GONE = "client gone"
    NO_BROKER = "no broker in the cell"
    BROKER_UNREACHABLE = "broker unreachable"
    STOPPING = "proxy stopping"


CAUSES = tuple(Cause)
_UNREMARKABLE = {Cause.GONE, Cause.STOPPING}


class FailureLog:
    """Counts every failure, and logs a cause and address at most once in `LOG_AGAIN_S`."""

    def __init__(self) -> None:
        self.counts: dict[Cause, int] = dict.fromkeys(CAUSES, 0)
        self.lines_dropped = 0
        self._lately: OrderedDict[tuple[Cause, str], tuple[float, int]] = OrderedDict()
        self._lines = LINES_BURST
        self._filled = 0.0

    def note(self, cause: Cause, address: str, now: float, detail: str = "") -> None:
        """`address` is the client's `counted_address`; `detail` goes into the log and holds no secret."""
        self.counts[cause] += 1
        if cause in _UNREMARKABLE:
            return
        key = (cause, address)
        logged, since = self._lately.get(key, (-LOG_AGAIN_S, 0))
        if now - logged < LOG_AGAIN_S:
            self._lately[key] = (logged, since + 1)
            return
        if not self._may_write(now):
            self.lines_dropped += 1
            return
        self._lately[key] = (now, 0)
        self._lately.move_to_end(key)
        if len(self._lately) > REMEMBERED_MAX:
            self._lately.popitem(last=False)
        logger.warning(
            "connection refused: %s",
            cause.value,
            extra={"address": address, "detail": detail, "not_logged_before": since},
        )

    def _may_write(self, now: float) -> bool:
        self._lines = min(LINES_BURST, self._lines + (now - self._filled) * LINES_PER_SECOND)
        self._filled = now
        if self._lines < 1:
            return False
        self._lines -= 1
        return True
