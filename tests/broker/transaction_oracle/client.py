"""Requests of a transactional producer and of who looks on, and what of their answers two systems have in common.

An answer is told by its error code; a producer id and an epoch by how they differ from the coordinator's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from common.errors import known_error
from records.builder import build_batch
from records.record import Record
from tests.broker.gate_oracle.things import message

RECORD_AGE_MS = 1_000
TIMEOUT_MS = 600_000

Place = tuple[str, int]


class Pair(NamedTuple):
    """A producer id and an epoch."""

    id: int = -1
    epoch: int = -1

    def further(self, epochs: int) -> Pair:
        return Pair(self.id, self.epoch + epochs)


class Answer(NamedTuple):
    code: str
    pair: Pair | None = None


class Known(NamedTuple):
    """What DescribeTransactions tells."""

    state: str
    pair: Pair
    partitions: frozenset[Place] = frozenset()
    timeout_ms: int = 0
    has_start: bool = False

    @property
    def is_prepared(self) -> bool:
        return self.state.startswith("Prepare")

    def is_as(self, other: Known) -> bool:
        """Nothing was decided in between: only a prepared transaction loses partitions by itself."""
        return self == other or (self.is_prepared and self[:2] == other[:2])


class Caller(Protocol):
    """A connection to a broker."""

    async def call(self, message: Any, version: int) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class StageClock:
    """Of a system's brokers; `pause` takes seconds."""

    wall_ms: Callable[[], int]
    pause: Callable[[float], Awaitable[None]]


@dataclass(frozen=True)
class Stage:
    """A system under questions, whose second broker has gone: nobody leads `GONE`. `connect` and `connect_as_node`
    reach the first broker, which has the coordinators; `ids` are transactional ids that have been used before, the
    second ones until nearly no epochs were left."""

    connect: Callable[[], Awaitable[Caller]]
    connect_as_node: Callable[[], Awaitable[Caller]]
    clock: StageClock
    ids: Iterator[str]
    used_ids: Iterator[str]


