"""What concerns thousands of partitions is committed in pieces, and nothing counts that a piece is still to change."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from common.decision import Decision
from common.errors import OutcomeUnknown
from common.pacing import SLICE_COST, at_once
from kraft.batch_codec import encoding_records
from kraft.batches import MetadataRecord, decode_batch
from kraft.controller.batching import pieces
from kraft.controller.broker_removal import is_listed, removal_piece
from kraft.controller.brokers import decide_heartbeat, decide_unregister, fence
from kraft.controller.driver import ControllerDriver
from kraft.controller.piecework import Piecework, PieceworkConfig
from kraft.controller.policy import ControllerPolicy
from kraft.controller.requested_elections import elect_leaders
from kraft.controller.topics import create_topics
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from kraft.records import (
    PIECE_RECORDS_MAX,
    BrokerRegistrationChangeRecord,
    Cause,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ResourceType,
    TopicRecord,
)
from tests.common.call_count import counted_calls
from tests.kraft.decisions import decide_incremental_alter_configs
from tests.kraft.fake_quorum import Bench
from tests.kraft.images import POLICY, beaten, heartbeat, new_topic, registered, rng, with_brokers
from tests.kraft.images import create_topics as create_topics_request
from wire.messages import ElectLeadersRequest, IncrementalAlterConfigsRequest, UnregisterBrokerRequest

pytestmark = pytest.mark.virtual_time

SMALL = dataclasses.replace(POLICY, piece_records_max=10)
TOPICS, PARTITIONS = 30, 100


def topic_id(number: int) -> bytes:
    return number.to_bytes(2, "big") * 8


def topic_records(number: int, name: str, partitions: int, isr: tuple[int, ...] = (0, 1, 2)) -> list[MetadataRecord]:
    made: list[MetadataRecord] = [TopicRecord(name, topic_id(number))]
    for index in range(partitions):
        replicas = (index % 3, (index + 1) % 3, (index + 2) % 3)
        made.append(
            PartitionRecord(topic_id(number), index, replicas, isr, replicas[0] if replicas[0] in isr else isr[0])
        )
    return made


def with_partitions(topics: int, partitions: int) -> MetadataImage:
    image = with_brokers(3)
    for number in range(topics):
        image = replayed(image, topic_records(number, f"t-{number}", partitions))
    return image


def listing(image: MetadataImage, broker: int) -> list[PartitionImage]:
    return [p for p in image.topics.partitions() if broker in p.isr or broker in p.elr]


def finished(image: MetadataImage, policy: ControllerPolicy) -> MetadataImage:
    while records := removal_piece(image, policy):
        assert len(records) <= policy.piece_records_max
        image = replayed(image, records)
    return image


def test_a_fencing_is_a_small_commit_and_the_groups_topic_goes_first() -> None:
    image = with_partitions(3, 30)
    image = replayed(image, topic_records(9, "__consumer_offsets", 8))
    records = fence(image, image.brokers[0], SMALL, Cause.SESSION_EXPIRED)
    assert isinstance(records[0], BrokerRegistrationChangeRecord)
    assert len(records) == 11
    after = replayed(image, records)
    assert all(0 not in p.isr for p in after.topics.by_name["__consumer_offsets"].partitions.values())
    led_then = [p.leader == 0 for p in image.topics.partitions()]
    assert sum(led_then) > 10
    image = after
    while records := list(removal_piece(image, SMALL)):
        led = [r for r in records if isinstance(r, PartitionChangeRecord) and r.leader is not None]
        assert len(led) in (0, len(records)) or not list(image.topics.index.led_by(0))[len(led) :]
        image = replayed(image, records)
    assert not listing(image, 0)
    assert all(p.leader in (1, 2) for p in image.topics.partitions())


def test_all_of_it_is_one_commit_while_older_nodes_may_run() -> None:
    image = replayed(with_partitions(3, 30), [FeatureLevelRecord("tidelog.version", 1)])
    assert len(fence(image, image.brokers[0], SMALL, Cause.SESSION_EXPIRED)) == 91


def test_a_broker_is_not_unfenced_before_the_last_piece() -> None:
    image = registered(with_partitions(1, 3), 1, life=1)
    one = dataclasses.replace(POLICY, piece_records_max=1)
    image = with_partitions(1, 3)
    image = replayed(image, fence(image, image.brokers[1], one, Cause.SESSION_EXPIRED))
    for _ in range(2):
        again, reply = beaten(image, 1, one)
        assert reply.is_fenced
        assert again == image
        image = replayed(image, removal_piece(image, one))
    image, reply = beaten(image, 1, one)
    assert not reply.is_fenced
    assert not removal_piece(image, one)


def test_what_lists_a_broker_from_before_its_loss_counts_for_nothing() -> None:
    """Two in sync, one of which comes back without what it had not flushed; before the pieces get to the partition the
    other one dies as well."""
    one = dataclasses.replace(POLICY, piece_records_max=1)
    image = replayed(with_brokers(3), topic_records(0, "t", 2, isr=(0, 1)))
    image = replayed(
        image, fence(image, image.brokers[1], dataclasses.replace(one), Cause.BROKER_REQUEST, unclean=True)
    )
    (listed,) = [p for p in image.topics.partitions() if 1 in p.isr]
    assert image.brokers[1].is_unclean
    image = replayed(image, fence(image, image.brokers[0], one, Cause.SESSION_EXPIRED))
    image = finished(image, one)
    after = image.partition(listed.topic_id, listed.partition)
    assert after is not None
    assert (after.isr, after.elr, after.leader) == ((), (0,), -1)
    assert not is_listed(image, 1)
    image, reply = beaten(image, 1, one)
    assert not reply.is_fenced
    assert not image.brokers[1].is_unclean
    after = image.partition(listed.topic_id, listed.partition)
    assert after is not None
    assert after.leader == -1, "it may not lead what the other one has committed"


def test_a_clean_start_after_an_unclean_one_brings_nothing_back() -> None:
    one = dataclasses.replace(POLICY, piece_records_max=1)
    image = with_partitions(1, 3)
    image = replayed(image, fence(image, image.brokers[1], one, Cause.BROKER_REQUEST, unclean=True))
    assert is_listed(image, 1)
    image = registered(image, 1, life=2, previous_epoch=image.brokers[1].epoch)
    assert image.brokers[1].is_unclean
    assert decode_snapshot(encode_snapshot(image)) == image


def test_a_broker_in_controlled_shutdown_may_stop_when_the_last_piece_is_known() -> None:
    image = with_partitions(1, 30)
    image, reply = beaten(image, 2, SMALL, want_shut_down=True)
    while is_listed(image, 2):
        again = decide_heartbeat(image, heartbeat(image, 2, want_shut_down=True), SMALL, moves_seen=True)
        assert not again.reply.should_shut_down
        assert not reply.should_shut_down
        image = replayed(image, removal_piece(image, SMALL))
    _, reply = beaten(image, 2, SMALL, want_shut_down=True)
    assert reply.should_shut_down


def test_an_unregistered_broker_leaves_everything_in_pieces() -> None:
    image = with_partitions(2, 30)
    image = replayed(image, decide_unregister(image, UnregisterBrokerRequest(broker_id=1), SMALL).records)
    assert 1 not in image.brokers
    assert listing(image, 1)
    assert not listing(finished(image, SMALL), 1)


def test_elrs_are_cleared_before_the_setting_changes_that_makes_them_worthless() -> None:
    image = with_brokers(3)
    image = replayed(image, topic_records(0, "t", 35, isr=(0,)))
    elrs = [PartitionChangeRecord(topic_id(0), index, elr=(1, 2)) for index in range(35)]
    image = replayed(image, elrs)
    change = IncrementalAlterConfigsRequest.AlterConfigsResource
    resource = change(
        resource_type=int(ResourceType.BROKER),
        resource_name="",
        configs=[change.AlterableConfig(name="min.insync.replicas", config_operation=0, value="1")],
    )
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    rounds = 0
    while (decision := decide_incremental_alter_configs(image, request, SMALL)).again:
        assert len(decision.records) == 10
        assert not any(isinstance(record, ConfigRecord) for record in decision.records)
        image = replayed(image, decision.records)
        rounds += 1
    image = replayed(image, decision.records)
    assert rounds == 3
    assert image.configs.cluster()["min.insync.replicas"] == "1"
    assert not image.topics.index.unsettled


def parted(records: list[MetadataRecord], bytes_max: int) -> list[list[MetadataRecord]]:
    sizes = list(map(len, at_once(encoding_records(records))))
    return [records[piece] for piece in pieces(records, sizes, bytes_max)]


def test_a_batch_ends_where_nothing_is_parted() -> None:
    records: list[MetadataRecord] = []
    for number in range(5):
        records += topic_records(number, f"t-{number}", 399)
        records.append(ConfigRecord(ResourceType.TOPIC, f"t-{number}", "retention.ms", "5"))
    parts = parted(records, 1 << 20)
    assert [len(part) for part in parts] == [802, 802, 401]
    assert [record for part in parts for record in part] == records
    whole = topic_records(0, "big", 3_000)
    parts = parted([NoOpRecord(), *whole, *topic_records(1, "t", 3)], 1 << 20)
    assert [len(part) for part in parts] == [1, 3_001, 4]
    changes: list[MetadataRecord] = [PartitionChangeRecord(topic_id(0), index, leader=1) for index in range(2_500)]
    assert [len(part) for part in parted(changes, 1 << 20)] == [1_000, 1_000, 500]
    assert max(map(len, parted(whole, 20_000))) < 1_000, "never more than the quorum takes"


@asynccontextmanager
async def at_work(bench: Bench) -> AsyncIterator[Piecework]:
    work = Piecework(bench.driver, bench.policy, PieceworkConfig(retry_s=0.001))
    bench.machine.subscribe(work.applied)
    bench.on_active = work.became_active
    work.start()
    try:
        yield work
    finally:
        await work.stop()
        await bench.driver.stop()


async def made(bench: Bench, image: MetadataImage) -> None:
    """The bench's metadata are those of `image`."""
    await bench.begin()
    begun = bench.machine.image
    bench.machine.image = image.at(image.offset, begun.epoch, begun.leader_id, begun.sequence)
    bench.machine.log.reset(image.next_offset, begun.epoch)


