"""How coordinators send markers until every partition has its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.coordination.transactions.markers import MarkerLimits, TransactionMarkers
from broker.coordination.transactions.values import MarkersToWrite
from broker.handlers.transaction_markers import COMMIT_WAIT_S
from common.errors import ErrorCode
from kraft.image.metadata import MetadataImage
from tests.broker.replication_lab import eventually
from tests.broker.transaction_lab import silent_link
from wire.client import CallTimeout, ConnectionLost
from wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

pytestmark = pytest.mark.virtual_time

_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult


def decided(
    transactional_id: str,
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    partitions: dict[str, tuple[int, ...]],
    new_protocol: bool = True,
) -> MarkersToWrite:
    return MarkersToWrite(transactional_id, producer_id, producer_epoch, commit, partitions, new_protocol)


class FakeBrokers:
    """All brokers and their links. `answer` gives the code of one partition; it may raise what a link raises."""

    def __init__(self) -> None:
        self.leaders: dict[str, dict[int, int]] = {}
        self.requests: list[tuple[int, WriteTxnMarkersRequest]] = []
        self.answer: Callable[[int, str, int], int] = lambda broker, topic, partition: 0
        self.delay_s: Callable[[int], float] = lambda broker: 0.01
        self.epoch: int | None = 4
        self.done: list[tuple[int, int, Any]] = []
        self.sender = TransactionMarkers(
            0,
            lambda: cast(MetadataImage, self),
            self.leader_epoch_of,
            lambda index, epoch, markers: self.done.append((index, epoch, markers)),
            self,
            cast(Any, self),
            "NODES",
            random.Random(1),
            MarkerLimits(),
        )

    # as an image

    @property
    def topics(self) -> dict[str, Any]:
        return {
            topic: SimpleNamespace(partitions={at: SimpleNamespace(leader=leader) for at, leader in leaders.items()})
            for topic, leaders in self.leaders.items()
        }

    @property
    def brokers(self) -> dict[int, Any]:
        return {node: SimpleNamespace(address=lambda name, node=node: ("broker", node)) for node in range(5)}

    # as links

    async def connect(self, address: tuple[str, int], timeout_s: float, closed: Any = None) -> Any:
        async def call(request: WriteTxnMarkersRequest, version: int, timeout_s: float) -> WriteTxnMarkersResponse:
            assert version == 2
            return await self.serve(address[1], request)

        return SimpleNamespace(call=call, is_closed=False, close=lambda: None)

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return await self.serve(0, request)

    def leader_epoch_of(self, index: int) -> int | None:
        return self.epoch

    async def serve(self, broker: int, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        self.requests.append((broker, request))
        await asyncio.sleep(self.delay_s(broker))
        results = []
        for one in request.markers:
            topics = []
            for topic in one.topics:
                of_topic = _Result.WritableTxnMarkerTopicResult
                rows = [
                    of_topic.WritableTxnMarkerPartitionResult(
                        partition_index=index, error_code=self.answer(broker, topic.name, index)
                    )
                    for index in topic.partition_indexes
                ]
                topics.append(of_topic(name=topic.name, partitions=rows))
            results.append(_Result(producer_id=one.producer_id, topics=topics))
        return WriteTxnMarkersResponse(markers=results)


async def test_markers_are_batched_by_broker_and_turn() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: 0, 1: 1, 2: 2}, "b": {0: 1}}
    rows = [decided(f"t{at}", at, at, at % 2 == 0, {"a": (0, 1, 2), "b": (0,)}, at < 5) for at in range(10)]
    for one in rows:
        brokers.sender.begin(3, 4, one)
        brokers.sender.begin(3, 4, one)
    assert brokers.sender.unwritten("t1") is None, "they are not on their way yet"
    await asyncio.sleep(0)
    assert brokers.sender.unwritten("t1") == dict.fromkeys((("a", 0), ("a", 1), ("a", 2), ("b", 0)), ErrorCode.NONE)
    await eventually(lambda: len(brokers.done) == 10, "all are written")
    assert sorted(brokers.done) == [(3, 4, one) for one in rows]
    assert sorted(broker for broker, _ in brokers.requests) == [0, 1, 2]
    sent = {one.producer_id: one for one in brokers.requests[1][1].markers}
    assert (sent[3].producer_epoch, sent[3].transaction_result, sent[3].coordinator_epoch) == (3, False, 4)
    assert (sent[3].transaction_version, sent[6].transaction_version) == (2, 0)
    assert not len(brokers.sender)
    assert brokers.sender.unwritten("t1") is None
    await brokers.sender.stop()


@pytest.mark.parametrize(
    "failure",
    [
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_SERVER_ERROR, ConnectionLost("cut"), CallTimeout("late"),
    ],
)  # fmt: skip
async def test_what_fails_is_sent_again_where_the_leader_is_then(failure: ErrorCode | Exception) -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: 1, 1: 2}}

    def answer(broker: int, topic: str, partition: int) -> int:
        if broker != 1:
            return 0
        if isinstance(failure, Exception):
            raise failure
        return failure

    brokers.answer = answer
    brokers.sender.begin(3, 4, decided("t", 7, 1, True, {"a": (0, 1)}))
    await asyncio.sleep(3)
    assert not brokers.done
    assert list(brokers.sender.unwritten("t") or ()) == [("a", 0)]
    assert 3 <= sum(broker == 1 for broker, _ in brokers.requests) <= 20, "with pauses"
    assert sum(broker == 2 for broker, _ in brokers.requests) == 1
    brokers.leaders["a"][0] = 3
    await eventually(lambda: len(brokers.done) == 1, "written at the new leader")
    await brokers.sender.stop()


async def test_a_marker_that_cannot_be_written_is_logged_with_its_topic_and_partition(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {3: -1}}
    brokers.sender.begin(3, 4, decided("stuck", 7, 1, True, {"a": (3,)}))
    await eventually(lambda: caplog.records, "after some attempts")
    logged: dict[str, Any] = vars(caplog.records[0])
    assert {name: logged[name] for name in ("transactional_id", "topic", "partition", "error")} == {
        "transactional_id": "stuck", "topic": "a", "partition": 3, "error": "LEADER_NOT_AVAILABLE",
    }  # fmt: skip
    await brokers.sender.stop()


async def test_a_partition_without_a_leader_delays_its_own_transaction_alone() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: -1, 1: 1}}
    brokers.sender.begin(3, 4, decided("stuck", 7, 1, True, {"a": (0, 1)}))
    brokers.sender.begin(3, 4, decided("free", 8, 1, True, {"a": (1,)}))
    await asyncio.sleep(5)
    assert [markers.transactional_id for _, _, markers in brokers.done] == ["free"]
    assert brokers.sender.unwritten("stuck") == {("a", 0): ErrorCode.LEADER_NOT_AVAILABLE}
    brokers.leaders["a"][0] = 1
    await eventually(lambda: len(brokers.done) == 2, "it has a leader")
    await brokers.sender.stop()


async def test_a_partition_that_does_not_commit_delays_others_once() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: 1, 1: 1}}

    class Slow:
        def __call__(self, broker: int) -> float:
            topics = brokers.requests[-1][1].markers[0].topics
            return COMMIT_WAIT_S if any(0 in topic.partition_indexes for topic in topics) else 0.01

    brokers.delay_s = Slow()
    brokers.answer = lambda broker, topic, partition: 0 if partition else ErrorCode.REQUEST_TIMED_OUT
    brokers.sender.begin(3, 4, decided("stuck", 7, 1, True, {"a": (0,)}))
    await asyncio.sleep(COMMIT_WAIT_S + 1)
    begun = asyncio.get_running_loop().time()
    for number in range(20):
        brokers.sender.begin(3, 4, decided(f"free{number}", 8 + number, 1, True, {"a": (1,)}))
        await eventually(lambda: len(brokers.done) == number + 1, "written")  # noqa: B023
    assert asyncio.get_running_loop().time() - begun < COMMIT_WAIT_S / 2
    await brokers.sender.stop()


class LateBrokers(FakeBrokers):
    """Broker 1 leads partitions 0 to 3, of which those in `late` do not commit in time."""

    def __init__(self) -> None:
        super().__init__()
        self.leaders = {"a": dict.fromkeys(range(4), 1)}
        self.late: set[int] = set()
        self.producer_ids = count(10_000)
        self.answer = lambda broker, topic, partition: ErrorCode.REQUEST_TIMED_OUT if partition in self.late else 0
        self.delay_s = lambda broker: COMMIT_WAIT_S if self.late & set(self.asked()) else 0.01

    def asked(self) -> list[int]:
        """The partitions of the last request."""
        return [
            index for one in self.requests[-1][1].markers for topic in one.topics for index in topic.partition_indexes
        ]

    async def writes(self, transactional_id: str, *partitions: int) -> float:
        """How long a transaction took."""
        begun = asyncio.get_running_loop().time()
        self.sender.begin(3, 4, decided(transactional_id, next(self.producer_ids), 1, True, {"a": partitions}))
        await eventually(lambda: any(done[2].transactional_id == transactional_id for done in self.done), "written")
        return asyncio.get_running_loop().time() - begun


async def test_transactions_over_a_partition_that_is_always_late_delay_others_once() -> None:
    brokers = LateBrokers()
    brokers.late = {0}
    begun = asyncio.get_running_loop().time()
    for number in range(50):
        brokers.sender.begin(3, 4, decided(f"stuck{number}", 1_000 + number, 1, True, {"a": (0, 1)}))
        await brokers.writes(f"free{number}", 1)
    assert asyncio.get_running_loop().time() - begun < COMMIT_WAIT_S + 2
    assert brokers.sender.unwritten("stuck49") == {("a", 0): ErrorCode.NONE}, "it waits in a request"
    brokers.late = set()
    await eventually(lambda: len(brokers.done) == 100, "all are written")
    await brokers.sender.stop()


async def test_what_fails_otherwise_does_not_wait_for_late_partitions() -> None:
    brokers = LateBrokers()
    brokers.late = {0}
    brokers.sender.begin(3, 4, decided("stuck", 7, 1, True, {"a": (0,)}))
    await asyncio.sleep(COMMIT_WAIT_S + 0.5)
    answer = brokers.answer
    refused: list[int] = []

    def refuse_once(broker: int, topic: str, partition: int) -> int:
        if partition != 2 or refused:
            return answer(broker, topic, partition)
        refused.append(partition)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

    brokers.answer = refuse_once
    assert await brokers.writes("free", 2) < COMMIT_WAIT_S / 2
    assert refused
    await brokers.sender.stop()


async def test_a_partition_that_was_late_joins_the_others_again() -> None:
    brokers = LateBrokers()
    brokers.late = {0}
    brokers.sender.begin(3, 4, decided("stuck", 7, 1, True, {"a": (0, 1)}))
    await asyncio.sleep(2 * COMMIT_WAIT_S)
    brokers.late = set()
    await eventually(lambda: len(brokers.done) == 1, "written")
    before = len(brokers.requests)
    await brokers.writes("soon", 0, 1)
    assert len(brokers.requests) == before + 2
    await asyncio.sleep(MarkerLimits().late_s)
    await brokers.writes("later", 0, 1)
    assert len(brokers.requests) == before + 3
    await brokers.sender.stop()


async def test_a_deleted_topic_counts_as_done() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"old": {0: 1}, "a": {1: -1}}
    brokers.sender.begin(3, 4, decided("t", 7, 1, True, {"gone": tuple(range(2_000))}))
    brokers.sender.begin(3, 4, decided("u", 8, 1, True, {"gone": (0, 1), "old": (0, 5)}))
    brokers.sender.begin(3, 4, decided("v", 9, 1, True, {"a": (1,), "gone": (0,)}))
    await asyncio.sleep(MarkerLimits().backoff_min_s)
    assert [done[2].transactional_id for done in brokers.done] == ["t", "u"]
    assert [broker for broker, _ in brokers.requests] == [1]
    assert list(brokers.sender.unwritten("v") or ()) == [("a", 1)], "it has no leader"
    del brokers.leaders["a"]
    await eventually(lambda: len(brokers.done) == 3, "its topic is deleted meanwhile")
    assert len(brokers.requests) == 1
    await brokers.sender.stop()


async def test_another_coordinator_takes_over() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: -1, 1: 1}}
    brokers.sender.begin(3, 4, decided("t", 7, 1, True, {"a": (0,)}))
    await asyncio.sleep(1)
    brokers.epoch = 5
    brokers.leaders["a"][0] = 1
    await asyncio.sleep(3)
    assert not brokers.requests and not brokers.done and not len(brokers.sender)
    brokers.sender.begin(3, 5, decided("t", 7, 1, True, {"a": (0,)}))
    await eventually(lambda: len(brokers.done) == 1, "as the coordinator of now")
    brokers.answer = lambda broker, topic, partition: ErrorCode.TRANSACTION_COORDINATOR_FENCED
    brokers.sender.begin(3, 5, decided("u", 8, 1, True, {"a": (0, 1)}))
    await asyncio.sleep(3)
    fenced = ErrorCode.TRANSACTION_COORDINATOR_FENCED
    assert brokers.sender.unwritten("u") == {("a", 0): fenced, ("a", 1): fenced}
    brokers.epoch = 6
    await asyncio.sleep(3)
    asked = len(brokers.requests)
    await asyncio.sleep(3)
    assert (len(brokers.done), len(brokers.requests), len(brokers.sender)) == (1, asked, 0)
    await brokers.sender.stop()


class HalfDeposed(FakeBrokers):
    """From `deposed` on it coordinates one partition of two, and takes its own markers within the turn."""

    def __init__(self) -> None:
        super().__init__()
        self.deposed = False
        self.looked = [0]
        """How often a sending was looked at in each turn of the loop."""

    def leader_epoch_of(self, index: int) -> int | None:
        self.looked[-1] += 1
        if self.looked[-1] == 1:
            asyncio.get_running_loop().call_soon(self.looked.append, 0)
        return None if self.deposed and index == 3 else 4

    async def write(self, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(markers=[]) if self.deposed else await super().write(request)


@pytest.mark.parametrize("kept_every", [5_000, 500])
async def test_few_markers_of_another_coordinator_are_dropped_in_a_turn(kept_every: int) -> None:
    brokers = HalfDeposed()
    brokers.leaders = {"a": {0: 0}}
    brokers.delay_s = lambda broker: 2.0
    for number in range(5_000):
        index = 3 if number % kept_every else 4
        brokers.sender.begin(index, 4, decided(f"t{number}", number, 1, True, {"a": (0,)}))
    await asyncio.sleep(1)
    brokers.deposed, brokers.looked = True, [0]
    await asyncio.sleep(1.02)
    assert sum(brokers.looked) > 4_000
    assert max(brokers.looked) <= 2 * MarkerLimits().partitions_per_request_max, "those of an answer, and the next ones"
    await brokers.sender.stop()


async def test_the_markers_of_a_later_transaction_of_the_same_epoch_take_the_place_of_earlier_ones() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: 1, 1: 2, 2: -1}}
    brokers.sender.begin(3, 4, decided("t", 7, 1, True, {"a": (0, 2)})._replace(serial=5))
    await asyncio.sleep(0.2)
    later = decided("t", 7, 1, True, {"a": (1, 2)})._replace(serial=6)
    for _ in range(2):
        brokers.sender.begin(3, 4, later)
    await asyncio.sleep(0.2)
    assert list(brokers.sender.unwritten("t") or ()) == [("a", 2)]
    assert len(brokers.sender) == 1
    brokers.leaders["a"][2] = 3
    await eventually(lambda: len(brokers.done) == 1, "the later one")
    await asyncio.sleep(3)
    assert brokers.done == [(3, 4, later)]
    assert sorted(broker for broker, _ in brokers.requests) == [1, 2, 3]
    await brokers.sender.stop()


async def test_a_late_answer_after_a_change_of_coordinator_completes_nothing() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: 1}}
    brokers.delay_s = lambda broker: 1.0
    brokers.sender.begin(3, 4, decided("t", 7, 1, True, {"a": (0,)}))
    await asyncio.sleep(0.5)
    brokers.epoch = None
    await asyncio.sleep(3)
    assert len(brokers.requests) == 1 and not brokers.done and not len(brokers.sender)
    await brokers.sender.stop()


async def test_a_partition_in_a_later_epoch_is_past_the_transaction() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {0: 1, 1: 2}}
    brokers.answer = lambda broker, topic, partition: ErrorCode.INVALID_PRODUCER_EPOCH if broker == 1 else 0
    brokers.sender.begin(3, 4, decided("t", 7, 1, True, {"a": (0, 1)}))
    await eventually(lambda: len(brokers.done) == 1, "done")
    await brokers.sender.stop()


class CountedByTurn(tuple[int, ...]):
    """Counts how many of its items are taken in each turn of the loop."""

    def __iter__(self) -> Iterator[int]:
        self.taken: list[int] = [0]
        turn = asyncio.get_running_loop()
        for item in super().__iter__():
            self.taken[-1] += 1
            if self.taken[-1] == 1:
                turn.call_soon(self.taken.append, 0)
            yield item


async def test_transactions_without_partitions_and_with_very_many() -> None:
    brokers = FakeBrokers()
    brokers.leaders = {"a": {at: at % 3 for at in range(10_000)}}
    topics = brokers.topics
    brokers.__class__ = type("Frozen", (FakeBrokers,), {"topics": property(lambda _: topics)})
    brokers.sender.begin(3, 4, decided("none", 7, 1, True, {}))
    partitions = CountedByTurn(range(10_000))
    brokers.sender.begin(3, 4, decided("many", 8, 1, True, {"a": partitions}))
    assert not brokers.done, "never within the call"
    await eventually(lambda: len(brokers.done) == 2, "both")
    assert max(partitions.taken) <= MarkerLimits().partitions_per_turn_max, "never all in one turn"
    sizes = [
        sum(len(t.partition_indexes) for one in request.markers for t in one.topics) for _, request in brokers.requests
    ]
    assert sum(sizes) == 10_000 and max(sizes) <= 1_000
    await brokers.sender.stop()


async def test_no_answer_is_awaited_of_a_broker_that_was_lost() -> None:
    class SilentBroker(FakeBrokers):
        async def connect(self, address: tuple[str, int], timeout_s: float, closed: Any = None) -> Any:
            return silent_link() if address[1] == 1 else await super().connect(address, timeout_s)

    brokers = SilentBroker()
    brokers.leaders = {"a": {0: 1}}
    brokers.sender.begin(3, 4, decided("t", 7, 1, True, {"a": (0,)}))
    await asyncio.sleep(0.1)
    brokers.leaders["a"][0] = 2
    brokers.sender.broker_left(1)
    await asyncio.sleep(0.2)
    assert len(brokers.done) == 1
    await brokers.sender.stop()
