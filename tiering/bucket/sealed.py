"""A checksum as the last member of JSON objects in the bucket whose checksum no other object holds.

`…,"crc32c":N}`: N is the CRC-32C of all bytes before that comma. Older readers ignore it like any unknown field;
objects of older versions without it are read unchecked.
"""

from __future__ import annotations

import re

from common.checksum import crc32c

_SEAL = re.compile(rb',\s*"crc32c":\s*(\d{1,10})\s*\}\s*\Z')
_SEAL_BYTES_MAX = 64


def sealed(body: bytes) -> bytes:
    """`body` is a JSON object with at least one member."""
    begin = body.rstrip()[:-1].rstrip()
    return begin + b',"crc32c":%d}' % crc32c(begin)


def check_seal(body: bytes) -> None:
    """Raises ValueError when `body` has a checksum and is not what was written."""
    found = _SEAL.search(body, max(len(body) - _SEAL_BYTES_MAX, 0))
    if found is not None and int(found[1]) != crc32c(body[: found.start()]):
        raise ValueError("its checksum does not fit")