def fenced(broker: int, policy: ControllerPolicy) -> object:
    def decide(image: MetadataImage) -> Decision[MetadataRecord, None]:
        return Decision(None, fence(image, image.brokers[broker], policy, Cause.SESSION_EXPIRED))

    return decide


async def test_a_lost_broker_of_thousands_of_partitions_is_bounded_work_between_which_others_are_served() -> None:
    bench = Bench()
    await made(bench, with_partitions(TOPICS, PARTITIONS))
    async with at_work(bench):
        before = len(bench.quorum.proposals)
        await bench.driver.write(fenced(0, bench.policy))  # type: ignore[arg-type]
        assert bench.machine.image.brokers[0].fenced
        assert len(listing(bench.machine.image, 0)) == TOPICS * PARTITIONS - bench.policy.piece_records_max
        await bench.driver.write(lambda _image: Decision(None, [NoOpRecord()]))
        assert is_listed(bench.machine.image, 0), "it was served between the pieces"
        await bench.settle(lambda: not is_listed(bench.machine.image, 0))
        batches = [decode_batch(data) for data in bench.quorum.proposals[before:]]
        sizes = [len(batch.records) for batch in batches if batch is not None]
        assert max(sizes) <= bench.policy.piece_records_max + 1 <= PIECE_RECORDS_MAX
        assert bench.pacer.costliest <= 2_000
        assert all(p.leader in (1, 2) and 0 not in p.isr for p in bench.machine.image.topics.partitions())


