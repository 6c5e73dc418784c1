"""Offsets that producers have sent in transactions that no marker has ended yet.

Of a group's place (topic and partition), an offset counts when its transaction is committed, but only if no offset that
lies later in the log counts already: the order of records decides, not the order of markers. Behaviour: Apache Kafka
4.2's OffsetMetadataManager.

All offsets in the log here are those of batches. A shard that begins with a snapshot replays records that it has
already, so a place may know of offsets that come later in the log; therefore each step looks at what is older than
itself only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from broker.coordination.groups.pending_group import OLDEST, UNKNOWN, Batch, Pending, PendingGroup, Place, Sent
from broker.coordination.groups.records import OFFSET_KEY_PREFIXES, UnreadableRecord
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.packed_records import PART_BYTES, RUN_RECORDS_MAX, Run, pack_runs
from common.decision import ProducerStamp
from common.settings import LONG_MAX

RUN_MARK = b"\xff\xff"  # begins a run of pending offsets in a snapshot; no key of the log begins so
PENDING_BYTES = 600  # memory of one, with short names
DROPPED_MAX = 2_000  # groups without pending offsets that are not freed yet
GROUP_END_COST, ENDED_PER_UNIT = 8, 2  # units of `common.pacing`: of a group in which a marker ends something; offsets
LOOKS_MAX = 200  # in one step of a snapshot: places that came already, ...
PRODUCERS_PER_LOOK = 5  # ... and producers at others, most of which may have ended

_PRODUCER = Struct(">qh")
_OFFSETS = Struct(">qq")


class Ended(NamedTuple):
    """What counts now in a group, by place. `name`: the group id as encoded in a key."""

    name: bytes
    values: dict[bytes, bytes]


class _Transaction:
    """Where one producer has something pending. `names`: of groups; `offsets`: how many."""

    __slots__ = ("names", "offsets")

    def __init__(self) -> None:
        self.names: dict[bytes, None] = {}
        self.offsets = 0

    def add(self, count: int) -> None:
        self.offsets += count


class PendingOffsets:
    """Changed only by replay. `name`: a group id as encoded in a key, with its length."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, PendingGroup] = {}
        self._by_group: ByTenant[PendingGroup] = ByTenant()  # the same, by group id
        self._by_producer: dict[int, _Transaction] = {}
        self._batch = OLDEST  # that of the last record, which the next one often shares
        self._dropped: deque[PendingGroup] = deque()  # freed one by one as records come: a marker may drop a thousand
        self.count = 0  # all pending offsets

    def __bool__(self) -> bool:
        return bool(self._by_name)

    # replay ------------------------------------------------------------------------------------------------

    def put(self, name: bytes, place: bytes, pending: Pending) -> None:
        """It replaces an older one of its producer. Raises UnreadableRecord for an invalid key."""
        if self._dropped:
            self._dropped.popleft()
        batch, producer_id = self._batch, pending.producer.producer_id
        if batch.offset != pending.offset or batch.producer != pending.producer:
            batch = self._batch = Batch(pending.offset, pending.producer)
        group = self._by_name.get(name) or self._begin(name)
        transaction = self._by_producer.get(producer_id)
        if transaction is None:
            transaction = self._by_producer[producer_id] = _Transaction()
        if producer_id not in group.sent:
            group.sent[producer_id] = [Sent()]
            transaction.names[name] = None
        if group.put(place, batch, pending.value):
            transaction.add(1)
            self.count += 1

    def overtaken(self, name: bytes, place: bytes, offset: int, *, removed: bool) -> None:
        """A record outside of transactions, in the batch at `offset`, has set the offset, or has `removed` it together
        with all that is pending."""
        group = self._by_name.get(name)
        if group is None:
            return
        if removed:
            self._clear(name, group, place, offset)
        else:
            group.overtake(place, offset)

    def end(self, producer_id: int, offset: int, *, commit: bool) -> tuple[int, list[Ended]]:
        """A marker at `offset` ends the producer's transaction. Returns how many offsets it had, and those that count
        now."""
        transaction = self._by_producer.get(producer_id)
        ended, counting = 0, list[Ended]()
        for name in () if transaction is None else list(transaction.names):
            group = self._by_name[name]
            count, counted = group.end(producer_id, offset, commit=commit)
            ended += count
            for values in counted:
                counting.append(Ended(name, values))
            self._tidy(name, group, producer_id)
        if transaction is not None:
            self._less(producer_id, transaction, ended)
        return ended, counting

    def place_of(self, name: bytes, place: bytes) -> Place | None:
        group = self._by_name.get(name)
        return None if group is None else group.at(place)

    def set_place(self, name: bytes, place: bytes, state: Place | None) -> None:
        """None, or one without pending offsets, removes it. Raises UnreadableRecord for an invalid key."""
        group = self._by_name.get(name)
        if group is not None:
            self._clear(name, group, place, LONG_MAX)
        if state is None:
            return
        for one in reversed(state.pending):
            self.put(name, place, one)
        if state.pending and state.newest > UNKNOWN:
            self._by_name[name].overtake(place, state.newest)

    def newest(self, name: bytes, place: bytes) -> Batch | None:
        """What a record outside of transactions changes there, if it is no tombstone."""
        group = self._by_name.get(name)
        return None if group is None else group.newest(place)

    def set_newest(self, name: bytes, place: bytes, newest: Batch | None) -> None:
        group = self._by_name.get(name)
        if group is not None:
            group.set_newest(place, newest)

    def sent_by(self, producer_id: int, name: bytes, place: bytes) -> Pending | None:
        """What the next record of the producer there replaces."""
        group = self._by_name.get(name)
        return None if group is None else group.sent_by(producer_id, place)

    def put_back(self, producer_id: int, name: bytes, place: bytes, former: Pending | None) -> None:
        """Take back the producer's newest record there, which has replaced `former`."""
        group = self._by_name.get(name)
        if group is not None and group.put_back(place, producer_id, former):
            self._tidy(name, group, producer_id)
            self._less(producer_id, self._by_producer[producer_id], 1)

    def _clear(self, name: bytes, group: PendingGroup, place: bytes, offset: int) -> None:
        for producer_id, count in group.clear(place, offset).items():
            self._tidy(name, group, producer_id)
            self._less(producer_id, self._by_producer[producer_id], count)

    def _tidy(self, name: bytes, group: PendingGroup, producer_id: int) -> None:
        """The producer has less in the group: forget the group if nothing is left there."""
        if producer_id in group.sent:
            return
        del self._by_producer[producer_id].names[name]
        if not group.sent and name in self._by_name:
            del self._by_name[name], self._by_group[name[2:].decode()]
            self._dropped.append(group)
            if len(self._dropped) > DROPPED_MAX:
                self._dropped.popleft()

    def _less(self, producer_id: int, transaction: _Transaction, count: int) -> None:
        transaction.add(-count)
        self.count -= count
        if not transaction.names:
            del self._by_producer[producer_id]

    def _begin(self, name: bytes) -> PendingGroup:
        try:
            group_id = name[2:].decode()
        except UnicodeDecodeError as error:
            raise UnreadableRecord("an invalid group id") from error
        group = self._by_group[group_id] = self._by_name[name] = PendingGroup()
        return group

    # reading -----------------------------------------------------------------------------------------------

    def has(self, group_id: str) -> bool:
        return group_id in self._by_group

    def holds(self, group_id: str, place: bytes) -> bool:
        group = self._by_group.get(group_id)
        return group is not None and group.holds(place)

    def weight(self, group_id: str, place: bytes) -> int:
        """How many offsets a tombstone there removes, about; 1 at least."""
        group = self._by_group.get(group_id)
        return 1 if group is None else group.weight(place)

    def producers(self, group_id: str) -> int:
        """How many have something pending in the group."""
        group = self._by_group.get(group_id)
        return 0 if group is None else len(group.sent)

    def is_full(self, group_id: str, place: bytes, producer_id: int, most: int) -> bool:
        """Whether `most` other producers have something pending there, and this one nothing."""
        group = self._by_group.get(group_id)
        return group is not None and group.is_full(place, producer_id, most)

    def groups(self, prefix: str = "") -> list[str]:
        """Those whose ids begin with `prefix`."""
        return self._by_group.with_prefix(prefix)

    def places(self, group_id: str) -> Iterator[bytes]:
        """Each at least once; while they are walked, nothing may change."""
        group = self._by_group.get(group_id)
        return iter(()) if group is None else group.places()

    def places_in_steps(self, group_id: str) -> Iterator[bytes]:
        """As `places`, of a group that may change meanwhile."""
        group = self._by_group.get(group_id)
        return iter(()) if group is None else group.places_in_steps()

    def size_of(self, producer_id: int) -> tuple[int, int]:
        """How many groups and offsets the producer has something pending in."""
        transaction = self._by_producer.get(producer_id)
        return (0, 0) if transaction is None else (len(transaction.names), transaction.offsets)

    def ending_cost(self, producer_id: int) -> int:
        """What a marker of the producer takes, in units of `common.pacing`."""
        groups, offsets = self.size_of(producer_id)
        return groups * GROUP_END_COST + offsets // ENDED_PER_UNIT

    def places_of(self, producer_id: int, group_id: str) -> set[bytes]:
        """Those of the group where the producer has something pending."""
        group = self._by_group.get(group_id)
        some = () if group is None else group.sent.get(producer_id, ())
        return set[bytes]().union(*(sent.values for sent in some))

    def values(self, group_id: str, place: bytes) -> Iterator[bytes]:
        """Those that are pending there; while they are walked, nothing may change."""
        group = self._by_group.get(group_id)
        return iter(()) if group is None else group.values(place)

    def held_bytes(self) -> int:
        ids = 2 * self._by_group.all_id_bytes  # each is the key of two dicts
        return ids + PENDING_BYTES * self.count

    # snapshots ---------------------------------------------------------------------------------------------

    def pack(self) -> Iterator[tuple[bytes, int]]:
        """All pending offsets in runs. Offsets that count must be packed after the last of them: what a marker has
        moved between the two would be nowhere otherwise. A part ends with the offset that brings it to RUN_RECORDS_MAX
        or PART_BYTES, because many producers may have something at one place, or after many looks that add little."""
        for name in list(self._by_name):
            group, begin = self._by_name.get(name), RUN_MARK + name
            part, size = list[tuple[bytes, bytes]](), 0
            for pair in () if group is None else _packed(group):
                if pair is not None:
                    part.append(pair)
                    size += len(pair[0]) + len(pair[1])
                if pair is None or len(part) >= RUN_RECORDS_MAX or size >= PART_BYTES:
                    yield pack_runs(begin, part), len(part)
                    part, size = [], 0
            if part:
                yield pack_runs(begin, part), len(part)

    def unpack(self, run: Run) -> None:
        """Apply one of these runs. Raises ValueError."""
        name = run.begin[len(RUN_MARK) :]
        for key, data in run.pairs:
            if len(key) < _PRODUCER.size or len(data) < _OFFSETS.size:
                raise ValueError("a pending offset that is cut off")
            place = key[_PRODUCER.size :]
            offset, newest = _OFFSETS.unpack_from(data)
            producer = ProducerStamp(*_PRODUCER.unpack_from(key))
            self.put(name, place, Pending(offset, producer, data[_OFFSETS.size :]))
            if newest > UNKNOWN:
                self.overtaken(name, place, newest, removed=False)


def _packed(group: PendingGroup) -> Iterator[tuple[bytes, bytes] | None]:
    """Keys and values of a run's records; None after LOOKS_MAX looks. Of one producer the newest comes first at each
    place, see `PendingGroup.put`."""
    looks = 0
    for place, state in group.states():
        if state is None:
            looks += 1
        else:
            looks += group.weight(place) // PRODUCERS_PER_LOOK
            for one in reversed(state.pending):
                yield _PRODUCER.pack(*one.producer) + place, _OFFSETS.pack(one.offset, state.newest) + one.value
        if looks >= LOOKS_MAX:
            yield None
            looks = 0


def split_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Name and place of an offset's key; None for the key of another kind of record."""
    if key[:2] not in OFFSET_KEY_PREFIXES:
        return None
    at = 4 + int.from_bytes(key[2:4], "big")
    return key[2:at], key[at:]
