"""A segment's batches, each checked, in order: recovery trusts them instead of the file's length.

Runs in a thread with its own files.
"""

from collections.abc import Iterator
from typing import NamedTuple

from common.errors import ProtocolError
from common.ports import Disk, File
from common.whole_files import read_whole, replace_file, write_fully
from records.batch import HEADER_BYTES, BatchHeader, iterate_batches, read_header
from storage.indexes import offset_index, time_index
from storage.indexes.index_file import IndexFile, used_bytes
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import LargestTimestamp, TimeIndex
from storage.segments.batch_walk import walk
from storage.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, Segment

READ_BYTES = 1 << 20
BATCH_BYTES_MAX = 256 << 20  # a larger length is damage, whatever the file's size


class SoundBatch(NamedTuple):
    """A batch with a correct CRC: its position, its header, and its bytes as `view[at:]`."""

    position: int
    header: BatchHeader
    view: memoryview
    at: int


def sound_batches(file: File, position: int, size: int, least_offset: int) -> Iterator[SoundBatch]:
    """Batches from `position` on, until the bytes are not a complete batch, have a wrong CRC, or offsets do not
    increase."""
    read_bytes = READ_BYTES
    while size - position >= HEADER_BYTES:
        data = file.pread(min(read_bytes, size - position), position)
        view = memoryview(data)
        taken = 0
        try:
            for at, header in iterate_batches(view, 0, len(data), verify_crc=True):
                if header.base_offset < least_offset:
                    return
                yield SoundBatch(position + at, header, view, at)
                least_offset = header.next_offset
                taken = at + header.size
        except ProtocolError:
            return
        if taken:
            position += taken
            read_bytes = READ_BYTES
            continue
        if len(data) < HEADER_BYTES:
            return
        whole = read_header(view, 0).size
        if whole <= len(data) or whole > min(size - position, BATCH_BYTES_MAX):
            return
        read_bytes = whole  # one batch is longer than what is read at once


class IndexedPart(NamedTuple):
    """The trusted beginning of a segment, up to a batch boundary, and its indexes."""

    size: int
    end_offset: int
    offsets: OffsetIndex
    times: TimeIndex
    largest: LargestTimestamp


def nothing_indexed(base_offset: int) -> IndexedPart:
    return IndexedPart(
        0, base_offset, OffsetIndex(base_offset), TimeIndex(base_offset), LargestTimestamp(-1, base_offset)
    )


def trusted_part(disk: Disk, segment: Segment, end_offset: int | None) -> IndexedPart:
    """A segment up to the batch boundary `end_offset` (None: its end), from its index files and a walk after them.

    ValueError or ProtocolError if indexes or headers do not lead there.
    """
    offset_bytes = _read_index(disk, segment.stem + INDEX_SUFFIX, offset_index.ENTRY_BYTES)
    time_bytes = _read_index(disk, segment.stem + TIME_INDEX_SUFFIX, time_index.ENTRY_BYTES)

    def pread_offsets(size: int, position: int) -> bytes:
        return offset_bytes[position : position + size]

    def pread_times(size: int, position: int) -> bytes:
        return time_bytes[position : position + size]

    base_offset = segment.base_offset
    offsets = OffsetIndex.load(base_offset, pread_offsets, len(offset_bytes))
    times = TimeIndex.load(base_offset, pread_times, len(time_bytes))
    if end_offset is not None:
        offsets.truncate_to(pread_offsets, end_offset)
        times.truncate_to(pread_times, end_offset)
    part = IndexedPart(0, base_offset, offsets, times, LargestTimestamp(times.last_timestamp, times.last_offset))
    if segment.size and end_offset != base_offset:
        file = disk.open(segment.stem + LOG_SUFFIX)
        try:
            part = _walk_to(file, segment.size, end_offset, part)
        finally:
            file.close()
    return part


def _walk_to(file: File, size: int, end_offset: int | None, part: IndexedPart) -> IndexedPart:
    largest = part.largest
    last_end = part.end_offset
    if part.offsets.last_position >= size:
        raise ValueError("the last entry of an offset index lies behind the segment's end")
    for position, header in walk(file, part.offsets.last_position, size):
        if header.max_timestamp > largest.timestamp:
            largest = LargestTimestamp(header.max_timestamp, header.last_offset)
        last_end = header.next_offset
        if end_offset is not None and last_end >= end_offset:
            size = position + header.size
            break
    if end_offset is not None and last_end != end_offset:
        raise ValueError(f"no batch boundary at offset {end_offset}")
    return part._replace(size=size, end_offset=last_end, largest=largest)


def _read_index(disk: Disk, path: str, entry_bytes: int) -> bytes:
    """The entries of an index file up to the first empty one, none if it does not exist. A loss of power may keep a
    later write and take an earlier one, and searches need entries in order."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return b""
    try:
        used = used_bytes(file, file.size(), entry_bytes)
        data = file.pread(used, 0) if used else b""
    finally:
        file.close()
    empty = bytes(entry_bytes)
    at = data.find(empty)
    while at >= 0 and at % entry_bytes:
        at = data.find(empty, at + 1)
    return data if at < 0 else data[:at]


def settle_file(disk: Disk, path: str, kept: int, rest: bytes, *, replaces: bool) -> bool:
    """Make a file its first `kept` bytes and `rest`. Not written if it already is. Returns whether it is to be flushed.

    What is written here is not flushed: a loss of power may take it, and the next recovery trusts what the device had
    before. The kept bytes are therefore not touched. With `replaces` the device may have more that is trusted, which is
    not kept because something else is damaged: then the new file is flushed before it takes the old one's place.
    """
    present = read_whole(disk, path)
    if present is None and not rest:
        return False
    if present is not None and len(present) >= kept and present[kept:] == rest:
        return False
    if replaces and present:
        directory, _, name = path.rpartition("/")
        replace_file(disk, directory, name, present[:kept] + rest)
        return False
    file = disk.open(path, create=True)
    try:
        file.truncate(kept)
        if rest:
            write_fully(file, rest, kept)
    finally:
        file.close()
    return True


def settle_index_file(disk: Disk, index: IndexFile, *, replaces: bool) -> bool:
    """Make the file match the scan: kept entries, then rebuilt ones. Returns whether it is to be flushed."""
    kept, built = index.take_pending()
    return settle_file(disk, index.handle.path, kept, built, replaces=replaces)
