"""A Produce request while some of its batches are unanswered."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from broker.partitions.partition import Partition
from broker.security.session import ClientSession
from broker.telemetry.request_trace import RequestTrace, RequestTracer
from common.errors import ErrorCode
from wire.hot_codec import ProduceCall, ProducedRow, RequestHead
from wire.loop_meter import LoopMeter
from wire.outgoing import Reply


class ProduceReplies(Protocol):
    """Sends responses; implemented by `broker.handlers.produce`."""

    @property
    def meter(self) -> LoopMeter:
        """Of the loop that serves the requests, by the clock of `now`."""
        ...

    def now(self) -> float:
        """Seconds of a monotonic clock."""
        ...

    def answered(self, seconds: float) -> None:
        """A request is answered, so long after its handling began."""
        ...

    def reply(
        self,
        session: ClientSession,
        reply: Reply | None,
        acks: int,
        head: RequestHead,
        pause_ms: int,
        rows: list[ProducedRow],
    ) -> None: ...


class GatheredRow(NamedTuple):
    """The row of an appended part, valid when everything before `next_offset` is committed or written."""

    number: int
    row: ProducedRow
    next_offset: int


UNANSWERED = ProducedRow(b"", -1, ErrorCode.UNKNOWN_SERVER_ERROR, -1)
"""Stands for the row of a part that still waits."""


class PendingProduce:
    """One request with unanswered batches. Referenced by what it waits for, and by the deadlines."""

    __slots__ = (
        "_answered",
        "_began",
        "_handler",
        "_pause_ms",
        "_reply",
        "_session",
        "access",
        "call",
        "gathered",
        "head",
        "rows",
        "settled",
        "trace",
    )

    def __init__(
        self, handler: ProduceReplies, session: ClientSession, call: ProduceCall, head: RequestHead, pause_ms: int
    ) -> None:
        """`pause_ms`: throttle time for the response; the connection is muted for as long already."""
        self._handler = handler
        self._session = session
        self._answered = 0
        self._began = handler.meter.mark  # of this request's frame, without reading the clock
        self._reply: Reply | None = None
        self._pause_ms = pause_ms
        self.access = session.access
        """The rights of the session; None if it has all rights."""
        self.call = call
        self.head = head
        self.rows = [UNANSWERED] * len(call.parts)
        self.settled = False
        self.trace: RequestTrace | None = None
        """What is noted of a sampled request."""
        self.gathered: dict[Partition, list[GatheredRow]] | None = None
        """Rows by partition, if the owner waits once for all of them; None: each row waits on its own."""

    def trace_by(self, tracer: RequestTracer) -> None:
        """Call it before anything is answered: `tracer` decides whether to sample this request."""
        self.trace = tracer.begin(self._began)

    def answer(self, at: int, row: ProducedRow) -> None:
        """Set the row of part `at`; the last one sends the response."""
        if self.settled or self.rows[at] is not UNANSWERED:
            return
        self.rows[at] = row
        self._answered += 1
        if self._answered == len(self.rows):
            self._finish()

    def park(self, held_bytes: int) -> bool:
        """All parts are under way. Returns whether some still have to be waited for."""
        if self.settled:
            return False
        self._reply = self._session.connection.reply_later(held_bytes)
        return True

    def expire(self, now: float) -> float | None:
        for at, row in enumerate(self.rows):
            if row is UNANSWERED:
                part = self.call.parts[at]
                self.rows[at] = ProducedRow(part.topic, part.partition, ErrorCode.REQUEST_TIMED_OUT, -1)
        self._finish()
        return None

    def _finish(self) -> None:
        self.settled = True
        rows, handler, reply = self.rows, self._handler, self._reply
        began = handler.now()  # within another request than this one, or a timer
        handler.answered(began - self._began)
        trace = self.trace
        if trace is not None:
            trace.settled(began, next((row.error for row in rows if row.error), ErrorCode.NONE))
        handler.reply(self._session, reply, self.call.acks, self.head, self._pause_ms, rows)
        if reply is not None:
            self._session.usage.spent(handler.now() - began)
        if trace is not None:
            trace.replied(handler.now())


class RowWaiter:
    """Waits for one batch of a request to be committed (acks=all) or written (acks=1)."""

    __slots__ = ("_at", "_partition", "_pending", "_row")

    def __init__(self, pending: PendingProduce, at: int, row: ProducedRow, partition: Partition) -> None:
        self._pending = pending
        self._at = at
        self._row = row
        self._partition = partition

    @property
    def settled(self) -> bool:
        return self._pending.settled

    def committed(self, offset: int) -> None:
        self._pending.answer(self._at, self._row)

    def refused(self, offset: int, error: ErrorCode) -> None:
        self._pending.answer(self._at, self._failed(error))

    def starved(self, offset: int) -> bool:
        self._pending.answer(self._at, self._failed(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND))
        return True

    def _failed(self, error: ErrorCode) -> ProducedRow:
        return ProducedRow(self._row.topic, self._row.partition, error, -1)
