"""The parts of a damaged partition that can be exported: before the damage, and after it.

Transaction indexes and the producer snapshot of the newest segment show which records are committed. If one of them
cannot be read, only the offsets that it covers are held back: those of its own segment, and those before it from the
first transaction on that was open when the segment began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from object_store.errors import ObjectAltered, ObjectMissing, ObjectTruncated
from object_store.store import ObjectStore
from spark_offload.export.offset_spans import Spans, merged
from spark_offload.export.tasks import unreadable
from spark_offload.reading.catalog import PartitionContents, stable_end
from spark_offload.reading.planning import PARTIAL_BYTES_MIN
from spark_offload.running.job import Problem
from spark_offload.segments.aborted import aborted_in_index
from spark_offload.segments.sections import OffsetPositions, read_section
from tiering.bucket.segment import OFFSET_INDEX, TRANSACTION_INDEX, TieredSegment


class Readable(NamedTuple):
    """`contents` name nothing whose sections are damaged; readers of committed records see the offsets below `end`, but
    for those that are `held` back. `problems` say why, one for each damaged object."""

    contents: PartitionContents
    end: int
    held: Spans = ()
    problems: Sequence[Problem] = ()


async def everything(store: ObjectStore, contents: PartitionContents) -> Readable:
    """For an undamaged partition. Raises StoreError, and ValueError if it is damaged."""
    return Readable(contents, await stable_end(store, contents))


async def around_damage(store: ObjectStore, contents: PartitionContents) -> Readable:
    """Reads every section that planning may need. Raises StoreError while the store does not answer."""
    return await _Search(store, contents).search()


class _Search:
    def __init__(self, store: ObjectStore, contents: PartitionContents) -> None:
        self._store = store
        self._contents = contents
        self._problems: dict[str, Problem] = {}

    async def search(self) -> Readable:
        contents = self._contents
        segments = [await self._with_sound_offset_index(one) for one in contents.segments]
        undecided = [at for at, one in enumerate(segments) if not await self._tells_aborted(one)]
        last = len(segments) - 1
        end = contents.end
        if segments and last not in undecided:
            known = await self._decided_until(segments[-1])
            if known is None:
                undecided.append(last)
            else:
                end = min(end, known)
        held = [(await self._decided_before(segments, at), segments[at].end_offset) for at in undecided]
        sound = tuple(one for at, one in enumerate(segments) if at not in undecided)
        return Readable(replace(contents, segments=sound), end, merged(held), tuple(self._problems.values()))

    async def _with_sound_offset_index(self, segment: TieredSegment) -> TieredSegment:
        """Without it the segment is read as a whole."""
        section = segment.sections.get(OFFSET_INDEX)
        if section is None or segment.log_bytes < PARTIAL_BYTES_MIN:
            return segment

        def decode(data: bytes) -> None:
            OffsetPositions(data, segment.base_offset, segment.log_bytes)

        if await self._is_sound(segment, OFFSET_INDEX, decode):
            return segment
        others = {name: one for name, one in segment.sections.items() if name != OFFSET_INDEX}
        return msgspec.structs.replace(segment, sections=others)

    async def _tells_aborted(self, segment: TieredSegment) -> bool:
        if TRANSACTION_INDEX not in segment.sections:
            return True
        return await self._is_sound(segment, TRANSACTION_INDEX, aborted_in_index)

    async def _is_sound(self, segment: TieredSegment, name: str, decode: Callable[[bytes], object]) -> bool:
        key = self._contents.key_of(segment)
        try:
            decode(await read_section(self._store, key, segment.sections.get(name)))
        except (ObjectMissing, ObjectTruncated, ObjectAltered, ValueError) as error:
            self._note(segment, error, segment.sections[name].position)
            return False
        return True

    async def _decided_before(self, segments: Sequence[TieredSegment], at: int) -> int:
        """The offset below which every transaction had ended when segment `at` began."""
        for segment in reversed(segments[:at]):
            known = await self._decided_until(segment)
            if known is not None:
                return known
        return self._contents.log_start

    async def _decided_until(self, segment: TieredSegment) -> int | None:
        """The offset below which every transaction had ended when `segment` did; None if its snapshot is damaged."""
        alone = replace(self._contents, end=segment.end_offset, segments=(segment,))
        try:
            return await stable_end(self._store, alone)
        except (ObjectMissing, ObjectTruncated, ObjectAltered, ValueError) as error:
            self._note(segment, error)
            return None

    def _note(self, segment: TieredSegment, error: Exception, position: int = -1) -> None:
        path, key = self._contents.path, self._contents.key_of(segment)
        problem = unreadable(error, path.topic, path.partition, segment.base_offset, key)
        self._problems.setdefault(key, replace(problem, position=position))
