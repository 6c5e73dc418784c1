"""Markers: what leaders take, and how coordinators send them until every partition has its own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.transactions.markers import MarkerLimits, TransactionMarkers
from broker.coordination.transactions.values import MarkersToWrite
from broker.handlers.transaction_markers import COMMIT_WAIT_S, WriteTxnMarkers
from broker.partitions.transactional_appends import Marked, Marker
from broker.partitions.uncommitted_markers import UncommittedMarkers
from common.errors import ErrorCode, ProtocolError
from common.pacing import Pacer
from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC, TIER_TOPIC
from tests.broker.replication_lab import TOPIC, Lab, batch, eventually, fetch, produce
from tests.broker.transaction_lab import TXN_ID, coordinated, marker, of_transaction, silent_link
from wire.client import CallTimeout, ConnectionLost
from wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

pytestmark = pytest.mark.virtual_time

_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
Codes = dict[tuple[int, str, int], int]


def request_of(
    topics: Mapping[str, list[int]], *, epoch: int = 0, commit: bool = True, coordinator: int = 1, version: int = 0
) -> WriteTxnMarkersRequest:
    listed = [_Marker.WritableTxnMarkerTopic(name=name, partition_indexes=rows) for name, rows in topics.items()]
    one = _Marker(
        producer_id=7,
        producer_epoch=epoch,
        transaction_result=commit,
        topics=listed,
        coordinator_epoch=coordinator,
        transaction_version=version,
    )
    return WriteTxnMarkersRequest(markers=[one])


def codes_of(response: WriteTxnMarkersResponse) -> Codes:
    return {
        (one.producer_id, topic.name, row.partition_index): row.error_code
        for one in response.markers
        for topic in one.topics
        for row in topic.partitions
    }


class NoLogs:
    """Coordinators' logs that take what a test says."""

    def __init__(self) -> None:
        self.taken: list[Marker] = []
        self.refusal: ErrorCode | None = None
        self.committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append_marker(self, topic: str, index: int, appended: Marker) -> asyncio.Future[None]:
        if self.refusal is not None:
            raise ProtocolError(self.refusal)
        self.taken.append(appended)
        return self.committed


def handler_of(lab: Lab, logs: NoLogs | None = None, node: int = 0) -> WriteTxnMarkers:
    machinery = lab[node].machinery
    return WriteTxnMarkers(lab[node].plane.partitions, logs or NoLogs(), machinery.ports.clock, machinery.pacer)


