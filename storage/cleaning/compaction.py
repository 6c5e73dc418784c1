"""What compaction of one log would do: which offsets, which segments together, which keys; values only.

A log is clean up to its first dirty offset, the cleaner's checkpoint. One pass reads keys from there on into an offset
map until the map is full or the first uncleanable offset is reached, then rewrites every segment below that end
without the records that a later one with the same key replaces. Source: Apache Kafka 4.1, "Log Compaction"; KIP-58
(min.compaction.lag.ms), KIP-354 (max.compaction.lag.ms).
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import NamedTuple

from storage.log.log_config import FOREVER_MS, LogConfig

RELATIVE_OFFSETS_MAX = 2**31 - 1
KEY_DIGEST_BYTES = 16
BYTES_PER_KEY = 200  # of a Python dictionary with short keys and large integers while it grows
LOAD_FACTOR = 0.9  # log.cleaner.io.buffer.load.factor


class CompactionSegment(NamedTuple):
    """One segment, in bytes and milliseconds; `next_offset` is the following segment's base, or the log's end."""

    base_offset: int
    next_offset: int
    size: int
    index_bytes: int  # of the larger one of its two sparse indexes
    first_timestamp: int  # -1: not known
    largest_timestamp: int


class CleaningPlan(NamedTuple):
    """Clean [first_dirty_offset, first_uncleanable_offset); sizes in bytes."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool  # max.compaction.lag.ms has passed for a record that is not compacted yet

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.cleanable_bytes
        return self.cleanable_bytes / total if total else 0.0

    def is_due(self, min_cleanable_dirty_ratio: float) -> bool:
        if self.cleanable_bytes == 0:
            return False
        return self.is_overdue or self.dirty_ratio > min_cleanable_dirty_ratio


def plan_cleaning(
    segments: Sequence[CompactionSegment],
    checkpoint: int | None,
    log_start_offset: int,
    last_stable_offset: int,
    config: LogConfig,
    now_ms: int,
) -> CleaningPlan:
    """Of all `segments` in order, the last one active; `checkpoint` is where the last pass ended, if ever.

    Never cleaned: the active segment, the segment of the last stable offset (at most the HW) and all behind it, and
    from the first dirty segment on that holds a record younger than min.compaction.lag.ms.
    """
    active = segments[-1]
    log_end_offset = active.next_offset
    first_dirty = checkpoint if checkpoint is not None else log_start_offset
    if not log_start_offset <= first_dirty <= log_end_offset:
        first_dirty = log_start_offset  # the log was cut or its start has moved since
    closed = segments[:-1]
    dirty = [segment for segment in closed if segment.next_offset > first_dirty]
    bound = min(last_stable_offset, active.base_offset)
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        bound = min([bound] + [segment.base_offset for segment in dirty if segment.largest_timestamp > youngest])
    cleanable = [segment for segment in dirty if segment.next_offset <= bound]
    uncleanable = cleanable[-1].next_offset if cleanable else first_dirty
    oldest = min((s.first_timestamp for s in cleanable if s.first_timestamp > 0), default=now_ms)
    lag = max(config.max_compaction_lag_ms, 0)
    return CleaningPlan(
        first_dirty_offset=first_dirty,
        first_uncleanable_offset=uncleanable,
        clean_bytes=sum(segment.size for segment in closed if segment.next_offset <= first_dirty),
        cleanable_bytes=sum(segment.size for segment in cleanable),
        is_overdue=lag < FOREVER_MS and oldest < now_ms - lag,
    )


def group_segments(
    segments: Sequence[CompactionSegment], end_offset: int, config: LogConfig
) -> list[list[CompactionSegment]]:
    """The closed segments that begin below `end_offset`, in runs that each become one segment.

    A run's bytes stay within segment.bytes and segment.index.bytes and its offsets within 31 bits, so that the new
    segment does, too, and small leftovers melt together.
    """
    groups: list[list[CompactionSegment]] = []
    size = index_bytes = 0
    for segment in segments:
        if segment.base_offset >= end_offset:
            break
        fits = (
            bool(groups)
            and size + segment.size <= config.segment_bytes
            and index_bytes + segment.index_bytes <= config.segment_index_bytes
            and segment.next_offset - 1 - groups[-1][0].base_offset <= RELATIVE_OFFSETS_MAX
        )
        if fits:
            groups[-1].append(segment)
            size += segment.size
            index_bytes += segment.index_bytes
        else:
            groups.append([segment])
            size, index_bytes = segment.size, segment.index_bytes
    return groups


class OffsetMap:
    """The latest offset of each key seen in [start, latest_offset], within a budget of memory.

    Long keys are held as a collision-resistant digest. `latest_offset` is the last offset that has been
    taken in completely: whatever lies behind it is not the map's to judge.
    """

    __slots__ = ("_offsets", "keys_max", "latest_offset")

    def __init__(self, memory_bytes: int) -> None:
        """`memory_bytes`: log.cleaner.dedupe.buffer.size, of one cleaner."""
        self.keys_max = max(1, int(memory_bytes * LOAD_FACTOR) // BYTES_PER_KEY)
        self.latest_offset = -1
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> bool:
        """Take in a record; False when the key is new and there is no room for it."""
        short = key if len(key) < KEY_DIGEST_BYTES else _digest(key)
        if len(self._offsets) >= self.keys_max and short not in self._offsets:
            return False
        self._offsets[short] = offset
        return True

    def took_in(self, offset: int) -> None:
        """All records up to `offset` were looked at."""
        self.latest_offset = max(self.latest_offset, offset)

    def get(self, key: bytes) -> int:
        """-1 when the key was not seen."""
        return self._offsets.get(key if len(key) < KEY_DIGEST_BYTES else _digest(key), -1)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=KEY_DIGEST_BYTES).digest()
