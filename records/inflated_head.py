"""The first inflated bytes of compressed records, at a cost that does not grow with the batch.

A library inflates at least one block of its format, 4 MiB at most. Data that would need more memory is skipped.
"""

import zlib
from functools import cache
from typing import Any

from records.compression import (
    GZIP_WINDOW,
    XERIAL_HEADER,
    XERIAL_MAGIC,
    Compression,
    DamagedData,
    InflatedTooLarge,
    inflate_snappy_block,
)

ZSTD_WINDOW_MAX = 8 << 20
ZSTD_HEADER_BYTES_MAX = 18
SNAPPY_BLOCK_MAX = 128 << 10
SNAPPY_RATIO_MAX = 22  # three bytes copy 64
Head = tuple[bytes, bool]
"""The bytes, and whether they are all."""

NOT_LOOKED_AT: Head = (b"", False)


def inflated_head(codec: Compression, data: memoryview, most: int) -> Head:
    """About `most` bytes; NOT_LOOKED_AT where that would take too much memory. Raises DamagedData."""
    if codec is Compression.GZIP:
        return _of_gzip(data, most)
    if codec is Compression.SNAPPY:
        return _of_snappy(data)
    if codec is Compression.LZ4:
        return _of_lz4(data, most)
    return _of_zstd(data, most)


def _of_gzip(data: memoryview, most: int) -> Head:
    inflate = zlib.decompressobj(GZIP_WINDOW)
    try:
        head = inflate.decompress(data, most)
    except zlib.error as error:
        raise DamagedData("not gzip data") from error
    if not head and not inflate.eof:
        raise DamagedData("gzip data ends early")
    return head, inflate.eof and not inflate.unused_data


def _of_snappy(data: memoryview) -> Head:
    block, is_last = data, True
    if bytes(data[: len(XERIAL_MAGIC)]) == XERIAL_MAGIC:
        at = len(XERIAL_HEADER) + 4
        length = int.from_bytes(data[len(XERIAL_HEADER) : at], "big")
        if not 0 < length <= len(data) - at:
            raise DamagedData(f"a snappy block of {length} bytes")
        block, is_last = data[at : at + length], at + length == len(data)
    try:
        return inflate_snappy_block(bytes(block), min(SNAPPY_BLOCK_MAX, len(block) * SNAPPY_RATIO_MAX)), is_last
    except InflatedTooLarge as error:
        if len(block) * SNAPPY_RATIO_MAX <= SNAPPY_BLOCK_MAX:
            raise DamagedData("not snappy data") from error
        return NOT_LOOKED_AT


def _of_lz4(data: memoryview, most: int) -> Head:
    import lz4.frame  # noqa: PLC0415

    inflate = lz4.frame.LZ4FrameDecompressor()
    try:
        head: bytes = inflate.decompress(data, max_length=most)
    except RuntimeError as error:
        raise DamagedData("not an lz4 frame") from error
    if not head and not inflate.eof:
        raise DamagedData("lz4 data ends early")
    return head, inflate.eof


def _of_zstd(data: memoryview, most: int) -> Head:
    import zstandard  # noqa: PLC0415

    try:
        if zstandard.get_frame_parameters(data[:ZSTD_HEADER_BYTES_MAX]).window_size > ZSTD_WINDOW_MAX:
            return NOT_LOOKED_AT
        with _zstd().stream_reader(data) as reader:
            head: bytes = reader.read(most)
    except zstandard.ZstdError as error:
        raise DamagedData("not zstd data") from error
    return head, len(head) < most


@cache
def _zstd() -> Any:
    """One for all calls, because making it costs more than the check."""
    import zstandard  # noqa: PLC0415

    return zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_MAX)
