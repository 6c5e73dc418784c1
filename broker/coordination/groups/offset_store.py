"""All offsets of one shard: those that count, and those that are pending in open transactions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from broker.coordination.groups.offsets import CommittedOffsets, check_place, tombstones
from broker.coordination.groups.pending_group import Batch, Pending, Place
from broker.coordination.groups.pending_offsets import RUN_MARK, PendingOffsets, split_key
from broker.coordination.groups.tenant_index import ByTenant, each_once
from broker.coordination.packed_records import Run
from broker.coordination.shard import CoordinatorRecord
from common.decision import ProducerStamp


class CommitBefore(NamedTuple):
    """What a record outside of transactions changes of an offset's key, for `restore`."""

    key: bytes
    value: bytes | None
    newest: Batch | None


class TombstoneBefore(NamedTuple):
    """The same of a tombstone: all that is pending."""

    key: bytes
    value: bytes | None
    pending: Place | None


class PendingBefore(NamedTuple):
    """The same of a record in a transaction: what its producer had there."""

    key: bytes
    producer_id: int
    pending: Pending | None


Before = CommitBefore | TombstoneBefore | PendingBefore


class OffsetStore:
    """Changed only by replay. `counting`: what readers see."""

    def __init__(self) -> None:
        self.counting = CommittedOffsets()
        self.pending = PendingOffsets()
        self._batch = 0  # the offset of the batch that is replayed

    # replay ------------------------------------------------------------------------------------------------

    def begin_batch(self, offset: int) -> None:
        self._batch = offset

    def replay(self, key: bytes, value: bytes | None) -> bool:
        """A record outside of transactions. False for the key of another kind. Raises UnreadableRecord."""
        split = split_key(key)
        if split is None:
            return False
        name, place = split
        self.counting.put(name, place, value)
        if self.pending:
            self.pending.overtaken(name, place, self._batch, removed=value is None)
        return True

    def replay_pending(self, producer: ProducerStamp, records: list[tuple[bytes, bytes | None]]) -> int:
        """Records of other kinds, and tombstones, are ignored: no coordinator writes them in transactions."""
        unreadable = 0
        for key, value in records:
            split = split_key(key)
            if split is None or value is None:
                continue
            try:
                check_place(split[1])
                self.pending.put(*split, Pending(self._batch, producer, value))
            except ValueError:
                unreadable += 1
        return unreadable

    def end_transaction(self, producer: ProducerStamp, *, commit: bool) -> int:
        """A marker's epoch may be higher than that of the records (KIP-890)."""
        ended, counting = self.pending.end(producer.producer_id, self._batch, commit=commit)
        for name, values in counting:
            self.counting.put_valid(name, values)
        return ended

    def before(self, record: CoordinatorRecord) -> Before | None:
        """None for the key of another kind."""
        key, split = record.key, split_key(record.key)
        if split is None:
            return None
        if record.value is None:
            return TombstoneBefore(key, self.counting.value_of(key), self.pending.place_of(*split))
        return CommitBefore(key, self.counting.value_of(key), self.pending.newest(*split))

    def before_pending(self, producer: ProducerStamp, record: CoordinatorRecord) -> Before | None:
        """As `before`, of a record in a transaction. Thousands of producers may have something pending there."""
        key, split = record.key, split_key(record.key)
        if split is None:
            return None
        return PendingBefore(key, producer.producer_id, self.pending.sent_by(producer.producer_id, *split))

    def restore(self, before: Before) -> None:
        split = split_key(before.key)
        if split is None:
            return
        if isinstance(before, PendingBefore):
            self.pending.put_back(before.producer_id, *split, before.pending)
            return
        self.counting.put(*split, before.value)
        if isinstance(before, CommitBefore):
            self.pending.set_newest(*split, before.newest)
        else:
            self.pending.set_place(*split, before.pending)

    # reading -----------------------------------------------------------------------------------------------

    def has(self, group_id: str) -> bool:
        return self.counting.has(group_id) or self.pending.has(group_id)

    def holds(self, group_id: str, place: bytes) -> bool:
        return self.counting.holds(group_id, place) or self.pending.holds(group_id, place)

    def groups_in_steps(self, others: ByTenant[bytes]) -> Iterator[str | None]:
        """All groups with offsets, and then those of `others`, while any of them changes; None for one that came
        before."""
        return each_once(("",), self.pending.groups, self.counting.groups, others.with_prefix)

    def places_in_steps(self, group_id: str) -> Iterator[bytes | None]:
        """All places of a group that may change meanwhile; None for one that came before. What is pending comes first:
        one that begins to count meanwhile is then found again, and none is missed."""
        known: dict[bytes, None] = {}
        for place in self.pending.places_in_steps(group_id):
            yield None if place in known else place
            known[place] = None
        for place in self.counting.places(group_id):
            yield None if place in known else place

    def weight(self, group_id: str, place: bytes) -> int:
        """How many offsets a tombstone there removes, about; 1 at least."""
        return self.pending.weight(group_id, place)

    def tombstones(self, group_id: str, most: int) -> tuple[list[CoordinatorRecord], bool]:
        """Tombstones of at most `most` places of the group, or fewer: a tombstone removes what is pending as well, and
        counts for as many. Second: whether these are all."""
        places: dict[bytes, None] = {}
        weight = 0
        for place in chain(self.counting.each(group_id), self.pending.places(group_id)):
            if place not in places:
                if weight >= most:
                    break
                places[place] = None
                weight += self.weight(group_id, place)
        else:
            return tombstones(group_id, places), True
        return tombstones(group_id, places), False

    def held_bytes(self) -> int:
        return self.counting.held_bytes() + self.pending.held_bytes()

    # snapshots ---------------------------------------------------------------------------------------------

    def pack(self) -> Iterator[tuple[bytes, int]]:
        """Pending offsets come first: an offset that begins to count meanwhile is then found among those."""
        yield from self.pending.pack()
        yield from self.counting.pack()

    def unpack(self, run: Run) -> None:
        if run.begin.startswith(RUN_MARK):
            self.pending.unpack(run)
        else:
            self.counting.unpack(run)
