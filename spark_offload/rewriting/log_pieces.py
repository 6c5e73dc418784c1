"""The log bytes of a segment object, a piece of whole batches at a time, each byte checked before it is used.

Replacing a segment needs more certainty than reading it: beside every batch's own CRC, which does not cover its
offsets, the checksum of the whole log is compared. Errors name their position.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from common.checksum import crc32c
from object_store.errors import ObjectAltered, ObjectMissing, ObjectTruncated
from records.batch import HEADER_BYTES, MAGIC, has_valid_crc, read_header
from spark_offload.options import INFLATED_BYTES_MAX
from spark_offload.segments.batch_scan import BatchTable, scan_batches, whole_batches_end
from spark_offload.segments.payload import payloads
from spark_offload.segments.record_table import locate_records
from spark_offload.segments.varints import DamagedRecords
from tiering.bucket.segment import Section, TieredSegment

if TYPE_CHECKING:
    from object_store.blocking import BlockingStore

CHUNK_BYTES = 8 << 20
NO_POSITION = -1


class DamagedObject(Exception):
    """An input that is missing, cut off or altered. `position` is a byte of the object, -1 for none in particular."""

    def __init__(self, key: str, position: int, reason: str) -> None:
        super().__init__(f"{key}, byte {position}: {reason}" if position >= 0 else f"{key}: {reason}")
        self.key = key
        self.position = position
        self.reason = reason

    def __reduce__(self) -> tuple[type[DamagedObject], tuple[str, int, str]]:
        return DamagedObject, (self.key, self.position, self.reason)


class Piece(NamedTuple):
    """Whole batches that begin at byte `position` of the object `key`."""

    key: str
    position: int
    view: memoryview
    batches: BatchTable

    @contextmanager
    def located(self) -> Iterator[None]:
        """Turns DamagedRecords of the block into DamagedObject, at the first batch that cannot be read."""
        try:
            yield
        except DamagedRecords as error:
            at, reason = _first_unreadable(self.view, self.batches, str(error))
            raise DamagedObject(self.key, self.position + at if at >= 0 else at, reason) from error


def log_pieces(
    store: BlockingStore, key: str, segment: TieredSegment, chunk_bytes: int = CHUNK_BYTES
) -> Iterator[Piece]:
    """All of a segment's log in order. While one piece is used the next one is on its way.

    Raises DamagedObject, and StoreError while the store does not answer.
    """
    at, size = 0, min(chunk_bytes, segment.log_bytes)
    checksum, next_offset = 0, segment.base_offset
    with ThreadPoolExecutor(1, "tidelog-prefetch") as ahead:
        coming: Future[bytes] | None = ahead.submit(store.get, key, at, size) if size else None
        while coming is not None:
            try:
                view = memoryview(coming.result())
            except ObjectMissing:
                raise DamagedObject(key, NO_POSITION, "the object is missing") from None
            except (ObjectTruncated, ObjectAltered) as error:
                raise DamagedObject(key, at, error.reason) from None
            end, next_size = _whole_end(key, at, view)
            following = at + end
            if next_size > segment.log_bytes - following or (not end and next_size <= size):
                raise DamagedObject(key, following, "a batch that is cut off")
            size = min(max(chunk_bytes, next_size), segment.log_bytes - following)
            coming = ahead.submit(store.get, key, following, size) if size else None
            if end:
                piece = _scanned(key, at, view[:end], next_offset, segment.end_offset)
                checksum = crc32c(piece.view, checksum)
                next_offset = int(piece.batches.last_offset[-1]) + 1
                at = following
                yield piece
    if checksum != segment.log_crc32c:
        raise DamagedObject(key, NO_POSITION, "its batches are sound, and the checksum of the log is another one")


def read_section(store: BlockingStore, key: str, name: str, section: Section) -> bytes:
    """Raises DamagedObject, StoreError."""
    try:
        data = store.get(key, section.position, section.length) if section.length else b""
    except ObjectMissing:
        raise DamagedObject(key, NO_POSITION, "the object is missing") from None
    except (ObjectTruncated, ObjectAltered) as error:
        raise DamagedObject(key, section.position, error.reason) from None
    if crc32c(data) != section.crc32c:
        raise DamagedObject(key, section.position, f"wrong checksum of the section {name}")
    return data


def _whole_end(key: str, position: int, view: memoryview) -> tuple[int, int]:
    try:
        return whole_batches_end(view)
    except DamagedRecords as error:
        at, reason = _first_damaged(view, str(error))
        raise DamagedObject(key, position + at, reason) from error


def _scanned(key: str, position: int, view: memoryview, next_offset: int, end_offset: int) -> Piece:
    try:
        batches = scan_batches(view)
    except DamagedRecords as error:
        at, reason = _first_damaged(view, str(error))
        raise DamagedObject(key, position + at, reason) from error
    if batches.base_offset[0] < next_offset or batches.last_offset[-1] >= end_offset:
        first, last = int(batches.base_offset[0]), int(batches.last_offset[-1])
        reason = f"offsets {first} to {last}, where {next_offset} to {end_offset - 1} are due"
        raise DamagedObject(key, position, reason)
    return Piece(key, position, view, batches)


def _first_damaged(view: memoryview, reason: str) -> tuple[int, str]:
    """Where the first thing lies that is no sound batch, and what is wrong with it."""
    at, end, next_offset = 0, len(view), -1
    while end - at >= HEADER_BYTES:
        header = read_header(view, at)
        size = header.size
        if not HEADER_BYTES <= size <= end - at:
            return at, f"a batch of {size} bytes"
        if header.magic != MAGIC:
            return at, f"a batch of message format {header.magic}"
        if not has_valid_crc(view, at, header):
            return at, "wrong CRC of a batch"
        if header.last_offset_delta < 0 or not 0 <= header.count <= header.last_offset_delta + 1:
            return at, f"a batch of {header.count} records and {header.last_offset_delta + 1} offsets"
        if header.base_offset < max(next_offset, 0):
            return at, f"offset {header.base_offset} where {next_offset} or a later one is due"
        next_offset = header.next_offset
        at += size
    return at, reason


def _first_unreadable(view: memoryview, batches: BatchTable, reason: str) -> tuple[int, str]:
    for row in range(len(batches)):
        try:
            for payload in payloads(view, batches.where(slice(row, row + 1)), inflated_bytes_max=INFLATED_BYTES_MAX):
                locate_records(payload)
        except DamagedRecords as error:
            return int(batches.at[row]), str(error)
    return NO_POSITION, reason
