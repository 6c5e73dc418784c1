"""WriteTxnMarkers 1-2: the ends of transactions, in the partitions that this broker leads.

Coordinators send them. A marker is answered when it is committed, also one that repeats an earlier one: the coordinator
takes the answer for final. What waits too long is answered REQUEST_TIMED_OUT, and sent again. In a topic whose
partitions are coordinators' logs, the coordinator appends the marker together with its effect.

On other listeners operators end hanging transactions (`kafka-transactions.sh abort`): only aborts are taken there.

Source: KIP-98, KIP-664, KIP-1228 and the behaviour of Apache Kafka 4.2's KafkaApis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import Protocol

from broker.coordination.shard import ENDING_TURN_COST
from broker.partitions.hosted import HostedPartitions
from broker.partitions.transactional_appends import Marker
from broker.requests.context import RequestContext
from common.errors import ErrorCode, ProtocolError
from common.pacing import SLICE_COST, Pacer, Work
from common.ports import Clock
from kraft.topic_names import GROUP_TOPIC, INTERNAL_TOPICS
from wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

NEW_PROTOCOL_FROM = 2  # transaction.version
COMMIT_WAIT_S = 2.0
"""Markers of other partitions wait for those of one that does not commit, which is asked for again in a while."""
APPEND_COST, CANCEL_COST, ROW_COST = 20, 1, 4  # units of `common.pacing`

_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
_Topic = _Result.WritableTxnMarkerTopicResult
_Partition = _Topic.WritableTxnMarkerPartitionResult

_NOT_READY = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


class CoordinatorLogs(Protocol):
    """Appends markers to coordinators' own partitions; implemented by `broker.coordination.runtime`."""

    def marker_cost(self, topic: str, index: int, marker: Marker) -> int:
        """What the marker takes for what it ends there, in units of `common.pacing`: it ends all at once, and that may
        be thousands of offsets. Raises ProtocolError."""
        ...

    def append_marker(self, topic: str, index: int, marker: Marker) -> Awaitable[None]:
        """Ends when the marker is committed. Raises ProtocolError, then or at once."""
        ...


class _Writing:
    """One request until all its markers are committed or refused."""

    def __init__(self) -> None:
        self.results: dict[int, dict[str, dict[int, ErrorCode | None]]] = {}
        """By producer id, topic and partition; None while it waits."""
        self.settled = False
        self._waiting = 1  # the request itself, until all is appended: a marker may be committed before the next comes
        self._all_done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks: list[asyncio.Task[None]] = []

    def wait(self) -> None:
        self._waiting += 1

    def done(self) -> None:
        self._waiting -= 1
        if not self._waiting and not self._all_done.done():
            self._all_done.set_result(None)

    async def committed(self) -> None:
        """All is appended: return when all have an outcome, or it takes too long."""
        self.done()
        if self._waiting:
            await asyncio.wait((self._all_done,), timeout=COMMIT_WAIT_S)
        self.settled = True


