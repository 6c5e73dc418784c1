"""The hand-written Fetch codec of followers: request and response in one version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple

import msgspec

from common.errors import MalformedFrame
from wire.fetch_codec import (
    ERASED_END_TAG,
    FETCH,
    HELD,
    HELD_TAG,
    NO_TIER_END,
    TIER_END_TAG,
    TIER_GENERATION_TAG,
)
from wire.primitives import (
    INT32,
    INT64,
    PARTS_MAX,
    LeaderHint,
    count_at,
    put_uvarint,
    skip_tags,
    tag_count,
    tag_head,
    uvarint,
)
from wire.topic_lists import TopicList

REPLICA_FETCH_VERSION = 17

_CLIENT_ID = b"replica"
_REQUEST_HEAD = Struct(">ihhih")
_FETCH_HEAD = Struct(">iiibii")
_PART = Struct(">iiqiqiB")  # the last byte: how many tagged fields follow
_HELD_HEAD = put_uvarint(HELD_TAG) + bytes([HELD.size])
_REPLICA_STATE = Struct(">BBBiqB")  # one tagged field: tag 1, 13 bytes, no tags within
_RESPONSE_HEAD = Struct(">ihi")
_ROW = Struct(">ihqqq")
_EPOCH_END, _LEADER, _END_EPOCH = Struct(">iq"), Struct(">ii"), Struct(">qi")
_ABORTED_BYTES = 16
_TAG_DIVERGING, _TAG_LEADER, _TAG_SNAPSHOT = 0, 1, 2


class ReplicaPart(msgspec.Struct, frozen=True, gc=False):
    """A follower's fetch position. `last_fetched_epoch` lets the leader find divergence (KIP-595); -1: an empty log.

    The last two are as in `FetchPart`.
    """

    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int
    tier_generation: int = 0
    lacks_below: int = 0


class ReplicatedRow(msgspec.Struct, frozen=True, gc=False):
    """One partition of the leader's response; its batches are at `start:end` of the receive buffer."""

    topic: bytes
    partition: int
    error: int
    high_watermark: int
    log_start_offset: int
    start: int
    end: int
    diverging: tuple[int, int] | None  # (epoch, end offset): truncate to it before fetching on
    leader: LeaderHint | None
    snapshot: tuple[int, int] | None  # (end offset, epoch)
    tier_end: int = NO_TIER_END  # a new end of the tier; NO_TIER_END: unchanged
    erased_end: int = 0  # a new offset below which local copies have to be deleted; 0: unchanged
    tier_generation: int = 0  # of `tier_end`


class ReplicaFetched(msgspec.Struct, frozen=True, gc=False):
    correlation: int
    throttle_ms: int
    error: int
    session_id: int
    rows: list[ReplicatedRow]


def encode_replica_fetch(
    correlation: int,
    replica: int,
    replica_epoch: int,
    session_id: int,
    session_epoch: int,
    wait_ms_max: int,
    bytes_min: int,
    bytes_max: int,
    topics: Mapping[bytes, Sequence[ReplicaPart]],
    forgotten: Mapping[bytes, Sequence[int]],
) -> bytes:
    """A whole frame. `topics` and `forgotten` are keyed by 16-byte topic id; `replica_epoch` is the broker epoch."""
    out = bytearray(_REQUEST_HEAD.pack(0, FETCH, REPLICA_FETCH_VERSION, correlation, len(_CLIENT_ID)))
    out += _CLIENT_ID
    out.append(0)
    out += _FETCH_HEAD.pack(wait_ms_max, bytes_min, bytes_max, 0, session_id, session_epoch)
    out += put_uvarint(len(topics) + 1)
    for topic_id, rows in topics.items():
        out += topic_id
        out += put_uvarint(len(rows) + 1)
        for row in rows:
            out += _PART.pack(
                row.partition,
                row.leader_epoch,
                row.offset,
                row.last_fetched_epoch,
                row.log_start_offset,
                row.bytes_max,
                row.tier_generation > 0,
            )
            if row.tier_generation:
                out += _HELD_HEAD
                out += HELD.pack(row.tier_generation, row.lacks_below)
        out.append(0)
    out += put_uvarint(len(forgotten) + 1)
    for topic_id, indexes in forgotten.items():
        out += topic_id
        out += put_uvarint(len(indexes) + 1)
        for index in indexes:
            out += INT32.pack(index)
        out.append(0)
    out.append(1)  # an empty rack
    out += _REPLICA_STATE.pack(1, 1, 13, replica, replica_epoch, 0)
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def decode_replica_fetch(buffer: bytearray, at: int, end: int) -> ReplicaFetched:
    """A response frame from its correlation id on. Raises MalformedFrame."""
    try:
        (correlation,) = INT32.unpack_from(buffer, at)
        at = skip_tags(buffer, at + INT32.size, end)
        throttle_ms, error, session_id = _RESPONSE_HEAD.unpack_from(buffer, at)
        rows, at = _ROWS.read(buffer, at + _RESPONSE_HEAD.size, end, REPLICA_FETCH_VERSION, b"", PARTS_MAX)
        at = skip_tags(buffer, at, end)
    except (IndexError, struct_error) as failure:
        raise MalformedFrame("fetch response: cut short") from failure
    if at != end:
        raise MalformedFrame("fetch response: length of the body")
    return ReplicaFetched(correlation, throttle_ms, error, session_id, rows)


