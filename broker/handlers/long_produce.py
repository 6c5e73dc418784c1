"""A Produce request with very many partitions or many megabytes, served in slices.

Like an ordinary request it is decoded completely before anything is appended. Then it is appended portion by portion. A
portion waits once per partition, however many of its batches there are, so that a high watermark that passes all of
them costs little. The response is that of an ordinary request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from broker.handlers.pending_produce import UNANSWERED, GatheredRow, PendingProduce
from broker.handlers.produce import ALL, LEADER, NONE, TIMEOUT_MS_MAX, ProduceHandler, refusal_of
from broker.requests.long_requests import LongRequest
from broker.security.session import ClientSession
from common.errors import ErrorCode
from common.pacing import Work
from wire.connection import Connection
from wire.hot_codec import ProduceCall, ProducedPart, ProducedRow, RequestHead

PORTION_PARTS_MAX = 50
PORTION_BYTES_MAX = 1 << 20  # unless a batch is longer
APPEND_COST, BYTES_PER_UNIT = 20, 1 << 10  # units of `common.pacing` for a batch, and for its bytes
ROW_COST = 2


class ProducePortion(PendingProduce):
    """Some parts of a long request. `done` is called when all of them are answered."""

    __slots__ = ("_done", "_verdicts")

    def __init__(
        self,
        handler: ProduceHandler,
        session: ClientSession,
        call: ProduceCall,
        head: RequestHead,
        done: Callable[[], None],
    ) -> None:
        super().__init__(handler, session, call, head, 0)
        self.gathered = {}
        self._done = done
        self._verdicts: list[tuple[list[GatheredRow], ErrorCode]] = []

    def wait(self) -> None:
        """All parts are appended, rejected, or being inspected: wait for those that need it."""
        gathered, self.gathered = self.gathered or {}, None
        acks = self.call.acks
        for partition, rows in gathered.items():
            offset = max(row.next_offset for row in rows)
            waiter = PortionWaiter(self, rows)
            if acks == ALL:
                waits = partition.when_committed(offset, waiter)
            else:
                waits = acks == LEADER and partition.when_written(offset, waiter)
            if not waits:
                self.judge(rows, ErrorCode.NONE)

    def judge(self, rows: list[GatheredRow], error: ErrorCode) -> None:
        """Record the outcome of these rows. The rows are made later, because there may be many portions."""
        if self.settled:
            return
        self._verdicts.append((rows, error))
        self._answered += len(rows)
        if self._answered == len(self.rows):
            self._finish()

    def made_rows(self) -> list[ProducedRow]:
        """All rows; those without an outcome have timed out. Ends all waits."""
        self.settled = True
        for rows, error in self._verdicts:
            for number, row, _ in rows:
                self.rows[number] = ProducedRow(row.topic, row.partition, error, -1) if error else row
        return [
            ProducedRow(part.topic, part.partition, ErrorCode.REQUEST_TIMED_OUT, -1) if row is UNANSWERED else row
            for part, row in zip(self.call.parts, self.rows, strict=True)
        ]

    def _finish(self) -> None:
        self.settled = True
        self._done()


class PortionWaiter:
    """Waits for all batches of one portion for one partition."""

    __slots__ = ("_portion", "_rows")

    def __init__(self, portion: ProducePortion, rows: list[GatheredRow]) -> None:
        self._portion = portion
        self._rows = rows

    @property
    def settled(self) -> bool:
        return self._portion.settled

    def committed(self, offset: int) -> None:
        self._portion.judge(self._rows, ErrorCode.NONE)

    def refused(self, offset: int, error: ErrorCode) -> None:
        self._portion.judge(self._rows, error)

    def starved(self, offset: int) -> bool:
        self._portion.judge(self._rows, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return True


class LongProduce:
    """One request from its frame to its response."""

    def __init__(
        self, handler: ProduceHandler, decoding: Work[ProduceCall], buffer: bytearray, head: RequestHead, size: int
    ) -> None:
        """`decoding`: the work that decodes the request from `buffer`; `size`: bytes of its frame."""
        self._handler = handler
        self._decoding = decoding
        self._buffer = buffer
        self._head = head
        self._size = size
        self._portions: list[ProducePortion] = []
        self._unsettled = 0
        self._loop = asyncio.get_running_loop()
        self._began = handler.now()

    async def serve(self, long: LongRequest) -> None:
        """Appends everything even if the client closes its connection, because it may not have asked for a response."""
        async with long.place():
            try:
                call = await long.paced(self._decoding)
                await long.paced(self._appending(long, call))
            finally:
                long.frame_is_read()
        if call.acks != NONE:
            long.go_on()
        timeout_ms = TIMEOUT_MS_MAX if call.acks == NONE else min(max(call.timeout_ms, 0), TIMEOUT_MS_MAX)
        until = self._loop.time() + timeout_ms / 1000
        while self._unsettled and not long.is_closed and await long.changed(until - self._loop.time()):
            continue
        if long.is_closed and call.acks == NONE:
            self._handler.pause_ms(long.session, self._head, self._size)
            return  # batches under inspection will still be appended
        rows = await long.paced(self._made_rows())
        if call.acks == NONE:
            long.answer([], self._handler.pause_ms(long.session, self._head, self._size))
            if any(row.error for row in rows):
                connection: Connection = long.session.connection
                connection.close_after_flush()
            return
        frame, pause_ms = await long.paced(
            self._handler.answering(long.session, self._head, self._size, rows)
        )  # fmt: skip
        long.answer([frame], pause_ms)
        self._handler.answered(self._handler.now() - self._began)

    def _appending(self, long: LongRequest, call: ProduceCall) -> Work[None]:
        session, refusal = long.session, refusal_of(call)

        def done() -> None:
            self._unsettled -= 1
            if not self._unsettled:
                long.wake()

        with memoryview(self._buffer) as view:
            for parts in _portions(call.parts):
                part_of_call = replace(call, parts=parts)
                portion = ProducePortion(self._handler, session, part_of_call, self._head, done)
                self._portions.append(portion)
                self._unsettled += 1
                self._handler.take(portion, refusal, self._buffer, view, session.topic_prefix)
                portion.wait()
                yield len(parts) * APPEND_COST + (parts[-1].end - parts[0].start) // BYTES_PER_UNIT

    def _made_rows(self) -> Work[list[ProducedRow]]:
        rows: list[ProducedRow] = []
        for portion in self._portions:
            rows += portion.made_rows()
            yield len(portion.rows) * ROW_COST
        self._portions.clear()
        return rows


def _portions(parts: list[ProducedPart]) -> Iterator[list[ProducedPart]]:
    begin = 0
    for number, part in enumerate(parts):
        if number - begin == PORTION_PARTS_MAX or (
            number > begin and part.end - parts[begin].start > PORTION_BYTES_MAX
        ):
            yield parts[begin:number]
            begin = number
    yield parts[begin:]
