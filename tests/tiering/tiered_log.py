"""A log in segments as the tier holds it, made by hand, and a store that counts, waits and fails on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from common.checksum import crc32c
from common.errors import ProtocolError
from object_store.errors import StoreError, StoreUnavailable
from object_store.store import ObjectStore
from records.batch import read_header
from records.builder import build_batch
from records.record import Record, decode_records
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import AbortedTransaction, encode
from storage.segments.region import Region
from tests.object_store.memory_store import MemoryStore
from tiering.bucket.segment import OFFSET_INDEX, TIME_INDEX, TRANSACTION_INDEX, Section, SegmentState, TieredSegment
from tiering.reading.downloads import Ticket
from tiering.reading.remote_index import RemoteSegment
from tiering.reading.remote_reader import RemoteRead, RemoteReader

START_MS = 1_000_000
INTERVAL_BYTES = 512


class GatedStore(MemoryStore):
    """`gets` are (key, start, length). `gate` holds them back while it is not set; `failure` is raised instead."""

    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int | None]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: StoreError | None = None
        self.running = self.running_most = 0

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self.gets.append((key, start, length))
        self.running += 1
        self.running_most = max(self.running, self.running_most)
        try:
            await self.gate.wait()
            if self.failure is not None:
                raise self.failure
            return await super().get(key, start, length)
        finally:
            self.running -= 1

    def break_down(self) -> None:
        self.failure = StoreUnavailable(self.name, "get", "x", "no answer")


def values_batch(base: int, values: Sequence[bytes], *, epoch: int = 0, **fields: int | bool) -> bytes:
    """Records at `base`, `base + 1`, …, one millisecond apart from `START_MS` + offset on."""
    records = [Record(0, START_MS + base + i, None, value, ()) for i, value in enumerate(values)]
    return bytes(build_batch(records, base_offset=base, leader_epoch=epoch, **fields))  # type: ignore[arg-type]


class TieredLog:
    """Segments in a store; a view of them for `RemoteReader`."""

    name = "flights-0"

    def __init__(self, store: ObjectStore, name: str = "flights-0") -> None:
        self.store = store
        self.name = name
        self.segments: list[TieredSegment] = []
        self.log = b""

    def key(self, segment: TieredSegment) -> str:
        return f"{self.name}/{segment.uuid}.segment"

    async def add(
        self, batches: Sequence[bytes], *, aborted: Sequence[AbortedTransaction] = (), end: int | None = None
    ) -> TieredSegment:
        base = read_header(batches[0], 0).base_offset
        offsets, times = OffsetIndex(base), TimeIndex(base)
        data, offset_bytes, time_bytes, since, largest = b"", b"", b"", 0, (-1, base)
        for batch in batches:
            header = read_header(batch, 0)
            if header.max_timestamp > largest[0]:
                largest = (header.max_timestamp, header.last_offset)
            if since > INTERVAL_BYTES:
                offset_bytes += offsets.append(header.last_offset, len(data))
                time_bytes += times.append(*largest) or b""
                since = 0
            since += len(batch)
            data += batch
        time_bytes += times.append(*largest) or b""
        parts = {OFFSET_INDEX: offset_bytes, TIME_INDEX: time_bytes}
        if aborted:
            parts[TRANSACTION_INDEX] = b"".join(encode(one) for one in aborted)
        sections: dict[str, Section] = {}
        body = data
        for name, part in parts.items():
            sections[name] = Section(len(body), len(part), crc32c(part))
            body += part
        segment = TieredSegment(
            uuid=f"{len(self.segments) + 1:032x}",
            base_offset=base,
            end_offset=end if end is not None else read_header(batches[-1], 0).next_offset,
            max_timestamp=largest[0],
            log_bytes=len(data),
            object_bytes=len(body),
            log_crc32c=crc32c(data),
            sections=sections,
            epochs=[(0, 0)],
            state=SegmentState.COPY_FINISHED,
            broker_id=0,
            leader_epoch=0,
            changed_ms=0,
            records=sum(read_header(batch, 0).count for batch in batches),
        )
        await self.store.put(self.key(segment), body)
        self.segments.append(segment)
        self.log += data
        return segment

    async def fill(self, segments: int, batches: int, records: int = 3, value_bytes: int = 50) -> None:
        """Segments of `batches` equal batches each."""
        for _ in range(segments):
            base = self.segments[-1].end_offset if self.segments else 0
            await self.add(
                [
                    values_batch(base + n * records, [b"%010d" % (base + n) + b"x" * value_bytes] * records)
                    for n in range(batches)
                ]
            )

    def find(self, offset: int) -> RemoteSegment | None:
        for segment in self.segments:
            if offset < segment.end_offset:
                return RemoteSegment(self.key(segment), segment)
        return None

    def find_aborting(self, offset: int) -> RemoteSegment | None:
        for segment in self.segments:
            if offset < segment.end_offset and TRANSACTION_INDEX in segment.sections:
                return RemoteSegment(self.key(segment), segment)
        return None

    def damage(self, segment: TieredSegment, position: int) -> None:
        """Turn one bit of the object over; in memory only."""
        assert isinstance(self.store, MemoryStore)
        data, info = self.store.objects[self.key(segment)]
        self.store.objects[self.key(segment)] = (
            data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :],
            info,
        )


class Waiter:
    """Waits for tickets as a fetch does."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def download_settled(self) -> None:
        self.event.set()


async def read_when_there(
    reading: RemoteReader, view: TieredLog, offset: int, bytes_max: int = 1 << 20, reader: int = 1, **options: bool
) -> RemoteRead:
    """Ask, wait, ask again."""
    while isinstance(found := reading.read(view, offset, bytes_max, reader, **options), Ticket):
        waiter = Waiter()
        found.listen(waiter)
        async with asyncio.timeout(10):
            await waiter.event.wait()
    return found


async def error_of(reading: RemoteReader, view: TieredLog, offset: int) -> ProtocolError:
    try:
        found = await read_when_there(reading, view, offset)
    except ProtocolError as error:
        return error
    raise AssertionError(f"read {found}")


def take(region: Region | None) -> bytes:
    """Its bytes; released."""
    assert region is not None
    data = region.read()
    region.release()
    return data


def offsets_of(data: bytes) -> list[int]:
    found: list[int] = []
    at = 0
    while at < len(data):
        size = read_header(data, at).size
        found += [record.offset for record in decode_records(memoryview(data), at, size, inflated_bytes_max=1 << 20)]
        at += size
    return found