def _read_rows(
    buffer: bytearray, at: int, end: int, version: int, topic: bytes, count: int, rows: list[ReplicatedRow]
) -> int:
    for _ in range(count):
        at = _row(buffer, at, end, topic, rows)
    return at


_ROWS = TopicList(0, 0, _read_rows)


def _row(buffer: bytearray, at: int, end: int, topic: bytes, rows: list[ReplicatedRow]) -> int:
    index, error, high_watermark, _, log_start = _ROW.unpack_from(buffer, at)
    at += _ROW.size
    if buffer[at] > 1:  # leaders send a replica no aborted transactions, but they would be well formed
        count, at = count_at(buffer, at, end, True)
        for _ in range(count):
            at = skip_tags(buffer, at + _ABORTED_BYTES, end)
    else:
        at += 1
    at += 4  # the preferred read replica
    size = buffer[at]
    if size < 0x80:
        at += 1
    else:
        size, at = uvarint(buffer, at)
    start = stop = at
    if size:
        stop += size - 1
    if stop > end:
        raise MalformedFrame("fetch response: length of records")
    if not buffer[stop]:
        rows.append(ReplicatedRow(topic, index, error, high_watermark, log_start, start, stop, None, None, None))
        return stop + 1
    tags, at = _row_tags(buffer, stop, end)
    rows.append(ReplicatedRow(topic, index, error, high_watermark, log_start, start, stop, *tags))
    return at


class _RowTags(NamedTuple):
    """In the order of the row's fields."""

    diverging: tuple[int, int] | None
    leader: LeaderHint | None
    snapshot: tuple[int, int] | None
    tier_end: int
    erased_end: int
    tier_generation: int


def _row_tags(buffer: bytearray, at: int, end: int) -> tuple[_RowTags, int]:
    diverging: tuple[int, int] | None = None
    leader: LeaderHint | None = None
    snapshot: tuple[int, int] | None = None
    tier_end, erased_end, generation = NO_TIER_END, 0, 0
    count, at = tag_count(buffer, at)
    for _ in range(count):
        tag, at, stop = tag_head(buffer, at, end)
        if tag == _TAG_DIVERGING:
            epoch, end_offset = _EPOCH_END.unpack_from(buffer, at)
            diverging = (epoch, end_offset)
            at = skip_tags(buffer, at + _EPOCH_END.size, stop)
        elif tag == _TAG_LEADER:
            leader = LeaderHint(*_LEADER.unpack_from(buffer, at))
            at = skip_tags(buffer, at + _LEADER.size, stop)
        elif tag == _TAG_SNAPSHOT:
            end_offset, epoch = _END_EPOCH.unpack_from(buffer, at)
            snapshot = (end_offset, epoch)
            at = skip_tags(buffer, at + _END_EPOCH.size, stop)
        elif tag == TIER_END_TAG:
            (tier_end,) = INT64.unpack_from(buffer, at)
            at += INT64.size
        elif tag == ERASED_END_TAG:
            (erased_end,) = INT64.unpack_from(buffer, at)
            at += INT64.size
        elif tag == TIER_GENERATION_TAG:
            (generation,) = INT32.unpack_from(buffer, at)
            at += INT32.size
        else:
            at = stop
        if at != stop:
            raise MalformedFrame("fetch response: tagged field")
    return _RowTags(diverging, leader, snapshot, tier_end, erased_end, generation), at
