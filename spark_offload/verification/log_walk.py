"""Walking through the log of a segment, whatever its bytes are: whole batches, and places where there are none.

From one batch the next one is found by its length alone, so a wrong length would lose all that follows. Where the
walk meets bytes that are no batch it goes on at the next place that the offset index names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from object_store.blocking import Coming
from object_store.errors import StoreError
from records.batch import HEADER_BYTES
from spark_offload.segments.batch_headers import steps
from spark_offload.segments.varints import Integers
from spark_offload.verification.headers import Headers, read_headers

Begin = Callable[[int, int], Coming]
"""Of (position, size)."""


class Stretch(NamedTuple):
    """Batches one behind the other. `view` holds them from byte `origin` of the object on."""

    view: memoryview
    origin: int
    headers: Headers


class Unreadable(NamedTuple):
    """Bytes [at, resumed) of the object, of which nothing can be made."""

    at: int
    resumed: int
    reason: str


@dataclass(slots=True)
class LogWalk:
    """Bytes [low, high) of an object, `low` being the place of a batch; `starts` are places of batches as the offset
    index has them, ascending, believed only where the walk is lost."""

    begin: Begin
    low: int
    high: int
    starts: Integers
    chunk_bytes: int
    unreadable: list[Unreadable] = field(default_factory=list)
    _resume: int = 0

    def stretches(self) -> Iterator[Stretch]:
        """In order. While one is looked at the next one is on its way."""
        at = self.low
        while at < self.high:
            yield from self._unbroken(at)
            at = self._resume

    def _unbroken(self, low: int) -> Iterator[Stretch]:
        """Walk while batches follow each other; then `_resume` is where to continue."""
        at = low
        coming: Coming | None = self.begin(at, min(self.chunk_bytes, self.high - at))
        while coming is not None:
            try:
                view = memoryview(coming.result())
            except StoreError as error:
                self._lost(at, str(error), self.high)
                return
            bounds, needed = steps(view)
            origin, at = at, at + bounds[-1]
            left = self.high - at
            broken = needed < 0 or needed > left or 0 < left < HEADER_BYTES or len(view) == 0
            size = 0 if broken or not left else min(max(self.chunk_bytes, needed), left)
            coming = self.begin(at, size) if size else None
            if len(bounds) > 1:
                headers = read_headers(view, bounds, origin)
                lost = _first_lost(headers)
                if lost < len(headers):
                    if coming is not None:
                        coming.cancel()
                    if lost:
                        yield Stretch(view, origin, headers.where(slice(0, lost)))
                    self._lost(int(headers.at[lost]), "these bytes are no batch, and what follows cannot be found")
                    return
                yield Stretch(view, origin, headers)
            if broken:
                self._lost(at, "a batch is cut off, or its length is wrong")
                return
        self._resume = self.high

    def _lost(self, at: int, reason: str, resumed: int | None = None) -> None:
        if resumed is None:
            later = int(np.searchsorted(self.starts, at, side="right"))
            resumed = int(self.starts[later]) if later < len(self.starts) else self.high
        self._resume = min(resumed, self.high)
        self.unreadable.append(Unreadable(at, self._resume, reason))


def _first_lost(headers: Headers) -> int:
    """The first row that is no batch at all: neither what it says nor its checksum is right. Where the one before it
    has a wrong checksum as well, its length led here, and it is the one that is lost."""
    bad = ~headers.has_right_crc
    nonsense = np.flatnonzero(bad & ~headers.is_possible)
    if not len(nonsense):
        return len(headers)
    row = int(nonsense[0])
    return row - 1 if row and bad[row - 1] else row
