"""Asks transaction coordinators, wherever they are, for partition leaders.

Questions for one broker are batched: while a request is in flight the next ones gather. A request has at most one row
for a transactional id, because the response names nothing else. A few connections per broker share its coordinators'
partitions, so that a coordinator which answers late delays few others. There are no retries here: the client that
produces comes again. Only what another partition kept out of its transaction is asked once more: the partitions of
several requests of a client share a row.

Source: KIP-890, AddPartitionsToTxn 5 and the behaviour of Apache Kafka 4.2's AddPartitionsToTxnManager.
"""

from __future__ import annotations

import asyncio
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

from msgspec import Struct

from broker.broker_link import BrokerLink
from broker.coordination.groups.tenant_index import bytes_of_id
from broker.coordination.placement import keeping_partition
from broker.coordination.transactions.adding import by_topic
from broker.coordination.transactions.questions import Answered, PartitionQuestion
from broker.coordination.transactions.values import Partitions
from common.errors import ErrorCode, MalformedFrame, ProtocolError, known_error
from common.lifecycle import duty, end_tasks
from kraft.image.metadata import MetadataImage
from kraft.links import Links
from kraft.topic_names import TRANSACTION_TOPIC
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import AddPartitionsToTxnRequest

ADD_PARTITIONS_VERSION = 5
ASKED_AT_ONCE = 50  # of this broker's own coordinators, in one turn of the loop

TopicPartition = tuple[str, int]
_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction
_Topic = _Transaction.AddPartitionsToTxnTopic


class LocalCoordinator(Protocol):
    """This broker's own coordinators; implemented by `broker.coordination.transactions.coordinator`."""

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Partitions,
        *,
        new_protocol: bool,
    ) -> None:
        """Returns when the partitions are durably in the transaction. Raises ProtocolError."""
        ...

    async def verify_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int, partitions: Sequence[TopicPartition]
    ) -> Sequence[ErrorCode]:
        """For each partition in order: NONE if it is in the transaction. Raises ProtocolError."""
        ...


class VerificationLimits(Struct, frozen=True):
    """Seconds. `lanes`: connections per broker. `…_per_request_max`: a request is encoded in one turn of the loop, and
    its answer decoded: a row takes 20 µs, each of its topics 7, and a MiB of names a millisecond and more. The broker's
    own coordinators are asked for more at a time, because the next ones wait for all answers."""

    connect_timeout_s: float = 1.0
    attempt_timeout_s: float = 10.0
    lanes: int = 4
    rows_per_request_max: int = 200
    partitions_per_request_max: int = 500
    name_bytes_per_request_max: int = 1 << 20  # the last row may exceed it
    partitions_here_max: int = 2_000


