"""How much to prefetch for a reader: more the longer it reads sequentially, nothing once it jumps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from common.node_settings.tier import TierReads
from common.settings import same

ACTIVE_S = 10.0  # a reader idle for longer has no share of the total window
READERS_MAX = 1_000

Place = TypeVar("Place")
Asked = tuple[str, int, int]
"""(segment, chunk, window): everything within `window` bytes of that chunk was requested."""


class Sequence:
    """One reader in one partition. `window`: how many bytes beyond its offset should be cached already."""

    __slots__ = ("_began", "_expected", "asked", "last_at", "window")

    def __init__(self) -> None:
        self._began = self._expected = -1
        self.window = 0
        self.last_at = 0.0
        self.asked: Asked | None = None

    def goes_on(self, offset: int) -> bool:
        """Whether the read continues the sequence. Reading the last piece again counts, because responses get lost."""
        return self._began <= offset <= self._expected

    def read(self, offset: int, next_offset: int, window_first: int, window_max: int) -> None:
        """Note that the reader got [offset, next_offset)."""
        if not self.goes_on(offset):
            self.window = 0
        elif next_offset > self._expected:
            self.window = min(max(2 * self.window, window_first), window_max)
        self._began, self._expected = offset, next_offset

    def seen(self, now: float) -> None:
        """Its reader asks for something."""
        self.last_at = now

    def note_asked(self, asked: Asked) -> None:
        self.asked = asked


@dataclass(slots=True, frozen=True)
class PrefetchLimits:
    """`window_bytes`: ahead of one reader (`tidelog.tier.prefetch.bytes`); `total_bytes`: ahead of all together."""

    window_bytes: int = same(TierReads, "tier_prefetch_bytes")
    total_bytes: int = 256 << 20
    first_bytes: int = same(TierReads, "tier_chunk_bytes")


class Sequences(Generic[Place]):
    """Recent readers, by place (a reader in a partition); at most `READERS_MAX`."""

    def __init__(self, limits: PrefetchLimits) -> None:
        self._limits = limits
        self._sequences: dict[Place, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def jumps(self, place: Place, offset: int) -> bool:
        """Whether a known reader now requests another offset than the next one."""
        sequence = self._sequences.get(place)
        return sequence is not None and not sequence.goes_on(offset)

    def read(self, place: Place, offset: int, next_offset: int, now: float) -> int:
        """How many bytes to prefetch for a reader that got [offset, next_offset)."""
        sequence = self._sequences.pop(place, None) or Sequence()
        self._sequences[place] = sequence  # behind all others
        sequence.seen(now)
        self._forget(now)
        window_max = min(self._limits.window_bytes, self._limits.total_bytes // len(self._sequences))
        sequence.read(offset, next_offset, self._limits.first_bytes, window_max)
        return min(sequence.window, window_max)

    def asked(self, place: Place) -> Asked | None:
        """The last recorded state of a reader in a partition."""
        sequence = self._sequences.get(place)
        return sequence.asked if sequence is not None else None

    def note_asked(self, place: Place, asked: Asked) -> None:
        sequence = self._sequences.get(place)
        if sequence is not None:
            sequence.note_asked(asked)

    def _forget(self, now: float) -> None:
        sequences = self._sequences
        while len(sequences) > 1:
            place, oldest = next(iter(sequences.items()))
            if now - oldest.last_at < ACTIVE_S and len(sequences) <= READERS_MAX:
                return
            del sequences[place]
