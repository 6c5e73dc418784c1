"""Tier shards hosted by two brokers: calls find their shard, survive its moves, and end what was deleted."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from broker.coordination.hosted_shard import HostLimits
from broker.coordination.runtime import CoordinatorRuntime, RuntimeConfig
from broker.coordination.tier.client import TierClient, TierClientLimits
from broker.coordination.tier.coordinator import DROPPED_AT_ONCE, TierCoordinator
from broker.coordination.tier.upkeep import TierUpkeep, UpkeepConfig
from broker.handlers.internal import TierStateHandler
from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from common.pacing import SLICE_COST, Pacer, Work
from common.ports import Address
from kraft.image.delta import MetadataDelta
from kraft.links import Link
from kraft.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from kraft.topic_names import TIER_TOPIC
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire
from tests.broker.coordinated_partition import MemoryPartition
from tests.broker.transaction_lab import silent_link
from tests.common.call_count import counted_calls
from tests.object_store.memory_store import MemoryStore
from tests.tiering.segments import segment
from tests.tiering.tier_world import WorldClock
from tests.virtual_time import LoopClock
from tiering.bucket.cluster_file import ClusterGuard
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import SegmentState
from tiering.manifests.manifest import read_manifest
from tiering.manifests.manifest_writer import ManifestServices
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import Claim, Done, DropPartition, FinishCopy, MoveLogStart, Refused, StartCopy
from wire.client import CallTimeout, ConnectionLost

pytestmark = pytest.mark.virtual_time

STATE_ID, TOPIC_ID = bytes(15) + b"\7", bytes(15) + b"\11"
SHARDS = 4
LIMITS = TierClientLimits(
    timeout_s=2.0, attempt_timeout_s=0.2, backoff_min_s=0.005, backoff_max_s=0.02, calls_per_request_max=3
)


class LoopbackLink:
    """A connection to another broker's handler, through the bytes of request and response."""

    def __init__(self, cluster: TierCluster, broker_id: int) -> None:
        self.cluster = cluster
        self.broker_id = broker_id
        self.is_closed = False

    async def call(self, request: Any, version: int, timeout_s: float) -> Any:
        if self.cluster.deaf:
            raise ConnectionLost("refused")
        self.cluster.requests += 1
        decoded = over_the_wire(version, request)
        ctx = context("TierState", version, "INTERNAL")
        response = await self.cluster.handlers[self.broker_id].handle(ctx, decoded)
        if self.cluster.lose_replies:
            self.cluster.lose_replies -= 1
            raise CallTimeout("no answer")
        return reply_over_the_wire(ctx, response)

    def close(self) -> None:
        self.is_closed = True


