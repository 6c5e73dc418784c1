"""The fetching side of replication: one connection and one fetch session per leader.

A fetch is always outstanding. The next one is sent in the turn of the event loop in which the last response was
appended, because it is the acknowledgement. When partitions join while a fetch waits, another fetch is sent (at most
two are in flight). One task per leader connects, reconnects and watches for silence. Responses are parsed in the
receive buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from msgspec import Struct

from broker.partitions.partition import Partition
from broker.partitions.throttles import ReplicationQuota
from broker.replication.config import ReplicationConfig
from broker.replication.follower import APPEND, IGNORE, Action, Followed, FollowedPartitions, Verdict
from common.backoff import Backoff, Retries
from common.errors import ErrorCode, MalformedFrame, ProtocolError, StorageFailure, error_name
from common.lifecycle import duty, end_task
from common.ports import Address, Ports
from storage.audit.audit_trail import AuditPending
from storage.disk.cold_reads import PagesMissing
from wire.buffers import BufferPool
from wire.client import ClientConnection, ConnectionLost
from wire.connection import Connection
from wire.hot_codec import NO_TIER_END, ReplicatedRow, decode_replica_fetch, encode_replica_fetch
from wire.tick import Tick
from wire.watch import Watch

logger = logging.getLogger(__name__)

IN_FLIGHT_MAX = 2
CONNECT_TIMEOUT_S = 3.0
RECONNECT_MIN_S = 0.02
DOUBT_S = 1.0
FAILURE_LOG_S = 1.0  # between two log lines about partitions that the leader rejects
PARTS_MAX = 250  # partitions per fetch; the rest follow in the next, because a fetch costs time on both brokers' loops
ALL_PARTS = 2**31 - 1
SESSION_EPOCH_MAX = 2**31 - 1
_SESSION_ERRORS = (
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
    ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
)


class LinkServices(Struct, frozen=True):
    """Shared by all links of a broker. `broker_epoch` returns the epoch of this broker's current registration."""

    ports: Ports
    tick: Tick
    pool: BufferPool
    watch: Watch
    node_id: int
    secret: bytes
    cluster: str
    config: ReplicationConfig
    broker_epoch: Callable[[], int]
    start_from_tier: Callable[[Partition], None]
    drop_erased: Callable[[Partition], None]


