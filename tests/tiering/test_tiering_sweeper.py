"""The sweeper: it removes what nobody names, and nothing else."""

from __future__ import annotations

from random import Random

import pytest

from object_store.errors import StoreUnavailable
from object_store.probe import probe_conditions
from tests.object_store.faulty_store import FaultyStore
from tests.tiering.rewriting import proposal_of
from tests.tiering.segments import segment, uuid_of
from tests.tiering.test_tiering_swap import rewritten
from tests.tiering.tier_world import PATH, ROOT, TOPIC_ID, TierWorld
from tiering.bucket.keys import PartitionPath
from tiering.bucket.segment import SegmentId, SegmentState
from tiering.jobs.proposal import submit
from tiering.manifests.manifest import newest_version, read_manifest
from tiering.manifests.manifest_writer import ManifestWriter
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_protocol import StartCopy, Swap
from tiering.upkeep.sweeper import Sweeper, SweepLimits, SweepReport

DAY_S = 24 * 3_600


@pytest.fixture
def world() -> TierWorld:
    return TierWorld()


def sweeper(world: TierWorld) -> Sweeper:
    return Sweeper(world.store, ROOT, SweepLimits())


async def sweep(world: TierWorld) -> SweepReport:
    report = SweepReport()

    async def state() -> PartitionTier | None:
        return world.tier

    await sweeper(world).sweep_partition(PATH, state, world.clock.wall_ms(), report)
    return report


async def test_only_old_objects_that_nobody_names_go(world: TierWorld) -> None:
    world.claim(1)
    world.copy([0, 10, 20], 10)
    await world.upload()
    world.move_log_start(10)
    world.start_delete()
    world.ask(StartCopy(1, 10, segment(30, 40, state=SegmentState.COPY_STARTED)))
    copying = ROOT.segment_key(PATH, SegmentId(30, uuid_of(30)))
    orphan = ROOT.segment_key(PATH, SegmentId(30, uuid_of(777)))
    for key in (copying, orphan):
        await world.store.put(key, b"half")
    await ManifestWriter(world.services, world.view()).publish()
    world.clock.now_s += 2 * DAY_S
    young = ROOT.segment_key(PATH, SegmentId(30, uuid_of(778)))
    await world.store.put(young, b"young")
    before = set(world.store.objects)
    report = await sweep(world)
    assert before - set(world.store.objects) == {orphan}
    assert (report.segments, report.bytes, report.keys) == (1, 4, [orphan])


async def test_proposals_without_a_verdict_go_with_what_they_name(world: TierWorld) -> None:
    world.claim(1)
    world.copy([0, 10, 20], 10)
    await world.upload()
    await ManifestWriter(world.services, world.view()).publish()
    inputs = list(world.tier.segments())
    left, taken = rewritten(inputs[:1], 501), rewritten(inputs[1:], 502)
    for number, output in enumerate((left, taken)):
        await world.store.put(ROOT.segment_key(PATH, output.id), b"output")
        proposal = proposal_of(PATH, inputs[:1] if output is left else inputs[1:], [output], number)
        await submit(world.store, ROOT, proposal)
    world.ask(Swap(1, 10, "p", [one.id for one in inputs[1:]], [taken]))
    await world.store.put(ROOT.verdict_key(uuid_of(1)), b"accepted")
    await world.store.put(ROOT.erase_key(uuid_of(2)), b"{}")
    await world.store.put(ROOT.proposals_prefix + "README", b"not ours")
    world.clock.now_s += 0.9 * DAY_S
    assert (await sweep(world)).count == 0, "all are young"
    await world.store.put(ROOT.erase_ready_key(uuid_of(2), 0), b"{}")
    await submit(world.store, ROOT, proposal_of(PATH, inputs[:1], [left], 3))
    world.clock.now_s += 0.2 * DAY_S
    report = await sweep(world)
    await sweeper(world).sweep_proposals(world.clock.wall_ms(), report)
    assert (report.segments, report.proposals) == (1, 4)
    found = [key.rpartition("/")[2] for key in sorted(world.store.objects) if "/proposals/" in key]
    assert sorted(found) == sorted([uuid_of(3), f"{uuid_of(2)}.erase-ready-0", "README"])
    assert ROOT.segment_key(PATH, left.id) not in world.store.objects
    for one in [*inputs[:1], *inputs[1:], taken]:
        assert ROOT.segment_key(PATH, one.id) in world.store.objects


