"""Simulated clients of transactions, which speak the protocol as well-behaved ones do, and as their zombies do."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from common.errors import ErrorCode
from kraft.features import TRANSACTION_VERSION
from records.batch import read_header
from records.builder import build_batch
from records.record import Record
from tests.sim.client_links import ClusterLinks, Flight, Unreachable
from tests.sim.clients import PRODUCE_TIMEOUT_MS, RESENT, Unsent
from tests.sim.history import Acknowledged, TopicPartition
from tests.sim.transaction_history import Ended, Given, Intent, Refused, TransactionHistory, text_of
from wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

TRANSACTION_KEY = 1  # of FindCoordinator
GIVES_UP_S = 2.5  # a batch that is not acknowledged
IN_FLIGHT_MAX = 3
COMMIT_SHARE, LATE_SHARE, OFFSETS_SHARE, LONG_SHARE = 0.65, 0.4, 0.3, 0.1
ABORTS_MAX = 2  # of one producer in a row, by choice: each writer is expected to commit something in some seconds
LONG_S = 1.0  # longer than some timeouts
OFFSETS = 1_000
NEW_LEVEL = 2  # of `transaction.version`
PASSING_SHARE, PASSING_PATIENCE_S = 0.8, 0.5


class Protocol(NamedTuple):
    """Versions of each API that a client speaks."""

    name: str
    init: int
    add: int
    add_offsets: int
    produce: int
    commit: int
    end: int

    @property
    def is_new(self) -> bool:
        return self.end >= 5


PROTOCOLS = (
    Protocol("old", init=4, add=3, add_offsets=3, produce=11, commit=4, end=4),
    Protocol("older", init=3, add=1, add_offsets=1, produce=10, commit=3, end=1),
    Protocol("new", init=5, add=-1, add_offsets=-1, produce=12, commit=5, end=5),
)

AGAIN = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
AGAIN_WHERE_THERE = AGAIN - {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""For topics that may be gone."""
ABORTABLE = frozenset(
    {
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
FATAL = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)


class Fenced(Exception):
    """This producer is over."""


class Abortable(Exception):
    """This transaction is."""


class Member(NamedTuple):
    """Who consumed the records whose offsets are sent: nobody in particular, or a member of the group."""

    member_id: str = ""
    generation: int = -1


NOBODY = Member()


def offset_row(partition: TopicPartition, offset: int) -> TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    row = topic.TxnOffsetCommitRequestPartition(
        partition_index=partition[1], committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    return topic(name=partition[0], partitions=[row])


class TransactionalProducer:
    """One instance of a transactional id: from its InitProducerId until it is fenced, or given up."""

    def __init__(
        self,
        links: ClusterLinks,
        told: TransactionHistory,
        name: str,
        protocol: Protocol,
        timeout_ms: int,
        *,
        asks_level: bool = False,
    ) -> None:
        """`asks_level`: the cluster may have no level yet for the new protocol."""
        self._asks_level = asks_level
        self.links, self.name, self.protocol = links, name, protocol
        self.told, self._timeout_ms, self._history = told, timeout_ms, links.history
        self.instance = told.next_instance(name)
        self.number = 0
        self._producer_id = self._epoch = -1
        self._sequences: dict[TopicPartition, int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._added: dict[TopicPartition | str, None] = {}
        self._acknowledged: list[tuple[TopicPartition, int]] = []
        self._doubts = False  # something of unknown fate may still arrive

    @property
    def intent(self) -> Intent:
        return Intent(self.name, self.instance, self.number)

    # coordinators ------------------------------------------------------------------------------------------

    async def _ask(
        self,
        what: str,
        request: Any,
        version: int,
        code_of: Callable[[Any], int],
        group: str = "",
        again: frozenset[ErrorCode] = AGAIN,
    ) -> tuple[Any, ErrorCode]:
        """The answer and its code, of the coordinator of the transactional id, or of `group`; again and again until
        there is one that is not in `again`."""
        kind, key = (0, group) if group else (TRANSACTION_KEY, self.name)
        while True:
            try:
                node = self._coordinators.get((kind, key), -1)
                if node < 0:
                    node = self._coordinators[kind, key] = await self.links.coordinator(key, kind)
                response = await self.links.call(node, request, version)
            except Unreachable:
                self._doubts = True
                self._coordinators.pop((kind, key), None)
                await self.links.pause()
                continue
            code = ErrorCode(code_of(response))
            self._history.counts[f"{what}: {code.name}"] += 1
            if code not in again:
                return response, code
            if code is not ErrorCode.CONCURRENT_TRANSACTIONS:
                self._coordinators.pop((kind, key), None)
            await self.links.pause(0.04)

    def _judge(self, what: str, code: ErrorCode, abortable: frozenset[ErrorCode], fatal: frozenset[ErrorCode]) -> None:
        if code is ErrorCode.NONE:
            return
        if code in abortable:
            raise Abortable(code.name)
        if code not in fatal:
            self._history.impossible.append(f"{what} of {self.name} was refused with {code.name}")
        if what != "produce" and code is not ErrorCode.INVALID_TXN_STATE:
            answer = f"{what}: {code.name}"
            self.told.refused.append(Refused(self.name, self._producer_id, self._epoch, answer))
        raise Fenced(code.name)

    async def init(self, *, bumps: bool = False) -> None:
        """Begin; with `bumps` go on with a higher epoch. Raises Fenced."""
        if not bumps and self.protocol.is_new and self._asks_level:
            await self._look_at_level()
        while True:
            request = InitProducerIdRequest(
                transactional_id=self.name,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=self._producer_id if bumps else -1,
                producer_epoch=self._epoch if bumps else -1,
            )
            response, code = await self._ask("init", request, self.protocol.init, lambda r: r.error_code)
            self._judge("init", code, frozenset(), FATAL)
            self._become(response.producer_id, response.producer_epoch, "InitProducerId")
            self._doubts = False
            return

    async def _look_at_level(self) -> None:
        """Speak the old protocol until the cluster has the level of the new one."""
        while True:
            try:
                level = await self.links.feature_level(TRANSACTION_VERSION)
            except Unreachable:
                await self.links.pause()
                continue
            if level < NEW_LEVEL:
                self.protocol = PROTOCOLS[0]
            self._history.counts[f"producers at transaction.version {level}"] += 1
            return

    def _become(self, producer_id: int, epoch: int, answer: str) -> None:
        if (producer_id, epoch) != (self._producer_id, self._epoch):
            self._sequences.clear()
        self._producer_id, self._epoch = producer_id, epoch
        self.told.given.append(Given(self.name, self.instance, producer_id, epoch, answer))

    def begin(self) -> None:
        self.number += 1
        self._added.clear()
        self._acknowledged.clear()

    async def add(self, partitions: Sequence[TopicPartition], again: frozenset[ErrorCode] = AGAIN) -> bool:
        """Whether they are added: not if their topic is gone, and `again` says that this is not to be asked again.
        Raises Fenced, Abortable."""
        if self.protocol.is_new:
            return True
        topic_row = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=[topic_row(name=topic, partitions=[index]) for topic, index in partitions],
        )
        _, code = await self._ask(
            "add partitions",
            request,
            self.protocol.add,
            code_of_added,
            again=again,
        )
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        self._judge("add partitions", code, frozenset({ErrorCode.TRANSACTION_ABORTABLE}), FATAL)
        self._added |= dict.fromkeys(partitions)
        return True

    async def send_offsets(self, group: str, offsets: Mapping[TopicPartition, int], member: Member = NOBODY) -> None:
        """Raises Fenced, Abortable."""
        if not self.protocol.is_new:
            adds = AddOffsetsToTxnRequest(
                transactional_id=self.name,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                group_id=group,
            )
            _, code = await self._ask("add offsets", adds, self.protocol.add_offsets, lambda r: r.error_code)
            self._judge("add offsets", code, frozenset({ErrorCode.TRANSACTION_ABORTABLE}), FATAL)
        self._added[group] = None
        request = TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            generation_id=member.generation,
            member_id=member.member_id,
            group_instance_id=None,
            topics=[offset_row(*item) for item in offsets.items()],
        )
        _, code = await self._ask(
            "send offsets", request, self.protocol.commit, lambda r: r.topics[0].partitions[0].error_code, group
        )
        self._judge("send offsets", code, ABORTABLE, FATAL)

    async def end(self, commit: bool) -> None:
        """Raises Fenced."""
        if not self._added and not (self.protocol.is_new and not commit):
            return
        request = EndTxnRequest(
            transactional_id=self.name,
            producer_id=self._producer_id,
            producer_epoch=self._epoch,
            committed=commit,
        )
        response, code = await self._ask("end", request, self.protocol.end, lambda r: r.error_code)
        self._judge("end", code, frozenset(), FATAL)
        self.told.ended.append(Ended(self.intent, commit, tuple(self._acknowledged)))
        if self.protocol.is_new:
            self._become(response.producer_id, response.producer_epoch, "EndTxn")
            self._doubts = False

    async def go_on(self) -> None:
        """After the end: a client of the old protocol takes another epoch if something of this one may still arrive.
        Raises Fenced."""
        if self._doubts and not self.protocol.is_new:
            await self.init(bumps=True)

    # batches -----------------------------------------------------------------------------------------------

    async def produce(
        self, partition: TopicPartition, values: Sequence[Sequence[bytes]], patience_s: float = GIVES_UP_S
    ) -> None:
        """One batch of each of the `values`, several in flight. Raises Fenced, Abortable."""
        self._added[partition] = None
        waiting = deque(self._build(partition, some) for some in values)
        deadline = self.links.ports.clock.monotonic() + patience_s
        while waiting:
            if await self._send(partition, waiting):
                continue
            if self.links.ports.clock.monotonic() > deadline:
                self._doubts = True
                raise Abortable("not acknowledged in time")
            await self.links.refresh([partition[0]])
            await self.links.pause(0.04)

    def _build(self, partition: TopicPartition, values: Sequence[bytes]) -> Unsent:
        now_ms = self.links.ports.clock.wall_ms()
        records = [Record(n, now_ms, b"k", value, ()) for n, value in enumerate(values)]
        sequence = self._sequences.get(partition, 0)
        self._sequences[partition] = sequence + len(records)
        data = bytes(
            build_batch(
                records,
                producer_id=self._producer_id,
                producer_epoch=self._epoch,
                base_sequence=sequence,
                transactional=True,
            )
        )
        return Unsent(data, read_header(data, 0).crc, len(records), sequence)

    async def _send(self, partition: TopicPartition, waiting: deque[Unsent]) -> bool:
        """Whether all that were sent were acknowledged. Raises Fenced, Abortable."""
        leader = self.links.leaders.get(partition)
        if leader is None or leader.node < 0:
            return False
        batches = [waiting[number] for number in range(min(IN_FLIGHT_MAX, len(waiting)))]
        flight = Flight()
        calls = [self._call(leader.node, partition, batch, flight) for batch in batches]
        answers = await asyncio.gather(*[asyncio.create_task(call) for call in calls])
        for batch, answer in zip(batches, answers, strict=True):
            if answer is None or not self._answered(partition, batch, answer):
                return False
            waiting.popleft()
        return True

    async def _call(self, node: int, partition: TopicPartition, batch: Unsent, flight: Flight | None = None) -> Any:
        topic = ProduceRequest.TopicProduceData(
            name=partition[0],
            partition_data=[
                ProduceRequest.TopicProduceData.PartitionProduceData(index=partition[1], records=batch.data)
            ],
        )
        request = ProduceRequest(transactional_id=self.name, acks=-1, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[topic])
        try:
            response = await self.links.call(node, request, self.protocol.produce, flight=flight)
        except Unreachable:
            self._doubts = True
            return None
        return response.responses[0].partition_responses[0]

    def _answered(self, partition: TopicPartition, batch: Unsent, answer: Any) -> bool:
        code = ErrorCode(answer.error_code)
        self._history.counts[f"produce in transactions: {code.name}"] += 1
        if code is ErrorCode.NONE:
            item = Acknowledged(
                partition, answer.base_offset, batch.count, batch.crc, self._producer_id, batch.base_sequence
            )
            self._history.acknowledged.append(item)
            self._acknowledged.append((partition, answer.base_offset))
            return True
        if code in RESENT or (code is ErrorCode.CONCURRENT_TRANSACTIONS and self.protocol.is_new):
            return False
        self._doubts = True  # batches behind it may be there
        self._judge("produce", code, ABORTABLE, FATAL)
        return False

    def build(self, partition: TopicPartition, value: bytes) -> Unsent:
        """A batch to be sent later."""
        return self._build(partition, [value])

    async def send_late(self, partition: TopicPartition, batch: Unsent) -> None:
        """A batch that was on its way when its transaction was aborted. Whatever becomes of it, the producer goes on
        with another epoch."""
        leader = self.links.leaders.get(partition)
        if leader is not None and leader.node >= 0:
            answer = await self._call(leader.node, partition, batch)
            code = "unreachable" if answer is None else ErrorCode(answer.error_code).name
            self._history.counts[f"late batches: {code}"] += 1
        self._doubts = True


def code_of_added(response: Any) -> int:
    """That of the partition which keeps others out, if there is one: OPERATION_NOT_ATTEMPTED is no reason."""
    codes: list[int] = [
        row.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for row in topic.results_by_partition
    ]
    return next((code for code in codes if code != ErrorCode.OPERATION_NOT_ATTEMPTED), codes[0])


class Writer:
    """One producer of a transactional id, which writes to the input in one transaction after another."""

    def __init__(
        self, producer: TransactionalProducer, partitions: Sequence[TopicPartition], group: str, pause_s: float
    ) -> None:
        self._producer, self._partitions, self._group, self._pause_s = producer, list(partitions), group, pause_s
        self._rng = producer.links.ports.random
        self._history, self._told = producer.links.history, producer.told
        self._aborts = 0  # in a row, by choice

    async def run(self) -> None:
        """Until it is fenced, or all is to end."""
        try:
            await self._producer.init()
            while not self._history.stop_producing:
                await self._transact()
                await self._producer.links.pause(self._pause_s)
        except Fenced:
            self._history.counts["producers fenced"] += 1

    async def _transact(self) -> None:
        producer, rng = self._producer, self._rng
        producer.begin()
        partitions = rng.sample(self._partitions, rng.randint(1, len(self._partitions)))
        commit = rng.random() < COMMIT_SHARE or self._aborts >= ABORTS_MAX
        self._aborts = 0 if commit else self._aborts + 1
        try:
            await producer.add(partitions)
            if rng.random() < OFFSETS_SHARE:
                await producer.send_offsets(self._group, {self._partitions[0]: rng.randrange(OFFSETS)})
            if self._told.passing:
                await self._write_to_passing((self._told.passing, 0))
            for partition in partitions:
                await producer.produce(partition, [self._values(n) for n in range(rng.randint(1, 4))])
            if rng.random() < OFFSETS_SHARE:
                await producer.send_offsets(self._group, {rng.choice(self._partitions): rng.randrange(OFFSETS)})
            if rng.random() < LONG_SHARE:
                await producer.links.pause(LONG_S)
        except Abortable:
            self._history.counts["transactions given up"] += 1
            commit = False
        place = rng.choice(partitions)
        late = (
            producer.build(place, text_of(producer.intent, "late"))
            if not commit and rng.random() < LATE_SHARE
            else None
        )
        await producer.end(commit)
        if late is not None:
            await producer.links.pause(0.05 * rng.random())
            await producer.send_late(place, late)
        await producer.go_on()

    async def _write_to_passing(self, partition: TopicPartition) -> None:
        """Raises Fenced, and Abortable if its topic is deleted before the batch is acknowledged."""
        if self._rng.random() < PASSING_SHARE and await self._producer.add([partition], AGAIN_WHERE_THERE):
            await self._producer.produce(partition, [self._values(0)], PASSING_PATIENCE_S)

    def _values(self, number: int) -> list[bytes]:
        return [text_of(self._producer.intent, f"{number}.{n}") for n in range(self._rng.randint(1, 2))]
