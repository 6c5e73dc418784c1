"""Requests of a partition's leader to its tier shard, and their replies: one MessagePack value each way.

A leader begins with Claim; every later change has the claim's leader epoch and broker epoch, and is rejected after a
newer claim. Each request may be repeated: if its effect already exists, the reply is Done. Replies contain only
committed state.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tiering.bucket.segment import SegmentId, TieredSegment

SEGMENTS_PER_REQUEST_MAX = 1_000
SWAP_SEGMENTS_MAX = 500


class RefusalCode(StrEnum):
    """FENCED: a newer leader has claimed, give up. NOT_CLAIMED: claim first. DROPPED: the topic was deleted.
    All others are mistakes of the caller, described in the text: a retry does not help."""

    FENCED = "FENCED"
    NOT_CLAIMED = "NOT_CLAIMED"
    DROPPED = "DROPPED"
    NOT_AT_TIER_END = "NOT_AT_TIER_END"
    LINEAGE = "LINEAGE"
    ILLEGAL_TRANSITION = "ILLEGAL_TRANSITION"
    INVALID = "INVALID"


class Claim(msgspec.Struct, frozen=True, tag="claim"):
    """Lead this partition in the tier. Copies of earlier claims that are not finished become DELETE_STARTED.

    `metadata_offset` is the offset of the image in which the leader saw the topic. Reply: ClaimReply, or Refused:
    FENCED by a higher leader epoch, or the same with another broker or a higher broker epoch; DROPPED.
    """

    leader_epoch: int
    broker_id: int
    broker_epoch: int
    topic: str
    tenant: str = ""
    metadata_offset: int = -1


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Adopt finished segments from manifest `manifest_version`, for restored and rebuilt partitions. Sent in pieces of
    at most SEGMENTS_PER_REQUEST_MAX, ascending; `final` ends the adoption. Refused unless the partition's tier is empty
    or its adoption began with this version. Known segments are skipped. The segments belong to `generation`."""

    leader_epoch: int
    broker_epoch: int
    manifest_version: int
    log_start_offset: int
    segments: list[TieredSegment]
    final: bool
    generation: int = 0


class Empty(msgspec.Struct, frozen=True, tag="empty"):
    """Begin `generation`, because tiering was disabled: the tier is empty, and the log start moves up to
    `log_start_offset` unless it is higher already. All segments become DELETE_STARTED."""

    leader_epoch: int
    broker_epoch: int
    generation: int
    log_start_offset: int


class StartCopy(msgspec.Struct, frozen=True, tag="start_copy"):
    """Before the first byte is uploaded. `segment` begins at the tier's end (or above it, at or below the log start);
    one copy per partition at a time."""

    leader_epoch: int
    broker_epoch: int
    segment: TieredSegment


class FinishCopy(msgspec.Struct, frozen=True, tag="finish_copy"):
    """The object is complete in the store; `segment` describes it, with the range of StartCopy."""

    leader_epoch: int
    broker_epoch: int
    segment: TieredSegment


class StartDelete(msgspec.Struct, frozen=True, tag="start_delete"):
    """Of unfinished copies, or of finished segments that end at or below the log start. At most
    SEGMENTS_PER_REQUEST_MAX. The objects stay until a manifest without them is published and the delay has passed."""

    leader_epoch: int
    broker_epoch: int
    segments: list[SegmentId]


class FinishDelete(msgspec.Struct, frozen=True, tag="finish_delete"):
    """The objects of these DELETE_STARTED segments were deleted: forget the segments. Unknown ones count as
    forgotten."""

    leader_epoch: int
    broker_epoch: int
    segments: list[SegmentId]


class MoveLogStart(msgspec.Struct, frozen=True, tag="move_log_start"):
    """Log start moves up to `offset`; lower or the same changes nothing. `cause`: "retention", "delete-records", …"""

    leader_epoch: int
    broker_epoch: int
    offset: int
    cause: str


class Swap(msgspec.Struct, frozen=True, tag="swap"):
    """Replace `inputs` by `outputs` in one step, see `swap.swap_complaint`. The outputs' objects are in the store. The
    inputs become DELETE_STARTED. At most SWAP_SEGMENTS_MAX of either.

    Refused if an input is no longer COPY_FINISHED or ends at or below the log start; with `reaches_log_start`, also if
    a segment above the log start is below the first input. `erase_end` above 0: the swap erases the partition's records
    below that offset, which is at or below the tier's end. `expires_ms` above 0: refused after that time by the shard's
    wall clock, because the sweeper may have removed the outputs' objects.
    """

    leader_epoch: int
    broker_epoch: int
    proposal: str
    inputs: list[SegmentId]
    outputs: list[TieredSegment]
    reaches_log_start: bool = False
    erase_end: int = 0
    expires_ms: int = 0


class Describe(msgspec.Struct, frozen=True, tag="describe"):
    """Read the state, with or without a claim: Description. `after` continues a long one; `segments_max` 0 returns only
    the head."""

    after: SegmentId | None = None
    segments_max: int = SEGMENTS_PER_REQUEST_MAX


class DropPartition(msgspec.Struct, frozen=True, tag="drop_partition"):
    """The topic was deleted, according to the metadata at `metadata_offset`: claims are rejected from now on. Sent by
    the shard's own host. A claim by a leader with a higher metadata offset takes precedence."""

    metadata_offset: int


class ForgetPartition(msgspec.Struct, frozen=True, tag="forget_partition"):
    """All objects of a dropped partition were deleted: forget it. The shard's own host repeats this until the reply's
    `records` are empty (each forgets at most SEGMENTS_PER_REQUEST_MAX segments)."""


class Description(msgspec.Struct, frozen=True, tag="description"):
    """Encoded records of `__tier_state` (tier_records): the partition's own, None if there is none, and segments in
    order of their keys. `more`: further segments follow."""

    tier_state_offset: int
    partition: tuple[bytes, bytes] | None
    segments: list[tuple[bytes, bytes | None]]
    more: bool


class ClaimReply(msgspec.Struct, frozen=True, tag="claim_reply"):
    """The claim is granted. `description` has the beginning of the partition's state; Describe returns the rest."""

    description: Description


class Done(msgspec.Struct, frozen=True, tag="done"):
    """`records`: the changes, for replay into the leader's own PartitionTier; for a repeated request, the current
    state. `tier_state_offset`: of the partition's newest record; `after`: its value before. A leader whose view has
    another offset has missed a change, and reads everything again with Describe."""

    tier_state_offset: int
    after: int
    records: list[tuple[bytes, bytes | None]]


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """`error` is a RefusalCode; `text` is for the log."""

    error: str
    text: str


Mutation = Adopt | Empty | StartCopy | FinishCopy | StartDelete | FinishDelete | MoveLogStart | Swap
"""Requests of a leader that has claimed."""

Request = Claim | Mutation | Describe | DropPartition | ForgetPartition
Reply = ClaimReply | Done | Description | Refused

_encoder = msgspec.msgpack.Encoder()
_request_decoder: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
_reply_decoder: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)


def encode(message: Request | Reply) -> bytes:
    return _encoder.encode(message)


def decode_request(data: bytes) -> Request:
    """Raises ValueError for an invalid request."""
    return _request_decoder.decode(data)


def decode_reply(data: bytes) -> Reply:
    """Raises ValueError for an invalid reply."""
    return _reply_decoder.decode(data)