async def test_a_trial_write_that_came_although_it_failed_goes_when_it_is_old(world: TierWorld) -> None:
    """The node that tried the store was told that nothing was written, and so deleted nothing."""
    store = FaultyStore(world.store, Random(1))
    store.faults.lost_answer = 1.0
    with pytest.raises(StoreUnavailable):
        await probe_conditions(store, ROOT.probe_key(uuid_of(1)))
    assert list(world.store.objects) == [ROOT.probe_key(uuid_of(1))]
    world.clock.now_s += 2 * DAY_S
    for name in (uuid_of(2), "of-somebody-else"):
        await world.store.put(ROOT.probe_key(name), b"1")
    world.clock.now_s += 0.5 * DAY_S
    report = SweepReport()
    await sweeper(world).sweep_probes(world.clock.wall_ms(), report)
    assert (report.probes, report.count, report.keys) == (1, 1, [ROOT.probe_key(uuid_of(1))])
    assert sorted(world.store.objects) == sorted(ROOT.probe_key(name) for name in (uuid_of(2), "of-somebody-else"))


async def test_what_a_manifest_names_stays_although_the_state_does_not(world: TierWorld) -> None:
    world.claim(1)
    world.copy([0], 10)
    await world.upload()
    await ManifestWriter(world.services, world.view()).publish()
    world.clock.now_s += 2 * DAY_S

    async def emptied() -> PartitionTier | None:
        return PartitionTier(TOPIC_ID, 0)

    report = SweepReport()
    await sweeper(world).sweep_partition(PATH, emptied, world.clock.wall_ms(), report)
    assert report.count == 0


async def test_superseded_manifests_and_their_pages_go(world: TierWorld) -> None:
    world.claim(1)
    world.copy(range(1_100), 1)
    await ManifestWriter(world.services, world.view()).publish()
    old_pages = {key for key in world.store.objects if "/manifest-pages/" in key}
    world.move_log_start(1_099)
    world.start_delete()
    for base in range(1_100, 1_104):
        world.copy([base], 1)
        await ManifestWriter(world.services, world.view()).publish()
    assert (await sweep(world)).count == 0, "all are young"
    world.clock.now_s += 2 * DAY_S
    report = await sweep(world)
    assert report.manifests == 3
    assert report.pages == len(old_pages) > 0
    found = await read_manifest(world.store, ROOT, PATH)
    assert found is not None
    assert found.head.version == 5
    assert list(found.segments) == list(world.tier.segments())


async def test_an_unknown_partition_goes_only_without_a_living_manifest(world: TierWorld) -> None:
    other = PartitionPath("gone", bytes(15) + b"\2", 3)
    await world.store.put(ROOT.segment_key(other, SegmentId(0, uuid_of(1))), b"late upload")
    world.claim(1)
    world.copy([0], 10)
    await world.upload()
    await ManifestWriter(world.services, world.view()).publish()

    async def unknown() -> bool:
        return True

    report = SweepReport()
    for path in (other, PATH):
        await sweeper(world).sweep_unknown(path, unknown, 0, world.clock.wall_ms(), report)
    assert report.count == 0, "all is young"
    world.clock.now_s += 2 * DAY_S
    for path in (other, PATH):
        await sweeper(world).sweep_unknown(path, unknown, 0, world.clock.wall_ms(), report)
    assert report.segments == report.partitions == 1
    assert len(report.left) == 1
    assert await newest_version(world.store, ROOT, PATH) == 1


async def test_a_dropped_partition_says_so_stays_and_goes(world: TierWorld) -> None:
    world.claim(1)
    world.copy([0, 10], 10)
    await world.upload()
    await ManifestWriter(world.services, world.view()).publish()
    world.drop()
    await ManifestWriter(world.services, world.view()).publish()
    told = await read_manifest(world.store, ROOT, PATH)
    assert told is not None
    assert told.head.dropped_ms == world.clock.wall_ms()
    assert len(told.segments) == 2, "it can be restored"
    last = await ManifestWriter(world.services, world.view()).publish(empty=True)
    assert (last.segments, last.version) == ([], 3)
    assert (await ManifestWriter(world.services, world.view()).publish(empty=True)).version == 3
    report = SweepReport()
    await sweeper(world).remove_partition(PATH, last.version, report)
    assert report.count == 2 + 2
    assert set(world.store.objects) == {ROOT.cluster_file, ROOT.manifest_key(PATH, 3)}

    async def unknown() -> bool:
        return True

    for days, left in ((0.9, 1), (0.2, 0)):
        world.clock.now_s += days * DAY_S
        await sweeper(world).sweep_unknown(PATH, unknown, 0, world.clock.wall_ms(), report)
        assert await newest_version(world.store, ROOT, PATH) == 3 * left
    assert list(world.store.objects) == [ROOT.cluster_file]
