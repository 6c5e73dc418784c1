"""The codecs of record batches, framed as by Apache Kafka's clients, with a cap on the inflated size.

gzip: one or more members. snappy: the xerial stream (16 bytes of header, then blocks with an int32 length each), or
one bare block, which some clients send. lz4: one frame with independent blocks. zstd: frames. The libraries are
imported on first use, so that importing this module costs nothing.
"""

import zlib
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

Buffer = bytes | bytearray | memoryview


class Compression(IntEnum):
    """The numbers in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class InflatedTooLarge(ValueError):
    """The data inflates beyond the cap. No more than the cap was ever held."""


class DamagedData(ValueError):
    """The codec cannot have written this data."""


DEFAULT_LEVELS = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}

GZIP_WINDOW = 31  # in zlib: gzip framing, 32 KB window
_CHUNK = 256 * 1024  # inflated per call
_GZIP_PIECE = 4 * 1024
_ZSTD_WINDOW_MIN = 8 << 20  # what level 19 uses; a smaller bound would reject valid data
_ZSTD_WINDOW_MAX = 128 << 20  # the format's default bound for decoders
_LZ4_MAGIC = b"\x04\x22\x4d\x18"
_LZ4_FLAGS_AT, _LZ4_NAMES_ITS_SIZE = 4, 0x08
_LZ4_RATIO_MAX = 255  # the most that a byte of a block lengthens a match
XERIAL_MAGIC = b"\x82SNAPPY\0"
XERIAL_HEADER = XERIAL_MAGIC + b"\0\0\0\1\0\0\0\1"
_XERIAL_BLOCK = 32 * 1024
_BLOCK_LENGTH = Struct(">i")


def compress(codec: Compression, data: Buffer, level: int | None = None) -> bytes:
    """Compress `data`; `level` is the codec's own, None for Kafka's default."""
    if codec is Compression.NONE:
        return bytes(data)
    if codec is Compression.SNAPPY:
        return _compress_snappy(data)
    if level is None:
        level = DEFAULT_LEVELS[codec]
    if codec is Compression.GZIP:
        deflate = zlib.compressobj(level, zlib.DEFLATED, GZIP_WINDOW)
        return deflate.compress(data) + deflate.flush()
    if codec is Compression.LZ4:
        import lz4.frame  # noqa: PLC0415

        packed: bytes = lz4.frame.compress(
            data, compression_level=level, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
        )
        return packed
    import zstandard  # noqa: PLC0415

    return zstandard.ZstdCompressor(level=level).compress(data)


def decompress(codec: Compression, data: Buffer, bytes_max: int) -> bytes:
    """The inverse of `compress`.

    Raises InflatedTooLarge before more than `bytes_max` bytes are inflated, DamagedData for bytes that are not of this
    codec or end early (of zstd not always).
    """
    if codec is Compression.NONE:
        if len(data) > bytes_max:
            raise InflatedTooLarge(f"{len(data)} bytes are over the limit of {bytes_max}")
        return bytes(data)
    if codec is Compression.LZ4 and len(data) * _LZ4_RATIO_MAX <= bytes_max and _is_plain_lz4(data):
        return _inflate_lz4(data)
    inflated = {
        Compression.GZIP: _gzip_chunks,
        Compression.SNAPPY: _snappy_chunks,
        Compression.LZ4: _lz4_chunks,
        Compression.ZSTD: _zstd_chunks,
    }[codec](data, bytes_max)
    chunks = []
    total = 0
    for chunk in inflated:
        total += len(chunk)
        if total > bytes_max:
            raise InflatedTooLarge(f"{codec.name} data inflates to more than {bytes_max} bytes")
        chunks.append(chunk)
    return b"".join(chunks) if len(chunks) != 1 else chunks[0]


def _gzip_chunks(data: Buffer, _bytes_max: int) -> Iterator[bytes]:
    """Clients write one member. Data of more goes in by pieces: zlib copies what a call leaves over, which for each of
    many members would be all of the rest."""
    view = memoryview(data)
    at, most = 0, len(view)
    while at < len(view):
        inflate = zlib.decompressobj(GZIP_WINDOW)
        try:
            while not inflate.eof:
                piece = view[at : at + most]
                chunk = inflate.decompress(piece, _CHUNK)
                at += len(piece) - len(inflate.unconsumed_tail) - len(inflate.unused_data)
                if not chunk and at == len(view) and not inflate.eof:
                    raise DamagedData("gzip data ends early")
                yield chunk
        except zlib.error as error:
            raise DamagedData("not gzip data") from error
        most = _GZIP_PIECE


def _is_plain_lz4(data: Buffer) -> bool:
    """Whether the frame does not state its inflated size, which the library would allocate unchecked."""
    return len(data) > _LZ4_FLAGS_AT and data[:4] == _LZ4_MAGIC and not data[_LZ4_FLAGS_AT] & _LZ4_NAMES_ITS_SIZE


def _inflate_lz4(data: Buffer) -> bytes:
    """Inflate in one call, which is faster for small data but cannot stop at a cap."""
    import lz4.frame  # noqa: PLC0415

    try:
        inflated: bytes = lz4.frame.decompress(data)
    except RuntimeError as error:
        raise DamagedData("not an lz4 frame, or it ends early") from error
    return inflated


def _lz4_chunks(data: Buffer, _bytes_max: int) -> Iterator[bytes]:
    import lz4.frame  # noqa: PLC0415

    inflate = lz4.frame.LZ4FrameDecompressor()
    rest = data
    try:
        while not inflate.eof:
            chunk: bytes = inflate.decompress(rest, max_length=_CHUNK)
            rest = b""
            if not chunk and inflate.needs_input and not inflate.eof:
                raise DamagedData("lz4 data ends early")
            yield chunk
    except RuntimeError as error:
        raise DamagedData("not an lz4 frame") from error


def _zstd_chunks(data: Buffer, bytes_max: int) -> Iterator[bytes]:
    import zstandard  # noqa: PLC0415

    window = min(max(_ZSTD_WINDOW_MIN, 1 << max(bytes_max - 1, 1).bit_length()), _ZSTD_WINDOW_MAX)
    inflate = zstandard.ZstdDecompressor(max_window_size=window)
    try:
        with inflate.stream_reader(data, read_across_frames=True) as reader:
            # A truncated frame ends here like a whole one; the count of records shows the difference.
            while chunk := reader.read(_CHUNK):
                yield chunk
    except zstandard.ZstdError as error:
        raise DamagedData("not zstd data") from error


def _compress_snappy(data: Buffer) -> bytes:
    import cramjam  # noqa: PLC0415

    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for at in range(0, len(view), _XERIAL_BLOCK):
        block = bytes(cramjam.snappy.compress_raw(bytes(view[at : at + _XERIAL_BLOCK])))
        parts += (_BLOCK_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _snappy_chunks(data: Buffer, bytes_max: int) -> Iterator[bytes]:
    packed = bytes(data)
    if not packed.startswith(XERIAL_MAGIC):
        yield inflate_snappy_block(packed, bytes_max)
        return
    at = len(XERIAL_HEADER)
    left = bytes_max
    while at < len(packed):
        if at + _BLOCK_LENGTH.size > len(packed):
            raise DamagedData("snappy data ends early")
        (length,) = _BLOCK_LENGTH.unpack_from(packed, at)
        at += _BLOCK_LENGTH.size
        if not 0 < length <= len(packed) - at:
            raise DamagedData(f"a snappy block of {length} bytes")
        chunk = inflate_snappy_block(packed[at : at + length], left)
        left -= len(chunk)
        at += length
        yield chunk


def inflate_snappy_block(block: bytes, bytes_max: int) -> bytes:
    """Inflate one block. It begins with its inflated length, so the cap is checked before anything is allocated."""
    import cramjam  # noqa: PLC0415

    try:
        if cramjam.snappy.decompress_raw_len(block) > bytes_max:
            raise InflatedTooLarge(f"a snappy block inflates to more than {bytes_max} bytes")
        return bytes(cramjam.snappy.decompress_raw(block))
    except cramjam.DecompressionError as error:
        raise DamagedData("not snappy data") from error
