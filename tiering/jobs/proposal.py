"""Requests of jobs to change a tiered partition: immutable JSON objects below `<cluster>/proposals/`.

A job writes new segments under new keys, then a *proposal* that names the segments to replace. The partition's leader
finds and checks it, has the tier's shard exchange the segments in one step, and writes its *verdict* beside it. Jobs
call no broker. A job that loses a race (with retention, another job, or an earlier attempt) is rejected and has changed
nothing.

An erasure begins with an *erase request*: each leader of the topic rolls its log, tiers all its records of that moment,
and answers with an *erase ready*. A job that rewrites everything below those ends has seen all records acknowledged
before the request. docs/tier-format.md has the names and fields.
"""

from __future__ import annotations

import asyncio
from typing import Literal, TypeVar

import msgspec

from object_store.errors import ObjectMissing
from object_store.store import ObjectStore
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import SegmentId, TieredSegment, complaint, is_uuid
from tiering.shard.shard_protocol import SWAP_SEGMENTS_MAX

FORMAT = 1
SEGMENTS_MAX = SWAP_SEGMENTS_MAX
"""Of inputs and of outputs, because a swap is one record of `__tier_state`. Longer runs take several proposals."""
VERDICT_POLL_S = 0.5
JOB_LENGTH_MAX = 1_000

Kind = Literal["compaction", "erasure"]


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """Replace `inputs` by `outputs`, both of one partition, ascending, each without a hole, over the same offsets.

    `uuid` and `topic_id` are 32 hex digits. `created_ms` is Unix milliseconds by the job's clock; `job` is a free text
    that identifies it. `incarnation` and `log_start_offset` are those of the manifest that the job read.

    `reaches_log_start`: the job dropped something that hides older records (a tombstone, a marker, the entry of an
    aborted transaction), so the proposal is rejected if records remain below the first input. `erase_end`, of an
    erasure: every replica drops local records below this offset, which is at or below the tier's end.

    Outputs are COPY_FINISHED and `rewritten`; their `leader_epoch`, `broker_id` and `changed_ms` are overwritten.
    `swap.swap_complaint` has the other conditions.
    """

    format: int = FORMAT
    uuid: str
    kind: Kind
    topic: str
    topic_id: str
    tenant: str = ""
    partition: int
    created_ms: int
    job: str = ""
    incarnation: int
    log_start_offset: int
    reaches_log_start: bool = False
    inputs: list[SegmentId]
    outputs: list[TieredSegment]
    erase_end: int | None = None

    @property
    def path(self) -> PartitionPath:
        return PartitionPath(self.topic, bytes.fromhex(self.topic_id), self.partition, self.tenant)


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on a proposal. `accepted`: the outputs belong to the partition from `tier_state_offset` of
    `__tier_state` on, and the inputs' objects will be deleted. Otherwise `reason` says why nothing was changed.

    A job never deletes its outputs, because a deposed leader may reject a proposal that the next one accepts. The
    sweeper, which reads `__tier_state`, removes unreferenced objects.
    """

    format: int = FORMAT
    proposal: str
    accepted: bool
    reason: str = ""
    decided_ms: int
    broker_id: int
    leader_epoch: int
    tier_state_offset: int = -1


class EraseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Asks these partitions to tier all their current records. It names no key of any record."""

    format: int = FORMAT
    uuid: str
    topic: str
    topic_id: str
    partitions: list[int]
    created_ms: int
    tenant: str = ""
    job: str = ""


class EraseReady(msgspec.Struct, frozen=True, kw_only=True):
    """One leader's answer: all records appended before it saw the request are in the tier, below `tier_end_offset`."""

    format: int = FORMAT
    request: str
    topic_id: str
    partition: int
    tier_end_offset: int
    log_start_offset: int
    ready_ms: int
    broker_id: int
    leader_epoch: int


Document = Proposal | Verdict | EraseRequest | EraseReady
D = TypeVar("D", Proposal, Verdict, EraseRequest, EraseReady)

_encoder = msgspec.json.Encoder()


def encode(document: Document) -> bytes:
    return _encoder.encode(document)


def decode_proposal(data: bytes) -> Proposal:
    """Raises ValueError with a reason for malformed data; whether it may be accepted is checked elsewhere."""
    proposal = _decode(data, Proposal)
    problem = _proposal_complaint(proposal)
    if problem is not None:
        raise ValueError(problem)
    return proposal


