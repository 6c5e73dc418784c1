"""The tier shard: which broker leads which partition in the tier, and what the object store holds of it. No I/O.

It *decides* (request in, records of `__tier_state` and a reply out) and *replays* (records in). Only replay changes the
state, and `undo`, which undoes the newest replays of records that were not appended. Its guarantees, whatever its
clients believe:

- a claimed leader epoch fences all lower ones, and a broker epoch the lower ones of that broker;
- finished segments of a partition neither overlap nor leave a hole above the log start: a copy begins at the tier's
  end, one at a time;
- a segment's epochs continue those of the segment before it;
- a finished segment is deleted only after the log start has passed it, others have replaced it over the same offsets,
  or the tier was emptied, and its entry is forgotten only after that.

Any prefix of a decision's records is a legal state too: its host may append them in several batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from common.decision import Decision
from tiering.bucket.segment import SegmentId, SegmentState, TieredSegment, complaint
from tiering.shard.lineage import follows
from tiering.shard.partition_tier import PartitionTier, TierBefore
from tiering.shard.shard_changes import Changes, Moment, RefusedError
from tiering.shard.shard_protocol import (
    SEGMENTS_PER_REQUEST_MAX,
    Adopt,
    Claim,
    ClaimReply,
    Describe,
    Description,
    Done,
    DropPartition,
    Empty,
    FinishCopy,
    FinishDelete,
    ForgetPartition,
    MoveLogStart,
    Mutation,
    RefusalCode,
    Reply,
    Request,
    StartCopy,
    StartDelete,
    Swap,
)
from tiering.shard.swap_decision import decide_swap
from tiering.shard.tier_records import (
    KeyKind,
    TierRecord,
    decode_key,
    decode_swap,
    encode_value,
    partition_key,
    swap_key,
)

DISABLED = "tiering disabled"
"""A cause of a log start's move."""

PartitionId = tuple[bytes, int]
"""Topic id (16 bytes) and partition."""


class TierShard:
    """One partition of `__tier_state`: the tiers of the partitions assigned to it."""

    def __init__(self) -> None:
        self.partitions: dict[PartitionId, PartitionTier] = {}

    # replay ------------------------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply one record. Raises ValueError for an unreadable one, without changing the state."""
        decoded = decode_key(key)
        if decoded is None:
            return
        identity = (decoded.topic_id, decoded.partition)
        tier = self.partitions.get(identity)
        if tier is None:
            if value is None:
                return
            tier = PartitionTier(*identity)
        if decoded.segment is not None:
            tier.replay_segment(decoded.segment, value)
        elif decoded.kind is KeyKind.SWAP:
            tier.replay_swap(value)
        else:
            tier.replay_partition(value)
        if tier.is_empty:
            self.partitions.pop(identity, None)
        else:
            self.partitions[identity] = tier

    def before(self, key: bytes, value: bytes | None) -> TierBefore | None:
        """The current state that the record would change; None if it changes nothing."""
        decoded = decode_key(key)
        if decoded is None:
            return None
        identity = (decoded.topic_id, decoded.partition)
        touched = [] if decoded.segment is None else [decoded.segment]
        if decoded.kind is KeyKind.SWAP and value is not None:
            touched = decode_swap(value).segment_ids()
        return (self.partitions.get(identity) or PartitionTier(*identity)).before(touched)

    def undo(self, before: TierBefore) -> None:
        """Undo the record that was replayed last, which was not appended. `before`: the state that it changed."""
        tier = self.partitions.pop(before.identity, None) or PartitionTier(*before.identity)
        tier.undo(before)
        if not tier.is_empty:
            self.partitions[before.identity] = tier

    def records(self) -> Iterator[TierRecord]:
        """The whole state, as a fully compacted topic would hold it."""
        for tier in self.partitions.values():
            yield from tier.to_records()
            if tier.swap is not None:
                yield TierRecord(swap_key(tier.topic_id, tier.partition), tier.swap)

    # decisions ---------------------------------------------------------------------------------------------

    def decide(
        self, topic_id: bytes, partition: int, request: Request, moment: Moment
    ) -> Decision[TierRecord, Reply]:  # fmt: skip
        """A rejected request has the reply Refused; nothing is raised."""
        tier = self.partitions.get((topic_id, partition)) or PartitionTier(topic_id, partition)
        try:
            match request:
                case Claim():
                    return _claim(tier, request, moment)
                case Describe():
                    return Decision(describe(tier, request))
                case DropPartition():
                    return _drop(tier, request, moment)
                case ForgetPartition():
                    return _forget(tier, moment)
                case _:
                    _check_claim(tier, request)
                    return _mutate(tier, request, moment)
        except RefusedError as error:
            return Decision(error.reply)


