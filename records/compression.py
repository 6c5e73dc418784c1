"""The codecs of record batches. Libraries are imported on first use, so that importing this costs nothing."""

from enum import IntEnum


class Compression(IntEnum):
    """As in a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class InflatedTooLarge(ValueError):
    """Data that inflates beyond the cap; it was never held in memory."""


class DamagedData(ValueError):
    """Data that the codec cannot have written."""
