"""A Fetch with very many partitions, served in slices.

An incremental fetch is an ordinary fetch once its session has applied the request's changes. A full fetch has a row for
each partition, so it is also read and written in slices. Up to `WATCHED_MAX` partitions it waits for records like an
ordinary fetch; with more it is answered after a pause with what was there before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from broker.handlers.fetch import (
    FetchHandler,
    PendingFetch,
    release_reads,
)
from broker.partitions.partition import Partition
from broker.replication.fetch_reading import Read
from broker.replication.fetch_sessions import NO_SESSION, FetchSession, Position
from broker.requests.long_requests import LongRequest
from broker.security.session import ClientSession
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from wire.hot_codec import FetchCall, FetchedRow, RequestHead
from wire.outgoing import Reply

UPDATED_AT_ONCE, UPDATE_COST = 100, 4  # positions of a session per slice; cost of each in units of `common.pacing`
WATCHED_MAX = 5_000
PAUSE_MS = 100  # maximal wait of a fetch with more partitions than that
READ_AT_ONCE, READ_COST = 25, 20  # positions per slice; cost of each in units of `common.pacing`
ROW_COST = 2


class LongFetch:
    """One request from its frame to its response."""

    def __init__(self, handler: FetchHandler, decoding: Work[FetchCall], head: RequestHead, size: int) -> None:
        """`decoding`: the work that decodes the request; `size`: bytes of its frame."""
        self._handler = handler
        self._decoding = decoding
        self._head = head
        self._size = size

    async def serve(self, long: LongRequest) -> None:
        handler, client, head, version = self._handler, long.session, self._head, self._head.version
        full: FullFetch | None = None
        try:
            async with long.place():
                try:
                    call = await long.paced(self._decoding)
                finally:
                    long.frame_is_read()
                if long.is_closed:
                    return
                session = handler.resume(client, call, version)
                if session is not None:
                    await self._incremental(long, call, session)
                    return
                session = handler.create(client, call, version)
                full = FullFetch(handler, client, call, head, self._size, session, long)
                done = await full.first()
            long.go_on()
            while not done:
                await full.wait()
                async with long.place():
                    done = await full.again()
        except ProtocolError as error:
            handler.refuse(client, long.reply, head, self._size, error.code)
        finally:
            if full is not None:
                full.give_up()

    async def _incremental(self, long: LongRequest, call: FetchCall, session: FetchSession) -> None:
        """Raises ProtocolError if another fetch has continued or ended the session meanwhile."""
        handler, epoch = self._handler, session.epoch
        pending = IncrementalFetch(handler, long.session, call, self._head, self._size, session)
        await long.paced(pending.updating())
        if not handler.sessions.has(session):
            handler.sessions.give_up(session)
            raise ProtocolError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise ProtocolError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if long.is_closed:
            session.connection_closed()
            return
        pending.begin(long.reply)
        long.hand_over()
        if not session.positions:
            handler.sessions.remove(session.id)


class IncrementalFetch(PendingFetch):
    """An ordinary fetch whose session applies the request's changes in slices."""

    __slots__ = ()

    def updating(self) -> Work[None]:
        call, session = self.call, self._session
        self._full = False
        if session is None:
            return
        for begin in range(0, len(call.parts), UPDATED_AT_ONCE):
            self._watch(session.update(call.parts[begin : begin + UPDATED_AT_ONCE], ()))
            yield UPDATED_AT_ONCE * UPDATE_COST
        for begin in range(0, len(call.forgotten), UPDATED_AT_ONCE):
            session.update((), call.forgotten[begin : begin + UPDATED_AT_ONCE])
            yield UPDATED_AT_ONCE * UPDATE_COST

    def begin(self, reply: Reply) -> None:
        """Read and answer, or wait, with `reply` as the place of the response."""
        self._reply = reply
        self._start()


