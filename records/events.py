"""Exports as events: what a cluster tells its object store about itself, readable without knowing how it was made.

An export is a gzip of lines of JSON. The first line is the header, the last one `{"event": "end", …}` with the number
of events between them and the CRC-32C of all bytes before it; each other line is one event, named by its field
`event`. Events and fields are only ever added. docs/tier-format.md describes the kinds and their events for strangers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from common.checksum import crc32c

FORMAT = 1
END = "end"
LEVEL = 1  # of gzip: an export is written often and read seldom
_GZIP_WINDOW = 31
INFLATED_BYTES_MAX = 4 << 30
_PIECE_BYTES = 1 << 20

Event = dict[str, Any]


class DamagedEvents(ValueError):
    """Bytes that are no export, not a whole one, or of a format that is not known here."""


class EventsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` says which events to expect, `scope` whose they are among several of a kind, `position` how new they are
    among those of one scope and incarnation. `created_ms` is wall time."""

    format: int = FORMAT
    kind: str
    cluster_id: str
    incarnation: int
    scope: int
    position: int
    created_ms: int


class Events(msgspec.Struct, frozen=True):
    """A whole export as it was read."""

    header: EventsHeader
    events: list[Event]


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(EventsHeader)
_event_decoder = msgspec.json.Decoder(dict[str, Any])


class EventsWriter:
    """Builds one export piece by piece, so that a large one does not hold its maker's loop."""

    def __init__(self, header: EventsHeader) -> None:
        self._packer = zlib.compressobj(LEVEL, wbits=_GZIP_WINDOW)
        self._out = bytearray()
        self._crc = 0
        self.count = 0
        self._line(_encoder.encode(header))

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Each has its name in `event`."""
        for event in events:
            self._line(_encoder.encode(event))
            self.count += 1

    def finish(self) -> bytes:
        """The whole export; nothing can be added after it."""
        self._line(_encoder.encode({"event": END, "count": self.count, "crc32c": self._crc}))
        return bytes(self._out) + self._packer.flush()

    def _line(self, line: bytes) -> None:
        data = line + b"\n"
        self._crc = crc32c(data, self._crc)
        self._out += self._packer.compress(data)


def encode_events(header: EventsHeader, events: Iterable[Mapping[str, Any]]) -> bytes:
    """A whole export at once."""
    writer = EventsWriter(header)
    writer.add(events)
    return writer.finish()


def decode_events(body: bytes, what: str) -> Events:
    """Raises DamagedEvents, which names `what`. Events that are not known here are among the rest."""
    header: EventsHeader | None = None
    events: list[Event] = []
    crc, end = 0, None
    try:
        for line in _lines(body, what):
            if end is not None:
                raise DamagedEvents(f"{what}: there is something behind its end")
            if header is None:
                header = _header_decoder.decode(line)
                if header.format != FORMAT:
                    raise DamagedEvents(f"{what}: format {header.format} is not known here")
            else:
                event = _event_decoder.decode(line)
                if event.get("event") == END:
                    end = (event.get("count"), event.get("crc32c"), crc)
                    continue
                events.append(event)
            crc = crc32c(line + b"\n", crc)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise DamagedEvents(f"{what}: {error}") from error
    if header is None or end is None:
        raise DamagedEvents(f"{what}: it ends before its end")
    if end[0] != len(events) or end[1] != end[2]:
        raise DamagedEvents(f"{what}: its checksum does not fit its {len(events)} events")
    return Events(header, events)


def _lines(body: bytes, what: str) -> Iterator[bytes]:
    unpacker = zlib.decompressobj(wbits=_GZIP_WINDOW)
    rest, total, data = b"", 0, body
    while data and not unpacker.eof:
        piece = unpacker.decompress(data, _PIECE_BYTES)
        data = unpacker.unconsumed_tail
        total += len(piece)
        if total > INFLATED_BYTES_MAX:
            raise DamagedEvents(f"{what}: more than {INFLATED_BYTES_MAX} bytes of events")
        *lines, rest = (rest + piece).split(b"\n")
        yield from lines
    if rest or not unpacker.eof:
        raise DamagedEvents(f"{what}: its last bytes are missing")
