"""All offsets of one shard: those that count, and those that are pending in open transactions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from broker.coordination.groups.offsets import CommittedOffsets, check_place, tombstone
from broker.coordination.groups.pending_offsets import RUN_MARK, Pending, PendingOffsets, Place, split_key
from broker.coordination.packed_records import Run
from broker.coordination.shard import CoordinatorRecord
from common.decision import ProducerStamp


class PlaceBefore(NamedTuple):
    """What was of an offset's key, for `restore`."""

    key: bytes
    value: bytes | None
    pending: Place | None


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

    def before(self, key: bytes) -> PlaceBefore | None:
        """None for the key of another kind."""
        split = split_key(key)
        return None if split is None else PlaceBefore(key, self.counting.value_of(key), self.pending.place_of(*split))

    def restore(self, before: PlaceBefore) -> None:
        split = split_key(before.key)
        if split is not None:
            self.counting.put(*split, before.value)
            self.pending.set_place(*split, before.pending)

    # reading -----------------------------------------------------------------------------------------------

    def has(self, group_id: str) -> bool:
        return self.counting.has(group_id) or self.pending.has(group_id)

    def holds(self, group_id: str, place: bytes) -> bool:
        return self.counting.holds(group_id, place) or self.pending.holds(group_id, place)

    def groups(self) -> list[str]:
        counting = self.counting
        return counting.groups() + [group_id for group_id in self.pending.groups() if not counting.has(group_id)]

    def places(self, group_id: str) -> list[bytes]:
        """A copy, to be walked in steps while the group changes."""
        return self.counting.places(group_id) + self._only_pending(group_id)

    def count(self, group_id: str) -> int:
        return self.counting.count(group_id) + len(self._only_pending(group_id))

    def _only_pending(self, group_id: str) -> list[bytes]:
        counting = self.counting
        return [place for place in self.pending.places(group_id) if not counting.holds(group_id, place)]

    def tombstones(self, group_id: str, most: int) -> list[CoordinatorRecord]:
        """For at most `most` offsets of the group. A tombstone removes what is pending as well."""
        records = self.counting.tombstones(group_id, most)
        if len(records) < most and self.pending.has(group_id):
            places = self._only_pending(group_id)[: most - len(records)]
            records += [tombstone(group_id, place) for place in places]
        return records

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