class Client:
    """One connection; and one as another broker of the system, which alone may write commit markers."""

    def __init__(self, wire: Caller, node: Caller, clock: StageClock) -> None:
        """`clock`: the brokers', so that a marker is newer than its records, but not by much."""
        self._wire = wire
        self._wall_ms = clock.wall_ms
        self.pause = clock.pause
        self._node = node

    def close(self) -> None:
        self._wire.close()
        self._node.close()

    async def call(self, version: int, name: str, **fields: Any) -> Any:
        return await self._wire.call(message(name, **fields), version)

    # coordinators ------------------------------------------------------------------------------------------

    async def init(self, version: int, name: str | None, pair: Pair, timeout_ms: int = TIMEOUT_MS) -> Answer:
        told = await self.call(
            version, "InitProducerId", transactional_id=name, transaction_timeout_ms=timeout_ms, producer_id=pair.id,
            producer_epoch=pair.epoch,
        )  # fmt: skip
        return Answer(known_error(told.error_code).name, Pair(told.producer_id, told.producer_epoch))

    async def add(self, version: int, name: str, pair: Pair, *places: Place, verify_only: bool = False) -> Answer:
        """All the codes, each once."""
        topics = [{"name": topic, "partitions": [index]} for topic, index in places]
        if version < 4:
            told = await self.call(
                version, "AddPartitionsToTxn", v3_and_below_transactional_id=name, v3_and_below_producer_id=pair.id,
                v3_and_below_producer_epoch=pair.epoch, v3_and_below_topics=topics,
            )  # fmt: skip
            rows = told.results_by_topic_v3_and_below
        else:
            transaction = {
                "transactional_id": name, "producer_id": pair.id, "producer_epoch": pair.epoch,
                "verify_only": verify_only, "topics": topics,
            }  # fmt: skip
            told = await self.call(version, "AddPartitionsToTxn", transactions=[transaction])
            if told.error_code:
                return Answer(f"request {known_error(told.error_code).name}")
            rows = told.results_by_transaction[0].topic_results
        return _codes(one.partition_error_code for row in rows for one in row.results_by_partition)

    async def add_offsets(self, version: int, name: str, pair: Pair, group: str) -> Answer:
        told = await self.call(
            version, "AddOffsetsToTxn", transactional_id=name, producer_id=pair.id, producer_epoch=pair.epoch,
            group_id=group,
        )  # fmt: skip
        return Answer(known_error(told.error_code).name)

    async def end(self, version: int, name: str, pair: Pair, *, commit: bool) -> Answer:
        told = await self.call(
            version, "EndTxn", transactional_id=name, producer_id=pair.id, producer_epoch=pair.epoch, committed=commit
        )
        code = known_error(told.error_code).name
        return Answer(code, Pair(told.producer_id, told.producer_epoch) if version >= 5 else None)

    async def describe(self, name: str) -> Known:
        told = (await self.call(0, "DescribeTransactions", transactional_ids=[name])).transaction_states[0]
        if told.error_code:
            return Known(known_error(told.error_code).name, Pair())
        return Known(
            told.transaction_state,
            Pair(told.producer_id, told.producer_epoch),
            frozenset((row.topic, index) for row in told.topics for index in row.partitions),
            told.transaction_timeout_ms,
            told.transaction_start_time_ms > 0,
        )

    # partitions --------------------------------------------------------------------------------------------

    async def produce(
        self, version: int, name: str | None, pair: Pair, place: Place, sequence: int, *, transactional: bool = True
    ) -> Answer:
        record = Record(0, self._wall_ms() - RECORD_AGE_MS, b"key", b"value")
        batch = build_batch(
            [record], transactional=transactional, producer_id=pair.id, producer_epoch=pair.epoch,
            base_sequence=sequence,
        )  # fmt: skip
        topic, index = place
        rows = [{"name": topic, "partition_data": [{"index": index, "records": bytes(batch)}]}]
        told = await self.call(version, "Produce", transactional_id=name, acks=-1, timeout_ms=5_000, topic_data=rows)
        return _codes(one.error_code for row in told.responses for one in row.partition_responses)

    async def commit_offset(
        self, version: int, name: str, pair: Pair, group: str, place: Place, *, member: str = "", generation: int = -1
    ) -> Answer:
        topic, index = place
        row = {
            "partition_index": index, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": "",
        }  # fmt: skip
        told = await self.call(
            version, "TxnOffsetCommit", transactional_id=name, group_id=group, producer_id=pair.id,
            producer_epoch=pair.epoch, generation_id=generation, member_id=member, group_instance_id=None,
            topics=[{"name": topic, "partitions": [row]}],
        )  # fmt: skip
        return _codes(one.error_code for row in told.topics for one in row.partitions)

    async def write_marker(
        self, version: int, pair: Pair, place: Place, *, commit: bool, coordinator_epoch: int
    ) -> Answer:
        topic, index = place
        marker = {
            "producer_id": pair.id, "producer_epoch": pair.epoch, "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": [index]}], "coordinator_epoch": coordinator_epoch,
            "transaction_version": 2,
        }  # fmt: skip
        told = await self._node.call(message("WriteTxnMarkers", markers=[marker]), version)
        return _codes(one.error_code for row in told.markers for topic in row.topics for one in topic.partitions)

    async def producers(self, place: Place) -> tuple[str, list[Any]]:
        """The code, and a row for each producer."""
        topic, index = place
        told = await self.call(0, "DescribeProducers", topics=[{"name": topic, "partition_indexes": [index]}])
        partition = told.topics[0].partitions[0]
        return known_error(partition.error_code).name, list(partition.active_producers)

    async def producer(self, place: Place, producer_id: int) -> Any | None:
        _, rows = await self.producers(place)
        return next((row for row in rows if row.producer_id == producer_id), None)


def _codes(codes: Iterator[int]) -> Answer:
    return Answer(" ".join(dict.fromkeys(known_error(code).name for code in codes)))


def compared(pair: Pair, known: Pair) -> str:
    """How a pair differs from the one that the coordinator had."""
    if pair == Pair():
        return "no producer"
    if pair.id != known.id:
        return f"another id, epoch {pair.epoch}"
    return "same epoch" if pair.epoch == known.epoch else f"epoch {pair.epoch - known.epoch:+d}"
