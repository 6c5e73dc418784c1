"""Exports: state that a cluster writes to its object store as events, for readers that know only the format.

An export is gzipped JSON lines. The first line is the header, the last one `{"event": "end", …}` with the number of
events between them and the CRC-32C of all bytes before it. Each other line is one event, named by its field `event`.
Events and fields are only ever added. docs/tier-format.md documents them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from common.checksum import crc32c

FORMAT = 1
END = "end"
LEVEL = 1  # of gzip: exports are written often and seldom read
_GZIP_WINDOW = 31
INFLATED_BYTES_MAX = 4 << 30
_PIECE_BYTES = 1 << 20

Event = dict[str, Any]


class DamagedEvents(ValueError):
    """The bytes are not an export, incomplete, or of an unknown format."""


class EventsHeader(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: which events to expect. `scope`: the owner, where a kind has several. `position` orders exports of one
    scope and incarnation. `created_ms` is wall time."""

    format: int = FORMAT
    kind: str
    cluster_id: str
    incarnation: int
    scope: int
    position: int
    created_ms: int


class Events(msgspec.Struct, frozen=True):
    """A whole export."""

    header: EventsHeader
    events: list[Event]


_encoder = msgspec.json.Encoder()
_header_decoder = msgspec.json.Decoder(EventsHeader)
_event_decoder = msgspec.json.Decoder(dict[str, Any])


class EventsWriter:
    """Builds one export in pieces, so that a large one does not hold the event loop."""

    def __init__(self, header: EventsHeader) -> None:
        self._packer = zlib.compressobj(LEVEL, wbits=_GZIP_WINDOW)
        self._out = bytearray()
        self._crc = 0
        self.count = 0
        self._line(_encoder.encode(header))

    def add(self, events: Iterable[Mapping[str, Any]]) -> None:
        """Each event has its name in `event`."""
        for event in events:
            self._line(_encoder.encode(event))
            self.count += 1

    def finish(self) -> bytes:
        """The whole export; afterwards the writer is not used."""
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
    """The export in `body`, with unknown events included. Raises DamagedEvents, which names `what`."""
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