class LeaderLink:
    """All replicas of this broker that follow `leader`. `address_of` returns None while the leader is unknown."""

    def __init__(
        self,
        services: LinkServices,
        leader: int,
        address_of: Callable[[int], Address | None],
        quota: ReplicationQuota,
    ) -> None:
        config = services.config
        self.leader = leader
        self.received_bytes = 0
        self.followed = FollowedPartitions(
            config.replica_fetch_max_bytes, config.replica_fetch_backoff_ms / 1000, quota
        )
        self._services = services
        self._config = config
        self._address_of = address_of
        self._loop = asyncio.get_running_loop()
        self._connection: ClientConnection | None = None
        self._session_id = 0
        self._session_epoch = 0
        self._parts_max = PARTS_MAX
        self._in_flight = 0
        self._answered_at = 0.0
        self._served = False  # whether this connection has ever received a response
        self._doubted_until = 0.0
        self._failure_logged_at = float("-inf")
        self._unlogged = 0  # failures since the last line
        self._lost = asyncio.Event()
        self._work = asyncio.Event()
        self._rest_timer: asyncio.TimerHandle | None = None
        self._task = self._loop.create_task(self._run(), name=duty(f"follow-{leader}"))

    # membership --------------------------------------------------------------------------------------------

    def add(self, partition: Partition) -> None:
        self.followed.add(partition)
        self._work.set()
        self._nudge()

    def remove(self, partition: Partition) -> None:
        self.followed.remove(partition)
        if len(self.followed):
            self._nudge()

    def written(self, partition: Partition) -> None:
        self.followed.written(partition)
        self._nudge()

    def reconnect(self) -> None:
        """The leader's address may have changed: reconnect without waiting."""
        self._work.set()

    @property
    def is_doubted(self) -> bool:
        """Whether the leader closed its connection moments ago and has not been heard since.

        True only for a short time: the controller soon knows whether the leader is gone; perhaps only this broker
        cannot reach it.
        """
        return self._loop.time() < self._doubted_until

    async def stop(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        await end_task(self._task)

    # the connection ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        most_s = max(RECONNECT_MIN_S, self._config.replica_fetch_backoff_ms / 1000)
        retries = Retries(Backoff(RECONNECT_MIN_S, most_s), self._services.ports.random, failures=1)
        try:
            while True:
                while not len(self.followed):
                    self._work.clear()
                    await self._work.wait()
                self._served = False
                if await self._connect():
                    await self._watch_silence()
                self._disconnect()
                if self._served:
                    retries.succeeded()
                await self._pause(retries.failed())
        finally:
            self._disconnect()

    async def _pause(self, pause_s: float) -> None:
        """Wait before the next attempt, unless there is news of the leader."""
        self._work.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._work.wait()

    async def _connect(self) -> bool:
        address = self._address_of(self.leader)
        if address is None:
            return False
        services = self._services
        self._lost.clear()
        try:
            connection = await ClientConnection.connect(
                services.ports,
                address,
                services.tick,
                services.pool,
                services.watch,
                client_id=f"broker-{services.node_id}-fetcher",
                secret=services.secret,
                cluster=services.cluster,
                timeout_s=CONNECT_TIMEOUT_S,
                frames=self._answered,
                closed=self._closed,
            )
        except ConnectionLost:
            return False
        if self._lost.is_set():
            return False
        self._connection = connection
        self._in_flight = 0
        self._new_session()
        self._fetch()
        return True

    def _closed(self, _connection: Connection) -> None:
        if self._served and self._connection is not None:
            self._doubted_until = self._loop.time() + DOUBT_S
        self._connection = None
        self._lost.set()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _watch_silence(self) -> None:
        """Return when the connection is lost, or when a fetch has gone unanswered for too long."""
        patience_s = (self._config.replica_fetch_wait_max_ms + self._config.request_timeout_ms) / 1000
        self._answered_at = self._loop.time()
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(patience_s / 2):
                    await self._lost.wait()
            except TimeoutError:
                if self._in_flight and self._loop.time() - self._answered_at > patience_s:
                    logger.warning("a leader does not answer fetches", extra={"leader": self.leader})
                    return
                if not len(self.followed):
                    return

    # fetching ----------------------------------------------------------------------------------------------

    def _new_session(self) -> None:
        self._session_id = self._session_epoch = 0
        self._parts_max = PARTS_MAX
        self.followed.session_lost()

    def _nudge(self) -> None:
        """At the end of this turn, send what moved, even while a fetch waits at the leader."""
        if self._connection is not None:
            self._services.tick.wake(self._fetch_moved)

    def _fetch_moved(self) -> None:
        in_session = self._session_id and self._in_flight < IN_FLIGHT_MAX
        if self.followed.has_moved and (in_session or self._in_flight == 0):
            self._fetch()

    def _fetch(self) -> None:
        connection = self._connection
        if connection is None or connection.is_closed:
            return
        new = self._session_epoch == 0
        plan = self.followed.plan(new, self._parts_max)
        self._arm_rest()  # for partitions that a throttle holds back
        if not plan.topics and (new or (self._in_flight == 0 and self.followed.asks_for_nothing)):
            # Everything rests, so a session would be empty. The leader drops the old one when this connection begins
            # another.
            self._session_id = self._session_epoch = self._in_flight = 0
            return
        config = self._config
        more = self.followed.has_moved
        correlation = connection.next_correlation()
        frame = encode_replica_fetch(
            correlation,
            self._services.node_id,
            self._services.broker_epoch(),
            self._session_id,
            self._session_epoch,
            # while a new session's id is unknown, no second fetch can be sent
            0 if new and more else config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            plan.topics,
            plan.forgotten,
        )
        self._session_epoch = 1 if self._session_epoch >= SESSION_EPOCH_MAX else self._session_epoch + 1
        self._in_flight += 1
        try:
            connection.send_frame(correlation, [frame])
        except ConnectionLost:
            self._lost.set()
        if more:
            self._nudge()

    def _answered(self, _connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        answer = decode_replica_fetch(buffer, at, end)
        self._in_flight -= 1
        self.received_bytes += end - at
        self._answered_at = self._loop.time()
        if answer.error:
            self._refused(answer.error)
            return
        self._served = True
        self._doubted_until = 0.0
        if self._session_epoch > 0 and self._session_id == 0:
            self._session_id = answer.session_id
            if answer.session_id == 0:  # the leader has no room for a session: name all partitions in each fetch
                self._session_epoch = 0
                self._parts_max = ALL_PARTS
        for row in answer.rows:
            self._row(row, view)
        if self._session_epoch == 0:
            self.followed.session_lost()
        if self._in_flight == 0:
            self._fetch()
        elif self.followed.has_moved:
            self._nudge()  # the fetch that already waits does not acknowledge what was appended now
        self._arm_rest()

    def _refused(self, error: int) -> None:
        """The leader has lost the session. Raises MalformedFrame for any other error of the whole fetch."""
        if error not in _SESSION_ERRORS:
            raise MalformedFrame(f"a fetch was rejected with error {error}")
        if self._in_flight == 0:
            self._new_session()
            self._fetch()
        else:  # responses in flight belong to the lost session too
            self._session_id = 0

    def _row(self, row: ReplicatedRow, view: memoryview) -> None:
        followed, verdict = self.followed.judge(row)
        if followed is None or verdict is IGNORE:
            return
        try:
            if verdict is APPEND:
                self._append(followed, row, view)
            else:
                self._handle(followed, verdict, row)
        except AuditPending as pending:
            self.followed.rest(followed, self._loop.time())
            pending.then(lambda: self._may_go_on(followed))
        except PagesMissing as missing:
            self.followed.rest(followed, self._loop.time())
            missing.wait.call(followed, lambda: self._may_go_on(followed))
        except ProtocolError as error:
            if error.code is ErrorCode.CORRUPT_MESSAGE:
                self._log_failure(logging.ERROR, "the leader sent a damaged batch", followed, error.message)
            else:  # or a response to the earlier of two fetches in flight
                self._log_failure(logging.WARNING, "fetched records cannot be appended", followed, str(error))
            self.followed.rest(followed, self._loop.time())
        except StorageFailure as error:
            self._log_failure(logging.WARNING, "fetched records cannot be appended", followed, str(error))
            self.followed.rest(followed, self._loop.time())

    def _log_failure(self, level: int, event: str, followed: Followed, cause: str) -> None:
        """Log a failure at growing intervals: damage at once, other failures once they persist, and one line for all
        partitions that fail at the same time."""
        failures = followed.failures
        if failures & (failures - 1) or (level < logging.ERROR and failures < followed.HELD_UP):
            return
        now = self._loop.time()
        if level >= logging.ERROR or now - self._failure_logged_at >= FAILURE_LOG_S:
            others, self._unlogged = self._unlogged, 0
            self._failure_logged_at = now
            logger.log(
                level,
                event,
                extra={
                    "partition": repr(followed.partition),
                    "offset": followed.partition.log.log_end_offset,
                    "leader": self.leader,
                    "cause": cause,
                    "times": failures + 1,
                    "others": others,
                },
            )
        else:
            self._unlogged += 1

    def _append(self, followed: Followed, row: ReplicatedRow, view: memoryview) -> None:
        """Append the leader's batches and apply what it reports of itself. This runs for every record."""
        partition = followed.partition
        ends = partition.log.ends
        log_start, log_end = ends.log_start, ends.log_end
        if row.end > row.start and not partition.append_fetched(view, row.start, row.end):
            raise ProtocolError(ErrorCode.CORRUPT_MESSAGE, "the response contains no whole batch")
        partition.apply_leader_state(
            row.high_watermark, row.log_start_offset, row.tier_end, row.erased_end, row.tier_generation
        )
        if partition.tier_generation and partition.lacks_untiered and not _is_member(partition):
            event, end = "this disk lacks records that the emptied tier lacks too", partition.log.log_end_offset
            self._log_cut(logging.WARNING, event, partition, end, offset=row.log_start_offset)
            partition.start_again_at(row.log_start_offset, event)
            self.followed.progressed(followed, moved=True)
            return
        if (row.erased_end or row.tier_end != NO_TIER_END) and partition.holds_erased:
            self._services.drop_erased(partition)
        followed.appended(row.high_watermark)
        moved = ends.log_end != log_end or ends.log_start != log_start
        self.followed.progressed(followed, moved=moved, size=row.end - row.start)

    def _handle(self, followed: Followed, verdict: Verdict, row: ReplicatedRow) -> None:
        """React to a row without batches, as `judge` decided."""
        partition = followed.partition
        if verdict.action is Action.REST:
            # the leader may not have taken its role yet
            self._log_failure(logging.WARNING, "the leader rejects fetches", followed, error_name(row.error))
            self.followed.rest(followed, self._loop.time())
            return
        if verdict.action is Action.START_FROM_TIER:
            # until the tier has started the log there, or to fetch again
            self.followed.rest(followed, self._loop.time())
            self._services.start_from_tier(partition)
            return
        if verdict.action is Action.TRUNCATE:
            self._truncate(partition, verdict.offset)
            self.followed.progressed(followed, moved=True)
            return
        event, end = "the leader's log begins above this log's end", partition.log.log_end_offset
        self._log_cut(logging.WARNING, event, partition, end, offset=verdict.offset)
        partition.start_again_at(verdict.offset)
        self.followed.progressed(followed, moved=True)

    def _truncate(self, partition: Partition, offset: int) -> None:
        """Truncate what the leader does not have, and log it. Raises as `Partition.truncate`; then nothing is logged,
        because the leader will report the divergence again.

        Truncation is normal after each restart: a former leader may have an epoch without records, or uncommitted
        records. Only records below the known high watermark should never be truncated.
        """
        end, high_watermark = partition.log.log_end_offset, partition.high_watermark
        partition.truncate(offset)
        lost = partition.log.log_end_offset < high_watermark
        self._log_cut(
            logging.WARNING if lost else logging.INFO,
            "the log is truncated to the leader's",
            partition,
            end,
            offset=partition.log.log_end_offset,
            high_watermark=high_watermark,
        )

    def _log_cut(self, level: int, event: str, partition: Partition, end: int, **more: int) -> None:
        """Log why the log is truncated; `end` is its end before. The log itself records the truncation in the audit."""
        logger.log(
            level,
            event,
            extra={
                "partition": repr(partition),
                "log_end_offset": end,
                "leader": self.leader,
                "leader_epoch": partition.leader_epoch,
            }
            | more,
        )

    # resting -----------------------------------------------------------------------------------------------

    def _arm_rest(self) -> None:
        due = self.followed.next_wake()
        if due is not None and self._rest_timer is None:
            self._rest_timer = self._loop.call_at(due, self._rested)

    def _may_go_on(self, followed: Followed) -> None:
        """A delayed action may be possible now: fetch again; the leader's answer will be the same."""
        self.followed.wake(followed, self._loop.time())
        if not self._task.done():
            self._rested_now()

    def _rested(self) -> None:
        self._rest_timer = None
        self._rested_now()

    def _rested_now(self) -> None:
        self.followed.wake_rested(self._loop.time())
        if self._connection is not None and self._in_flight == 0:
            self._fetch()
        else:
            self._nudge()
        self._arm_rest()


def _is_member(partition: Partition) -> bool:
    """Whether the replica is in the ISR or the ELR, as far as it knows."""
    image = partition.image
    return image is None or partition.node_id in image.isr or partition.node_id in image.elr
