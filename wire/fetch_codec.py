"""Fetch by hand, the serving side: requests from positions of the receive buffer, replies as bytes and file regions.

Source: FetchRequest and FetchResponse of Apache Kafka 4.1; KIP-227 (sessions), KIP-392 (rack), KIP-516 (topic ids),
KIP-595 (diverging epoch, current leader, snapshot id), KIP-903 (replica state), KIP-951 (node endpoints).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as struct_error

import msgspec
from msgspec.structs import replace

from common.errors import MalformedFrame
from common.pacing import Work
from wire.apis import ApiKey
from wire.outgoing import FileRegion, Part
from wire.primitives import (
    INT32,
    INT64,
    NULL_ARRAY,
    PARTS_MAX,
    Endpoint,
    LeaderHint,
    begun_frame,
    put_count,
    put_endpoints,
    put_uvarint,
    skip_tags,
    string_at,
    tag_count,
    tag_head,
)
from wire.topic_lists import PART_COST, PARTS_AT_ONCE, TopicList, by_topic, grouping

FETCH = int(ApiKey.FETCH)
FETCH_VERSIONS = (4, 18)
NO_TIER_END = -1
TIER_END_TAG = 10_000  # far from Apache Kafka's; only ever sent to followers, on the internal listener
ERASED_END_TAG = 10_001  # likewise
TIER_GENERATION_TAG = 10_002  # likewise
HELD_TAG = 10_000  # of a partition in a follower's request
HELD = Struct(">iq")  # the two fields of FetchPart
_SESSIONS_FROM, _RACK_FROM, _FLEXIBLE_FROM, _IDS_FROM, _STATE_FROM, _ENDPOINTS_FROM = 7, 11, 12, 13, 15, 16
_TAG_CLUSTER, _TAG_REPLICA = 0, 1

_HEAD_4, _HEAD_7 = Struct(">iiib"), Struct(">iiibii")
_PART_4, _PART_5, _PART_9, _PART_12 = Struct(">iqi"), Struct(">iqqi"), Struct(">iiqqi"), Struct(">iiqiqi")
_REPLICA_STATE = Struct(">iq")
_SESSION = Struct(">hi")
_ROW_4, _ROW_5 = Struct(">ihqq"), Struct(">ihqqq")
_ROW_12 = Struct(">ihqqqBi")  # without aborted transactions
_TIER_END_HEAD = put_uvarint(TIER_END_TAG) + b"\x08"
_TIER_GENERATION_HEAD = put_uvarint(TIER_GENERATION_TAG) + b"\x04"
_ERASED_END_HEAD = put_uvarint(ERASED_END_TAG) + b"\x08"
_EPOCH_END, _LEADER, _END_EPOCH = Struct(">iq"), Struct(">ii"), Struct(">qi")
ABORTED_BYTES, _MANY_ABORTED = 16, 100


class FetchPart(msgspec.Struct, frozen=True, gc=False):
    """Epochs and log start are -1 if the version lacks them or the client does not send them.

    A follower of a topic for which tiering was disabled also sends the generation of the tier that it knows, and the
    offset below which its disk lacks records from its log start on; 0 if it lacks none.
    """

    topic: bytes
    partition: int
    leader_epoch: int
    offset: int
    last_fetched_epoch: int
    log_start_offset: int
    bytes_max: int
    tier_generation: int = 0
    lacks_below: int = 0


class FetchCall(msgspec.Struct, frozen=True, gc=False):
    """`replica` is -1 for a consumer. `session_epoch` -1 means no session, 0 asks for a new one (KIP-227)."""

    replica: int
    replica_epoch: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation: int
    session_id: int
    session_epoch: int
    parts: list[FetchPart]
    forgotten: list[tuple[bytes, int]]
    rack: bytes
    cluster_id: bytes | None


class FetchedRow(msgspec.Struct, frozen=True, gc=False):
    """The answer for one partition. `aborted` holds a producer id and a first offset for each aborted transaction, as
    int64, big-endian; None for read_uncommitted."""

    topic: bytes
    partition: int
    error: int
    high_watermark: int
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: FileRegion | bytes | bytearray | None = None
    aborted: bytes | bytearray | None = None
    preferred_replica: int = -1
    diverging: tuple[int, int] | None = None  # (epoch, end offset)
    leader: LeaderHint | None = None
    snapshot: tuple[int, int] | None = None  # (end offset, epoch)
    tier_end: int = NO_TIER_END  # to followers of a tiered partition: up to where the tier holds everything
    erased_end: int = 0  # only to followers, if not 0: local copies of records below it must be deleted
    tier_generation: int = 0  # of `tier_end`


def _read_parts(
    buffer: bytearray, at: int, end: int, version: int, topic: bytes, count: int, parts: list[FetchPart]
) -> int:
    if version >= _FLEXIBLE_FROM:
        for _ in range(count):
            part = FetchPart(topic, *_PART_12.unpack_from(buffer, at))
            at += _PART_12.size
            if buffer[at]:
                part, at = _tagged(part, buffer, at, end)
            else:
                at += 1
            parts.append(part)
        return at
    layout = _PART_9 if version >= 9 else _PART_5 if version >= 5 else _PART_4
    for _ in range(count):
        values = layout.unpack_from(buffer, at)
        at += layout.size
        epoch = values[1] if version >= 9 else -1
        offset = values[2] if version >= 9 else values[1]
        log_start = values[-2] if version >= 5 else -1
        parts.append(FetchPart(topic, values[0], epoch, offset, -1, log_start, values[-1]))
    return at


def _tagged(part: FetchPart, buffer: bytearray, at: int, end: int) -> tuple[FetchPart, int]:
    """`part` with the tagged fields at `at`, and the position behind them."""
    count, at = tag_count(buffer, at)
    for _ in range(count):
        tag, at, stop = tag_head(buffer, at, end)
        if tag == HELD_TAG:
            if stop - at != HELD.size:
                raise MalformedFrame("fetch: tagged field")
            generation, lacks_below = HELD.unpack_from(buffer, at)
            part = replace(part, tier_generation=generation, lacks_below=lacks_below)
        at = stop
    return part, at


def _read_forgotten(
    buffer: bytearray, at: int, end: int, version: int, topic: bytes, count: int, parts: list[tuple[bytes, int]]
) -> int:
    for _ in range(count):
        parts.append((topic, INT32.unpack_from(buffer, at)[0]))
        at += INT32.size
    return at


_PARTS = TopicList(_FLEXIBLE_FROM, _IDS_FROM, _read_parts)
_FORGOTTEN = TopicList(_FLEXIBLE_FROM, _IDS_FROM, _read_forgotten)
_Lists = tuple[tuple[list[FetchPart], int], tuple[list[tuple[bytes, int]], int]]


def decode_fetch(
    buffer: bytearray,
    at: int,
    end: int,
    version: int,
    prefix: bytes = b"",
    most: int = PARTS_MAX,
    listed: _Lists | None = None,
) -> FetchCall:
    """The body at `at` (after the request header) of a frame that ends at `end`. Raises MalformedFrame.

    ManyParts when it names more than `most` topics or partitions. Topics that the request names get `prefix` before
    their names. `listed` are its lists of topics, each with the position behind it, if they were read before.
    """
    flexible = version >= _FLEXIBLE_FROM
    replica = replica_epoch = -1
    session_id, session_epoch = 0, -1
    forgotten: list[tuple[bytes, int]] = []
    rack = b""
    cluster_id: bytes | None = None
    try:
        if version < _STATE_FROM:
            (replica,) = INT32.unpack_from(buffer, at)
            at += 4
        if version >= _SESSIONS_FROM:
            wait, bytes_min, bytes_max, isolation, session_id, session_epoch = _HEAD_7.unpack_from(buffer, at)
            at += _HEAD_7.size
        else:
            wait, bytes_min, bytes_max, isolation = _HEAD_4.unpack_from(buffer, at)
            at += _HEAD_4.size
        parts, at = _PARTS.read(buffer, at, end, version, prefix, most) if listed is None else listed[0]
        if version >= _SESSIONS_FROM:
            forgotten, at = _FORGOTTEN.read(buffer, at, end, version, prefix, most) if listed is None else listed[1]
        if version >= _RACK_FROM:
            text, at = string_at(buffer, at, end, flexible)
            if text is None:
                raise MalformedFrame("fetch: rack")
            rack = text
        if flexible:
            if buffer[at]:
                replica, replica_epoch, cluster_id, at = _tags(buffer, at, end, version, replica)
            else:
                at += 1
    except (IndexError, struct_error) as error:
        raise MalformedFrame("fetch: cut short") from error
    if at > end:  # bytes behind the body are ignored, as Apache Kafka does
        raise MalformedFrame("fetch: length of the body")
    return FetchCall(
        replica,
        replica_epoch,
        wait,
        bytes_min,
        bytes_max,
        isolation,
        session_id,
        session_epoch,
        parts,
        forgotten,
        rack,
        cluster_id,
    )


def fetch_decoding(buffer: bytearray, at: int, end: int, version: int, prefix: bytes = b"") -> Work[FetchCall]:
    """`decode_fetch` of any number of partitions as work."""
    head = _HEAD_7.size if version >= _SESSIONS_FROM else _HEAD_4.size
    topics_at = at + head + (INT32.size if version < _STATE_FROM else 0)
    parts = yield from _PARTS.reading(buffer, topics_at, end, version, prefix)
    forgotten: tuple[list[tuple[bytes, int]], int] = ([], parts[1])
    if version >= _SESSIONS_FROM:
        forgotten = yield from _FORGOTTEN.reading(buffer, parts[1], end, version, prefix)
    return decode_fetch(buffer, at, end, version, prefix, listed=(parts, forgotten))


def _tags(buffer: bytearray, at: int, end: int, version: int, replica: int) -> tuple[int, int, bytes | None, int]:
    """(replica, its epoch, cluster id, next position) from the tagged fields at the end of a request."""
    replica_epoch, cluster_id = -1, None
    count, at = tag_count(buffer, at)
    for _ in range(count):
        tag, at, stop = tag_head(buffer, at, end)
        if tag == _TAG_REPLICA and version >= _STATE_FROM:
            replica, replica_epoch = _REPLICA_STATE.unpack_from(buffer, at)
            at = skip_tags(buffer, at + _REPLICA_STATE.size, stop)
        elif tag == _TAG_CLUSTER:
            cluster_id, at = string_at(buffer, at, stop, True)
        else:
            at = stop
        if at != stop:
            raise MalformedFrame("fetch: tagged field")
    return replica, replica_epoch, cluster_id, at


def encode_fetch_response(
    version: int,
    correlation: int,
    error: int,
    session_id: int,
    rows: list[FetchedRow],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
    prefix: bytes = b"",
) -> list[Part]:
    """A whole frame as bytes and regions in turn; rows keep their order within a topic.

    `prefix` is left out of topics' names, all of which begin with it.

    No records are sent as empty, never as null. Fields that `version` lacks are left out.
    """
    topics, sent = by_topic(rows), 0
    head = frame = _begun(version, correlation, error, session_id, throttle_ms, len(topics))
    parts: list[Part] = [head]
    for topic, of_topic in topics.items():
        _PARTS.put_head(head, version, topic, len(of_topic), len(prefix))
        head, sent = _put_rows(parts, head, sent, version, of_topic)
        if version >= _FLEXIBLE_FROM:
            head.append(0)
    _end(frame, head, sent, version, endpoints)
    return parts


def fetch_encoding(
    version: int,
    correlation: int,
    error: int,
    session_id: int,
    rows: list[FetchedRow],
    throttle_ms: int = 0,
    endpoints: Sequence[Endpoint] = (),
    prefix: bytes = b"",
) -> Work[list[Part]]:
    """`encode_fetch_response` as work."""
    topics, sent = (yield from grouping(rows)), 0
    head = frame = _begun(version, correlation, error, session_id, throttle_ms, len(topics))
    parts: list[Part] = [head]
    for topic, of_topic in topics.items():
        _PARTS.put_head(head, version, topic, len(of_topic), len(prefix))
        for begin in range(0, len(of_topic), PARTS_AT_ONCE):
            some = of_topic[begin : begin + PARTS_AT_ONCE]
            head, sent = _put_rows(parts, head, sent, version, some)
            yield len(some) * PART_COST
        if version >= _FLEXIBLE_FROM:
            head.append(0)
    _end(frame, head, sent, version, endpoints)
    return parts


def _begun(
    version: int, correlation: int, error: int, session_id: int, throttle_ms: int, topics: int
) -> bytearray:  # fmt: skip
    head = begun_frame(correlation, version >= _FLEXIBLE_FROM)
    head += INT32.pack(throttle_ms)
    if version >= _SESSIONS_FROM:
        head += _SESSION.pack(error, session_id)
    head += put_count(topics, version >= _FLEXIBLE_FROM)
    return head


def _put_rows(
    parts: list[Part], head: bytearray, sent: int, version: int, rows: list[FetchedRow]
) -> tuple[bytearray, int]:
    """Append after `head`, the last of `parts`. Returns the new last part, and the size of all parts before it."""
    flexible = version >= _FLEXIBLE_FROM
    for row in rows:
        records = row.records
        head += _row_head(version, row)
        if records is None or isinstance(records, (bytes, bytearray)):
            inline = records or b""
            head += put_uvarint(len(inline) + 1) if flexible else INT32.pack(len(inline))
            head += inline
        else:
            length = records.length
            head += put_uvarint(length + 1) if flexible else INT32.pack(length)
            sent += len(head) + length
            head = bytearray()
            parts += (records, head)
        if flexible:
            head += _row_tags(row)
    return head, sent


def _end(frame: bytearray, head: bytearray, sent: int, version: int, endpoints: Sequence[Endpoint]) -> None:
    """`head` is the last of the parts, perhaps `frame`, the first, itself."""
    if version >= _FLEXIBLE_FROM:
        head += put_endpoints(endpoints if version >= _ENDPOINTS_FROM else ())
    INT32.pack_into(frame, 0, sent + len(head) - 4)


def _row_head(version: int, row: FetchedRow) -> bytes:
    aborted, flexible = row.aborted, version >= _FLEXIBLE_FROM
    if aborted is None and flexible:
        return _ROW_12.pack(
            row.partition,
            row.error,
            row.high_watermark,
            row.last_stable_offset,
            row.log_start_offset,
            0,
            row.preferred_replica,
        )
    head = (row.partition, row.error, row.high_watermark, row.last_stable_offset)
    packed = _ROW_5.pack(*head, row.log_start_offset) if version >= 5 else _ROW_4.pack(*head)
    if aborted is None:
        packed += NULL_ARRAY
    else:
        packed += put_count(len(aborted) // ABORTED_BYTES, flexible) + (_with_tags(aborted) if flexible else aborted)
    return packed + INT32.pack(row.preferred_replica) if version >= _RACK_FROM else packed


def _with_tags(aborted: bytes | bytearray) -> bytes | bytearray:
    """Each of the transactions with an empty list of tagged fields behind it. There may be very many."""
    if len(aborted) < ABORTED_BYTES * _MANY_ABORTED:
        return b"".join([aborted[at : at + ABORTED_BYTES] + b"\0" for at in range(0, len(aborted), ABORTED_BYTES)])
    tagged = bytearray(len(aborted) // ABORTED_BYTES * (ABORTED_BYTES + 1))
    for at in range(ABORTED_BYTES):
        tagged[at :: ABORTED_BYTES + 1] = aborted[at::ABORTED_BYTES]
    return tagged


def _row_tags(row: FetchedRow) -> bytes:
    diverging, leader, snapshot, tier_end = row.diverging, row.leader, row.snapshot, row.tier_end
    erased_end = row.erased_end
    if diverging is None and leader is None and snapshot is None and tier_end == NO_TIER_END and not erased_end:
        return b"\0"
    tags: list[bytes] = []
    if diverging is not None:
        tags.append(b"\0\x0d" + _EPOCH_END.pack(*diverging) + b"\0")
    if leader is not None:
        tags.append(b"\1\x09" + _LEADER.pack(*leader) + b"\0")
    if snapshot is not None:
        tags.append(b"\2\x0d" + _END_EPOCH.pack(*snapshot) + b"\0")
    if tier_end != NO_TIER_END:
        tags.append(_TIER_END_HEAD + INT64.pack(tier_end))
    if erased_end:
        tags.append(_ERASED_END_HEAD + INT64.pack(erased_end))
    if row.tier_generation and tier_end != NO_TIER_END:
        tags.append(_TIER_GENERATION_HEAD + INT32.pack(row.tier_generation))
    return put_uvarint(len(tags)) + b"".join(tags)