class TierCluster:
    """Brokers 0 and 1 host the shards; the client is broker 0's."""

    def __init__(self) -> None:
        self.world = BrokerWorld()
        self.deaf = self.silent = False
        self.lose_replies = 0
        self.requests = 0
        self.world.replay(
            TopicRecord(TIER_TOPIC, STATE_ID),
            *(PartitionRecord(STATE_ID, at, (0, 1), (0, 1), at % 2) for at in range(SHARDS)),
            TopicRecord("flights", TOPIC_ID),
            *(PartitionRecord(TOPIC_ID, at, (0, 1), (0, 1), 0) for at in range(8)),
        )
        self.pacers = [Pacer() for _ in range(2)]
        self.runtimes = [
            CoordinatorRuntime(LoopClock(), RuntimeConfig(HostLimits(commit_timeout_s=0.2)), pacer)
            for pacer in self.pacers
        ]
        self.coordinators = [TierCoordinator(runtime, lambda: self.world.image) for runtime in self.runtimes]
        self.handlers = [TierStateHandler(coordinator) for coordinator in self.coordinators]
        self.logs = [MemoryPartition(TIER_TOPIC, at) for at in range(SHARDS)]
        for at, log in enumerate(self.logs):
            self.runtimes[at % 2].elected(log)
        self.client = TierClient(
            0,
            lambda: self.world.image,
            self.coordinators[0],
            self,
            self,
            "INTERNAL",
            random.Random(3),
            LIMITS,
        )

    async def ensure(self, name: str) -> None:
        assert name == TIER_TOPIC

    async def connect(self, address: Address, timeout_s: float, closed: Callable[[], None] | None = None) -> Link:
        link: Link = silent_link() if self.silent else LoopbackLink(self, address[1] - 19092)
        return link

    def move_shard(self, at: int, broker: int) -> None:
        """Its log has a new leader, who replays it."""
        log = self.logs[at]
        self.runtimes[1 - broker].resigned(TIER_TOPIC, at)
        successor = replace(log, leader_epoch=log.leader_epoch + 1, is_leader=True, waiting=[])
        log.depose()
        self.logs[at] = successor
        self.world.replay(PartitionChangeRecord(STATE_ID, at, leader=broker))
        self.runtimes[broker].elected(successor)

    def elsewhere(self) -> int:
        """A partition whose shard broker 1 hosts."""
        return next(at for at in range(8) if self.coordinators[0].shard_of(TOPIC_ID, at) % 2)

    def here(self) -> int:
        return next(at for at in range(8) if not self.coordinators[0].shard_of(TOPIC_ID, at) % 2)

    async def stop(self) -> None:
        await self.client.stop()
        for runtime in self.runtimes:
            await runtime.stop()


@pytest.fixture
async def cluster() -> AsyncIterator[TierCluster]:
    made = TierCluster()
    yield made
    await made.stop()


def claim(leader_epoch: int = 1, broker_id: int = 0) -> Claim:
    return Claim(leader_epoch, broker_id, 10, "flights")


async def claimed(cluster: TierCluster, partition: int, leader_epoch: int = 1) -> PartitionTier:
    tier = await cluster.client.claim(TOPIC_ID, partition, claim(leader_epoch))
    assert isinstance(tier, PartitionTier)
    return tier


async def copied(cluster: TierCluster, tier: PartitionTier, base: int, end: int) -> None:
    for make, state in ((StartCopy, SegmentState.COPY_STARTED), (FinishCopy, SegmentState.COPY_FINISHED)):
        request = make(1, 10, segment(base, end, state=state, broker_id=0))
        assert isinstance(await cluster.client.change(tier, request), Done)


async def test_claims_and_changes_here_and_elsewhere(cluster: TierCluster) -> None:
    for partition in (cluster.here(), cluster.elsewhere()):
        tier = await claimed(cluster, partition)
        assert tier.record.metadata_offset == cluster.world.image.offset
        await copied(cluster, tier, 0, 10)
        await copied(cluster, tier, 10, 20)
        assert tier.tier_end_offset == 20
        log = cluster.logs[cluster.coordinators[0].shard_of(TOPIC_ID, partition)].log
        assert tier.state_offset == log.log_end_offset - 1, "the offset in the record is the record's"
        known = await cluster.client.describe(TOPIC_ID, partition)
        assert known.to_records() == tier.to_records()


async def test_calls_to_one_broker_travel_together(cluster: TierCluster) -> None:
    partitions = [at for at in range(8) if cluster.coordinators[0].shard_of(TOPIC_ID, at) % 2]
    tiers = await asyncio.gather(*(claimed(cluster, at) for at in partitions))
    assert len(tiers) == len(partitions) > 1
    assert cluster.requests < len(partitions)


async def test_a_long_state_is_read_in_pages(cluster: TierCluster) -> None:
    tier = await claimed(cluster, cluster.elsewhere())
    for base in range(1_050):
        await copied(cluster, tier, base, base + 1)
    again = await claimed(cluster, cluster.elsewhere(), 2)
    assert again.finished_count == 1_050


