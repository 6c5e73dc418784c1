"""Sends the markers of transactions whose outcome is decided, until every partition has its own.

Markers for one broker are batched: while a request is in flight the next ones gather. A request is answered when all of
its markers are committed, or after a while. So what may have to wait travels on other connections: whatever failed and
is sent again, and the markers of partitions that have not committed one in time lately. Such a partition delays other
transactions once, and one that has no leader its own alone.

Before each attempt the coordinator's leadership is checked: under another leader the markers are that one's business.

Source: KIP-98 and the behaviour of Apache Kafka 4.2's TransactionMarkerChannelManager. Two things differ. A partition
that is already in a later epoch counts as done: Apache Kafka drops the whole transaction, which stays prepared until
its coordinator is loaded again. A topic that this broker does not know is deleted, though its leader may know of it
earlier than its coordinator: a coordinator adds only partitions that it knows, and a later one knows all metadata up to
its own election.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from typing import Protocol

from msgspec import Struct

from broker.broker_link import BrokerLink
from broker.coordination.transactions.coordinator_epochs import coordinator_epoch
from broker.coordination.transactions.values import MarkersToWrite
from common.backoff import Backoff, Retries
from common.errors import ErrorCode, MalformedFrame, error_name, known_error
from common.lifecycle import duty, end_tasks
from kraft.image.metadata import MetadataImage
from kraft.links import Links
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

logger = logging.getLogger(__name__)

WRITE_MARKERS_VERSION = 2
OLD_PROTOCOL, NEW_PROTOCOL = 0, 2  # transaction.version of a marker

TopicPartition = tuple[str, int]
_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_Topic = _Marker.WritableTxnMarkerTopic

_DONE = (
    ErrorCode.NONE,
    ErrorCode.INVALID_PRODUCER_EPOCH,  # the partition is past this transaction
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)


class LocalMarkers(Protocol):
    """Writes markers to this broker's own partitions; implemented by `broker.handlers.transaction_markers`."""

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse: ...


class MarkerLimits(Struct, frozen=True):
    """Seconds. `late_s`: for how long the markers of a partition travel apart after one was late there."""

    connect_timeout_s: float = 1.0
    attempt_timeout_s: float = 10.0
    backoff_min_s: float = 0.05
    backoff_max_s: float = 1.0
    late_s: float = 30.0
    partitions_per_request_max: int = 1_000
    partitions_per_turn_max: int = 500


class _Sending:
    """One decided transaction until every partition has its marker."""

    __slots__ = ("_failed", "index", "is_routed", "leader_epoch", "left", "markers", "retries")

    def __init__(self, index: int, leader_epoch: int, markers: MarkersToWrite, retries: Retries) -> None:
        """`index`, `leader_epoch`: of the coordinator's partition."""
        self.index = index
        self.leader_epoch = leader_epoch
        self.markers = markers
        self.left: dict[TopicPartition, ErrorCode] = {}
        """Partitions without a marker, with the last error; those alone that are on their way, until `is_routed`."""
        self.is_routed = False  # a transaction may have 100,000 partitions
        self._failed: list[TopicPartition] = []  # to be sent again when the pause is over
        self.retries = retries

    def partitions(self) -> Iterator[TopicPartition]:
        for topic, partitions in self.markers.partitions.items():
            for partition in partitions:
                yield topic, partition

    def send(self, partition: TopicPartition) -> None:
        """It is on its way."""
        self.left[partition] = ErrorCode.NONE

    def routed(self) -> None:
        """All are on their way."""
        self.is_routed = True

    def fail(self, partition: TopicPartition) -> bool:
        """It is to be sent again. Returns whether it is the first since `take_failed`."""
        self._failed.append(partition)
        return len(self._failed) == 1

    def take_failed(self) -> list[TopicPartition]:
        failed, self._failed = self._failed, []
        return failed

    @property
    def key(self) -> tuple[int, int, str, int]:
        return self.index, self.leader_epoch, self.markers.transactional_id, self.markers.serial


class _Lane(Enum):
    """Markers for one broker that travel together."""

    FIRST = "first"
    AGAIN = "again"
    LATE = "late"


class _LatePartitions:
    """Those that have not committed a marker in time lately."""

    def __init__(self, late_s: float, now: Callable[[], float]) -> None:
        self._late_s = late_s
        self._now = now
        # ascending; an ordinary dictionary is slow to find its first key when those before it were removed
        self._until: OrderedDict[TopicPartition, float] = OrderedDict()

    def __contains__(self, partition: TopicPartition) -> bool:
        return self._until.get(partition, 0.0) > self._now()

    def add(self, partition: TopicPartition) -> None:
        until, now = self._until, self._now()
        until[partition] = now + self._late_s
        until.move_to_end(partition)
        for _ in range(2):  # so that those whose time is over become fewer
            if until[first := next(iter(until))] <= now:
                del until[first]


