"""Indexes of partitions by broker and by pending work, so that they are found without a scan.

A set of partitions is a bit mask of indexes per topic, so that 100,000 partitions of 10,000 topics take about a
megabyte, and intersections are computed per topic.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from common.pacing import Work
from kraft.image.partitions import PartitionImage
from kraft.image.sharded_map import ShardedMap
from kraft.records import NO_LEADER

PartitionKey = tuple[bytes, int]
"""(topic id, index)"""
_WORD_BYTES = 8
STRETCH = 50  # partitions that are changed between two yields
CHANGE_COST, REMOVAL_COST, TOPIC_COST = 4, 4, 2
"""Of a changed partition, of a broker whose partitions of a topic go, and of a topic in a set that changes."""


class PartitionSet:
    """An immutable set of (topic id, index) with the same iteration order in every process."""

    __slots__ = ("_count", "_masks")

    def __init__(self, masks: ShardedMap[bytes, int] | None = None, count: int = 0) -> None:
        self._masks: ShardedMap[bytes, int] = ShardedMap() if masks is None else masks
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: PartitionKey) -> bool:
        return bool(self._masks.get(key[0], 0) >> key[1] & 1)

    def __iter__(self) -> Iterator[PartitionKey]:
        for topic_id, mask in self._masks.items():
            for index in _bits(mask):
                yield topic_id, index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionSet) and self._count == other._count and self._masks == other._masks

    def __hash__(self) -> int:
        return hash(self._count)

    def has_topic(self, topic_id: bytes) -> bool:
        return topic_id in self._masks

    def of_topic(self, topic_id: bytes) -> Iterator[PartitionKey]:
        for index in _bits(self._masks.get(topic_id, 0)):
            yield topic_id, index

    def within(self, other: PartitionSet) -> Iterator[PartitionKey]:
        """Elements that are also in `other`; the cost is the number of topics in this set."""
        for topic_id, mask in self._masks.items():
            for index in _bits(mask & other._masks.get(topic_id, 0)):
                yield topic_id, index


NO_PARTITIONS = PartitionSet()


class PartitionIndex(Struct, frozen=True):
    """Sets by broker: partitions of which it has a replica (`replicas`), is in the ISR (`in_sync`) or ELR (`eligible`),
    or which it `leads`. A broker without any has no entry.

    `leaderless`; `short`: ISR smaller than the replicas, and `under_replicated`: also without those that a reassignment
    adds; `moving`: being reassigned; `unsettled`: with an ELR or last known ELR; `astray`: not led by the preferred
    leader.
    """

    replicas: Mapping[int, PartitionSet] = field(default_factory=dict)
    in_sync: Mapping[int, PartitionSet] = field(default_factory=dict)
    eligible: Mapping[int, PartitionSet] = field(default_factory=dict)
    leads: Mapping[int, PartitionSet] = field(default_factory=dict)
    leaderless: PartitionSet = NO_PARTITIONS
    short: PartitionSet = NO_PARTITIONS
    under_replicated: PartitionSet = NO_PARTITIONS
    moving: PartitionSet = NO_PARTITIONS
    unsettled: PartitionSet = NO_PARTITIONS
    astray: PartitionSet = NO_PARTITIONS

    def with_replica(self, broker_id: int) -> PartitionSet:
        return self.replicas.get(broker_id, NO_PARTITIONS)

    def in_sync_with(self, broker_id: int) -> PartitionSet:
        return self.in_sync.get(broker_id, NO_PARTITIONS)

    def eligible_with(self, broker_id: int) -> PartitionSet:
        return self.eligible.get(broker_id, NO_PARTITIONS)

    def led_by(self, broker_id: int) -> PartitionSet:
        return self.leads.get(broker_id, NO_PARTITIONS)


class _SetEdit:
    """Changes of one set, by topic."""

    __slots__ = ("base", "masks")

    def __init__(self, base: PartitionSet) -> None:
        self.base = base
        self.masks: dict[bytes, int] = {}

    def put(self, topic_id: bytes, bit: int, present: bool) -> None:
        mask = self.masks.get(topic_id)
        if mask is None:
            mask = self.base._masks.get(topic_id, 0)
        self.masks[topic_id] = mask | bit if present else mask & ~bit

    def done(self) -> PartitionSet:
        base, count = self.base, self.base._count
        for topic_id, mask in self.masks.items():
            count += mask.bit_count() - base._masks.get(topic_id, 0).bit_count()
        return PartitionSet(base._masks.changed({topic: mask or None for topic, mask in self.masks.items()}), count)


class _BrokersEdit:
    """Changes of the sets of all brokers, of one kind."""

    __slots__ = ("_edits", "base")

    def __init__(self, base: Mapping[int, PartitionSet]) -> None:
        self.base = base
        self._edits: dict[int, _SetEdit] = {}

    def put(self, broker_id: int, topic_id: bytes, bit: int, present: bool) -> None:
        edit = self._edits.get(broker_id)
        if edit is None:
            edit = self._edits[broker_id] = _SetEdit(self.base.get(broker_id, NO_PARTITIONS))
        edit.put(topic_id, bit, present)

    def members(self, topic_id: bytes, bit: int, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        for broker_id in old:
            if broker_id not in new:
                self.put(broker_id, topic_id, bit, False)
        for broker_id in new:
            if broker_id not in old:
                self.put(broker_id, topic_id, bit, True)

    def done(self) -> Work[Mapping[int, PartitionSet]]:
        if not self._edits:
            return self.base
        changed = dict(self.base)
        for broker_id, edit in self._edits.items():
            changed[broker_id] = edit.done()
            yield TOPIC_COST * len(edit.masks)
        return {broker_id: changed[broker_id] for broker_id in sorted(changed) if changed[broker_id]}


class IndexEdit:
    """Changes of an index, each partition once: from its state in the base image to that in the next one."""

    def __init__(self, base: PartitionIndex) -> None:
        self._replicas = _BrokersEdit(base.replicas)
        self._in_sync = _BrokersEdit(base.in_sync)
        self._eligible = _BrokersEdit(base.eligible)
        self._leads = _BrokersEdit(base.leads)
        self._leaderless = _SetEdit(base.leaderless)
        self._short = _SetEdit(base.short)
        self._under_replicated = _SetEdit(base.under_replicated)
        self._moving = _SetEdit(base.moving)
        self._unsettled = _SetEdit(base.unsettled)
        self._astray = _SetEdit(base.astray)
        self._flags = (
            self._leaderless,
            self._short,
            self._under_replicated,
            self._moving,
            self._unsettled,
            self._astray,
        )  # in the index's order

    def change(self, topic_id: bytes, index: int, old: PartitionImage | None, new: PartitionImage) -> None:
        """`old` is None for a new partition. Fields that a record leaves unchanged are identical objects."""
        bit = 1 << index
        was = _NOTHING if old is None else old
        has_moved = was.replicas is not new.replicas
        if has_moved:
            self._replicas.members(topic_id, bit, was.replicas, new.replicas)
        if was.isr is not new.isr:
            self._in_sync.members(topic_id, bit, was.isr, new.isr)
        if has_moved or was.isr is not new.isr:
            is_short = len(new.isr) < len(new.replicas)
            if is_short != (len(was.isr) < len(was.replicas)):
                self._short.put(topic_id, bit, is_short)
        if has_moved or was.isr is not new.isr or was.adding is not new.adding:
            self._flag(self._under_replicated, topic_id, bit, was.is_under_replicated, new.is_under_replicated)
        if was.elr is not new.elr or was.last_known_elr is not new.last_known_elr:
            self._eligible.members(topic_id, bit, was.elr, new.elr)
            self._flag(self._unsettled, topic_id, bit, _is_unsettled(was), _is_unsettled(new))
        if was.leader != new.leader:
            if was.leader != NO_LEADER:
                self._leads.put(was.leader, topic_id, bit, False)
                self._flag(self._leaderless, topic_id, bit, False, new.leader == NO_LEADER)
            if new.leader != NO_LEADER:
                self._leads.put(new.leader, topic_id, bit, True)
                self._flag(self._leaderless, topic_id, bit, old is not None and was.leader == NO_LEADER, False)
        elif old is None:
            self._leaderless.put(topic_id, bit, True)
        if has_moved or was.leader != new.leader:
            self._flag(self._astray, topic_id, bit, _is_astray(was), _is_astray(new))
        if was.adding is not new.adding or was.removing is not new.removing:
            self._flag(self._moving, topic_id, bit, was.is_reassigning, new.is_reassigning)

    def changing(
        self, topic_id: bytes, before: Mapping[int, PartitionImage], changes: Mapping[int, PartitionImage]
    ) -> Work[None]:
        """Change each of a topic's partitions in `changes`."""
        cost = 0
        for index, partition in changes.items():
            self.change(topic_id, index, before.get(index), partition)
            cost += CHANGE_COST
            if cost == STRETCH * CHANGE_COST:
                yield cost
                cost = 0
        yield cost

    def remove(self, topic_id: bytes, partitions: Mapping[int, PartitionImage]) -> int:
        """Remove a topic with these partitions of the base image. Returns the cost."""
        brokers: dict[int, None] = {}
        if len(partitions) > len(self._replicas.base):
            for base in (self._replicas.base, self._in_sync.base, self._eligible.base, self._leads.base):
                brokers.update(dict.fromkeys(base))
        else:
            for partition in partitions.values():
                brokers.update(dict.fromkeys((*partition.replicas, *partition.isr, *partition.elr, partition.leader)))
        for broker_id in brokers:
            for edit in (self._replicas, self._in_sync, self._eligible, self._leads):
                if edit.base.get(broker_id, NO_PARTITIONS).has_topic(topic_id):
                    edit.put(broker_id, topic_id, -1, False)
        for flag in self._flags:
            if flag.base.has_topic(topic_id):
                flag.put(topic_id, -1, False)
        return REMOVAL_COST * len(brokers)

    @staticmethod
    def _flag(edit: _SetEdit, topic_id: bytes, bit: int, was: bool, now: bool) -> None:
        if was != now:
            edit.put(topic_id, bit, now)

    def done(self) -> Work[PartitionIndex]:
        """The changed index; ends the edit."""
        replicas = yield from self._replicas.done()
        in_sync = yield from self._in_sync.done()
        eligible = yield from self._eligible.done()
        leads = yield from self._leads.done()
        flags = [edit.done() if edit.masks else edit.base for edit in self._flags]
        yield TOPIC_COST * sum(len(edit.masks) for edit in self._flags)
        return PartitionIndex(replicas, in_sync, eligible, leads, *flags)


_NOTHING = PartitionImage(b"", 0, (), (), NO_LEADER)


def _is_unsettled(partition: PartitionImage) -> bool:
    return bool(partition.elr or partition.last_known_elr)


def _is_astray(partition: PartitionImage) -> bool:
    return partition.has_leader and partition.leader != partition.preferred_leader


def _bits(mask: int) -> Iterator[int]:
    """Positions of set bits, ascending."""
    if mask < 1 << 64:
        yield from _word_bits(mask, 0)
        return
    words = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
    for at in range(0, len(words), _WORD_BYTES):
        word = int.from_bytes(words[at : at + _WORD_BYTES], "little")
        if word:
            yield from _word_bits(word, at * 8)


def _word_bits(word: int, base: int) -> Iterator[int]:
    while word:
        lowest = word & -word
        yield base + lowest.bit_length() - 1
        word ^= lowest