async def test_a_moved_shard_is_found_with_all_it_knew(cluster: TierCluster) -> None:
    partition = cluster.elsewhere()
    tier = await claimed(cluster, partition)
    await copied(cluster, tier, 0, 10)
    cluster.move_shard(cluster.coordinators[0].shard_of(TOPIC_ID, partition), 0)
    await copied(cluster, tier, 10, 20)
    assert (await cluster.client.describe(TOPIC_ID, partition)).to_records() == tier.to_records()


async def test_a_lost_answer_is_asked_for_again(cluster: TierCluster) -> None:
    tier = await claimed(cluster, cluster.elsewhere())
    cluster.lose_replies = 2
    await copied(cluster, tier, 0, 10)
    assert cluster.lose_replies == 0
    assert (await cluster.client.describe(TOPIC_ID, tier.partition)).to_records() == tier.to_records()


async def test_no_answer_is_awaited_of_a_host_that_was_lost(cluster: TierCluster) -> None:
    cluster.silent = True
    claiming = asyncio.create_task(claimed(cluster, cluster.elsewhere()))
    await asyncio.sleep(LIMITS.attempt_timeout_s / 4)
    cluster.silent = False
    cluster.client.broker_left(0)
    await asyncio.sleep(LIMITS.attempt_timeout_s / 4)
    assert not claiming.done()
    cluster.client.broker_left(1)
    await asyncio.wait_for(claiming, LIMITS.attempt_timeout_s / 4)


async def test_a_view_that_missed_a_change_is_read_anew(cluster: TierCluster) -> None:
    tier = await claimed(cluster, cluster.elsewhere())
    stale = await cluster.client.describe(TOPIC_ID, tier.partition)
    await copied(cluster, tier, 0, 10)
    await cluster.client.change(stale, MoveLogStart(1, 10, 5, "retention"))
    assert stale.tier_end_offset == 10
    assert stale.log_start_offset == 5


async def test_fencing_is_an_answer(cluster: TierCluster) -> None:
    tier = await claimed(cluster, cluster.elsewhere(), 1)
    await claimed(cluster, cluster.elsewhere(), 2)
    reply = await cluster.client.change(tier, MoveLogStart(1, 10, 5, "retention"))
    assert isinstance(reply, Refused)
    assert reply.error == "FENCED"


async def test_the_outcome_is_unknown_only_if_it_may_have_been_written(cluster: TierCluster) -> None:
    partition = cluster.elsewhere()
    cluster.logs[cluster.coordinators[0].shard_of(TOPIC_ID, partition)].auto_commit = False
    with pytest.raises(OutcomeUnknown):
        await cluster.client.call(TOPIC_ID, partition, claim(), timeout_s=0.3)
    cluster.world.replay(
        PartitionChangeRecord(STATE_ID, cluster.coordinators[0].shard_of(TOPIC_ID, partition), leader=-1)
    )
    with pytest.raises(ProtocolError) as refused:
        await cluster.client.call(TOPIC_ID, partition, claim(), timeout_s=0.1)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT


async def test_nobody_is_told_what_is_not_committed(cluster: TierCluster) -> None:
    partition = cluster.here()
    log = cluster.logs[cluster.coordinators[0].shard_of(TOPIC_ID, partition)]
    log.auto_commit = False
    asking = asyncio.create_task(cluster.client.call(TOPIC_ID, partition, claim(), timeout_s=1.0))
    reading = asyncio.create_task(cluster.client.describe(TOPIC_ID, partition, timeout_s=1.0))
    await asyncio.sleep(0.02)
    assert not asking.done()
    assert not reading.done()
    log.commit()
    await asking
    assert (await reading).is_claimed


