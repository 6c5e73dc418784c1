"""Messages of the quorum as bytes: msgpack maps. No I/O."""

from __future__ import annotations

from typing import Any

import msgspec

from common.errors import MalformedFrame
from kraft.quorum.message_filter import Message

COPIED_BYTES_MAX = 64 << 10  # from where msgpack has four bytes for a length

_ONE_ENTRY = b"\x91\x93\xc6"  # a list of one list of three, whose first element has a length of four bytes
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


def encoded_parts(message: Message) -> tuple[bytes, ...]:
    """The message in parts, one after another. An entry that is large is one of them, and so is not copied."""
    entries = message.get("entries")
    if not entries or len(entries) > 1 or len(entries[0][0]) <= COPIED_BYTES_MAX:
        return (_encode(message),)
    command, index, term = entries[0]
    others = {name: value for name, value in message.items() if name != "entries"}
    head = _encode({**others, "entries": []})[:-1]  # without the empty list
    return head + _ONE_ENTRY + len(command).to_bytes(4, "big"), command, _encode(index) + _encode(term)


def decoded_map(payload: bytes | memoryview) -> dict[str, Any]:
    """Raises MalformedFrame. What it has is copied out of the payload."""
    try:
        return _decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedFrame("not a msgpack map of names") from error
