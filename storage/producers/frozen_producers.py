"""The producers of one partition as of one offset."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from common.pacing import Work
from storage.producers.known_producer import EPOCH, KnownProducer, batches_behind_entry, entry_of, last_offset_of
from storage.producers.producer_snapshot import SnapshotParts, encode_batches, encode_entries

FROZEN_STEP = 128  # producers encoded at a time
ENTRY_COST = 5


class LastRecord(NamedTuple):
    """What compaction must keep of a producer: its last data batch, or else a marker of its epoch."""

    last_data_offset: int  # -1 if there is none
    producer_epoch: int


class FrozenProducers:
    """By producer id; immutable."""

    __slots__ = ("_producers",)

    def __init__(self, producers: dict[int, KnownProducer]) -> None:
        self._producers = producers

    def encode(self) -> Work[SnapshotParts]:
        """Their snapshot."""
        entries: list[bytes] = []
        batches: list[bytes] = []
        rows = iter(self._producers.items())
        while some := list(islice(rows, FROZEN_STEP)):
            entries.append(encode_entries([entry_of(producer_id, producer) for producer_id, producer in some]))
            behind = [row for producer_id, producer in some for row in batches_behind_entry(producer_id, producer)]
            if behind:
                batches.append(encode_batches(behind, is_first=not batches))
            yield len(some) * ENTRY_COST + len(behind)
        return SnapshotParts(len(self._producers), entries + batches)

    def last_records(self) -> dict[int, LastRecord]:
        """By producer id: what compaction must keep in the log. Runs in a thread."""
        return {
            producer_id: LastRecord(last_offset_of(producer), producer[EPOCH])
            for producer_id, producer in self._producers.items()
        }
