"""Fetch 4-18, for consumers and followers, from the receive buffer to file regions.

Behaviour: the handler reads at once. A consumer is answered at once if there is enough data, an error or a redirection.
Otherwise the fetch waits, without a task or timer of its own, for a change of its positions or for its deadline.
Records from the tier end the wait even if they are few. A fetch that needs a download from the tier, or a read from the
local device, waits up to remote.fetch.max.wait.ms; the download or read continues after that. A follower's fetch
acknowledges everything before its offsets, and is answered at the end of the turn of the event loop in which there is
something for it. At least one batch is returned, however small the limits. A client that is over its quota gets no rows
and a throttle time instead.

Versions: sessions from 7 on, follower reads and racks from 11 on, topic ids from 13 on, leader hints from 16 on.
Replica fetches are accepted only on the internal listener, because they move the high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from broker.deadlines import Deadlines
from broker.handlers.fetch_answers import FetchAnswers
from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.partitions.replica import OFFLINE
from broker.partitions.throttles import ReplicationQuota
from broker.replication.fetch_reading import FetchReader, Read
from broker.replication.fetch_sessions import NO_SESSION, FetchSession, FetchSessionCache, Position
from broker.security.session import ClientSession
from common.errors import ErrorCode, ProtocolError
from common.node_settings.tier import TierReads
from common.pacing import Work
from common.settings import same
from storage.disk.cold_reads import PageWait
from storage.disk.open_files import OpenFiles
from storage.segments.region import Region
from tiering.reading.downloads import Ticket
from wire.hot_codec import (
    FetchCall,
    FetchedRow,
    ManyParts,
    RequestHead,
    decode_fetch,
    fetch_decoding,
)
from wire.outgoing import Reply
from wire.tick import Tick

logger = logging.getLogger(__name__)

SESSIONS_FROM = 7
POSITIONS_MAX = 500  # read for one incremental fetch, to bound its time on the loop; the rest comes with the next fetch
FAIR_UNSENT_FILES = 4  # open files allowed per client in unsent replies when the limit for all clients is exceeded


@dataclass(slots=True, frozen=True)
class FetchServices:
    """Dependencies of the handler."""

    hosted: HostedPartitions
    answers: FetchAnswers
    sessions: FetchSessionCache
    reader: FetchReader
    deadlines: Deadlines
    tick: Tick
    open_files: OpenFiles
    parts_at_once: int
    now: Callable[[], float]
    remote_wait_ms: int = same(TierReads, "remote_fetch_max_wait_ms")


class PendingFetch:
    """One fetch from its request to its response."""

    __slots__ = (
        "_client",
        "_full",
        "_handler",
        "_head",
        "_positions",
        "_reply",
        "_session",
        "_size",
        "_tickets",
        "bytes_max",
        "bytes_min",
        "call",
        "settled",
    )

    def __init__(
        self,
        handler: FetchHandler,
        client: ClientSession,
        call: FetchCall,
        head: RequestHead,
        size: int,
        session: FetchSession | None,
    ) -> None:
        """`size`: bytes of the request's frame."""
        self._handler = handler
        self._client = client
        self._head = head
        self._size = size
        self._session = session
        self._reply: Reply | None = None
        self._positions: list[Position] = []
        self._full = True
        self._tickets: list[Ticket | PageWait] | None = None  # downloads and disk reads that this fetch waits for
        self.call = call
        self.bytes_max = handler.answers.bytes_max(client, head, call)
        self.bytes_min = min(call.bytes_min, self.bytes_max)
        self.settled = False

    # starting ----------------------------------------------------------------------------------------------

    def start_full(self) -> None:
        """Start a fetch whose request has all partitions; with a session they are remembered."""
        call, session = self.call, self._session
        if session is not None:
            self._positions = session.update(call.parts, ())
            self._watch(self._positions)
        else:
            self._positions = [Position(self, part) for part in call.parts]
        self._start()

    def start_incremental(self) -> None:
        """Start a fetch whose request has only the changed partitions."""
        session = self._session
        if session is not None:
            self._full = False
            named = session.update(self.call.parts, self.call.forgotten)
            self._watch(named)
        self._start()

    def _watch(self, positions: Iterable[Position]) -> None:
        reader, call, session = self._handler.reader, self.call, self._session
        for position in positions:
            position.watch(reader.find(position, self._head.version, self._client))
            if call.replica >= 0 and session is not None:
                reader.acknowledge(position, call, session)

    def _start(self) -> None:
        if self.call.replica >= 0 and self.call.wait_ms_max > 0:
            self._park(self.call.wait_ms_max)
            if self._has_news():
                self._handler.tick.wake(self._retry)
            return
        reads = self._read()
        nothing_asked = not self._positions if self._session is None else not self._session.positions
        if nothing_asked or self._is_enough(reads):
            self._answer(reads)
            return
        is_cold = any(read.is_cold for _, read in reads)
        wait_ms = self._handler.remote_wait_ms if is_cold else self.call.wait_ms_max
        if wait_ms <= 0:
            self._answer(reads)
        else:
            release_reads(reads)
            self._park(wait_ms)

    def _park(self, wait_ms: int) -> None:
        if self._reply is None:
            self._reply = self._client.connection.reply_later(0)
        self._client.closed_listeners[self] = None
        if self._session is not None:
            self._session.park(self)
        else:
            for position in self._positions:
                position.watch(self._handler.reader.find(position, self._head.version, self._client))
        self._handler.add_deadline(wait_ms, self)

    # waiting -----------------------------------------------------------------------------------------------

    def position_changed(self, position: Position, *, committed: bool) -> None:
        self.poke(position.partition, committed=committed)

    def poke(self, partition: Partition | None, *, committed: bool) -> None:
        if self.call.replica >= 0:
            # A high watermark alone does not wake a follower, unless consumers read from it.
            wanted = not committed or partition is None or not partition.is_leader or partition.shares_reads
        else:
            wanted = committed
        if wanted:
            self._handler.tick.wake(self._retry)

    def download_settled(self) -> None:
        """A download finished or failed, or bytes of the local log are in the page cache."""
        self._handler.tick.wake(self._retry)

    def _retry(self) -> None:
        if self.settled:
            return
        if self.call.replica >= 0:
            self._look_again()
            return
        began = self._handler.now()
        self._look_again()
        self._client.usage.spent(self._handler.now() - began)

    def _look_again(self) -> None:
        self._unlisten()
        reads = self._read()
        if self._is_enough(reads):
            self._answer(reads)
            return
        release_reads(reads)
        if self._session is not None and self._is_cut(reads):
            for position, _ in reads:  # a throttle holds all of them back: look at the others next time
                self._session.served(position)

    def expire(self, now: float) -> float | None:
        self._answer(self._read())
        return None

    def superseded(self) -> None:
        """A follower's next fetch ends this one's wait. A consumer must not send one; its session ends."""
        if self.settled:
            return
        if self.call.replica >= 0:
            self._answer(self._read())
        else:
            self._finish(ErrorCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION, [])

    def _unlisten(self) -> None:
        if self._tickets is not None:
            for ticket in self._tickets:
                ticket.unlisten(self)
            self._tickets = None

    def connection_closed(self) -> None:
        self.settled = True
        self._unlisten()
        session = self._session
        if session is None:
            self._unwatch()
        elif session.waiting is self:
            session.sleep()
        if self._reply is not None and self._reply.held:
            self._reply.send([])  # release what a long request holds
        self._let_go()

    def _unwatch(self) -> None:
        for position in self._positions:
            position.unwatch()

    # reading -----------------------------------------------------------------------------------------------

    def _has_news(self) -> bool:
        """Whether a follower's session has bytes or an error for it; cheaper than reading."""
        session = self._session
        if session is None or len(session.changed) > POSITIONS_MAX:
            return True
        for position in session.changed:
            partition = position.partition
            if (
                partition is None
                or not partition.is_leader
                or position.leader_epoch not in (-1, partition.leader_epoch)
                or position.offset != partition.log.ends.readable
                or position.last_fetched_epoch not in (-1, partition.log.leader_epochs.latest_epoch)
            ):
                return True
        return False

    def _read(self) -> list[tuple[Position, Read]]:
        session = self._session
        if self._full or session is None:
            positions = self._positions
        else:
            positions = list(islice(session.changed, POSITIONS_MAX))
        return self._read_some(positions, self.bytes_max, 0)

    def _read_some(self, positions: list[Position], left: int, regions: int) -> list[tuple[Position, Read]]:
        """Read `positions`, at most `left` bytes of records. `regions`: number of regions that this fetch has read
        already."""
        reader, call, version, session = self._handler.reader, self.call, self._head.version, self._session
        reads: list[tuple[Position, Read]] = []
        empty = not regions
        files = None if call.replica >= 0 else self._handler.open_files
        unsent = self._client.connection.unsent_regions + regions
        for position in positions:
            if left <= 0 and not self._full:
                break
            partition = position.partition
            if session is not None and (partition is None or partition.role is OFFLINE):
                self._watch((position,))  # hosted here since it was named, so watch it from now on
            if files is not None and unsent >= FAIR_UNSENT_FILES and files.is_at_pin_limit:
                # its records come with a later fetch
                read = reader.read(position, call, version, 0, False, self._client)
            else:
                read = reader.read(position, call, version, max(left, 0), empty, self._client)
            if read.ticket is not None:
                read.ticket.listen(self)
                if self._tickets is None:
                    self._tickets = []
                self._tickets.append(read.ticket)
            if read.size:
                empty = False
                left -= read.size
                unsent += 1
            reads.append((position, read))
        return reads

    def _is_enough(self, reads: list[tuple[Position, Read]]) -> bool:
        size, said = 0, False
        for _, read in reads:
            if read.urgent:
                return True
            size += read.size
            said = said or not (read.size or read.more)
        if said and self._is_cut(reads):
            return True
        if size or self.bytes_min > 0:
            return size >= self.bytes_min
        # a client that waits for no bytes gets those that a thread reads, as from Apache Kafka
        return not any(read.is_cold for _, read in reads)

    def _is_cut(self, reads: list[tuple[Position, Read]]) -> bool:
        """Whether other positions may have something too."""
        return not self._full and len(reads) == POSITIONS_MAX

    # answering ---------------------------------------------------------------------------------------------

    def _answer(self, reads: list[tuple[Position, Read]]) -> None:
        session = self._session
        size = sum([read.size for _, read in reads]) if self.call.replica < 0 else 0
        pause_ms = self._handler.answers.refuses_ms(self._client, self._head, size) if size else 0
        if pause_ms:
            self._refuse(reads, pause_ms)
            return
        rows = self._rows(reads)
        self._finish(ErrorCode.NONE, session.id if session is not None else NO_SESSION, rows, size)

    def _refuse(self, reads: list[tuple[Position, Read]], pause_ms: int) -> None:
        """Answer without rows, because the client is over its quota: nothing of `reads` counts as sent.

        A full fetch has not begun a session then, as in Apache Kafka: its answer would need a row for each partition.
        """
        release_reads(reads)
        session = self._session
        if session is not None and self._full:
            self._session = None
            session.unpark(self)
            self._handler.sessions.give_up(session)
        self._finish(ErrorCode.NONE, NO_SESSION if self._session is None else self._session.id, [], pause_ms=pause_ms)

    def _rows(self, reads: list[tuple[Position, Read]]) -> list[FetchedRow]:
        """The rows to send from `reads`, recorded as sent."""
        session = self._session
        quota = self._handler.replica_quota if self.call.replica >= 0 else None
        rows: list[FetchedRow] = []
        for position, read in reads:
            row = read.row
            if position.send(row) or self._full or read.size or read.urgent:
                rows.append(row)
            if read.size and read.counts_for is not None:
                read.counts_for.count_out(read.size)
            if quota is not None and read.size and position.partition is not None and quota.covers(position.partition):
                quota.record(read.size)
            if session is not None:
                if not read.size and not read.more and not read.urgent:
                    session.changed.pop(position, None)
                elif read.size or len(session.changed) > POSITIONS_MAX:
                    session.served(position)
        return rows

    def _finish(
        self, error: ErrorCode, session_id: int, rows: list[FetchedRow], size: int = 0, pause_ms: int | None = None
    ) -> None:  # fmt: skip
        """`size`: bytes of records in `rows`; `pause_ms`: known already, without a charge."""
        self.settled = True
        if self._tickets is not None:
            self._unlisten()
        self._client.closed_listeners.pop(self, None)
        session = self._session
        if session is None:
            if self._reply is not None:
                self._unwatch()
        else:
            session.unpark(self)
            self._client.adopt(session)
        answers = self._handler.answers
        if pause_ms is None:
            pause_ms = answers.charge(self._client, self._head, self._size, size)
        answers.send(self._client, self._reply, self._head, error, session_id, rows, pause_ms)
        self._let_go()

    def _let_go(self) -> None:
        """Break reference cycles, so that the fetch is freed at once: deadlines keep settled fetches for a while."""
        self._positions = []
        self._reply = None


