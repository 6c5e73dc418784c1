"""Manifests that were on their way while a deleted topic's objects were removed, and come when all is gone."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar, cast

import msgspec
import pytest

from object_store.errors import StoreError
from tests.object_store.faulty_store import FaultyStore
from tests.sim.bucket import SLOW_NS, Bucket, BucketClient
from tests.sim.invariants import CommittedLog, Coverage, InvariantBroken
from tests.sim.loop import NS, SimLoop, run
from tests.sim.tier_watch import TierWatch
from tests.tiering.tier_world import PATH, ROOT, TOPIC_ID, TierWorld, WorldClock
from tiering.bucket.cluster_file import ClusterGuard
from tiering.manifests.manifest import ManifestHead, decode_head, encode_head
from tiering.manifests.manifest_writer import Deposed, ManifestContested, ManifestServices, ManifestWriter
from tiering.shard.shard_changes import Moment
from tiering.shard.shard_protocol import ForgetPartition, Reply, Request
from tiering.upkeep.sweeper import Sweeper, SweepLimits, SweepReport

pytestmark = pytest.mark.simulation

RUNS = 150
AGE_MS, ROUND_S, DELAY_S, LEADS_ON_S = 2_000, 0.25, 0.3, 0.02
T = TypeVar("T")


class LoopClock(WorldClock):
    """The simulated loop's."""

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_ms(self) -> int:
        return 1_000_000 + int(self.monotonic() * 1000)


class WatchedWorld(TierWorld):
    """Records are committed as they are decided; requests of `services` and `sweeper` travel to the bucket."""

    def __init__(self, seed: int) -> None:
        loop = cast("SimLoop", asyncio.get_running_loop())
        clock, chance, self.coverage = LoopClock(), random.Random(seed), Coverage()
        self.bucket = Bucket(loop.scheduler, chance, clock.wall_ms())
        self.watch = TierWatch(
            self.bucket, CommittedLog(), self.coverage, lambda: ROOT, lambda text: None, lossy=True
        )  # fmt: skip
        super().__init__(self.bucket.store, clock)
        client = FaultyStore(BucketClient(self.bucket, "host", loop), chance)
        client.before = self._send
        guard = ClusterGuard(client, ROOT, lambda: 1, clock)
        self.services = ManifestServices(client, ROOT, guard, clock, chance)
        self.sweeper = Sweeper(client, ROOT, SweepLimits(age_ms=AGE_MS))

        self.slow_puts = False

    async def _send(self, operation: str, key: str) -> None:
        self.bucket.slow = self.slow_puts and operation == "put"

    def ask(self, request: Request) -> Reply:
        decision = self.shard.decide(TOPIC_ID, 0, request, Moment(self.clock.wall_ms(), self.offset))
        for record in decision.records:
            self.shard.replay(*record)
            self.watch.records.replay(self.offset, *record)
            self.offset += 1
        return decision.reply

    async def publish(self, *, empty: bool = False) -> ManifestHead:
        return await self.until_done(lambda: ManifestWriter(self.services, self.view()).publish(empty=empty))

    async def until_done(self, work: Callable[[], Awaitable[T]]) -> T:
        """In rounds, as brokers do it."""
        while True:
            try:
                return await work()
            except (StoreError, ManifestContested):
                await asyncio.sleep(ROUND_S)


async def begun(seed: int) -> WatchedWorld:
    world = WatchedWorld(seed)
    world.claim(1)
    world.copy([0, 10], 10)
    await world.upload()
    return world


async def leads_on(world: WatchedWorld) -> None:
    """The topic's leader, which publishes what it last copied until it learns that the topic is gone."""
    with suppress(Deposed):
        writer = ManifestWriter(world.services, world.view())
        await world.until_done(writer.publish)


async def ends_slowly(seed: int, *, keeps_last: bool = True) -> Counter[str]:
    """A topic's end in the steps of the tier's upkeep, while puts may take longer than their senders wait."""
    world = await begun(seed)
    await world.publish()
    world.copy([20], 10)
    await world.upload()
    world.slow_puts = True
    leader = asyncio.create_task(leads_on(world))
    await asyncio.sleep(world.bucket.chance.random() * LEADS_ON_S)
    world.drop()
    await world.publish()
    await asyncio.sleep(DELAY_S)
    last = (await world.publish(empty=True)).version
    upto = last if keeps_last else last + 1
    await world.until_done(lambda: world.sweeper.remove_partition(PATH, upto, SweepReport()))
    for _ in range(2):  # its segments, then itself
        world.ask(ForgetPartition())
    assert not world.shard.partitions
    await leader
    await asyncio.sleep(SLOW_NS[1] / NS)
    world.slow_puts = False
    left = world.bucket.names(ROOT.partition_prefix(PATH))
    assert left[-1] == ROOT.manifest_key(PATH, last), "what came late is not the newest"
    assert "orphans" in world.watch.unsettled()

    async def unknown() -> bool:
        return True

    await asyncio.sleep(AGE_MS / 1000)
    now_ms = world.clock.wall_ms()
    await world.sweeper.sweep_unknown(PATH, unknown, int(DELAY_S * 1000), now_ms, SweepReport())
    assert world.bucket.names(ROOT.partition_prefix(PATH)) == []
    assert world.watch.unsettled() == ""
    return world.coverage.counts + Counter({"ends with something left": int(len(left) > 1)})


def test_a_manifest_that_comes_after_the_end_is_no_mistake_and_is_swept() -> None:
    reached: Counter[str] = sum((run(ends_slowly(seed), seed) for seed in range(RUNS)), Counter())
    least = {"manifests that came late": RUNS // 30, "ends with something left": RUNS // 30}
    assert {what: reached[what] for what, count in least.items() if reached[what] < count} == {}


def test_without_its_last_manifest_a_late_one_would_bring_a_deleted_topic_back() -> None:
    found = 0
    for seed in range(RUNS):
        try:
            run(ends_slowly(seed, keeps_last=False), seed)
        except InvariantBroken as error:
            found += "it is the newest again" in str(error)
        except (AssertionError, IndexError):
            pass
    assert found > 0


def test_only_what_was_on_its_way_may_come_late_and_only_while_a_newer_one_is_there() -> None:
    async def main() -> None:
        world, under_way_ns = await begun(1), 0
        for _ in range(3):
            under_way_ns = world.bucket.scheduler.now_ns
            await world.publish()
            world.copy([world.tier.tier_end_offset], 10)
            await world.upload()
        objects, key = world.bucket.store.objects, ROOT.manifest_key(PATH, 2)
        data, _ = objects.pop(key)
        world.watch.putting("host", key, data, None, under_way_ns)
        assert world.coverage.counts["manifests that came late"] == 1
        with pytest.raises(InvariantBroken, match="publishes version 2 of flights-0 after version 3"):
            world.watch.putting("host", key, data, None, world.bucket.scheduler.now_ns)
        deposed = msgspec.structs.replace(decode_head(data, key), leader_epoch=0)
        world.watch.putting("host", key, encode_head(deposed), None, world.bucket.scheduler.now_ns)
        del objects[ROOT.manifest_key(PATH, 3)]
        with pytest.raises(InvariantBroken, match="it is the newest again"):
            world.watch.putting("host", key, data, None, under_way_ns)

    run(main())