def describe(tier: PartitionTier, request: Describe) -> Description:
    """The state as records, at most SEGMENTS_PER_REQUEST_MAX segments."""
    count_max = min(max(request.segments_max, 0), SEGMENTS_PER_REQUEST_MAX)
    found = tier.records(request.after, count_max + 1) if count_max else []
    own = None
    if not tier.is_empty:
        own = (partition_key(tier.topic_id, tier.partition), encode_value(tier.record))
    return Description(tier.state_offset, own, list(found[:count_max]), len(found) > count_max)


# claims ----------------------------------------------------------------------------------------------------


def _claim(tier: PartitionTier, request: Claim, moment: Moment) -> Decision[TierRecord, Reply]:
    record = tier.record
    if tier.is_dropped:
        raise RefusedError(RefusalCode.DROPPED, "the topic was deleted")
    wanted = (request.leader_epoch, request.broker_epoch)
    held = (record.leader_epoch, record.broker_epoch)
    if request.leader_epoch < 0 or not request.topic:
        raise RefusedError(RefusalCode.INVALID, "a claim names a topic and a leader epoch")
    if wanted < held or (request.leader_epoch == record.leader_epoch and request.broker_id != record.broker_id):
        raise RefusedError(RefusalCode.FENCED, f"broker {record.broker_id} has claimed epochs {held}, not {wanted}")
    changes = Changes(tier, moment)
    abandoned = tier.copying() if wanted != held else []
    if wanted != held:
        claimed = replace(
            record,
            topic=request.topic,
            tenant=request.tenant,
            leader_epoch=request.leader_epoch,
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            metadata_offset=max(request.metadata_offset, record.metadata_offset),
            tier_end_offset=tier.tier_end_offset,
        )
        changes.put_partition(claimed)
        for segment in abandoned:
            changes.put_segment(segment, SegmentState.DELETE_STARTED)
    changed = dict(changes.records)
    described = describe(tier, Describe())
    own = partition_key(tier.topic_id, tier.partition)
    description = Description(
        changes.offset - 1 if changes.records else tier.state_offset,
        (own, changed.get(own) or encode_value(record)),
        [(key, changed.get(key, value)) for key, value in described.segments],
        described.more,
    )
    return Decision(ClaimReply(description), changes.records)


def _check_claim(tier: PartitionTier, request: Mutation) -> None:
    record = tier.record
    if tier.is_dropped:
        raise RefusedError(RefusalCode.DROPPED, "the topic was deleted")
    held, given = (record.leader_epoch, record.broker_epoch), (request.leader_epoch, request.broker_epoch)
    if given > held:
        raise RefusedError(RefusalCode.NOT_CLAIMED, f"epochs {given} have not claimed; {held} have")
    if given < held:
        raise RefusedError(RefusalCode.FENCED, f"broker {record.broker_id} has claimed epochs {held}, not {given}")


def _mutate(tier: PartitionTier, request: Mutation, moment: Moment) -> Decision[TierRecord, Reply]:
    changes = Changes(tier, moment)
    match request:
        case Adopt():
            return _adopt(tier, request, changes)
        case Empty():
            return _empty(tier, request, changes)
        case StartCopy():
            return _start_copy(tier, request.segment, changes)
        case FinishCopy():
            return _finish_copy(tier, request.segment, changes)
        case StartDelete():
            return _start_delete(tier, request.segments, changes)
        case FinishDelete():
            return _finish_delete(tier, request.segments, changes)
        case Swap():
            return decide_swap(tier, request, changes)
        case MoveLogStart():
            if request.offset > tier.log_start_offset:
                changes.put_partition(
                    replace(
                        tier.record,
                        log_start_offset=request.offset,
                        log_start_cause=request.cause,
                        tier_end_offset=tier.tier_end_offset,
                    )
                )
            return changes.done()


# copying ---------------------------------------------------------------------------------------------------


