"""The partitions of one topic by index: immutable; the cost of a change depends only on the change."""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView

from kraft.image.partitions import PartitionImage

PLAIN_MAX = 512
"""A topic with fewer partitions is a dict, which is copied completely."""
_CHUNK_BITS = 7


class PartitionTable(Mapping[int, PartitionImage]):
    """For a topic with many partitions, in chunks of neighbours, ascending."""

    __slots__ = ("_chunks", "_length")

    def __init__(self, chunks: dict[int, dict[int, PartitionImage]], length: int) -> None:
        self._chunks = chunks
        self._length = length

    @classmethod
    def of(cls, partitions: Mapping[int, PartitionImage]) -> PartitionTable:
        return partitions if isinstance(partitions, PartitionTable) else cls({}, 0).changed(partitions)

    def changed(self, changes: Mapping[int, PartitionImage]) -> PartitionTable:
        chunks = dict(self._chunks)
        owned: dict[int, None] = {}
        length = self._length
        for index, partition in changes.items():
            number = index >> _CHUNK_BITS
            if number not in owned:
                owned[number] = None
                chunks[number] = dict(chunks.get(number, {}))
            chunk = chunks[number]
            length += index not in chunk
            chunk[index] = partition
        return PartitionTable(chunks, length)

    def __getitem__(self, index: int) -> PartitionImage:
        return self._chunks[index >> _CHUNK_BITS][index]

    def __contains__(self, index: object) -> bool:
        return isinstance(index, int) and index in self._chunks.get(index >> _CHUNK_BITS, {})

    def __iter__(self) -> Iterator[int]:
        for chunk in self._chunks.values():
            yield from chunk

    def values(self) -> ValuesView[PartitionImage]:
        return _Values(self)

    def items(self) -> ItemsView[int, PartitionImage]:
        return _Items(self)

    def __len__(self) -> int:
        return self._length


class _Values(ValuesView[PartitionImage]):
    """Without a look-up for each."""

    _mapping: PartitionTable

    def __iter__(self) -> Iterator[PartitionImage]:
        for chunk in self._mapping._chunks.values():
            yield from chunk.values()


class _Items(ItemsView[int, PartitionImage]):
    _mapping: PartitionTable

    def __iter__(self) -> Iterator[tuple[int, PartitionImage]]:
        for chunk in self._mapping._chunks.values():
            yield from chunk.items()


def partitions_changed(
    base: Mapping[int, PartitionImage], changes: Mapping[int, PartitionImage]
) -> Mapping[int, PartitionImage]:
    """`base` with each partition of `changes` set."""
    if len(base) + len(changes) <= PLAIN_MAX:
        return {**base, **changes}
    return PartitionTable.of(base).changed(changes)