async def test_a_marker_is_acknowledged_when_it_is_committed_also_a_repeated_one(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=2) as lab:
        lab.controller.create_topic((0, 1))
        coordinated(lab)
        client = await lab[0].connect()
        await produce(client, of_transaction(), transactional_id=TXN_ID, version=11)
        handler, key = handler_of(lab), (7, TOPIC, 0)
        lab[1].pause_fetching()
        for _ in range(2):
            response = await handler.write(request_of({TOPIC: [0, 9], "gone": [0], TIER_TOPIC: [0]}))
            assert codes_of(response) == {
                key: ErrorCode.REQUEST_TIMED_OUT,
                (7, TOPIC, 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                (7, "gone", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                (7, TIER_TOPIC, 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
            }
            assert lab[0].partition.log.log_end_offset == 2, "appended once"
        lab[1].resume_fetching()
        assert codes_of(await handler.write(request_of({TOPIC: [0]})))[key] == 0
        assert lab[0].partition.log.log_end_offset == 2
        row = codes_of(await handler.write(request_of({TOPIC: [0]}, coordinator=0)))[key]
        assert row == ErrorCode.TRANSACTION_COORDINATOR_FENCED
        lab.controller.elect(1)
        await eventually(lambda: lab[1].partition.is_leader, "elected")
        assert codes_of(await handler.write(request_of({TOPIC: [0]})))[key] == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_repeated_marker_waits_for_the_one_that_it_repeats_and_not_for_later_records(tmp_path: Path) -> None:
    """Where commits are always late, something newer is always uncommitted."""
    async with Lab(tmp_path, count=2) as lab:
        lab.controller.create_topic((0, 1))
        coordinated(lab)
        client = await lab[0].connect()
        await produce(client, of_transaction(), transactional_id=TXN_ID, version=11)
        handler, key, leader = handler_of(lab), (7, TOPIC, 0), lab[0].partition
        lab[1].pause_fetching()
        await asyncio.sleep(0.5)
        broker_epoch = lab.controller.image.brokers[1].epoch
        assert codes_of(await handler.write(request_of({TOPIC: [0]})))[key] == ErrorCode.REQUEST_TIMED_OUT
        for _ in range(3):
            await produce(client, batch(b"later"), acks=1)
        again = asyncio.create_task(handler.write(request_of({TOPIC: [0]})))
        await asyncio.sleep(0.1)
        leader.follower_fetched(1, 1, 0, broker_epoch)
        await asyncio.sleep(0.1)
        assert (again.done(), leader.high_watermark) == (False, 1), "the marker is not committed"
        leader.follower_fetched(1, 2, 0, broker_epoch)
        assert codes_of(await again)[key] == 0
        begun = asyncio.get_running_loop().time()
        assert codes_of(await handler.write(request_of({TOPIC: [0]})))[key] == 0
        assert asyncio.get_running_loop().time() - begun < 0.01
        assert (leader.high_watermark, leader.log.log_end_offset) == (2, 5)


async def test_a_marker_of_an_earlier_leader_is_acknowledged_when_its_log_is_committed(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=3) as lab:
        lab.controller.create_topic((0, 1, 2))
        coordinated(lab)
        client = await lab[0].connect()
        await produce(client, of_transaction(), transactional_id=TXN_ID, version=11)
        await eventually(lambda: lab[1].partition.high_watermark == 1, "it is committed")
        lab[2].pause_fetching()
        await asyncio.sleep(0.2)
        key = (7, TOPIC, 0)
        assert codes_of(await handler_of(lab).write(request_of({TOPIC: [0]})))[key] == ErrorCode.REQUEST_TIMED_OUT
        lab.controller.elect(1)
        leader = lab[1].partition
        await eventually(lambda: leader.is_leader, "elected")
        assert (leader.epoch_start_offset, leader.high_watermark) == (2, 1)
        await produce(await lab[1].connect(), batch(b"later"), acks=1)
        handler = handler_of(lab, node=1)
        assert codes_of(await handler.write(request_of({TOPIC: [0]})))[key] == ErrorCode.REQUEST_TIMED_OUT
        again = asyncio.create_task(handler.write(request_of({TOPIC: [0]})))
        await asyncio.sleep(0.1)
        leader.follower_fetched(2, 2, 0, lab.controller.image.brokers[2].epoch)
        assert codes_of(await again)[key] == 0
        assert (leader.high_watermark, leader.log.log_end_offset) == (2, 3)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 15)), max_size=40))
def test_of_too_many_uncommitted_markers_none_is_acknowledged_early(steps: list[tuple[int, int]]) -> None:
    ends, high_watermark = dict.fromkeys(range(7), 3), 0
    markers = UncommittedMarkers(3, markers_max=3)
    for end, (producer_id, lag) in enumerate(steps, 4):
        high_watermark = max(high_watermark, end - 1 - lag)
        markers.add(producer_id, end, high_watermark)
        ends[producer_id] = end
        assert len(markers) <= 3
        for one, last in ends.items():
            waits_for = markers.end_of(one)
            assert waits_for >= last or high_watermark >= last
            assert waits_for <= max(last, sorted(ends.values())[-4]), "no later than the newest that is forgotten"


class SlowPartition:
    """Commits a marker after a delay; has committed it long ago if that is None."""

    def __init__(self, delay_s: float | None) -> None:
        self.delay_s = delay_s

    def append_marker(self, appended: Marker, now_ms: int) -> Marked:
        return Marked(11, is_repeated=self.delay_s is None)

    def when_committed(self, offset: int, waiter: Any) -> bool:
        if self.delay_s is None:
            return False
        asyncio.get_running_loop().call_later(self.delay_s, waiter.committed, offset)
        return True