def decode_verdict(data: bytes) -> Verdict:
    """Raises ValueError for an invalid verdict."""
    return _decode(data, Verdict)


def decode_erase_request(data: bytes) -> EraseRequest:
    """Raises ValueError for an invalid request."""
    request = _decode(data, EraseRequest)
    if not is_uuid(request.uuid) or not is_uuid(request.topic_id) or min(request.partitions, default=-1) < 0:
        raise ValueError("an erase request names a uuid, a topic id and partitions")
    return request


def decode_erase_ready(data: bytes) -> EraseReady:
    """Raises ValueError for an invalid answer."""
    return _decode(data, EraseReady)


def _decode(data: bytes, kind: type[D]) -> D:
    document = msgspec.json.decode(data, type=kind)
    if document.format != FORMAT:
        raise ValueError(f"format {document.format} is not known here")
    return document


def _proposal_complaint(proposal: Proposal) -> str | None:
    if not is_uuid(proposal.uuid) or not is_uuid(proposal.topic_id):
        return "uuid and topic id have 32 lower-case hex digits"
    if not proposal.topic or "/" in proposal.topic or "/" in proposal.tenant or proposal.partition < 0:
        return f"no partition: {proposal.tenant!r} {proposal.topic!r} {proposal.partition}"
    for count, what in ((len(proposal.inputs), "inputs"), (len(proposal.outputs), "outputs")):
        if not 0 < count <= SEGMENTS_MAX:
            return f"{count} {what}: between 1 and {SEGMENTS_MAX} are possible"
    if len(proposal.job) > JOB_LENGTH_MAX:
        return f"the job's description is longer than {JOB_LENGTH_MAX} characters"
    for segment in proposal.inputs:
        if segment.base_offset < 0 or not is_uuid(segment.uuid):
            return f"input {segment} is no segment"
    for output in proposal.outputs:
        problem = complaint(output)
        if problem is not None:
            return f"output {output.id}: {problem}"
    if proposal.erase_end is not None and proposal.kind != "erasure":
        return "only an erasure has an end of what is erased"
    return None


# for jobs --------------------------------------------------------------------------------------------------


async def submit(store: ObjectStore, root: TierRoot, proposal: Proposal) -> str:
    """Write a proposal whose outputs are in the store already; returns its key. Raises ValueError for one that no
    leader could accept, ObjectExists when the uuid was used before, StoreError."""
    problem = _proposal_complaint(proposal)
    if problem is not None:
        raise ValueError(problem)
    key = root.proposal_key(proposal.uuid)
    await store.put(key, encode(proposal), create_only=True)
    return key


async def wait_for_verdict(
    store: ObjectStore, root: TierRoot, uuid: str, timeout_s: float, poll_s: float = VERDICT_POLL_S
) -> Verdict:
    """Raises TimeoutError when no leader decided in time (one may still, for a day), StoreError, ValueError."""
    return decode_verdict(await _wait_for(store, root.verdict_key(uuid), timeout_s, poll_s))


async def request_erasure(store: ObjectStore, root: TierRoot, request: EraseRequest) -> str:
    """The key. Raises ObjectExists, StoreError."""
    key = root.erase_key(request.uuid)
    await store.put(key, encode(request), create_only=True)
    return key


async def wait_until_erasable(
    store: ObjectStore, root: TierRoot, request: EraseRequest, timeout_s: float, poll_s: float = VERDICT_POLL_S
) -> dict[int, EraseReady]:
    """Each partition's answer. Raises TimeoutError when one is missing (no leader, or an open transaction at the end
    of the log), StoreError, ValueError."""
    async with asyncio.timeout(timeout_s):
        found = {}
        for partition in request.partitions:
            key = root.erase_ready_key(request.uuid, partition)
            found[partition] = decode_erase_ready(await _wait_for(store, key, timeout_s, poll_s))
        return found


async def _wait_for(store: ObjectStore, key: str, timeout_s: float, poll_s: float) -> bytes:
    async with asyncio.timeout(timeout_s):
        while True:
            try:
                return await store.get(key)
            except ObjectMissing:
                await asyncio.sleep(poll_s)