async def test_a_new_controller_goes_on_where_the_last_one_stopped() -> None:
    bench = Bench(dataclasses.replace(POLICY, piece_records_max=100))
    await made(bench, with_partitions(TOPICS, PARTITIONS))
    async with at_work(bench):
        terms, turns = 0, 0
        await bench.driver.write(fenced(0, bench.policy))  # type: ignore[arg-type]
        left = TOPICS * PARTITIONS
        while is_listed(bench.machine.image, 0) and turns < 10_000:
            turns += 1
            now = len(listing(bench.machine.image, 0))
            if now < left - 500:
                left, terms = now, terms + 1
                bench.quorum.lose()
                bench.quorum.win()
            await asyncio.sleep(0)
        assert terms > 3
        assert all(p.leader in (1, 2) for p in bench.machine.image.topics.partitions())


async def test_a_broker_without_room_is_looked_at_again_when_something_has_changed_alone() -> None:
    bench = Bench()
    await made(bench, with_partitions(3, 100))
    work = Piecework(bench.driver, bench.policy, PieceworkConfig(unfit_look_s=0.001))
    bench.machine.subscribe(work.applied)
    work.start()
    full = dataclasses.replace(bench.policy, min_insync_replicas=3)
    beat = heartbeat(bench.machine.image, 1, lacks_room=True)
    await bench.driver.write(lambda i: decide_heartbeat(i, beat, full, moves_seen=False))
    assert len(bench.machine.image.topics.index.in_sync_with(1)) == 300, "with three to be in sync, none can leave"
    await bench.settle(lambda: not bench.machine.image.topics.index.in_sync_with(1))
    await asyncio.sleep(0.02)
    again = heartbeat(bench.machine.image, 1, lacks_room=True)
    assert not decide_heartbeat(bench.machine.image, again, bench.policy, moves_seen=False).records
    with counted_calls(of=ControllerDriver.write) as looks:
        await asyncio.sleep(0.02)
    assert looks.calls == 0
    await work.stop()
    await bench.driver.stop()