class FetchHandler:
    """Serves every Fetch request of a broker."""

    def __init__(self, services: FetchServices) -> None:
        self._hosted = services.hosted
        self.answers = services.answers
        self.sessions = services.sessions
        self.parts_at_once = services.parts_at_once
        self._deadlines = services.deadlines
        self._loop = asyncio.get_running_loop()
        self.now = services.now
        self.reader = services.reader
        self.tick = services.tick
        self.remote_wait_ms = services.remote_wait_ms
        self.open_files = services.open_files

    def wait_for_tier(self, wait_ms: int) -> None:
        """Set how long fetches wait for the tier."""
        self.remote_wait_ms = wait_ms

    def handle(
        self, client: ClientSession, buffer: bytearray, head: RequestHead, at: int, end: int
    ) -> Work[FetchCall] | None:
        """Serve the request in the frame `buffer[at:end]`, which begins with `head`. Raises MalformedFrame.

        A request with more than `parts_at_once` partitions is not served: the returned work decodes it.
        """
        version, body = head.version, head.body
        try:
            call = decode_fetch(buffer, body, end, version, client.topic_prefix, self.parts_at_once)
        except ManyParts:
            return fetch_decoding(buffer, body, end, version, client.topic_prefix)
        try:
            session = self.resume(client, call, version)
        except ProtocolError as error:
            self.refuse(client, None, head, end - at, error.code)
            return None
        if session is not None:
            PendingFetch(self, client, call, head, end - at, session).start_incremental()
            if not session.positions:
                self.sessions.remove(session.id)
            return None
        session = self.create(client, call, version)
        PendingFetch(self, client, call, head, end - at, session).start_full()
        return None

    def resume(self, client: ClientSession, call: FetchCall, version: int) -> FetchSession | None:
        """The session of an incremental fetch, None for a full one. Raises ProtocolError."""
        if call.replica >= 0:
            self._check_replica(client, call)
        return self.sessions.resume(call, version, self._loop.time(), client.tenant)

    def create(self, client: ClientSession, call: FetchCall, version: int) -> FetchSession | None:
        """A new session for a full fetch, if it asks for one and there is room."""
        return (
            self.sessions.create(call, version, self._loop.time(), client.tenant) if version >= SESSIONS_FROM else None
        )

    def refuse(
        self, client: ClientSession, reply: Reply | None, head: RequestHead, size: int, error: ErrorCode
    ) -> None:  # fmt: skip
        """Send an error for the whole request, of `size` bytes."""
        pause_ms = self.answers.charge(client, head, size, 0)
        self.answers.send(client, reply, head, error, NO_SESSION, [], pause_ms)
        if error == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            client.connection.close_after_flush()

    @property
    def replica_quota(self) -> ReplicationQuota | None:
        """The quota that counts followers' bytes; None if no replica is throttled."""
        quota = self._hosted.throttles.leader
        return quota if quota.topics else None

    def add_deadline(self, wait_ms: int, pending: PendingFetch) -> None:
        self._deadlines.add(self._loop.time() + wait_ms / 1000, pending)

    def _check_replica(self, client: ClientSession, call: FetchCall) -> None:
        if not client.internal:
            logger.warning("a client posed as a replica", extra={"client": client.client_host, "replica": call.replica})
            raise ProtocolError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        broker = self._hosted.image.brokers.get(call.replica)
        if broker is not None and call.replica_epoch < broker.epoch:  # from an earlier registration of that broker
            raise ProtocolError(ErrorCode.STALE_BROKER_EPOCH)


def release_reads(reads: list[tuple[Position, Read]]) -> None:
    for _, read in reads:
        if isinstance(read.row.records, Region):
            read.row.records.release()
