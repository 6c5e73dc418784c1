"""Markers: what leaders take, and when they acknowledge it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.handlers.transaction_markers import COMMIT_WAIT_S, WriteTxnMarkers
from broker.partitions.transactional_appends import Marked, Marker
from broker.partitions.uncommitted_markers import UncommittedMarkers
from common.errors import ErrorCode, ProtocolError
from common.pacing import SLICE_COST, Pacer
from kraft.topic_names import GROUP_TOPIC, TIER_TOPIC
from tests.broker.replication_lab import TOPIC, Lab, batch, eventually, fetch, produce
from tests.broker.transaction_lab import TXN_ID, coordinated, marker, of_transaction
from wire.messages import WriteTxnMarkersRequest, WriteTxnMarkersResponse

pytestmark = pytest.mark.virtual_time

_Marker = WriteTxnMarkersRequest.WritableTxnMarker
_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult
Codes = dict[tuple[int, str, int], int]


def request_of(
    topics: Mapping[str, list[int]],
    *,
    producer: int = 7,
    epoch: int = 0,
    commit: bool = True,
    coordinator: int = 1,
    version: int = 0,
) -> WriteTxnMarkersRequest:
    listed = [_Marker.WritableTxnMarkerTopic(name=name, partition_indexes=rows) for name, rows in topics.items()]
    one = _Marker(
        producer_id=producer,
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

    def marker_cost(self, topic: str, index: int, appended: Marker) -> int:
        return 0

    def append_marker(self, topic: str, index: int, appended: Marker) -> asyncio.Future[None]:
        if self.refusal is not None:
            raise ProtocolError(self.refusal)
        self.taken.append(appended)
        return self.committed


def handler_of(lab: Lab, logs: NoLogs | None = None, node: int = 0) -> WriteTxnMarkers:
    machinery = lab[node].machinery
    return WriteTxnMarkers(lab[node].plane.partitions, logs or NoLogs(), machinery.ports.clock, machinery.pacer)


async def begin_transaction(lab: Lab) -> Any:
    """Two replicas have the first records of a transaction. Returns the client that wrote them."""
    lab.controller.create_topic((0, 1))
    coordinated(lab)
    client = await lab[0].connect()
    await produce(client, of_transaction(), transactional_id=TXN_ID, version=11)
    return client


async def test_a_marker_is_acknowledged_when_it_is_committed_also_a_repeated_one(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=2) as lab:
        await begin_transaction(lab)
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
        client = await begin_transaction(lab)
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


@pytest.mark.parametrize(("producer", "epoch"), [(-1, -1), (-1, 0), (-5, 3), (7, -1)])
async def test_a_marker_of_no_producer_is_refused(tmp_path: Path, producer: int, epoch: int) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        request = request_of({TOPIC: [0]}, producer=producer, epoch=epoch, commit=False)
        operator = cast(Any, SimpleNamespace(internal=False))
        answer = codes_of(await handler_of(lab).handle(operator, request))
        assert answer == {(producer, TOPIC, 0): ErrorCode.INVALID_REQUEST}
        assert lab[0].partition.log.log_end_offset == 0


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


@pytest.mark.parametrize("cost", [10, 8_000])
async def test_markers_that_end_much_are_appended_in_slices_of_their_own(tmp_path: Path, cost: int) -> None:
    """What a marker ends in a coordinator's log, it ends in one step."""
    async with Lab(tmp_path, count=1) as lab:
        pacer, slices = lab[0].machinery.pacer, list[int]()

        class Logs(NoLogs):
            def marker_cost(self, topic: str, index: int, appended: Marker) -> int:
                return cost

            def append_marker(self, topic: str, index: int, appended: Marker) -> asyncio.Future[None]:
                slices.append(pacer.slices)
                return super().append_marker(topic, index, appended)

        logs = Logs()
        logs.committed.set_result(None)
        request = request_of({GROUP_TOPIC: list(range(20))})
        assert set(codes_of(await handler_of(lab, logs).write(request)).values()) == {0}
        assert len(slices) == 20
        assert len(set(slices)) == (20 if cost > SLICE_COST else 1)


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