class _Courier:
    """Carries markers to one broker: one request at a time, in a task that ends when none are left."""

    def __init__(self, sender: TransactionMarkers, broker_id: int) -> None:
        self.link = sender.new_link()
        self.task: asyncio.Task[None] | None = None
        self._waiting: deque[tuple[_Sending, TopicPartition]] = deque()
        self._broker_id = broker_id
        self._sender = sender

    def add(self, sending: _Sending, partition: TopicPartition) -> None:
        self._waiting.append((sending, partition))
        if self.task is None or self.task.done():
            name = duty(f"transaction-markers-{self._broker_id}")
            self.task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def _run(self) -> None:
        while self._waiting:
            before = len(self._waiting)
            batch = self._next_batch()
            dropped = before - len(self._waiting) - sum(map(len, batch.values()))
            if batch:
                await self._carry(batch)
            if dropped:
                await asyncio.sleep(0)  # to carry the others may take no turn of the loop

    def _next_batch(self) -> dict[_Sending, list[TopicPartition]]:
        """The next markers, at most one transaction for each producer id: the response names nothing else."""
        batch: dict[_Sending, list[TopicPartition]] = {}
        of_producer: dict[int, _Sending] = {}
        for _ in range(min(len(self._waiting), self._sender.limits.partitions_per_request_max)):
            sending, partition = self._waiting[0]
            if of_producer.setdefault(sending.markers.producer_id, sending) is not sending:
                break
            self._waiting.popleft()
            if self._sender.is_current(sending):
                batch.setdefault(sending, []).append(partition)
        return batch

    async def _carry(self, batch: dict[_Sending, list[TopicPartition]]) -> None:
        sender = self._sender
        request = WriteTxnMarkersRequest(markers=[_row(sending, partitions) for sending, partitions in batch.items()])
        codes: dict[tuple[int, str, int], ErrorCode] = {}
        try:
            if self._broker_id == sender.node_id:
                async with asyncio.timeout(sender.limits.attempt_timeout_s):
                    response = await sender.local.write(request)
            else:
                link = await self.link.to(self._broker_id)
                response = await link.call(request, WRITE_MARKERS_VERSION, sender.limits.attempt_timeout_s)
            codes = {
                (marker.producer_id, topic.name, row.partition_index): known_error(row.error_code)
                for marker in response.markers
                for topic in marker.topics
                for row in topic.partitions
            }
        except (ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame):
            self.link.drop()
        except TimeoutError:
            pass  # as if the connection to itself had failed
        for sending, partitions in batch.items():
            producer_id = sending.markers.producer_id
            outcome = [codes.get((producer_id, *one), ErrorCode.NETWORK_EXCEPTION) for one in partitions]
            sender.answered(sending, zip(partitions, outcome, strict=True))


def _row(sending: _Sending, partitions: Iterable[TopicPartition]) -> _Marker:
    markers = sending.markers
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return _Marker(
        producer_id=markers.producer_id,
        producer_epoch=markers.producer_epoch,
        transaction_result=markers.commit,
        topics=[_Topic(name=topic, partition_indexes=indexes) for topic, indexes in topics.items()],
        coordinator_epoch=coordinator_epoch(sending.leader_epoch, markers.epoch_floor),
        transaction_version=NEW_PROTOCOL if markers.new_protocol else OLD_PROTOCOL,
    )


