"""Bytes of segments for the tests of the codec, and what kafka-python reads from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from kafka.record import MemoryRecords

from records.builder import build_batch
from records.compression import Compression
from records.record import Record

NOW = 1_700_000_000_000
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))),
    ]
)


class Seen(NamedTuple):
    """One record as a reader tells it; the timestamp in ms."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def segment(batches: Sequence[Sequence[Record]], codec: Compression = Compression.NONE, **fields: Any) -> bytes:
    """The batches one after the other from offset 0 on."""
    data = bytearray()
    offset = 0
    for records in batches:
        data += build_batch(records, base_offset=offset, compression=codec, **fields)
        offset += len(records)
    return bytes(data)


def by_kafka_python(data: bytes) -> list[Seen]:
    reader = MemoryRecords(data)
    seen = []
    while (batch := reader.next_batch()) is not None:
        if batch.is_control_batch:
            continue
        for record in batch:
            headers = tuple((name, value) for name, value in record.headers)
            seen.append(Seen(record.offset, record.timestamp, record.timestamp_type, record.key, record.value, headers))
    return seen


def of_arrow(batches: Sequence[pa.RecordBatch]) -> list[Seen]:
    seen = []
    for batch in batches:
        batch.validate(full=True)
        ticks = batch.column("timestamp").cast(pa.int64()).to_pylist()
        for row, tick in zip(batch.drop_columns(["timestamp"]).to_pylist(), ticks, strict=True):
            headers = tuple((pair["key"], pair["value"]) for pair in row["headers"] or ())
            assert row["headers"] != []
            seen.append(Seen(row["offset"], tick // 1_000, row["timestampType"], row["key"], row["value"], headers))
    return seen