def _check_place(segment: TieredSegment, previous: TieredSegment | None, end_offset: int, log_start: int) -> None:
    """Whether `segment` may follow a tier that ends at `end_offset`, after its last segment `previous`."""
    base = segment.base_offset
    if base != end_offset and not end_offset < base <= log_start:
        text = f"[{base}, {segment.end_offset}) does not begin at the tier's end {end_offset} (log start {log_start})"
        raise RefusedError(RefusalCode.NOT_AT_TIER_END, text)
    if previous is not None and not follows(segment.epochs, previous.epochs, previous.end_offset):
        text = f"leader epochs {segment.epochs} do not follow {previous.epochs} up to {previous.end_offset}"
        raise RefusedError(RefusalCode.LINEAGE, text)


def _check_segment(tier: PartitionTier, segment: TieredSegment, state: SegmentState) -> None:
    problem = complaint(segment)
    if problem is None and segment.state is not state:
        problem = f"state {segment.state} where {state} is asked for"
    if problem is None and segment.epochs[-1][0] > tier.record.leader_epoch:
        problem = f"leader epochs {segment.epochs} go beyond the claim's {tier.record.leader_epoch}"
    if problem is not None:
        raise RefusedError(RefusalCode.INVALID, problem)


def _start_copy(tier: PartitionTier, segment: TieredSegment, changes: Changes) -> Decision[TierRecord, Reply]:
    _check_segment(tier, segment, SegmentState.COPY_STARTED)
    if (segment.leader_epoch, segment.broker_id) != (tier.record.leader_epoch, tier.record.broker_id):
        raise RefusedError(RefusalCode.INVALID, "a copy is the claiming leader's own")
    known = tier.get(segment.id)
    if known is not None:
        if known.state is SegmentState.COPY_STARTED and known.end_offset == segment.end_offset:
            return changes.done([segment.id])
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, f"the segment is {known.state} already")
    if tier.record.adopting:
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, "the adoption has not ended")
    under_way = tier.copying()
    if under_way:
        text = f"the copy of [{under_way[0].base_offset}, {under_way[0].end_offset}) has not ended"
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, text)
    _check_place(segment, tier.last(), tier.tier_end_offset, tier.log_start_offset)
    changes.put_segment(segment, SegmentState.COPY_STARTED)
    return changes.done()


def _finish_copy(tier: PartitionTier, segment: TieredSegment, changes: Changes) -> Decision[TierRecord, Reply]:
    _check_segment(tier, segment, SegmentState.COPY_FINISHED)
    known = tier.get(segment.id)
    if known is not None and known.end_offset == segment.end_offset:
        if known.state is SegmentState.COPY_FINISHED:
            return changes.done([segment.id])
        if known.state is SegmentState.COPY_STARTED:
            _check_place(segment, tier.last(), tier.tier_end_offset, tier.log_start_offset)
            changes.put_segment(segment, SegmentState.COPY_FINISHED)
            return changes.done()
    what = "unknown" if known is None else f"{known.state} up to {known.end_offset}"
    raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, f"no such copy was begun: the segment is {what}")


def _adopt(tier: PartitionTier, request: Adopt, changes: Changes) -> Decision[TierRecord, Reply]:
    record = tier.record
    if request.manifest_version <= 0 or len(request.segments) > SEGMENTS_PER_REQUEST_MAX:
        raise RefusedError(RefusalCode.INVALID, "an adoption names a version and a bounded number of segments")
    if record.adopted_version == request.manifest_version and not record.adopting:
        return changes.done([segment.id for segment in request.segments])
    if not record.adopting and (record.adopted_version or tier.tier_end_offset or tier.copying()):
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, "the partition's tier has begun without the adoption")
    log_start = max(record.log_start_offset, request.log_start_offset)
    adopting = replace(
        record,
        log_start_offset=log_start,
        log_start_cause="adopted" if log_start > record.log_start_offset else record.log_start_cause,
        tier_end_offset=tier.tier_end_offset,
        adopted_version=request.manifest_version,
        adopting=True,
        generation=max(record.generation, request.generation),
    )
    changes.put_partition(adopting)
    previous, end_offset = tier.last(), tier.tier_end_offset
    for segment in request.segments:
        _check_segment(tier, segment, SegmentState.COPY_FINISHED)
        if tier.value_of(segment.id) is not None:
            continue
        _check_place(segment, previous, end_offset, log_start)
        changes.keep_segment(segment)
        previous, end_offset = segment, segment.end_offset
    if request.final:  # last, because a part of these records must not look complete
        ends = max(adopting.tier_end_offset, log_start)  # of an empty tier: offsets are never reused
        changes.put_partition(
            replace(adopting, adopting=False, tier_end_offset=ends, adopted_end_offset=max(ends, end_offset))
        )
    return changes.done()


