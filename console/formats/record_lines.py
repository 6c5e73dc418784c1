"""Records that were read, as the lines of a table. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from console.formats.record_decoders import SHOWN_BYTES_MAX, Decoder, visible_headers
from records.record import Record

SHORT, SHORT_OF = 240, 4_096


class Line(NamedTuple):
    """`key` and `value` are None for null. `short` is the value's beginning in one line; `cut` bytes are not shown."""

    partition: int
    offset: int
    timestamp: int
    key: str | None
    value: str | None
    short: str
    cut: int
    headers: Sequence[tuple[str, str]]
    state: str
    producer_id: int
    size: int

    @property
    def characters(self) -> int:
        """How many are shown."""
        headers = sum(len(name) + len(value) for name, value in self.headers)
        return len(self.key or "") + len(self.value or "") + headers


def line_of(partition: int, record: Record, state: str, producer_id: int, key: Decoder, value: Decoder) -> Line:
    shown = None if record.value is None else value(record.value[:SHOWN_BYTES_MAX])
    cut = max(0, len(record.value or b"") - SHOWN_BYTES_MAX)
    one_line = " ".join((shown or "")[:SHORT_OF].split())
    is_more = len(one_line) > SHORT or len(shown or "") > SHORT_OF
    return Line(
        partition,
        record.offset,
        record.timestamp,
        None if record.key is None else key(record.key[:SHOWN_BYTES_MAX]),
        shown,
        one_line[:SHORT] + ("…" if is_more else ""),
        cut,
        visible_headers(record.headers),
        state,
        producer_id,
        len(record.key or b"") + len(record.value or b""),
    )
