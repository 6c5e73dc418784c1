"""What kafka-python lacks to read and write every compressed batch: snappy without a package of its own, by cramjam,
and zstd batches of more than 1 MiB."""

from __future__ import annotations

import cramjam
from kafka import codec

ZSTD_BYTES_MAX = 64 << 20


class _Snappy:
    """The two functions of python-snappy that the library calls."""

    @staticmethod
    def compress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.compress_raw(data))

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return bytes(cramjam.snappy.decompress_raw(data))


def complete_codecs() -> None:
    """For all clients of this process."""
    codec.snappy = _Snappy
    codec.ZSTD_MAX_OUTPUT_SIZE = ZSTD_BYTES_MAX
