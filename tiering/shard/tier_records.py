"""Keys and values of `__tier_state`: one key per partition, one per segment, and one for a swap while its segments'
records are written. Compaction keeps the newest value of each key, which is the complete state; a tombstone ends a
segment, a swap or a partition.

Key: version byte 0, kind byte, then big-endian: topic id (16 bytes), partition (int32), and for a segment its base
offset (int64) and uuid (16 bytes). Value: one MessagePack array, to which fields are only ever added at the end. Keys
of an unknown version or kind are ignored.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

import msgspec

from tiering.bucket.segment import Section, SegmentId, SegmentState, TieredSegment

KEY_VERSION = 0


class KeyKind(IntEnum):
    PARTITION = 1
    SEGMENT = 2
    SWAP = 3


class TierKey(NamedTuple):
    """`topic_id` has 16 bytes; `segment` is None for a partition's own record, and for its swap."""

    kind: KeyKind
    topic_id: bytes = bytes(16)
    partition: int = 0
    segment: SegmentId | None = None


_BY = " by "


def cause_text(cause: str, actor: str) -> str:
    """A log start's cause, with the actor if there is one. No cause contains ` by `."""
    return f"{cause}{_BY}{actor}" if actor else cause


def cause_and_actor(text: str) -> tuple[str, str]:
    """The inverse of `cause_text`; actor "" for none."""
    cause, _, actor = text.partition(_BY)
    return cause, actor


class TierRecord(NamedTuple):
    """`value` is None for a tombstone."""

    key: bytes
    value: bytes | None


class PartitionRecord(msgspec.Struct, frozen=True, array_like=True):
    """A partition's values, without its segments.

    The claim is (leader epoch, broker id, broker epoch), all -1 before the first; `metadata_offset` is the claiming
    leader's position in the cluster's metadata. `tier_end_offset` is the end of everything ever tiered, as of this
    record. `adopted_version` is the manifest version that the state was adopted from, 0 for none; `adopting`: while
    that is under way; `adopted_end_offset`: where it ended. `dropped_ms` is when the topic's deletion was detected,
    else 0. `state_offset` is this record's own offset in `__tier_state`.

    `generation` counts how often the tier was emptied because tiering was disabled. Segments of lower generations no
    longer belong to the partition since the record at `emptied_offset`, written at `emptied_ms` (wall clock).

    `swapped_offset` is the state offset of the newest swap, -1 before the first. Records below `erased_end_offset` were
    erased at `erased_ms` (wall clock); no earlier copy of them may remain anywhere.
    """

    topic: str
    tenant: str
    leader_epoch: int = -1
    broker_id: int = -1
    broker_epoch: int = -1
    metadata_offset: int = -1
    log_start_offset: int = 0
    log_start_cause: str = ""
    tier_end_offset: int = 0
    adopted_version: int = 0
    adopting: bool = False
    dropped_ms: int = 0
    state_offset: int = -1
    swapped_offset: int = -1
    erased_end_offset: int = 0
    erased_ms: int = 0
    generation: int = 0
    emptied_offset: int = -1
    emptied_ms: int = 0
    adopted_end_offset: int = 0


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """`sections` are (name, position, length, crc32c); base offset and uuid are in the key. `generation` is the
    partition's when this was written."""

    state: int
    end_offset: int
    max_timestamp: int
    log_bytes: int
    object_bytes: int
    log_crc32c: int
    sections: list[tuple[str, int, int, int]]
    epochs: list[tuple[int, int]]
    broker_id: int
    leader_epoch: int
    changed_ms: int
    has_transactions: bool
    records: int | None
    state_offset: int = -1
    rewritten: bool = False
    generation: int = 0


class SwapRecord(msgspec.Struct, frozen=True, array_like=True):
    """A complete swap: its replay alone gives the swapped state. `proposal` is the uuid of the job's proposal;
    `outputs` are (base offset, uuid, encoded SegmentRecord); `erase_end` is 0 unless it is an erasure.

    Records of each segment follow, then a tombstone for this one, which is missing only if the host died in between.
    """

    proposal: str
    inputs: list[tuple[int, bytes]]
    outputs: list[tuple[int, bytes, bytes]]
    changed_ms: int
    erase_end: int
    state_offset: int

    def segment_ids(self) -> list[SegmentId]:
        """Of the inputs, then of the outputs."""
        touched = [*self.inputs, *((base_offset, uuid) for base_offset, uuid, _ in self.outputs)]
        return [SegmentId(base_offset, uuid.hex()) for base_offset, uuid in touched]