class _MarkerWait:
    """A `CommitWaiter` for one marker."""

    __slots__ = ("_index", "_into", "_writing")

    def __init__(self, writing: _Writing, into: dict[int, ErrorCode | None], index: int) -> None:
        self._writing = writing
        self._into = into
        self._index = index
        into[index] = None
        writing.wait()

    @property
    def settled(self) -> bool:
        return self._writing.settled

    def committed(self, offset: int) -> None:
        self.ended(ErrorCode.NONE)

    def refused(self, offset: int, error: ErrorCode) -> None:
        self.ended(error)

    def starved(self, offset: int) -> bool:
        self.ended(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        return True

    def ended(self, error: ErrorCode) -> None:
        if not self._writing.settled:
            self._into[self._index] = error
            self._writing.done()


def none_written(request: WriteTxnMarkersRequest, code: ErrorCode) -> Work[WriteTxnMarkersResponse]:
    """A response with `code` for each partition."""
    markers = []
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            rows = yield from _rows((index, code) for index in topic.partition_indexes)
            topics.append(_Topic(name=topic.name, partitions=rows))
        markers.append(_Result(producer_id=marker.producer_id, topics=topics))
        yield ROW_COST
    return WriteTxnMarkersResponse(markers=markers)


class WriteTxnMarkers:
    def __init__(self, hosted: HostedPartitions, logs: CoordinatorLogs, clock: Clock, pacer: Pacer) -> None:
        self._hosted = hosted
        self._logs = logs
        self._clock = clock
        self._pacer = pacer

    async def handle(self, context: RequestContext, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return await self._write(request, aborts_only=not context.internal)

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        """The request of this broker's own coordinators."""
        return await self._write(request, aborts_only=False)

    async def _write(self, request: WriteTxnMarkersRequest, *, aborts_only: bool) -> WriteTxnMarkersResponse:
        writing = _Writing()
        lane = "transaction markers"
        await self._pacer.run(self._appending(request, writing, aborts_only=aborts_only), lane, own=True)
        await writing.committed()
        return await self._pacer.run(_answering(writing), lane, own=True)

    def _appending(self, request: WriteTxnMarkersRequest, writing: _Writing, *, aborts_only: bool) -> Work[None]:
        for one in request.markers:
            marker = Marker(
                one.producer_id,
                one.producer_epoch,
                one.transaction_result,
                one.coordinator_epoch,
                one.transaction_version >= NEW_PROTOCOL_FROM,
            )
            of_producer = writing.results.setdefault(one.producer_id, {})
            for topic in one.topics:
                into = of_producer.setdefault(topic.name, {})
                for index in topic.partition_indexes:
                    if aborts_only and marker.commit:
                        into[index] = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    elif marker.producer_id < 0 or marker.producer_epoch < 0:
                        into[index] = ErrorCode.INVALID_REQUEST
                    else:
                        yield from self._begin(topic.name, index, marker, writing, into)
                    yield APPEND_COST

    def _begin(
        self, topic: str, index: int, marker: Marker, writing: _Writing, into: dict[int, ErrorCode | None]
    ) -> Work[None]:
        """Append one marker; its outcome comes into `into`, now or later."""
        try:
            if topic == GROUP_TOPIC:
                cost = self._logs.marker_cost(topic, index, marker)
                if cost >= ENDING_TURN_COST:
                    yield SLICE_COST  # it ends in a slice of its own
                appending = self._logs.append_marker(topic, index, marker)
                wait = _MarkerWait(writing, into, index)
                writing.tasks.append(asyncio.get_running_loop().create_task(_watch(appending, wait)))
                yield cost
                return
            if topic in INTERNAL_TOPICS:
                into[index] = ErrorCode.INVALID_TOPIC_EXCEPTION
                return
            partition = self._hosted.find_leader(topic, index)
            marked = partition.append_marker(marker, self._clock.wall_ms())
        except ProtocolError as error:
            into[index] = _for_coordinators(error.code)
            return
        wait = _MarkerWait(writing, into, index)
        if not partition.when_committed(marked.end_offset, wait):
            wait.ended(ErrorCode.NONE)


async def _watch(appending: Awaitable[None], wait: _MarkerWait) -> None:
    try:
        await appending
    except ProtocolError as error:
        wait.ended(_for_coordinators(error.code))
    else:
        wait.ended(ErrorCode.NONE)


def _for_coordinators(error: ErrorCode) -> ErrorCode:
    """A group coordinator that is not ready is, to transaction coordinators, a partition without its leader."""
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if error in _NOT_READY else error


def _answering(writing: _Writing) -> Work[WriteTxnMarkersResponse]:
    for task in writing.tasks:
        task.cancel()
        yield CANCEL_COST
    markers = []
    for producer_id, of_producer in writing.results.items():
        topics = []
        for topic, codes in of_producer.items():
            rows = yield from _rows(
                (index, ErrorCode.REQUEST_TIMED_OUT if code is None else code) for index, code in codes.items()
            )
            topics.append(_Topic(name=topic, partitions=rows))
        markers.append(_Result(producer_id=producer_id, topics=topics))
        yield ROW_COST
    return WriteTxnMarkersResponse(markers=markers)


def _rows(codes: Iterable[tuple[int, ErrorCode]]) -> Work[list[_Partition]]:
    rows: list[_Partition] = []
    for index, code in codes:
        rows.append(_Partition(partition_index=index, error_code=code))
        yield ROW_COST
    yield ROW_COST  # of their topic
    return rows
