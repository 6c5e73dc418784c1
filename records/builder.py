"""Builds batches, for internal topics and recompression."""

from collections.abc import Sequence

from msgspec.structs import replace

from common.errors import ErrorCode, ProtocolError
from records.batch import (
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    PREFIX_BYTES,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    BatchHeader,
    seal,
    write_header,
)
from records.compression import Compression, compress
from records.record import Record, encode_record, inflate_records, scan_records

NO_EPOCH = -1
CREATE_TIME = 0


def assemble(header: BatchHeader, *records: bytes | bytearray | memoryview) -> bytearray:
    """A batch of `header` and the compressed `records`, in parts; sets length and CRC."""
    size = HEADER_BYTES + sum(map(len, records))
    batch = bytearray(HEADER_BYTES)
    write_header(batch, 0, replace(header, batch_length=size - PREFIX_BYTES, magic=MAGIC, crc=0))
    for part in records:
        batch += part
    seal(batch, 0, size)
    return batch


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = CREATE_TIME,
) -> bytearray:
    """A batch of at least one record with consecutive offsets from `base_offset` on; the records' own are ignored.

    `timestamp_type` is 0 (create time) or `records.batch.TIMESTAMP_TYPE` (log append time: all records get the largest
    timestamp).
    """
    if not records:
        raise ValueError("a batch of no records")
    base_timestamp = records[0].timestamp
    body = b"".join(
        encode_record(record.timestamp - base_timestamp, index, record.key, record.value, record.headers)
        for index, record in enumerate(records)
    )
    attributes = compression | timestamp_type & TIMESTAMP_TYPE
    attributes |= (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=len(records) - 1,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )
    return assemble(header, compress(compression, body, level))


def empty_batch(header: BatchHeader) -> bytearray:
    """The result of compaction for a batch without remaining records: a header that keeps its offsets and sequences."""
    kept = header.attributes & (TIMESTAMP_TYPE | TRANSACTIONAL | CONTROL)
    return assemble(replace(header, attributes=kept, base_timestamp=NO_TIMESTAMP, count=0), b"")


def recompress(
    view: memoryview, at: int, size: int, codec: Compression, level: int | None, inflated_bytes_max: int
) -> bytearray:
    """The batch at `at` under `codec`, with the same offsets, timestamps and producer fields.

    Raises ProtocolError: CORRUPT_MESSAGE when the records contradict the header's count (the broker's CRC must not
    cover a producer's error), INVALID_RECORD beyond `inflated_bytes_max`. Runs off the event loop.
    """
    header, data = inflate_records(view, at, size, inflated_bytes_max=inflated_bytes_max)
    for index, span in enumerate(scan_records(header, data)):
        if span.offset_delta != index:
            raise ProtocolError(ErrorCode.INVALID_RECORD, f"offset delta {span.offset_delta} of record {index}")
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return assemble(replace(header, attributes=attributes), compress(codec, data, level))