class _Asker(NamedTuple):
    """Questions with the same one go into one row of a request."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    verify_only: bool


_Asked = dict[TopicPartition, list[Answered]]


class _Courier:
    """Carries questions to one broker: one request at a time, in a task that ends when none are left."""

    def __init__(self, client: VerificationClient, broker_id: int) -> None:
        # by transactional id, each with its askers in order; an ordinary dictionary is slow when its first keys are
        # removed one by one
        self._waiting: OrderedDict[str, OrderedDict[_Asker, _Asked]] = OrderedDict()
        self.link = client.new_link()
        self.task: asyncio.Task[None] | None = None
        self._broker_id = broker_id
        self._client = client

    def add(self, asker: _Asker, partition: TopicPartition, answered: Answered) -> None:
        askers = self._waiting.setdefault(asker.transactional_id, OrderedDict())
        askers.setdefault(asker, {}).setdefault(partition, []).append(answered)
        if self.task is None or self.task.done():
            name = duty(f"transaction-questions-{self._broker_id}")
            self.task = asyncio.get_running_loop().create_task(self._run(), name=name)

    async def _run(self) -> None:
        limits = self._client.limits
        request = limits.partitions_per_request_max, limits.rows_per_request_max, limits.name_bytes_per_request_max
        while self._waiting:
            if self._broker_id == self._client.node_id:
                await self._ask_all_here(list(self._next_batch(limits.partitions_here_max).items()))
            else:
                await self._carry(self._next_batch(*request))

    def _next_batch(
        self, partitions_max: int, rows_max: int = sys.maxsize, name_bytes_max: int = sys.maxsize
    ) -> dict[_Asker, _Asked]:
        """The next rows, one of each transactional id. An id that has more comes behind all others."""
        batch: dict[_Asker, _Asked] = {}
        left: list[tuple[str, OrderedDict[_Asker, _Asked]]] = []
        room, room_bytes = partitions_max, name_bytes_max
        while self._waiting and room > 0 and room_bytes > 0 and len(batch) < rows_max:
            transactional_id, askers = self._waiting.popitem(last=False)
            asker, asked = askers.popitem(last=False)
            if len(asked) > room:
                askers[asker] = asked
                asked = {partition: asked.pop(partition) for partition in tuple(islice(asked, room))}
            batch[asker] = asked
            room -= len(asked)
            room_bytes -= bytes_of_id(transactional_id) + sum(len(topic) for topic, _ in asked)
            if askers:
                left.append((transactional_id, askers))
        self._waiting.update(left)
        return batch

    async def _carry(self, batch: dict[_Asker, _Asked]) -> None:
        """A coordinator adds none of a row's partitions if it does not know the topic of one, which may be new or
        deleted. The others are asked once more, without that one."""
        left = await self._exchange(batch)
        if left:
            for asked in (await self._exchange(left)).values():
                _answer(asked, {}, ErrorCode.NETWORK_EXCEPTION)

    async def _exchange(self, batch: dict[_Asker, _Asked]) -> dict[_Asker, _Asked]:
        """One request. Returns what the coordinator has not attempted; all else is answered."""
        request = AddPartitionsToTxnRequest(transactions=[_row(asker, asked) for asker, asked in batch.items()])
        try:
            link = await self.link.to(self._broker_id)
            response = await link.call(request, ADD_PARTITIONS_VERSION, self._client.limits.attempt_timeout_s)
        except (ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame):
            self.link.drop()
            for asked in batch.values():
                _answer(asked, {}, ErrorCode.NETWORK_EXCEPTION)
            return {}
        if response.error_code:
            for asked in batch.values():
                _answer(asked, {}, known_error(response.error_code))
            return {}
        codes = {
            result.transactional_id: {
                (topic.name, row.partition_index): known_error(row.partition_error_code)
                for topic in result.topic_results
                for row in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }
        left: dict[_Asker, _Asked] = {}
        for asker, asked in batch.items():
            found = codes.get(asker.transactional_id, {})
            kept_out = {
                partition: asked.pop(partition)
                for partition, code in found.items()
                if code is ErrorCode.OPERATION_NOT_ATTEMPTED and partition in asked
            }
            if kept_out:
                left[asker] = kept_out
            _answer(asked, found, ErrorCode.NETWORK_EXCEPTION)
        return left

    async def _ask_all_here(self, questions: Sequence[tuple[_Asker, _Asked]]) -> None:
        """Each is a decision of a shard: some are asked in this turn of the loop, and the next ones in the next. None
        waits for the answer to another."""
        some, others = questions[:ASKED_AT_ONCE], questions[ASKED_AT_ONCE:]
        asking = [self._ask_here(asker, asked) for asker, asked in some]
        await asyncio.gather(*asking, *([self._ask_all_here(others)] if others else []))

    async def _ask_here(self, asker: _Asker, asked: _Asked) -> None:
        who = (asker.transactional_id, asker.producer_id, asker.producer_epoch)
        codes: Mapping[TopicPartition, ErrorCode] = {}
        otherwise = ErrorCode.NETWORK_EXCEPTION
        try:
            async with asyncio.timeout(self._client.limits.attempt_timeout_s):
                if asker.verify_only:
                    codes = dict(
                        zip(asked, await self._client.local.verify_partitions(*who, tuple(asked)), strict=True)
                    )
                else:
                    await self._client.local.add_partitions(*who, by_topic(asked), new_protocol=True)
                    otherwise = ErrorCode.NONE
        except ProtocolError as error:
            otherwise = error.code
        except TimeoutError:
            pass  # as if the connection to itself had failed
        _answer(asked, codes, otherwise)


def _row(asker: _Asker, asked: Iterable[TopicPartition]) -> _Transaction:
    topics: dict[str, list[int]] = {}
    for topic, partition in asked:
        topics.setdefault(topic, []).append(partition)
    return _Transaction(
        transactional_id=asker.transactional_id,
        producer_id=asker.producer_id,
        producer_epoch=asker.producer_epoch,
        verify_only=asker.verify_only,
        topics=[_Topic(name=topic, partitions=partitions) for topic, partitions in topics.items()],
    )


def _answer(asked: _Asked, codes: Mapping[TopicPartition, ErrorCode], otherwise: ErrorCode) -> None:
    for partition, waiting in asked.items():
        code = codes.get(partition, otherwise)
        for answered in waiting:
            answered(code)


class VerificationClient:
    """One per broker; implements `questions.Coordinators`. The askers bound how many questions there are."""

    def __init__(
        self,
        node_id: int,
        image: Callable[[], MetadataImage],
        local: LocalCoordinator,
        links: Links,
        listener_name: str,
        limits: VerificationLimits,
    ) -> None:
        self.node_id = node_id
        self.local = local
        self.limits = limits
        self._image = image
        self._links = links
        self._listener_name = listener_name
        self._couriers: dict[tuple[int, int], _Courier] = {}
        self._loop = asyncio.get_running_loop()

    def ask(self, question: PartitionQuestion, answered: Answered) -> None:
        """See `questions.Coordinators`."""
        image = self._image()
        topic = image.topics.get(TRANSACTION_TOPIC)
        index = keeping_partition(image, TRANSACTION_TOPIC, question.transactional_id)
        kept = topic.partitions.get(index) if topic is not None and index is not None else None
        leader = -1 if kept is None else kept.leader
        if index is None or leader < 0:
            self._loop.call_soon(answered, ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        lane = (leader, index % self.limits.lanes)
        courier = self._couriers.get(lane)
        if courier is None:
            courier = self._couriers[lane] = _Courier(self, leader)
        asker = _Asker(
            question.transactional_id, question.producer_id, question.producer_epoch, question.verify_only
        )  # fmt: skip
        courier.add(asker, (question.topic, question.partition), answered)

    def broker_left(self, broker_id: int) -> None:
        """See `brokers_left`."""
        for (node, _), courier in self._couriers.items():
            if node == broker_id:
                courier.link.drop()

    def new_link(self) -> BrokerLink:
        return BrokerLink(self._links, self._image, self._listener_name, self.limits.connect_timeout_s)

    async def stop(self) -> None:
        """End all requests; what was asked is not answered any more."""
        await end_tasks(courier.task for courier in self._couriers.values() if courier.task is not None)
        for courier in self._couriers.values():
            courier.link.drop()