async def test_an_append_that_the_log_refuses_costs_that_request_alone(cluster: TierCluster) -> None:
    """The shard is not loaded anew: what was decided is taken back, and the next change builds on what was before."""
    partition = cluster.here()
    tier = await claimed(cluster, partition)
    await copied(cluster, tier, 0, 10)
    shard = cluster.coordinators[0].shard_of(TOPIC_ID, partition)
    log = cluster.logs[shard]
    reads = len(log.regions)
    log.refuse_append = ErrorCode.KAFKA_STORAGE_ERROR
    started = StartCopy(1, 10, segment(10, 20, state=SegmentState.COPY_STARTED, broker_id=0))
    with pytest.raises(OutcomeUnknown):  # its askers cannot tell it from an append that is not committed
        await cluster.client.change(tier, started, timeout_s=0.05)
    assert cluster.runtimes[0].active(TIER_TOPIC) == [at for at in range(SHARDS) if at % 2 == 0]
    assert (await cluster.client.describe(TOPIC_ID, partition)).to_records() == tier.to_records()
    log.refuse_append = None
    await copied(cluster, tier, 10, 20)
    assert tier.state_offset == log.log.log_end_offset - 1
    assert len(log.regions) == reads, "the log was not replayed"


async def test_only_the_host_drops_a_partition(cluster: TierCluster) -> None:
    await claimed(cluster, cluster.elsewhere())
    reply = await cluster.client.call(TOPIC_ID, cluster.elsewhere(), DropPartition(1 << 40))
    assert isinstance(reply, Refused)


# deleted topics --------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(cluster: TierCluster) -> tuple[MemoryStore, WorldClock, TierUpkeep, ManifestServices]:
    clock = WorldClock()
    store = MemoryStore(clock.wall_ms)
    root = TierRoot("cluster-1")
    guard = ClusterGuard(store, root, lambda: 1, clock)
    services = ManifestServices(store, root, guard, clock, random.Random(1))
    upkeep = TierUpkeep(
        services, cluster.coordinators[0], cluster.client, lambda: cluster.world.image, UpkeepConfig(1_000)
    )
    return store, clock, upkeep, services


def delete_topic(cluster: TierCluster, *, told: bool) -> None:
    delta = MetadataDelta(cluster.world.image)
    delta.replay_all([RemoveTopicRecord(TOPIC_ID)])
    cluster.world.image = delta.image()
    if told:
        for coordinator in cluster.coordinators:
            coordinator.metadata_changed(delta, cluster.world.image)


@pytest.mark.parametrize("told", [True, False])
async def test_a_deleted_topic_leaves_the_bucket_after_the_delay(
    cluster: TierCluster, bucket: tuple[MemoryStore, WorldClock, TierUpkeep, ManifestServices], told: bool
) -> None:
    store, _, upkeep, services = bucket
    tier = await claimed(cluster, cluster.here())
    await copied(cluster, tier, 0, 10)
    path = PartitionPath("flights", TOPIC_ID, cluster.here())
    found = tier.last()
    assert found is not None
    await store.put(services.root.segment_key(path, found.id), b"bytes")
    await upkeep.end_deleted()
    assert not (await cluster.client.describe(TOPIC_ID, path.partition)).is_dropped
    delete_topic(cluster, told=told)
    await upkeep.end_deleted()
    await upkeep.end_deleted()
    told_manifest = await read_manifest(store, services.root, path)
    assert told_manifest is not None
    assert told_manifest.head.dropped_ms > 0
    assert [one.end_offset for one in told_manifest.segments] == [10]
    assert told_manifest.head.version == 1
    shard_now = (await cluster.client.describe(TOPIC_ID, path.partition)).record.dropped_ms
    bucket[1].now_s = shard_now / 1000 + 2
    await upkeep.end_deleted()
    last = await read_manifest(store, services.root, path)
    assert last is not None
    assert last.is_emptied
    assert (await cluster.client.describe(TOPIC_ID, path.partition)).is_empty
    assert (await upkeep.sweep()).count == 0, "a put of the last leader may still be on its way"
    bucket[1].now_s += 86_500
    assert (await upkeep.sweep()).manifests == 1
    assert list(store.objects) == [services.root.cluster_file]