# deleting --------------------------------------------------------------------------------------------------


def _wanted(
    tier: PartitionTier, segments: Sequence[SegmentId], legal: Callable[[TieredSegment], bool]
) -> list[TieredSegment]:  # fmt: skip
    """The known segments. Raises RefusedError if one of them may not make this transition."""
    if len(segments) > SEGMENTS_PER_REQUEST_MAX:
        raise RefusedError(RefusalCode.INVALID, f"more than {SEGMENTS_PER_REQUEST_MAX} segments")
    known = [found for segment in dict.fromkeys(segments) if (found := tier.get(segment)) is not None]
    for segment in known:
        if not legal(segment):
            text = (
                f"[{segment.base_offset}, {segment.end_offset}) is {segment.state}, log start {tier.log_start_offset}"
            )
            raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, text)
    return known


def _start_delete(tier: PartitionTier, segments: Sequence[SegmentId], changes: Changes) -> Decision[TierRecord, Reply]:
    def legal(segment: TieredSegment) -> bool:
        return segment.state is not SegmentState.COPY_FINISHED or segment.end_offset <= tier.log_start_offset

    known = _wanted(tier, segments, legal)
    beginning = [segment for segment in known if segment.state is not SegmentState.DELETE_STARTED]
    if beginning:
        changes.put_partition(replace(tier.record, tier_end_offset=tier.tier_end_offset))
    for segment in beginning:
        changes.put_segment(segment, SegmentState.DELETE_STARTED)
    return changes.done(segments)


def _finish_delete(tier: PartitionTier, segments: Sequence[SegmentId], changes: Changes) -> Decision[TierRecord, Reply]:
    def legal(segment: TieredSegment) -> bool:
        return segment.state is SegmentState.DELETE_STARTED

    known = _wanted(tier, segments, legal)
    # a tombstone does not carry the state's offset: repeat the others' records in case the host dies in between
    if known:
        changes.put_partition(tier.record)
    for segment in known:
        changes.forget_segment(segment.id)
    if known:
        changes.put_partition(tier.record)
    return changes.done(segments)


def _empty(tier: PartitionTier, request: Empty, changes: Changes) -> Decision[TierRecord, Reply]:
    """The partition's record is enough for any number of segments: see `PartitionTier`."""
    record = tier.record
    if record.adopting:
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, "the adoption has not ended")
    if request.generation <= tier.generation:
        return changes.done()
    log_start = max(tier.log_start_offset, request.log_start_offset)
    moved = log_start > tier.log_start_offset
    changes.put_partition(
        replace(
            record,
            log_start_offset=log_start,
            log_start_cause=DISABLED if moved else record.log_start_cause,
            tier_end_offset=log_start,
            generation=request.generation,
            emptied_offset=changes.offset,
            emptied_ms=changes.now_ms,
        )
    )
    for segment in tier.copying():
        changes.put_segment(segment, SegmentState.DELETE_STARTED)
    return changes.done()


# deleted topics --------------------------------------------------------------------------------------------


def _drop(tier: PartitionTier, request: DropPartition, moment: Moment) -> Decision[TierRecord, Reply]:
    changes = Changes(tier, moment)
    if request.metadata_offset < tier.record.metadata_offset:
        text = f"a leader has seen the topic at metadata offset {tier.record.metadata_offset}"
        raise RefusedError(RefusalCode.INVALID, text)
    if not tier.is_empty and not tier.is_dropped:
        ended = replace(tier.record, dropped_ms=max(moment.now_ms, 1), tier_end_offset=tier.tier_end_offset)
        changes.put_partition(ended)
    return changes.done()


def _forget(tier: PartitionTier, moment: Moment) -> Decision[TierRecord, Reply]:
    if not tier.is_empty and not tier.is_dropped:
        raise RefusedError(RefusalCode.ILLEGAL_TRANSITION, "the partition lives")
    changes = Changes(tier, moment)
    for segment in tier.ids(SEGMENTS_PER_REQUEST_MAX):
        changes.forget_segment(segment)
    if not changes.records and not tier.is_empty:
        changes.records.append(TierRecord(partition_key(tier.topic_id, tier.partition), None))
    return Decision(Done(tier.state_offset, tier.state_offset, list(changes.records)), changes.records)