STATES = (
    SegmentState.COPY_STARTED,
    SegmentState.COPY_FINISHED,
    SegmentState.DELETE_STARTED,
    SegmentState.DELETE_FINISHED,
)
_STATE_NUMBERS = {state: number for number, state in enumerate(STATES)}

_HEAD = Struct(">BB")
_PARTITION = Struct(">BB16si")
_SEGMENT = Struct(">BB16siq16s")
_encoder = msgspec.msgpack.Encoder()
_partition_decoder = msgspec.msgpack.Decoder(PartitionRecord)
_segment_decoder = msgspec.msgpack.Decoder(SegmentRecord)
_swap_decoder = msgspec.msgpack.Decoder(SwapRecord)


def partition_key(topic_id: bytes, partition: int) -> bytes:
    return _PARTITION.pack(KEY_VERSION, KeyKind.PARTITION, topic_id, partition)


def segment_key(topic_id: bytes, partition: int, segment: SegmentId) -> bytes:
    uuid = bytes.fromhex(segment.uuid)
    return _SEGMENT.pack(KEY_VERSION, KeyKind.SEGMENT, topic_id, partition, segment.base_offset, uuid)


def swap_key(topic_id: bytes, partition: int) -> bytes:
    return _PARTITION.pack(KEY_VERSION, KeyKind.SWAP, topic_id, partition)


def decode_key(key: bytes) -> TierKey | None:
    """None for a key of an unknown version or kind. Raises ValueError for an invalid key."""
    if len(key) < _HEAD.size:
        raise ValueError("a key of the tier state has at least two bytes")
    version, kind = _HEAD.unpack_from(key)
    if version != KEY_VERSION:
        return None
    if kind == KeyKind.SEGMENT:
        _check_length(key, _SEGMENT.size)
        _, _, topic_id, partition, base_offset, uuid = _SEGMENT.unpack(key)
        return TierKey(KeyKind.SEGMENT, topic_id, partition, SegmentId(base_offset, uuid.hex()))
    if kind in (KeyKind.PARTITION, KeyKind.SWAP):
        _check_length(key, _PARTITION.size)
        _, _, topic_id, partition = _PARTITION.unpack(key)
        return TierKey(KeyKind(kind), topic_id, partition)
    return None


def _check_length(key: bytes, size: int) -> None:
    if len(key) != size:
        raise ValueError(f"a key of {len(key)} bytes, not {size}")


def encode_value(record: PartitionRecord | SwapRecord) -> bytes:
    return _encoder.encode(record)


def encode_segment(segment: TieredSegment, state_offset: int, generation: int = 0) -> bytes:
    record = SegmentRecord(
        _STATE_NUMBERS[segment.state],
        segment.end_offset,
        segment.max_timestamp,
        segment.log_bytes,
        segment.object_bytes,
        segment.log_crc32c,
        [(name, part.position, part.length, part.crc32c) for name, part in sorted(segment.sections.items())],
        segment.epochs,
        segment.broker_id,
        segment.leader_epoch,
        segment.changed_ms,
        segment.has_transactions,
        segment.records,
        state_offset,
        segment.rewritten,
        generation,
    )
    return _encoder.encode(record)


def decode_partition(value: bytes) -> PartitionRecord:
    """Raises ValueError for a damaged value, as those below do (msgspec's errors are ValueErrors)."""
    return _partition_decoder.decode(value)


def decode_swap(value: bytes) -> SwapRecord:
    return _swap_decoder.decode(value)


def decode_segment_record(value: bytes) -> SegmentRecord:
    record = _segment_decoder.decode(value)
    if not 0 <= record.state < len(STATES):
        raise ValueError(f"segment state {record.state} is not known")
    return record


def decode_segment(segment: SegmentId, value: bytes) -> TieredSegment:
    record = decode_segment_record(value)
    return TieredSegment(
        uuid=segment.uuid,
        base_offset=segment.base_offset,
        end_offset=record.end_offset,
        max_timestamp=record.max_timestamp,
        log_bytes=record.log_bytes,
        object_bytes=record.object_bytes,
        log_crc32c=record.log_crc32c,
        sections={name: Section(position, length, crc) for name, position, length, crc in record.sections},
        epochs=record.epochs,
        state=STATES[record.state],
        broker_id=record.broker_id,
        leader_epoch=record.leader_epoch,
        changed_ms=record.changed_ms,
        has_transactions=record.has_transactions,
        records=record.records,
        rewritten=record.rewritten,
    )
