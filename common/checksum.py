"""CRC-32C, the checksum of record batches and of Tidelog's own files."""

from __future__ import annotations

from crc32c._crc32c import crc32c  # the package itself adds a command line and a reader of package metadata

__all__ = ["crc32c"]
