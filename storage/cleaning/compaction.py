"""Plan of a log's compaction: offsets, groups of segments, keys. Values only.

A log is clean up to its first dirty offset, the cleaner's checkpoint. One pass reads keys from there on into an offset
map until the map is full or the first uncleanable offset is reached. Then it rewrites every segment below that end
without the records that a later record with the same key replaces. Source: Apache Kafka 4.1, "Log Compaction"; KIP-58
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
    """One segment, in bytes and milliseconds; `next_offset`: the following segment's base, or the log's end."""

    base_offset: int
    next_offset: int
    size: int
    index_bytes: int  # of the larger of its two sparse indexes
    first_timestamp: int  # -1: unknown
    largest_timestamp: int


class CleaningPlan(NamedTuple):
    """Clean [first_dirty_offset, first_uncleanable_offset); sizes in bytes."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    is_overdue: bool  # max.compaction.lag.ms has passed for an uncompacted record

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
    """The plan for all `segments` in order, the last one active; `checkpoint`: where the last pass ended, if ever.

    Never cleaned: the active segment; the segment of the last stable offset (at most the HW) and later ones; segments
    from the first dirty one on that has a record younger than min.compaction.lag.ms.
    """
    active = segments[-1]
    log_end_offset = active.next_offset
    first_dirty = checkpoint if checkpoint is not None else log_start_offset
    if not log_start_offset <= first_dirty <= log_end_offset:
        first_dirty = log_start_offset  # the log was truncated or its start has moved since
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

    A run stays within segment.bytes, segment.index.bytes and 31 bits of offsets, so that the new segment does too, and
    small leftovers are merged.
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
    """The latest offset of each key in [start, latest_offset], within a memory budget.

    Long keys are held as a collision-resistant digest. `latest_offset`: the last offset up to which all records were
    read; the map says nothing about later ones.
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
        """Add a record; False if the key is new and there is no room for it."""
        short = key if len(key) < KEY_DIGEST_BYTES else _digest(key)
        if len(self._offsets) >= self.keys_max and short not in self._offsets:
            return False
        self._offsets[short] = offset
        return True

    def advance_to(self, offset: int) -> None:
        """All records up to `offset` were read."""
        self.latest_offset = max(self.latest_offset, offset)

    def get(self, key: bytes) -> int:
        """-1 if the key was not seen."""
        return self._offsets.get(key if len(key) < KEY_DIGEST_BYTES else _digest(key), -1)


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=KEY_DIGEST_BYTES).digest()
