"""Exports as events: whole or refused, never silently short."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from records.events import DamagedEvents, EventsHeader, EventsWriter, decode_events, encode_events

HEADER = EventsHeader(kind="groups", cluster_id="c", incarnation=2, scope=7, position=99, created_ms=1_700_000_000_000)
EVENTS = [{"event": "offset", "group": "g\n1", "offset": n, "note": "ü" * 50} for n in range(500)]


def test_an_export_says_what_it_is_and_holds_its_events() -> None:
    read = decode_events(encode_events(HEADER, EVENTS), "x")
    assert read.header == HEADER
    assert read.events == EVENTS


def test_an_export_in_pieces_is_the_same_as_one_at_once() -> None:
    writer = EventsWriter(HEADER)
    for at in range(0, 500, 7):
        writer.add(EVENTS[at : at + 7])
    assert decode_events(writer.finish(), "x").events == EVENTS


def test_anyone_can_read_it_with_gzip_and_json() -> None:
    lines = gzip.decompress(encode_events(HEADER, EVENTS[:1])).splitlines()
    assert len(lines) == 3
    assert b'"kind":"groups"' in lines[0]
    assert b'"event":"end"' in lines[-1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_export_is_refused(data: st.DataObject) -> None:
    body = encode_events(HEADER, EVENTS[:20])
    lines = gzip.decompress(body).splitlines(keepends=True)
    kind = data.draw(st.sampled_from(["cut", "lost line", "changed line", "doubled line", "tail"]))
    at = data.draw(st.integers(1, len(lines) - 2))
    if kind == "cut":
        damaged = body[: data.draw(st.integers(0, len(body) - 1))]
    elif kind == "lost line":
        damaged = gzip.compress(b"".join(lines[:at] + lines[at + 1 :]))
    elif kind == "changed line":
        damaged = gzip.compress(
            b"".join([*lines[:at], lines[at].replace(b'"offset":', b'"offset":1'), *lines[at + 1 :]])
        )
    elif kind == "doubled line":
        damaged = gzip.compress(b"".join([*lines[:at], lines[at], *lines[at:]]))
    else:
        damaged = gzip.compress(b"".join([*lines, lines[at]]))
    with pytest.raises(DamagedEvents):
        decode_events(damaged, "x")


def test_another_format_is_refused() -> None:
    body = gzip.compress(gzip.decompress(encode_events(HEADER, [])).replace(b'"format":1', b'"format":2'))
    with pytest.raises(DamagedEvents, match="format 2"):
        decode_events(body, "x")
