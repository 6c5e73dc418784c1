"""Committed offsets of the groups of one shard, as bytes that are decoded on demand.

A shard may hold a million offsets. Key and value stay as in the log, in one dict per group, so that a load is cheap and
the garbage collector has nothing to traverse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct

from broker.coordination.groups.records import (
    OFFSET_KEY_PREFIXES,
    OFFSET_KEY_VERSION,
    UnreadableRecord,
    decode_offset_value,
    encode_place,
)
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.groups.values import CommittedOffset
from broker.coordination.packed_records import RUN_RECORDS_MAX, Run, pack_runs
from broker.coordination.shard import CoordinatorRecord

_KEY_VERSION = OFFSET_KEY_VERSION.to_bytes(2, "big")
_INT = Struct(">i")
OFFSET_BYTES, GROUP_BYTES = 250, 800  # measured, with short names
PLACE_OVERHEAD = 6  # the topic's length before its name, the partition after it

TopicOffsets = dict[int, CommittedOffset]
Places = dict[bytes, bytes]
"""Value by topic and partition as encoded in the key of an offset."""


class CommittedOffsets:
    """Changed only by replay. A group without offsets has no entry. `place`: topic and partition as encoded in a
    key."""

    def __init__(self) -> None:
        self._by_group: ByTenant[Places] = ByTenant()
        self._by_name: dict[bytes, Places] = {}  # the same, by group id as encoded in a key, with its length

    def put(self, name: bytes, place: bytes, value: bytes | None) -> None:
        """`name`: the group id as encoded in a key, with its length. None removes the offset.

        Raises UnreadableRecord for an invalid key.
        """
        check_place(place)
        places = self._by_name.get(name)
        if value is not None:
            if places is None:
                places = self._begin(name)
            places[place] = value
        elif places is not None:
            places.pop(place, None)
            if not places:
                del self._by_name[name], self._by_group[name[2:].decode()]

    def put_valid(self, name: bytes, values: Places) -> None:
        """Many offsets of a group at once, whose keys are known to be valid. The caller leaves `values` to this one."""
        places = self._by_name.get(name)
        if places is None:
            self._begin(name, values)
        else:
            places.update(values)

    def _begin(self, name: bytes, places: Places | None = None) -> Places:
        try:
            group_id = name[2:].decode()
        except UnicodeDecodeError as error:
            raise UnreadableRecord("an invalid group id") from error
        places = {} if places is None else places
        self._by_group[group_id] = self._by_name[name] = places
        return places

    def value_of(self, key: bytes) -> bytes | None:
        at = 4 + int.from_bytes(key[2:4], "big")
        return self._by_name.get(key[2:at], _NO_PLACES).get(key[at:])

    def put_all(self, records: list[tuple[bytes, bytes | None]], replay: Callable[[bytes, bytes | None], None]) -> int:
        """Store offsets of known groups, and `replay` the other records, in order. Returns how many could not be read.

        Consecutive records of one group take a fast path.
        """
        unreadable, size = 0, 0
        begin = b""  # prefix of the keys of the group's offsets
        places: Places | None = None
        for key, value in records:
            if places is None or not key.startswith(begin):
                places = None
                if key[:2] in OFFSET_KEY_PREFIXES and len(key) > PLACE_OVERHEAD:
                    size = 4 + (key[2] << 8 | key[3])
                    begin = key[:size]
                    places = self._by_name.get(key[2:size])
            if places is not None and value is not None:
                place = key[size:]
                if len(place) >= PLACE_OVERHEAD and (place[0] << 8 | place[1]) + PLACE_OVERHEAD == len(place):
                    places[place] = value
                    continue
            places = None
            try:
                replay(key, value)
            except ValueError:
                unreadable += 1
        return unreadable

    def pack(self) -> Iterator[tuple[bytes, int]]:
        """All offsets in runs, each with its number of records; concurrent changes may be missing."""
        for name in list(self._by_name):
            begin = _KEY_VERSION + name
            places = self._by_name.get(name, _NO_PLACES)
            wanted = list(places)
            for at in range(0, len(wanted), RUN_RECORDS_MAX):
                some = wanted[at : at + RUN_RECORDS_MAX]
                pairs = [(place, places[place]) for place in some if place in places]
                yield pack_runs(begin, pairs), len(pairs)

    def unpack(self, run: Run) -> None:
        """Apply one of these runs, to a group of which nothing was replayed yet."""
        name = run.begin[2:]
        places = self._by_name.get(name)
        if places is None:
            places = self._begin(name)
        places.update(run.pairs)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        places = self._by_group.get(group_id)
        return None if places is None else self.at(group_id, encode_place(topic, partition))

    def at(self, group_id: str, place: bytes) -> CommittedOffset | None:
        """None also for a value that cannot be read."""
        value = self._by_group.get(group_id, _NO_PLACES).get(place)
        return None if value is None else read_value(value)

    def places(self, group_id: str) -> list[bytes]:
        """A copy of the group's places, to be walked in steps while the group changes."""
        return list(self._by_group.get(group_id, _NO_PLACES))

    def items(self, group_id: str) -> list[tuple[bytes, bytes]]:
        """Places and values as of now."""
        return list(self._by_group.get(group_id, _NO_PLACES).items())

    def count(self, group_id: str) -> int:
        return len(self._by_group.get(group_id, _NO_PLACES))

    def held_bytes(self) -> int:
        """Approximate memory of all offsets."""
        ids = 2 * self._by_group.all_id_bytes  # each is the key of two dicts
        return ids + GROUP_BYTES * len(self._by_name) + OFFSET_BYTES * sum(map(len, self._by_name.values()))

    def has(self, group_id: str) -> bool:
        return group_id in self._by_group

    def groups(self, prefix: str = "") -> list[str]:
        """Those whose ids begin with `prefix`."""
        return self._by_group.with_prefix(prefix)

    def holds(self, group_id: str, place: bytes) -> bool:
        return place in self._by_group.get(group_id, _NO_PLACES)

    def record(self, group_id: str, place: bytes) -> CoordinatorRecord:
        """The record of the offset's current value; a tombstone if there is none."""
        value = self._by_group.get(group_id, _NO_PLACES).get(place)
        return CoordinatorRecord(_key(group_id, place), value)

    def each(self, group_id: str) -> Iterator[bytes]:
        """The group's places; while they are walked, nothing may change."""
        return iter(self._by_group.get(group_id, _NO_PLACES))


_NO_PLACES: Places = {}


def check_place(place: bytes) -> None:
    """Raises UnreadableRecord unless it is a whole topic and a partition."""
    if len(place) < PLACE_OVERHEAD or (place[0] << 8 | place[1]) + PLACE_OVERHEAD != len(place):
        raise UnreadableRecord("a truncated or invalid offset key")


def read_value(value: bytes) -> CommittedOffset | None:
    """None for one that cannot be read."""
    try:
        return decode_offset_value(value)
    except UnreadableRecord:
        return None


def tombstone(group_id: str, place: bytes) -> CoordinatorRecord:
    return CoordinatorRecord(_key(group_id, place), None)


def tombstones(group_id: str, places: Iterable[bytes]) -> list[CoordinatorRecord]:
    begin = _key(group_id, b"")
    return [CoordinatorRecord(begin + place, None) for place in places]


def split_place(place: bytes) -> tuple[str, int]:
    """Topic and partition."""
    return place[2:-4].decode(errors="replace"), int(_INT.unpack_from(place, len(place) - 4)[0])


def _key(group_id: str, place: bytes) -> bytes:
    name = group_id.encode()
    return b"".join((_KEY_VERSION, len(name).to_bytes(2, "big"), name, place))
