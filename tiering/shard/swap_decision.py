"""The tier shard's decision on a swap: a job's outputs replace the segments that it read."""

from __future__ import annotations

from msgspec.structs import replace

from common.decision import Decision
from tiering.bucket.segment import SegmentState, TieredSegment
from tiering.shard.partition_tier import PartitionTier, after_swap
from tiering.shard.shard_changes import Changes, RefusedError
from tiering.shard.shard_protocol import SWAP_SEGMENTS_MAX, RefusalCode, Reply, Swap
from tiering.shard.swap import swap_complaint
from tiering.shard.tier_records import SwapRecord, TierRecord, encode_segment, encode_value

SWAP_BYTES_MAX = 512 << 10
"""Of the record, which has to fit a batch of `__tier_state`."""


def decide_swap(tier: PartitionTier, request: Swap, changes: Changes) -> Decision[TierRecord, Reply]:
    """The first record has the complete swap, so that no prefix of the records is half a swap. Raises RefusedError.

    A repeated swap is Done again: a known output, in any state, became known by it.
    """
    if not 0 < len(request.inputs) <= SWAP_SEGMENTS_MAX or not 0 < len(request.outputs) <= SWAP_SEGMENTS_MAX:
        raise RefusedError(RefusalCode.INVALID, f"a swap has between 1 and {SWAP_SEGMENTS_MAX} inputs and outputs")
    known = [output.id for output in request.outputs if tier.value_of(output.id) is not None]
    if known and not any(_is_finished(tier.get(segment)) for segment in request.inputs):
        return changes.done(known)
    if 0 < request.expires_ms < changes.now_ms:
        raise RefusedError(RefusalCode.INVALID, "it came so late that the sweeper may have taken its objects")
    inputs = _inputs(tier, request)
    _check(tier, request, inputs)
    record = tier.record
    outputs = [
        replace(output, broker_id=record.broker_id, leader_epoch=record.leader_epoch, changed_ms=changes.now_ms)
        for output in request.outputs
    ]
    at = changes.offset
    swap = SwapRecord(
        proposal=request.proposal,
        inputs=[(one.base_offset, bytes.fromhex(one.uuid)) for one in inputs],
        outputs=[
            (one.base_offset, bytes.fromhex(one.uuid), encode_segment(one, at, tier.generation)) for one in outputs
        ],
        changed_ms=changes.now_ms,
        erase_end=request.erase_end,
        state_offset=at,
    )
    if len(encode_value(swap)) > SWAP_BYTES_MAX:
        raise RefusedError(RefusalCode.INVALID, f"a swap's record is longer than {SWAP_BYTES_MAX} bytes: propose less")
    changes.put_swap(swap)
    for one in inputs:
        changes.put_segment(one, SegmentState.DELETE_STARTED)
    for one in outputs:
        changes.keep_segment(one)
    changes.end_swap(after_swap(replace(record, tier_end_offset=tier.tier_end_offset), swap))
    return changes.done()


def _is_finished(segment: TieredSegment | None) -> bool:
    return segment is not None and segment.state is SegmentState.COPY_FINISHED


def _inputs(tier: PartitionTier, request: Swap) -> list[TieredSegment]:
    """The current inputs. Raises RefusedError unless each still belongs to the partition."""
    found: list[TieredSegment] = []
    for wanted in request.inputs:
        known = tier.get(wanted)
        if known is None or not _is_finished(known):
            text = f"input {wanted.base_offset}-{wanted.uuid} is {'not known' if known is None else known.state}"
            raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, text)
        found.append(known)
    return found


def _check(tier: PartitionTier, request: Swap, inputs: list[TieredSegment]) -> None:
    if tier.record.adopting:
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, "the adoption has not ended")
    problem = swap_complaint(inputs, request.outputs)
    if problem is not None:
        raise RefusedError(RefusalCode.INVALID, problem)
    taken = next((one for one in request.outputs if tier.value_of(one.id) is not None), None)
    if taken is not None:
        raise RefusedError(RefusalCode.INVALID, f"output {taken.base_offset}-{taken.uuid} is known already")
    first = inputs[0]
    if first.end_offset <= tier.log_start_offset:
        text = f"input [{first.base_offset}, {first.end_offset}) lies below the log start {tier.log_start_offset}"
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, text)
    lowest = next(tier.segments())
    if request.reaches_log_start and lowest.base_offset < first.base_offset:
        text = f"segments from {lowest.base_offset} on lie below the first input, which begins at {first.base_offset}"
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, text)
    if not 0 <= request.erase_end <= tier.tier_end_offset:
        text = (
            f"the end of what is erased, {request.erase_end}, is not in the tier, which ends at {tier.tier_end_offset}"
        )
        raise RefusedError(RefusalCode.INVALID, text)
