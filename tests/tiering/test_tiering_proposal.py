"""Proposals, verdicts and erase requests as they lie in the bucket."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from msgspec.structs import replace

from object_store.errors import ObjectExists
from tests.object_store.memory_store import MemoryStore
from tests.tiering.rewriting import proposal_of
from tests.tiering.segments import segment, uuid_of
from tests.tiering.test_tiering_swap import rewritten
from tests.tiering.tier_world import PATH, ROOT
from tiering.bucket.segment import SegmentId
from tiering.jobs.proposal import (
    SEGMENTS_MAX,
    EraseReady,
    EraseRequest,
    Proposal,
    Verdict,
    decode_erase_ready,
    decode_erase_request,
    decode_proposal,
    decode_verdict,
    encode,
    request_erasure,
    submit,
    wait_for_verdict,
    wait_until_erasable,
)

pytestmark = pytest.mark.virtual_time

VERDICT = Verdict(proposal=uuid_of(7), accepted=True, decided_ms=5, broker_id=2, leader_epoch=3, tier_state_offset=99)
REQUEST = EraseRequest(uuid=uuid_of(8), topic="flights", topic_id=PATH.topic_id.hex(), partitions=[0, 2], created_ms=5)
READY = EraseReady(
    request=uuid_of(8), topic_id=PATH.topic_id.hex(), partition=0, tier_end_offset=10, log_start_offset=0, ready_ms=6,
    broker_id=1, leader_epoch=3,
)  # fmt: skip


def proposal(**fields: object) -> Proposal:
    inputs = [segment(0, 10), segment(10, 20)]
    return replace(proposal_of(PATH, inputs, [rewritten(inputs, 77)], 7), **fields)


def test_documents_are_read_as_they_were_written() -> None:
    assert decode_proposal(encode(proposal())) == proposal()
    assert proposal().path == PATH
    assert decode_verdict(encode(VERDICT)) == VERDICT
    assert decode_erase_request(encode(REQUEST)) == REQUEST
    assert decode_erase_ready(encode(READY)) == READY


def test_fields_to_come_are_passed_over_and_formats_to_come_refused() -> None:
    fields = msgspec.json.decode(encode(proposal()))
    assert decode_proposal(msgspec.json.encode(fields | {"more": [1]})) == proposal()
    with pytest.raises(ValueError, match="format 2"):
        decode_proposal(msgspec.json.encode(fields | {"format": 2}))


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"uuid": "x"}, "32"),
        ({"topic_id": "x"}, "32"),
        ({"topic": "a/b"}, "no partition"),
        ({"topic": ""}, "no partition"),
        ({"partition": -1}, "no partition"),
        ({"tenant": "../x"}, "no partition"),
        ({"inputs": []}, "inputs"),
        ({"outputs": []}, "outputs"),
        ({"inputs": [SegmentId(at, uuid_of(at)) for at in range(SEGMENTS_MAX + 1)]}, "inputs"),
        ({"inputs": [SegmentId(-1, uuid_of(1))]}, "no segment"),
        ({"inputs": [SegmentId(0, "../../etc/passwd")]}, "no segment"),
        ({"outputs": [replace(segment(0, 20), log_bytes=0)]}, "output"),
        ({"erase_end": 5}, "only an erasure"),
        ({"job": "x" * 2_000}, "longer"),
    ],
)
async def test_what_no_leader_could_accept_is_not_even_submitted(fields: dict[str, object], what: str) -> None:
    store = MemoryStore()
    with pytest.raises(ValueError, match=what):
        await submit(store, ROOT, proposal(**fields))
    assert not store.objects
    with pytest.raises(ValueError, match=what):
        decode_proposal(encode(proposal(**fields)))


def test_damaged_bytes_are_errors() -> None:
    chance = random.Random(3)
    for decode, document in (
        (decode_proposal, proposal()),
        (decode_verdict, VERDICT),
        (decode_erase_request, REQUEST),
        (decode_erase_ready, READY),
    ):
        body = encode(document)
        for _ in range(2_000):
            damaged = bytearray(body)
            for _ in range(chance.randrange(1, 4)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            cut = bytes(damaged[: chance.randrange(len(damaged) + 1)]) if chance.random() < 0.3 else bytes(damaged)
            try:
                decode(cut)
            except ValueError:
                continue


async def test_a_job_submits_once_and_hears_the_verdict() -> None:
    store = MemoryStore()
    key = await submit(store, ROOT, proposal())
    assert key == "cluster-1/proposals/" + uuid_of(7)
    with pytest.raises(ObjectExists):
        await submit(store, ROOT, proposal())
    with pytest.raises(TimeoutError):
        await wait_for_verdict(store, ROOT, uuid_of(7), 0.03, 0.01)
    waiting = asyncio.ensure_future(wait_for_verdict(store, ROOT, uuid_of(7), 5, 0.01))
    await asyncio.sleep(0.02)
    await store.put(ROOT.verdict_key(uuid_of(7)), encode(VERDICT))
    assert await waiting == VERDICT


async def test_an_erasure_waits_for_every_partition() -> None:
    store = MemoryStore()
    assert await request_erasure(store, ROOT, REQUEST) == f"cluster-1/proposals/{uuid_of(8)}.erase"
    await store.put(ROOT.erase_ready_key(uuid_of(8), 0), encode(READY))
    with pytest.raises(TimeoutError):
        await wait_until_erasable(store, ROOT, REQUEST, 0.05, 0.01)
    other = replace(READY, partition=2)
    await store.put(ROOT.erase_ready_key(uuid_of(8), 2), encode(other))
    assert await wait_until_erasable(store, ROOT, REQUEST, 5, 0.01) == {0: READY, 2: other}
