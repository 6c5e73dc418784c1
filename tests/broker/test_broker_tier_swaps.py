"""Proposals of jobs: accepted, refused, found again by the next leader; erasures down to every replica's disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec.structs import replace as changed

from kraft.records import PartitionChangeRecord
from object_store.errors import ObjectMissing
from storage.producers.producer_snapshot import decode_snapshot
from tests.broker.replication_lab import TOPIC_ID, batch, eventually, produce
from tests.broker.test_broker_tier import VALUE, filled
from tests.broker.tier_lab import PATH, QUICK, ROOT, TierLab
from tests.tiering.rewriting import every, proposal_of, write_rewritten
from tiering.bucket.segment import TieredSegment
from tiering.jobs.proposal import (
    EraseReady,
    EraseRequest,
    Proposal,
    Verdict,
    decode_erase_ready,
    encode,
    request_erasure,
    submit,
    wait_for_verdict,
)
from tiering.manifests.manifest import read_manifest
from tiering.shard.shard_protocol import Swap

pytestmark = pytest.mark.virtual_time

AGELESS = replace(QUICK, sweep_age_ms=10**15)  # the bucket of the laboratory dates all objects to 1970


async def tiered(lab: TierLab, *replicas: int) -> list[TieredSegment]:
    """A leader with closed segments in the tier; they."""
    lab.create_tiered(*replicas)
    await filled(lab)
    await lab.copied()
    return list(lab.bucket.tier.segments())


async def propose(
    lab: TierLab,
    inputs: Sequence[TieredSegment],
    number: int = 1,
    *,
    erase_end: int | None = None,
    reaches_log_start: bool = False,
) -> Proposal:
    """Half of the batches are left."""
    output = await write_rewritten(lab.bucket.store, ROOT, PATH, inputs, every(2), 1_000_000 + number)
    proposal = proposal_of(
        PATH, inputs, [output], number, erase_end=erase_end, reaches_log_start=reaches_log_start
    )  # fmt: skip
    await submit(lab.bucket.store, ROOT, proposal)
    return proposal


async def verdict(lab: TierLab, proposal: Proposal) -> Verdict:
    return await wait_for_verdict(lab.bucket.store, ROOT, proposal.uuid, 5, 0.01)


async def has_verdict(lab: TierLab, proposal: Proposal) -> bool:
    return ROOT.verdict_key(proposal.uuid) in lab.bucket.store.objects


async def test_a_leader_takes_over_what_a_job_proposes(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2, AGELESS) as lab:
        segments = await tiered(lab, 0, 1)
        inputs = segments[1:3]
        proposal = await propose(lab, inputs)
        await lab.tiers[1].proposals.run_round()
        assert not await has_verdict(lab, proposal), "only its leader decides"
        await lab.tiers[0].proposals.run_round()
        told = await verdict(lab, proposal)
        assert (told.accepted, told.reason, told.broker_id, told.leader_epoch) == (True, "", 0, 0)
        assert told.tier_state_offset == lab.bucket.tier.state_offset
        kept = [segments[0].id, proposal.outputs[0].id, *(one.id for one in segments[3:])]
        assert [one.id for one in lab.bucket.tier.segments()] == kept
        await eventually(lambda: not lab.bucket.tier.deleting(), "the objects of the inputs go")
        assert lab.bucket.segment_keys() == [ROOT.segment_key(PATH, one) for one in kept]
        lab.bucket.check()
        manifest = await read_manifest(lab.bucket.store, ROOT, PATH)
        assert manifest is not None
        assert [one.id for one in manifest.segments] == kept
        assert manifest.segments[1].rewritten
        await lab.tiers[0].proposals.run_round()
        assert lab.bucket.count(Swap) == 1
        (asked,) = [request for request in lab.bucket.requests if isinstance(request, Swap)]
        written_ms = (await lab.bucket.store.head(ROOT.segment_key(PATH, proposal.outputs[0].id))).modified_ms
        assert asked.expires_ms == written_ms + AGELESS.sweep_age_ms * 3 // 4, "before the sweeper may take the object"
        lab.controller.elect(1)
        await lab.copied(1)
        assert [one.id for one in lab.view(1).segments()] == kept  # type: ignore[union-attr]


async def test_of_two_jobs_over_the_same_segments_one_loses(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 1, AGELESS) as lab:
        segments = await tiered(lab, 0)
        first, second = await propose(lab, segments[:2], 1), await propose(lab, segments[1:3], 2)
        await lab.tiers[0].proposals.run_round()
        told = [await verdict(lab, one) for one in (first, second)]
        assert sorted(one.accepted for one in told) == [False, True]
        (refused,) = [one for one in told if not one.accepted]
        assert "is DELETE_STARTED" in refused.reason
        await lab.tiers[0].proposals.run_round()
        assert (lab.tiers[0].proposals.accepted, lab.tiers[0].proposals.refused) == (1, 1), "each is counted once"
        lab.bucket.check()


async def spoil(lab: TierLab, what: str, proposal: Proposal) -> None:
    store, output = lab.bucket.store, proposal.outputs[0]
    key = ROOT.segment_key(PATH, output.id)
    if what == "is missing":
        await store.delete([key])
    elif what == "bytes, not":
        await store.put(key, b"short")
    elif what != "so old":
        change: dict[str, object] = {
            "incarnation": {"incarnation": 2},
            "the partition's name": {"topic": "flowers"},
            "is not known": {"inputs": [proposal.inputs[0]._replace(uuid="9" * 32)]},
            "leader epochs": {"outputs": [changed(output, epochs=[(0, 0), (7, 3)])]},
            "its uuid field": {"uuid": "8" * 32},
            "is no segment": {"inputs": [proposal.inputs[0]._replace(uuid="x")]},
        }[what]  # type: ignore[assignment]
        await store.put(ROOT.proposal_key(proposal.uuid), encode(changed(proposal, **change)))


@pytest.mark.parametrize(
    "what",
    [
        "is missing", "bytes, not", "so old", "incarnation", "the partition's name", "is not known", "leader epochs",
        "its uuid field", "is no segment",
    ],
)  # fmt: skip
async def test_what_cannot_be_is_refused_with_a_reason(tmp_path: Path, what: str) -> None:
    config = replace(QUICK, sweep_age_ms=10_000) if what == "so old" else AGELESS
    async with TierLab(tmp_path, 1, config) as lab:
        segments = await tiered(lab, 0)
        proposal = await propose(lab, segments[:1])
        await spoil(lab, what, proposal)
        before = lab.bucket.offset
        await lab.tiers[0].proposals.run_round()
        told = await verdict(lab, proposal)
        assert not told.accepted
        assert what.removeprefix("so ") in told.reason
        assert lab.bucket.offset == before


async def test_nonsense_that_names_nobody_is_left_alone(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 1, AGELESS) as lab:
        await tiered(lab, 0)
        for number, body in enumerate((b"", b"[]", b"{}", b'{"topic_id":"zz","partition":0}', b"\xff" * 100)):
            await lab.bucket.store.put(ROOT.proposal_key(f"{number:032x}"), body)
            await lab.bucket.store.put(ROOT.erase_key(f"{number:032x}"), body)
        await lab.bucket.store.put(ROOT.proposals_prefix + "README", b"hello")
        before = dict(lab.bucket.store.objects)
        await lab.tiers[0].proposals.run_round()
        await lab.tiers[0].proposals.run_round()
        assert lab.bucket.store.objects == before


@pytest.mark.parametrize("returns", [True, False], ids=["it returns", "another leads"])
@pytest.mark.parametrize("point", ["before Swap", "after Swap", "before head", "before put"])
async def test_a_leader_dies_at_a_step_of_a_swap(tmp_path: Path, point: str, returns: bool) -> None:
    async with TierLab(tmp_path, 2, AGELESS) as lab:
        segments = await tiered(lab, 0, 1)
        proposal = await propose(lab, segments[:3])
        reached = lab.tiers[0].freeze_at(point)
        looking = asyncio.ensure_future(lab.tiers[0].proposals.run_round())
        await asyncio.wait_for(reached.wait(), 10)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        await lab.kill(0)
        assert not await has_verdict(lab, proposal)
        leader = 0 if returns else 1
        if returns:
            await lab[0].start()
        lab.controller.elect(leader)
        await eventually(lambda: lab.view(leader) is not None)
        await lab.tiers[leader].proposals.run_round()
        told = await verdict(lab, proposal)
        assert told.accepted
        assert next(lab.bucket.tier.segments()).id == proposal.outputs[0].id
        await eventually(lambda: not lab.bucket.tier.deleting())
        lab.bucket.check()


async def test_an_answer_of_the_shard_is_lost(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 1, AGELESS) as lab:
        segments = await tiered(lab, 0)
        proposal = await propose(lab, segments[:3])
        lab.tiers[0].calls.lost = 1
        await lab.tiers[0].proposals.run_round()
        assert not await has_verdict(lab, proposal)
        await lab.tiers[0].proposals.run_round()
        assert (await verdict(lab, proposal)).accepted


async def test_replaced_objects_stay_until_a_manifest_lacks_them(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 1, AGELESS) as lab:
        segments = await tiered(lab, 0)
        await eventually(lambda: lab.tiers[0].publisher.published(TOPIC_ID, 0) is not None)

        async def no_manifests(operation: str, key: str) -> None:
            if operation == "put" and "/manifest" in key:
                await asyncio.Event().wait()

        lab.tiers[0].store.before = no_manifests
        for lost in (0, 1):
            proposal = await propose(lab, segments[3 * lost : 3 * lost + 2], 1 + lost)
            lab.tiers[0].calls.lost = lost
            await lab.tiers[0].proposals.run_round()
            await lab.tiers[0].proposals.run_round()
            assert (await verdict(lab, proposal)).accepted
        await asyncio.sleep(0.1)
        assert len(lab.bucket.tier.deleting()) == 4
        for one in segments:
            assert ROOT.segment_key(PATH, one.id) in lab.bucket.store.objects


async def test_a_replica_begins_behind_rewritten_segments(tmp_path: Path) -> None:
    """Producers and epochs are those of the log, whatever records are left of them."""
    async with TierLab(tmp_path, 2, AGELESS) as lab:
        lab.create_tiered(0, local_retention_ms="0", message_timestamp_type="LogAppendTime")
        for number in range(20):
            connection = await lab[0].connect()
            await produce(connection, batch(VALUE, producer_id=5, producer_epoch=0, base_sequence=number))
            if number in (7, 11):
                lab.controller.elect(0)
                await eventually(lambda: lab.view() is not None)
        await lab.copied()
        inputs = list(lab.bucket.tier.segments())
        output = await write_rewritten(
            lab.bucket.store, ROOT, PATH, inputs, lambda header: header.base_offset in (0, 15), 5
        )
        assert len(output.epochs) == 3
        proposal = proposal_of(PATH, inputs, [output], 1)
        await submit(lab.bucket.store, ROOT, proposal)
        await lab.tiers[0].proposals.run_round()
        assert (await verdict(lab, proposal)).accepted
        lab.bucket.now_ms = int(time.time() * 1000) + 1_000
        assert await lab.drop_local()
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
        await eventually(lambda: lab.controller.isr == (0, 1))
        old, new = lab.partition(0).log, lab.partition(1).log
        assert (new.log_start_offset, new.local_log_start_offset) == (0, output.end_offset)
        assert new.leader_epochs.entries() == old.leader_epochs.entries()
        assert decode_snapshot(new.producers.snapshot()) == decode_snapshot(old.producers.snapshot())
        lab.controller.elect(1)
        row = await produce(await lab[1].connect(), batch(VALUE, producer_id=5, producer_epoch=0, base_sequence=19))
        assert (row.error_code, row.base_offset) == (0, 19), "a duplicate is known by its sequence"
        view = lab.view(1)
        assert view is not None
        assert view.find(7, new.leader_epochs.entries()) is not None, "it is of this partition's history"


# erasures --------------------------------------------------------------------------------------------------


async def asked(lab: TierLab, *partitions: int) -> EraseRequest:
    request = EraseRequest(
        uuid="e" * 32, topic=PATH.topic, topic_id=TOPIC_ID.hex(), partitions=list(partitions), created_ms=1
    )
    await request_erasure(lab.bucket.store, ROOT, request)
    return request


async def ready(lab: TierLab, request: EraseRequest, node: int = 0) -> EraseReady:
    for _ in range(500):
        await lab.tiers[node].proposals.run_round()
        try:
            return decode_erase_ready(await lab.bucket.store.get(ROOT.erase_ready_key(request.uuid, 0)))
        except ObjectMissing:
            await asyncio.sleep(0.01)
    raise AssertionError("the partition does not get ready")


async def test_an_erasure_reaches_what_is_on_every_disk(tmp_path: Path) -> None:
    """With replicas whose segments are cut elsewhere, and objects that would stay for an hour."""
    config = replace(AGELESS, delete_delay_ms=3_600_000, erase_grace_ms=50)
    async with TierLab(tmp_path, 2, config) as lab:
        lab.bucket.now_ms = int(time.time() * 1000)
        segments = await tiered(lab, 0, 1)
        earlier = await propose(lab, segments[:2], 1)
        await lab.tiers[0].proposals.run_round()
        assert (await verdict(lab, earlier)).accepted
        await asyncio.sleep(0.1)
        assert len(lab.bucket.tier.deleting()) == 2, "these wait"
        before = lab.partition().log.log_end_offset
        answer = await ready(lab, await asked(lab, 0, 3))
        assert answer.tier_end_offset == before == lab.bucket.tier.tier_end_offset
        assert (answer.partition, answer.log_start_offset, answer.broker_id) == (0, 0, 0)
        connection = await lab[0].connect()
        await produce(connection, batch(b"new"))
        end = answer.tier_end_offset
        inputs = list(lab.bucket.tier.segments())
        proposal = await propose(lab, inputs, 2, erase_end=end, reaches_log_start=True)
        await lab.tiers[0].proposals.run_round()
        assert (await verdict(lab, proposal)).accepted
        leader, follower = lab.partition(0), lab.partition(1)
        await eventually(lambda: leader.log.local_log_start_offset == end, "the leader's disk holds nothing of it")
        await eventually(lambda: follower.erased_end_offset == end)
        assert follower.log.active.base_offset > 0
        await filled(lab, 12)  # until what the follower had beside it is tiered, too
        await lab.copied()
        await eventually(lambda: follower.log.local_log_start_offset >= end, "nor does the follower's")
        await eventually(lambda: not lab.bucket.tier.deleting(), "and no object waits for the delay")
        old = {ROOT.segment_key(PATH, one.id) for one in [*segments, *inputs]}
        assert not old & set(lab.bucket.segment_keys())


async def test_later_swaps_below_an_erasures_end_wait_for_the_delay_again(tmp_path: Path) -> None:
    config = replace(AGELESS, delete_delay_ms=3_600_000, erase_grace_ms=0)
    async with TierLab(tmp_path, 1, config) as lab:
        lab.bucket.now_ms = int(time.time() * 1000)
        segments = await tiered(lab, 0)
        erasure = await propose(lab, segments[:1], 1, erase_end=segments[-1].end_offset)
        await lab.tiers[0].proposals.run_round()
        assert (await verdict(lab, erasure)).accepted
        await eventually(lambda: not lab.bucket.tier.deleting())
        await asyncio.sleep(0.01)
        assert lab.bucket.tier.record.erased_ms
        lab.bucket.now_ms += 1  # by the clock of the shard's host
        later = await propose(lab, [erasure.outputs[0], segments[1]], 2)
        await lab.tiers[0].proposals.run_round()
        assert (await verdict(lab, later)).accepted
        await asyncio.sleep(0.1)
        assert len(lab.bucket.tier.deleting()) == 2


async def test_a_replica_that_was_away_hears_of_an_erasure(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2, AGELESS) as lab:
        segments = await tiered(lab, 0, 1)
        await lab.kill(1)
        erasure = await propose(lab, segments, 1, erase_end=segments[-1].end_offset)
        await lab.tiers[0].proposals.run_round()
        assert (await verdict(lab, erasure)).accepted
        await eventually(lambda: lab.partition(0).log.local_log_start_offset >= segments[-1].end_offset)
        await lab[1].start()
        assert lab.partition(1).log.local_log_start_offset == 0
        await eventually(lambda: lab.partition(1).log.local_log_start_offset >= segments[-1].base_offset)


async def test_an_erasure_waits_for_what_is_not_committed(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2, AGELESS) as lab:
        await tiered(lab, 0, 1)
        lab.tiers[0].store.faults.full = True
        request = await asked(lab, 0)
        await lab.tiers[0].proposals.run_round()
        end = lab.partition().log.log_end_offset
        assert lab.partition().log.active.base_offset == end, "it is closed at once"
        await filled(lab, 3)
        await lab.tiers[0].proposals.run_round()
        assert ROOT.erase_ready_key(request.uuid, 0) not in lab.bucket.store.objects
        lab.tiers[0].store.faults.full = False
        assert (await ready(lab, request)).tier_end_offset == end
