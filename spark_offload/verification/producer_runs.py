"""What a piece of a log tells of its producers, short enough to be joined with what the other pieces tell. Pure.

A run is one producer's batches whose sequences follow each other; a decision is one producer's transaction, from its
first record in the piece to the marker that ends it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from records.batch import NO_PRODUCER_ID, SEQUENCE_MASK
from spark_offload.segments.batch_scan import Flags
from spark_offload.segments.varints import Integers
from spark_offload.verification.headers import Headers

NO_OFFSET = -1
UNKNOWN_KIND = -1
"""The type of a marker that compaction has emptied, or of an unknown kind."""


class Run(NamedTuple):
    """Batches of one producer and epoch: offsets and sequences from the first to the last; `last_timestamp` in ms."""

    producer_id: int
    epoch: int
    first_offset: int
    last_offset: int
    first_sequence: int
    last_sequence: int
    first_timestamp: int
    last_timestamp: int


class Marker(NamedTuple):
    """`kind` is a number of `records.control.MarkerKind`, or unknown."""

    producer_id: int
    epoch: int
    offset: int
    kind: int
    timestamp: int


class Decision(NamedTuple):
    """`first_offset` of its records in this piece, -1 for none; `marker_offset` is -1 when it is open at the end."""

    producer_id: int
    first_offset: int
    marker_offset: int
    kind: int


@dataclass(slots=True)
class Producers:
    """Of one piece, each list in order of offsets."""

    runs: list[Run]
    markers: list[Marker]
    decisions: list[Decision]


def summarise(headers: Headers, kinds: dict[int, int]) -> Producers:
    """`kinds` are those of control batches by base offset. Only batches that are sound may be given."""
    known = headers.column("producer_id") > NO_PRODUCER_ID
    if not known.any():
        return Producers([], [], [])
    control = headers.is_control
    data = headers.where(known & ~control & (headers.column("base_sequence") >= 0))
    marks = headers.where(known & control)
    markers = [
        Marker(producer, epoch, offset, kinds.get(offset, UNKNOWN_KIND), timestamp)
        for producer, epoch, offset, timestamp in zip(
            marks.column("producer_id").tolist(),
            marks.column("producer_epoch").tolist(),
            marks.column("base_offset").tolist(),
            marks.column("max_timestamp").tolist(),
            strict=True,
        )
    ]
    return Producers(_runs(data), markers, _decisions(headers.where(known & headers.is_transactional), kinds))


def _runs(data: Headers) -> list[Run]:
    if not len(data):
        return []
    order = np.argsort(data.column("producer_id"), kind="stable")
    columns = (
        data.column("producer_id")[order],
        data.column("producer_epoch")[order],
        data.column("base_offset")[order],
        data.last_offset[order],
        data.column("base_sequence")[order],
        data.last_sequence[order],
        data.column("max_timestamp")[order],
    )
    producer, epoch, first, last, sequence, last_sequence, timestamp = columns
    begins: Flags = np.ones(len(order), np.bool_)
    begins[1:] = (
        (producer[1:] != producer[:-1])
        | (epoch[1:] != epoch[:-1])
        | (sequence[1:] != ((last_sequence[:-1] + 1) & SEQUENCE_MASK))
    )
    start = np.flatnonzero(begins)
    stop = np.append(start[1:], len(order)) - 1
    rows: list[Integers] = [
        producer[start], epoch[start], first[start], last[stop],
        sequence[start], last_sequence[stop], timestamp[start], timestamp[stop],
    ]  # fmt: skip
    found = [Run(*values) for values in zip(*(row.tolist() for row in rows), strict=True)]
    return sorted(found, key=lambda run: run.first_offset)


def _decisions(batches: Headers, kinds: dict[int, int]) -> list[Decision]:
    begun: dict[int, int] = {}
    found: list[Decision] = []
    rows = zip(
        batches.column("producer_id").tolist(),
        batches.column("base_offset").tolist(),
        batches.is_control.tolist(),
        strict=True,
    )
    for producer, offset, is_control in rows:
        if is_control:
            kind = kinds.get(offset, UNKNOWN_KIND)
            found.append(Decision(producer, begun.pop(producer, NO_OFFSET), offset, kind))
        else:
            begun.setdefault(producer, offset)
    found += [Decision(producer, first, NO_OFFSET, UNKNOWN_KIND) for producer, first in begun.items()]
    return found