class TransactionMarkers:
    """One per broker. `begin` is the act of a transaction shard."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        leader_epoch_of: Callable[[int], int | None],
        written: Callable[[int, int, MarkersToWrite], None],
        local: LocalMarkers,
        links: Links,
        listener_name: str,
        rng: random.Random,
        limits: MarkerLimits,
    ) -> None:
        """`leader_epoch_of`: of the coordinator's partition that serves here, else None. `written`: called with the
        arguments of `begin` when every partition has its marker."""
        self.node_id = node_id
        self.local = local
        self.limits = limits
        self._image = image
        self._leader_epoch_of = leader_epoch_of
        self._written = written
        self._links = links
        self._listener_name = listener_name
        self._rng = rng
        self._backoff = Backoff(limits.backoff_min_s, limits.backoff_max_s)
        self._sendings: dict[tuple[int, int, str, int], _Sending] = {}
        self._newest: dict[str, _Sending] = {}  # of `_sendings`, by transactional id
        self._unrouted: deque[tuple[_Sending, Iterator[TopicPartition], bool]] = deque()
        self._routing: asyncio.Handle | None = None
        self._couriers: dict[tuple[int, _Lane], _Courier] = {}
        self._loop = asyncio.get_running_loop()
        self._late = _LatePartitions(limits.late_s, self._loop.time)
        self._stopped = False

    def begin(self, index: int, leader_epoch: int, markers: MarkersToWrite) -> None:
        """Send the markers of a transaction of the coordinator's partition `index`, which leads in `leader_epoch`. A
        repeated call changes nothing."""
        sending = _Sending(index, leader_epoch, markers, Retries(self._backoff, self._rng))
        if self._stopped or sending.key in self._sendings:
            return
        before = self._newest.get(markers.transactional_id)
        if before is not None and before.index == index:
            self._drop(before)  # it is complete, or asked for again
        self._sendings[sending.key] = self._newest[markers.transactional_id] = sending
        self._route(sending, sending.partitions(), is_retry=False)

    def unwritten(self, transactional_id: str) -> Mapping[TopicPartition, ErrorCode] | None:
        """The partitions that have no marker of this decided transaction yet, with the last error of each. None if its
        markers are not being written, or not all are on their way."""
        sending = self._newest.get(transactional_id)
        return None if sending is None or not sending.is_routed else sending.left

    def __len__(self) -> int:
        """Number of transactions whose markers are being written."""
        return len(self._sendings)

    def is_current(self, sending: _Sending) -> bool:
        """Whether its markers are still to be sent. Drops it if another coordinator has taken over."""
        if sending.key not in self._sendings:
            return False
        if self._leader_epoch_of(sending.index) == sending.leader_epoch:
            return True
        self._drop(sending)
        return False

    def _drop(self, sending: _Sending) -> None:
        del self._sendings[sending.key]
        if self._newest.get(sending.markers.transactional_id) is sending:
            del self._newest[sending.markers.transactional_id]

    def answered(self, sending: _Sending, outcome: Iterable[tuple[TopicPartition, ErrorCode]]) -> None:
        """A broker has answered, or could not be reached, for these partitions.

        Also what is refused for a later coordinator's sake is sent again, until this one knows that it leads no more:
        an operator can write a marker with any coordinator epoch, and nothing else would tell of the transaction.
        """
        if sending.key not in self._sendings:
            return
        for partition, error in outcome:
            if error in _DONE:
                sending.left.pop(partition, None)
            elif partition in sending.left:
                if error is ErrorCode.REQUEST_TIMED_OUT:
                    self._late.add(partition)
                self._retry_later(sending, partition, error)
        self._finish(sending)

    def _finish(self, sending: _Sending) -> None:
        if sending.is_routed and not sending.left and self.is_current(sending):
            self._drop(sending)
            self._written(sending.index, sending.leader_epoch, sending.markers)

    def _retry_later(self, sending: _Sending, partition: TopicPartition, error: ErrorCode) -> None:
        sending.left[partition] = error
        if not sending.fail(partition):
            return
        pause_s = sending.retries.failed()
        if sending.retries.failures % 10 == 0:
            extra = {
                "transactional_id": sending.markers.transactional_id,
                "topic": partition[0],
                "partition": partition[1],
                "error": error_name(error),
            }
            logger.warning("a transaction's marker cannot be written", extra=extra)
        self._loop.call_later(pause_s, self._retry, sending)

    def _retry(self, sending: _Sending) -> None:
        failed = sending.take_failed()
        if not self._stopped:
            self._route(sending, iter(failed), is_retry=True)

    # routing -----------------------------------------------------------------------------------------------

    def _route(self, sending: _Sending, partitions: Iterator[TopicPartition], *, is_retry: bool) -> None:
        """Give the partitions to their leaders' couriers, some per turn."""
        self._unrouted.append((sending, partitions, is_retry))
        if self._routing is None:
            self._routing = self._loop.call_soon(self._route_some)

    def _route_some(self) -> None:
        self._routing = None
        room = self.limits.partitions_per_turn_max
        while self._unrouted and room > 0:
            sending, partitions, is_retry = self._unrouted[0]
            room -= 1
            partition = next(partitions, None) if self.is_current(sending) else None
            if partition is None:
                self._unrouted.popleft()
                if not is_retry:
                    sending.routed()
                self._finish(sending)
                continue
            if not is_retry:
                sending.send(partition)
            self._route_one(sending, partition, is_retry=is_retry)
        if self._unrouted:
            self._routing = self._loop.call_soon(self._route_some)

    def _route_one(self, sending: _Sending, partition: TopicPartition, *, is_retry: bool) -> None:
        topic = self._image().topics.get(partition[0])
        found = topic.partitions.get(partition[1]) if topic is not None else None
        if found is None:
            sending.left.pop(partition, None)
            return
        if found.leader < 0:
            self._retry_later(sending, partition, ErrorCode.LEADER_NOT_AVAILABLE)
            return
        lane = _Lane.LATE if partition in self._late else _Lane.AGAIN if is_retry else _Lane.FIRST
        courier = self._couriers.get((found.leader, lane))
        if courier is None:
            courier = self._couriers[found.leader, lane] = _Courier(self, found.leader)
        courier.add(sending, partition)

    def broker_left(self, broker_id: int) -> None:
        """See `brokers_left`."""
        for (node, _), courier in self._couriers.items():
            if node == broker_id:
                courier.link.drop()

    def new_link(self) -> BrokerLink:
        return BrokerLink(self._links, self._image, self._listener_name, self.limits.connect_timeout_s)

    async def stop(self) -> None:
        """Send no more; the transactions stay prepared for the next coordinator."""
        self._stopped = True
        self._sendings.clear()
        self._newest.clear()
        self._unrouted.clear()
        if self._routing is not None:
            self._routing.cancel()
        await end_tasks(courier.task for courier in self._couriers.values() if courier.task is not None)
        for courier in self._couriers.values():
            courier.link.drop()
