"""Walks through a `.log` file from batch to batch by headers, a window of bytes at a time."""

from collections.abc import Iterator

from common.errors import ErrorCode, ProtocolError
from records.batch import HEADER_BYTES, MAGIC, PREFIX_BYTES, BatchHeader, read_header
from storage.disk.open_files import Readable

WINDOW_BYTES = 8_192  # an index interval of small batches; long batches are skipped over


def walk(file: Readable, position: int, end: int) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch of [position, end), two batch boundaries, with its position.

    Raises ProtocolError(KAFKA_STORAGE_ERROR) at bytes that are not a batch, which must not occur in trusted parts of a
    log.
    """
    window, window_at = b"", 0
    while position < end:
        at = position - window_at
        if at + HEADER_BYTES > len(window):
            window, window_at, at = file.pread(min(WINDOW_BYTES, end - position), position), position, 0
            if len(window) < HEADER_BYTES:
                raise _damaged(position)
        header = read_header(window, at)
        size = header.batch_length + PREFIX_BYTES
        if size < HEADER_BYTES or header.magic != MAGIC or header.last_offset_delta < 0 or size > end - position:
            raise _damaged(position)
        yield position, header
        position += size


def _damaged(position: int) -> ProtocolError:
    return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, f"no record batch at position {position} of a segment")