async def test_the_partitions_of_a_large_deleted_topic_are_dropped_in_slices(cluster: TierCluster) -> None:
    count, large = 20_000, bytes([7] * 16)
    delta = MetadataDelta(cluster.world.image)
    delta.replay_all([TopicRecord("large", large)])
    delta.replay_all([PartitionRecord(large, at, (0, 1), (0, 1), 0) for at in range(count)])
    cluster.world.image = delta.image()
    held = [at for at in range(5 * DROPPED_AT_ONCE) if cluster.coordinators[0].shard_of(large, at) == 0]
    for at in held:
        assert isinstance(await cluster.client.claim(large, at, claim(1)), PartitionTier)
    delta = MetadataDelta(cluster.world.image)
    delta.replay_all([RemoveTopicRecord(large)])
    cluster.world.image = delta.image()
    with counted_calls() as count_of_calls:
        cluster.coordinators[0].metadata_changed(delta, cluster.world.image)
    assert count_of_calls.calls < count / 2
    assert len(await cluster.coordinators[0].dropped(0)) < len(held)
    await cluster.coordinators[0].drop_missing()
    assert sorted(at for _, at in await cluster.coordinators[0].dropped(0)) == held


def work_of(costs: list[int]) -> Work[None]:
    yield from costs


async def test_a_shard_that_moves_away_meanwhile_does_not_keep_the_others_partitions(cluster: TierCluster) -> None:
    for at in range(8):
        await claimed(cluster, at)
    first, second = cluster.coordinators[0].hosted()
    of_second = [at for at in range(8) if cluster.coordinators[0].shard_of(TOPIC_ID, at) == second]
    delete_topic(cluster, told=False)
    cluster.pacers[0].start(work_of([SLICE_COST] * 3), own=True)
    dropping = asyncio.ensure_future(cluster.coordinators[0].drop_missing())
    await asyncio.sleep(0)  # it waits for its turn
    cluster.move_shard(first, 1)
    await dropping
    assert sorted(await cluster.coordinators[0].dropped(second)) == [(TOPIC_ID, at) for at in of_second]


async def test_a_topic_that_this_broker_has_not_heard_of_yet_keeps_its_data(
    cluster: TierCluster, bucket: tuple[MemoryStore, WorldClock, TierUpkeep, ManifestServices]
) -> None:
    """Its leader saw it at a metadata offset that this broker has yet to reach."""
    tier = await claimed(cluster, cluster.here())
    ahead = cluster.world.image
    delete_topic(cluster, told=False)
    cluster.world.image = cluster.world.image.at(ahead.offset - 1, 1, 1, 1)
    await cluster.coordinators[0].drop_missing()
    assert not (await cluster.client.describe(TOPIC_ID, tier.partition)).is_dropped


async def test_a_sweep_asks_the_shard(
    cluster: TierCluster, bucket: tuple[MemoryStore, WorldClock, TierUpkeep, ManifestServices]
) -> None:
    store, clock, upkeep, services = bucket
    tier = await claimed(cluster, cluster.here())
    await copied(cluster, tier, 0, 10)
    path = PartitionPath("flights", TOPIC_ID, cluster.here())
    kept, orphan = segment(0, 10), segment(0, 10, 99)
    unclaimed = replace_partition(path, next(at for at in range(8) if at != path.partition))
    for where, which in ((path, kept), (path, orphan), (unclaimed, kept)):
        await store.put(services.root.segment_key(where, which.id), b"bytes")
    probe = services.root.probe_key("5a" * 16)
    await store.put(probe, b"1")
    clock.now_s += 3 * 86_400
    report = await upkeep.sweep()
    assert report.keys == [services.root.segment_key(path, orphan.id)]
    assert upkeep.last_sweep is report
    other = TierUpkeep(services, cluster.coordinators[1], cluster.client, lambda: cluster.world.image, UpkeepConfig())
    assert probe in (await other.sweep()).keys, "one broker sweeps what belongs to no partition"


def replace_partition(path: PartitionPath, partition: int) -> PartitionPath:
    return path._replace(partition=partition)