class FullFetch(PendingFetch):
    """A full fetch in slices. `first`, and `again` after each `wait`, return whether the fetch has ended."""

    __slots__ = (
        "_enough",
        "_long",
        "_loop",
        "_owns_positions",
        "_reads",
        "_sent",
        "_superseded",
        "_until",
        "_watching",
    )

    def __init__(
        self,
        handler: FetchHandler,
        client: ClientSession,
        call: FetchCall,
        head: RequestHead,
        size: int,
        session: FetchSession | None,
        long: LongRequest,
    ) -> None:
        super().__init__(handler, client, call, head, size, session)
        self._long = long
        self._owns_positions = session is None
        self._loop = asyncio.get_running_loop()
        self._reads: list[tuple[Position, Read]] = []
        self._sent = 0
        self._enough = self._superseded = self._watching = False
        self._until = 0.0

    async def first(self) -> bool:
        session, long = self._session, self._long
        if session is not None:
            session.park(self)
        await long.paced(self._naming())
        await long.paced(self._reading())
        is_cold = any(read.is_cold for _, read in self._reads)
        wait_ms = self._handler.remote_wait_ms if is_cold else self.call.wait_ms_max
        if not self._is_over() and wait_ms > 0:
            if len(self._positions) <= WATCHED_MAX:
                self._until = self._loop.time() + wait_ms / 1000
                return False
            self._until = self._loop.time() + min(wait_ms, PAUSE_MS) / 1000
            while not self._has_ended() and await long.changed(self._until - self._loop.time()):
                continue
        await self._end()
        return True

    async def wait(self) -> None:
        """Wait until something has changed or the time is over."""
        await self._long.paced(self._forgetting())
        if self._watching:
            await self._long.changed(self._until - self._loop.time())
            return
        self._watching = True
        if self._session is None:
            await self._long.paced(self._watching_all())  # earlier changes were not noticed: read again

    async def again(self) -> bool:
        await self._long.paced(self._reading())
        if not self._is_over() and self._loop.time() < self._until:
            return False
        await self._end()
        return True

    # called by partitions and timers -----------------------------------------------------------------------

    def poke(self, partition: Partition | None, *, committed: bool) -> None:
        if committed or self.call.replica >= 0:
            self._long.wake()

    def download_settled(self) -> None:
        self._long.wake()

    def superseded(self) -> None:
        self._superseded = True
        self._long.wake()

    # in slices ---------------------------------------------------------------------------------------------

    def _naming(self) -> Work[None]:
        call, session = self.call, self._session
        named: dict[Position, None] = {}
        for begin in range(0, len(call.parts), UPDATED_AT_ONCE):
            parts = call.parts[begin : begin + UPDATED_AT_ONCE]
            if session is None:
                self._positions += [Position(self, part) for part in parts]
            else:
                positions = session.update(parts, ())
                self._watch(positions)
                named.update(dict.fromkeys(positions))
            yield len(parts) * UPDATE_COST
            if self._has_ended():
                return
        if session is not None:
            self._positions = list(named)

    def _reading(self) -> Work[None]:
        self._sent = regions = 0
        self._enough = False
        for begin in range(0, len(self._positions), READ_AT_ONCE):
            if self._has_ended():
                return
            reads = self._read_some(
                self._positions[begin : begin + READ_AT_ONCE], self.bytes_max - self._sent, regions
            )  # fmt: skip
            self._reads += reads
            for _, read in reads:
                self._enough = self._enough or read.urgent
                if read.size:
                    self._sent += read.size
                    regions += 1
            yield len(reads) * READ_COST

    def _watching_all(self) -> Work[None]:
        reader, client, version = self._handler.reader, self._client, self._head.version
        for number, position in enumerate(self._positions):
            position.watch(reader.find(position, version, client))
            if number % UPDATED_AT_ONCE == 0:
                yield UPDATED_AT_ONCE * UPDATE_COST

    def _forgetting(self) -> Work[None]:
        """Release what was read, and stop waiting for downloads."""
        tickets, self._tickets = self._tickets or [], None
        for number, ticket in enumerate(tickets):
            ticket.unlisten(self)
            if number % UPDATED_AT_ONCE == 0:
                yield UPDATED_AT_ONCE
        while self._reads:
            release_reads(self._reads[-UPDATED_AT_ONCE:])
            del self._reads[-UPDATED_AT_ONCE:]
            yield UPDATED_AT_ONCE

    def _making_rows(self) -> Work[list[FetchedRow]]:
        rows: list[FetchedRow] = []
        for begin in range(0, len(self._reads), UPDATED_AT_ONCE):
            rows += self._rows(self._reads[begin : begin + UPDATED_AT_ONCE])
            yield UPDATED_AT_ONCE * ROW_COST
        return rows

    def _unwatching(self, positions: Iterable[Position]) -> Work[None]:
        for number, position in enumerate(positions):
            position.unwatch()
            if number % UPDATED_AT_ONCE == 0:
                yield UPDATED_AT_ONCE

    # ending ------------------------------------------------------------------------------------------------

    def _has_ended(self) -> bool:
        return self._long.is_closed or (self._superseded and self.call.replica < 0)

    def _is_over(self) -> bool:
        return (
            self._has_ended() or self._superseded or self._enough or self._sent >= self.bytes_min or not self._positions
        )

    async def _end(self) -> None:
        """Send what was read, unless the connection has closed or the session has ended."""
        long, session, handler = self._long, self._session, self._handler
        if long.is_closed:
            return
        if session is not None and not handler.sessions.has(session):
            error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            handler.refuse(self._client, long.reply, self._head, self._size, error)
            return
        pause_ms = handler.answers.refuses_ms(self._client, self._head, self._sent) if self._sent else 0
        if pause_ms:  # as an ordinary fetch; `give_up` drops what was read, and the session
            long.answer(
                await long.paced(handler.answers.encoding(self._client, self._head, NO_SESSION, [], pause_ms)), pause_ms
            )
            return
        rows = await long.paced(self._making_rows())
        session_id = session.id if session is not None else NO_SESSION
        pause_ms = handler.answers.charge(self._client, self._head, self._size, self._sent)
        parts = await long.paced(handler.answers.encoding(self._client, self._head, session_id, rows, pause_ms))
        self._reads = []  # the reply owns them now and releases them
        if session is not None and not long.is_closed:
            session.unpark(self)
            self._client.adopt(session)
            self._session = None
        long.answer(parts, pause_ms)

    def give_up(self) -> None:
        """Drop the rest of the request in slices, and its session unless the client knows the session's id."""
        if self.settled:
            return
        self.settled = True
        session, self._session = self._session, None
        positions, self._positions = self._positions, []
        pace = self._handler.sessions.pace
        pace(self._forgetting())
        if session is not None:
            session.unpark(self)
            self._handler.sessions.give_up(session)
        elif self._watching and self._owns_positions:
            pace(self._unwatching(positions))
