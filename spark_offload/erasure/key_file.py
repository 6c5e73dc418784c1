"""The file that names the keys to erase: one key a line.

`text` takes a line's bytes as they are, without its newline, so keys need not be UTF-8 but hold none; `hex` and
`base64` are for those that do. Empty lines are passed over: the empty key cannot be named. A key that stands there
twice counts once. The file is read once, by the driver, and what is made of it are digests (`key_digests`): no key is
kept, written or sent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator

from spark_offload.options import OptionError

FORMATS = ("text", "hex", "base64")
LINE_BYTES_MAX = 32 << 20
KEYS_MAX = 20_000_000


def read_keys(lines: Iterable[bytes], form: str) -> Iterator[tuple[int, bytes]]:
    """(number of the line from 1, key). Raises OptionError, which names the line and never what is in it."""
    if form not in FORMATS:
        raise OptionError(f"a key file is {', '.join(FORMATS)}, not {form!r}")
    for number, line in enumerate(lines, 1):
        if len(line) > LINE_BYTES_MAX:
            raise OptionError(f"line {number} of the key file is longer than {LINE_BYTES_MAX} bytes")
        text = line.removesuffix(b"\n")
        if form != "text":
            text = text.strip()
        if text:
            yield number, text if form == "text" else _decoded(text, form, number)


def _decoded(text: bytes, form: str, number: int) -> bytes:
    try:
        return binascii.unhexlify(text) if form == "hex" else base64.b64decode(text, validate=True)
    except ValueError:
        raise OptionError(f"line {number} of the key file is no {form}") from None