@pytest.mark.parametrize("delays", [(None, 0.005), (0.005, None), (None, 0.005, None, 0.5), (None, None), ()])
async def test_markers_that_are_committed_already_cut_no_wait_short(delays: tuple[float | None, ...]) -> None:
    """Whatever their order: a coordinator sends what is answered REQUEST_TIMED_OUT again after a pause."""
    partitions = [SlowPartition(delay_s) for delay_s in delays]
    hosted = SimpleNamespace(find_leader=lambda topic, index: partitions[index])
    clock = SimpleNamespace(wall_ms=lambda: 5)
    handler = WriteTxnMarkers(cast(Any, hosted), NoLogs(), cast(Any, clock), Pacer())
    indexes = list(range(len(delays)))
    begun = asyncio.get_running_loop().time()
    assert codes_of(await handler.write(request_of({TOPIC: indexes}))) == {(7, TOPIC, index): 0 for index in indexes}
    assert asyncio.get_running_loop().time() - begun < COMMIT_WAIT_S, "nothing is waited for that has come"


async def test_operators_may_only_abort(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        handler, key = handler_of(lab), (7, TOPIC, 0)
        operator, node = cast(Any, SimpleNamespace(internal=False)), cast(Any, SimpleNamespace(internal=True))
        refused = codes_of(await handler.handle(operator, request_of({TOPIC: [0]})))
        assert refused == {key: ErrorCode.CLUSTER_AUTHORIZATION_FAILED}
        assert lab[0].partition.log.log_end_offset == 0
        assert codes_of(await handler.handle(operator, request_of({TOPIC: [0]}, commit=False))) == {key: 0}
        assert codes_of(await handler.handle(node, request_of({TOPIC: [0]}, epoch=1))) == {key: 0}
        assert lab[0].partition.log.log_end_offset == 2


async def test_a_coordinators_log_takes_markers_by_its_coordinator(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        logs = NoLogs()
        handler, key = handler_of(lab, logs), (7, GROUP_TOPIC, 3)
        request = request_of({GROUP_TOPIC: [3]}, epoch=2, version=2)
        assert codes_of(await handler.write(request)) == {key: ErrorCode.REQUEST_TIMED_OUT}
        assert logs.taken == [Marker(7, 2, True, 1, True)]
        logs.committed = asyncio.get_running_loop().create_future()
        logs.committed.set_result(None)
        assert codes_of(await handler.write(request)) == {key: 0}
        logs.refusal = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert codes_of(await handler.write(request)) == {key: ErrorCode.NOT_LEADER_OR_FOLLOWER}


async def test_followers_show_committed_transactions_by_their_own_high_watermark(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=2, racks=("a", "b"), rack_aware_reads=True) as lab:
        lab.controller.create_topic((0, 1))
        coordinated(lab)
        client = await lab[0].connect()
        for round_ in range(30):
            row = await produce(client, of_transaction(round_), transactional_id=TXN_ID, version=11)
            assert row.error_code == 0
            lab[0].partition.append_marker(marker(commit=round_ % 2 == 0), 5)
        await produce(client, of_transaction(30), transactional_id=TXN_ID, version=11)
        follower = lab[1].partition
        await eventually(lambda: follower.high_watermark == 61, "it knows what is committed")
        assert follower.log.producers.first_unstable_offset is not None
        assert follower.log.producers.first_unstable_offset > 50, "what is final is forgotten, though nobody reads"
        assert lab[0].partition.log.producers.first_unstable_offset is not None
        assert lab[0].partition.log.producers.first_unstable_offset > 50
        assert (follower.last_stable_offset, lab[0].partition.last_stable_offset) == (60, 60)
        reader = await lab[1].connect()
        response = await fetch(reader, 60, isolation=1, rack="b", max_wait_ms=100)
        part = response.responses[0].partitions[0]
        assert (part.error_code, part.last_stable_offset, part.high_watermark) == (0, 60, 61)
        assert not part.records, "it is open"
        lab[0].partition.append_marker(marker(), 5)
        await eventually(lambda: follower.last_stable_offset == 62, "its marker is below the follower's high watermark")


# sending ---------------------------------------------------------------------------------------------------


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
