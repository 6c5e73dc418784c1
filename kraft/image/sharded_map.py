"""An immutable mapping of many entries of which few change at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

Key = TypeVar("Key", str, bytes)
Value = TypeVar("Value")

SHARDS = 256
_NONE: dict[object, object] = {}


class ShardedMap(Mapping[Key, Value]):
    """Entries lie in shards by their key's checksum; a changed map shares the shards that did not change with the one
    it came from. So a change costs a small part of the entries, and iteration has one order in every process."""

    __slots__ = ("_length", "_shards")

    def __init__(self, entries: Mapping[Key, Value] | None = None) -> None:
        self._shards: list[dict[Key, Value]] = [_NONE] * SHARDS  # type: ignore[list-item]
        self._length = 0
        if entries:
            self._take(entries)

    def changed(self, changes: Mapping[Key, Value | None]) -> ShardedMap[Key, Value]:
        """This map with each key of `changes` set to its value, or left out where that is None."""
        new = ShardedMap[Key, Value]()
        new._shards = list(self._shards)
        new._length = self._length
        new._take(changes)
        return new

    def _take(self, changes: Mapping[Key, Value | None]) -> None:
        owned: dict[int, None] = {}
        for key, value in changes.items():
            index = _shard(key)
            if index not in owned:
                owned[index] = None
                self._shards[index] = dict(self._shards[index])
            shard = self._shards[index]
            before = len(shard)
            if value is None:
                shard.pop(key, None)
            else:
                shard[key] = value
            self._length += len(shard) - before

    def __getitem__(self, key: Key) -> Value:
        return self._shards[_shard(key)][key]

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str | bytes) and key in self._shards[_shard(key)]

    def __iter__(self) -> Iterator[Key]:
        for shard in self._shards:
            yield from shard

    def __len__(self) -> int:
        return self._length


def _shard(key: str | bytes) -> int:
    return zlib.crc32(key.encode() if isinstance(key, str) else key) % SHARDS
