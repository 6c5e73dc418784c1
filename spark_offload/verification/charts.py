"""Charts as SVG text, for a page that needs nothing but itself. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

WIDTH = 720
LABEL = 190
ROW = 22
BAR = 14
ROWS_MAX = 60
"""Charts show so many rows, the worst or largest ones; tables show all."""


class Bar(NamedTuple):
    """One row: `segments` are (begin, end, class) as parts of 1; `note` is shown at its end."""

    label: str
    segments: Sequence[tuple[float, float, str]]
    note: str


def bars(title: str, rows: Sequence[Bar]) -> str:
    """A chart of rows, or a text if there are none."""
    if not rows:
        return f"<p>{escape(title)}: nothing to show</p>"
    height = ROW * len(rows) + 6
    parts = [f'<figure><figcaption>{escape(title)}</figcaption><svg viewBox="0 0 {WIDTH} {height}" role="img">']
    width = WIDTH - LABEL - 150
    for number, row in enumerate(rows):
        y = ROW * number + 4
        text = y + BAR - 3
        parts.append(f'<text x="{LABEL - 8}" y="{text}" class="end">{escape(shortened(row.label))}</text>')
        parts.append(f'<rect x="{LABEL}" y="{y}" width="{width}" height="{BAR}" class="back"/>')
        for begin, end, kind in row.segments:
            x, wide = LABEL + width * begin, max(width * (end - begin), 1.0)
            parts.append(f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}" class="{escape(kind)}"/>')
        parts.append(f'<text x="{LABEL + width + 8}" y="{text}">{escape(row.note)}</text>')
    return "".join(parts) + "</svg></figure>"


def covered(start: int, end: int, spans: Sequence[tuple[int, int]]) -> list[tuple[float, float, str]]:
    """Offsets [start, end) as one bar: what was seen, and what is missing between."""
    if end <= start:
        return []
    size = end - start
    parts: list[tuple[float, float, str]] = []
    at = start
    for first, last in spans:
        low, high = max(first, start), min(last, end)
        if high <= low:
            continue
        if low > at:
            parts.append(((at - start) / size, (low - start) / size, "bad"))
        parts.append(((low - start) / size, (high - start) / size, "good"))
        at = max(at, high)
    if at < end:
        parts.append(((at - start) / size, 1.0, "bad"))
    return parts


def shortened(text: str, length: int = 28) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