async def test_all_leaderless_partitions_get_their_leader_when_a_broker_returns() -> None:
    bench = Bench(dataclasses.replace(POLICY, piece_records_max=50))
    image = replayed(with_brokers(3), topic_records(0, "t", 400, isr=(1,)))
    image = replayed(image, fence(image, image.brokers[1], dataclasses.replace(POLICY), Cause.SESSION_EXPIRED))
    assert len(image.topics.index.leaderless) == 400
    await made(bench, image)
    async with at_work(bench):
        beat = heartbeat(bench.machine.image, 1)
        await bench.driver.write(lambda i: decide_heartbeat(i, beat, bench.policy, moves_seen=False))
        assert len(bench.machine.image.topics.index.leaderless) == 350
        await bench.settle(lambda: not bench.machine.image.topics.index.leaderless)
        assert len(bench.machine.image.topics.index.led_by(1)) == 400


async def test_leaderless_partitions_are_looked_at_again_when_an_outcome_is_not_known() -> None:
    bench = Bench(dataclasses.replace(POLICY, piece_records_max=50))
    image = replayed(with_brokers(3), topic_records(0, "t", 200, isr=(1,)))
    image = replayed(image, fence(image, image.brokers[1], dataclasses.replace(POLICY), Cause.SESSION_EXPIRED))
    await made(bench, image)
    async with at_work(bench):
        beat = heartbeat(bench.machine.image, 1)
        await bench.driver.write(lambda i: decide_heartbeat(i, beat, bench.policy, moves_seen=False))
        bench.quorum.hold = True
        await bench.settle(lambda: bool(bench.quorum.held))
        (_, proposal), *_ = bench.quorum.held
        bench.quorum.held.clear()
        bench.quorum.hold = False
        proposal.set_exception(OutcomeUnknown("nobody answered"))
        await bench.settle(lambda: not bench.machine.image.topics.index.leaderless)


async def test_a_new_controller_looks_at_what_may_have_become_possible() -> None:
    """Moves that may end, and ELRs that are not needed any more."""
    bench = Bench()
    image = replayed(with_brokers(3), topic_records(0, "t", 0))
    moving = PartitionRecord(topic_id(0), 0, (0, 1, 2), (0, 1, 2), 0, adding=(2,), removing=(1,))
    spare = PartitionRecord(topic_id(0), 1, (0, 1, 2), (0, 1), 0, elr=(2,))
    await made(bench, replayed(image, [moving, spare]))
    async with at_work(bench):
        bench.quorum.lose()
        bench.quorum.win()
        await bench.settle(lambda: not bench.machine.image.topics.index.moving)
        await bench.settle(lambda: not bench.machine.image.topics.index.unsettled)
        replicas = [p.replicas for p in bench.machine.image.topics.partitions()]
        assert replicas == [(0, 2), (0, 1, 2)]


async def test_thousands_of_topics_in_one_request_are_made_in_slices_and_small_batches() -> None:
    bench = Bench()
    await made(bench, with_brokers(3))
    before = len(bench.quorum.proposals)
    request = create_topics_request(*(new_topic(f"many-{number}", 1, 3) for number in range(3_000)))
    task = asyncio.create_task(bench.driver.write(lambda image: create_topics(image, request, bench.policy, rng())))
    turns = 0
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    reply = task.result()
    assert not any(topic.error_code for topic in reply.topics)
    assert len(bench.machine.image.topics) == 3_000
    batches = [decode_batch(data) for data in bench.quorum.proposals[before:]]
    assert max(len(batch.records) for batch in batches if batch is not None) <= PIECE_RECORDS_MAX
    assert turns > 100
    assert bench.pacer.costliest <= SLICE_COST + 500
    await bench.driver.stop()


async def test_a_topic_of_thousands_of_partitions_is_decided_in_slices_and_made_whole() -> None:
    bench = Bench()
    await made(bench, with_brokers(3))
    before = len(bench.quorum.proposals)
    request = create_topics_request(new_topic("large", 3_000, 3))
    await bench.driver.write(lambda image: create_topics(image, request, bench.policy, rng()))
    assert len(bench.quorum.proposals) == before + 1
    assert bench.machine.image.topics.partition_count == 3_000
    assert bench.pacer.costliest <= SLICE_COST + 500
    await bench.driver.stop()


def test_all_elections_that_are_asked_for_look_at_no_partition_that_needs_none() -> None:
    image = with_partitions(10, 1_000)
    image = replayed(
        image, [PartitionChangeRecord(topic_id(3), 3, leader=1), PartitionChangeRecord(topic_id(3), 4, leader=0)]
    )
    request = ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=1000)
    work = elect_leaders(image, request, POLICY)
    spent = 0
    try:
        while True:
            spent += next(work)
    except StopIteration as end:
        decision = end.value
    assert [(record.partition, record.leader) for record in decision.records] == [(3, 0), (4, 1)]
    assert spent < 100
