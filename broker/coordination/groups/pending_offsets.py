"""Offsets that producers have sent in transactions that no marker has ended yet.

Of a group's place (topic and partition), an offset counts when its transaction is committed, but only if no offset that
lies later in the log counts already: the order of records decides, not the order of markers. Behaviour: Apache Kafka
4.2's OffsetMetadataManager.

All offsets in the log here are those of batches. A shard that begins with a snapshot replays records that it has
already, so a place may know of offsets that come later in the log; therefore each step looks at what is older than
itself only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

from broker.coordination.groups.records import OFFSET_KEY_PREFIXES, UnreadableRecord
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.packed_records import RUN_RECORDS_MAX, Run, pack_runs
from common.decision import ProducerStamp

RUN_MARK = b"\xff\xff"  # begins a run of pending offsets in a snapshot; no key of the log begins so
PENDING_BYTES = 600  # memory of one, with short names
UNKNOWN = -1

_PRODUCER = Struct(">qh")
_OFFSETS = Struct(">qq")


class Pending(NamedTuple):
    """One pending offset. `offset`: of its batch in the log; `value`: as in the log."""

    offset: int
    producer: ProducerStamp
    value: bytes


class Place(NamedTuple):
    """What is pending for one topic and partition of a group, oldest first; never empty. `newest`: the batch of the
    newest offset that counts already, UNKNOWN if that is older than all that is pending. Values are never changed."""

    newest: int
    pending: tuple[Pending, ...]


class _Batch(NamedTuple):
    offset: int
    producer: ProducerStamp


class _Sent:
    """What one producer has pending in one group. A marker handles thousands of places as a whole, so that it does not
    hold the loop."""

    __slots__ = ("batches", "last", "values")

    def __init__(
        self, values: dict[bytes, bytes] | None = None, batches: dict[bytes, _Batch] | None = None, last: int = UNKNOWN
    ) -> None:
        """`values`, `batches`: by place. `last`: no batch has a higher offset."""
        self.values = {} if values is None else values
        self.batches = {} if batches is None else batches
        self.last = last

    def put(self, place: bytes, batch: _Batch, value: bytes) -> None:
        self.values[place] = value
        self.batches[place] = batch
        self.last = max(self.last, batch.offset)

    def pop(self, place: bytes) -> None:
        self.values.pop(place, None)
        self.batches.pop(place, None)

    def take_until(self, offset: int) -> _Sent:
        """Remove and return what lies up to `offset` in the log."""
        if self.last <= offset:
            taken = _Sent(self.values, self.batches, self.last)
            self.values, self.batches = {}, {}
            return taken
        taken = _Sent()
        for place, batch in list(self.batches.items()):
            if batch.offset <= offset:
                taken.put(place, batch, self.values[place])
                self.pop(place)
        return taken


class _Group:
    """What is pending in one group. `newest`: see `Place`; only of places where something is pending.

    A group may have thousands of producers, of which few have something pending at one place: what is asked of a place
    looks at those only. Places with one are apart, because a marker handles many of these, and few others."""

    __slots__ = ("_shared", "_sole", "newest", "sent")

    def __init__(self) -> None:
        self.sent: dict[int, list[_Sent]] = {}
        """By producer id, never empty. Of a place the first has the newest: there are more where a load replays records
        from before its snapshot."""
        self.newest: dict[bytes, int] = {}
        self._sole: dict[bytes, _Sent] = {}  # by place: what alone has something pending there
        self._shared: dict[bytes, dict[_Sent, None]] = {}  # of places not in `_sole`; never empty

    def put(self, place: bytes, pending: Pending) -> None:
        batch = _Batch(pending.offset, pending.producer)
        of_producer = self.sent[pending.producer.producer_id]
        for sent in of_producer:
            held = sent.batches.get(place)
            if held is None or held.offset <= batch.offset:
                break
        else:
            sent = _Sent()
            of_producer.append(sent)
        sent.put(place, batch, pending.value)
        self._note(place, sent)

    def _note(self, place: bytes, sent: _Sent) -> None:
        shared = self._shared.get(place)
        if shared is not None:
            shared[sent] = None
            return
        sole = self._sole.setdefault(place, sent)
        if sole is not sent:
            self._shared[place] = {sole: None, sent: None}
            del self._sole[place]

    def _forgo(self, places: Iterable[bytes], sent: _Sent) -> None:
        """`sent` had something pending at these places."""
        for place in places:
            if place in self._sole:
                del self._sole[place]
            else:
                shared = self._shared[place]
                del shared[sent]
                if not shared:
                    del self._shared[place]

    def take_until(self, sent: _Sent, offset: int) -> _Sent:
        """Remove and return what lies up to `offset` in the log."""
        taken = sent.take_until(offset)
        self._forgo(taken.values, sent)
        return taken

    def clear(self, place: bytes) -> list[int]:
        """Nothing is pending there any more. Returns whose it was."""
        producers = []
        for sent in self._at(place):
            producers.append(sent.batches[place].producer.producer_id)
            sent.pop(place)
            self._forgo((place,), sent)
        self.newest.pop(place, None)
        return producers

    def _at(self, place: bytes) -> list[_Sent]:
        sole = self._sole.get(place)
        return [*self._shared.get(place, ())] if sole is None else [sole]

    def holds(self, place: bytes) -> bool:
        return place in self._sole or place in self._shared

    def places(self) -> list[bytes]:
        return list(dict.fromkeys(place for some in self.sent.values() for sent in some for place in sent.values))

    def at(self, place: bytes) -> Place | None:
        found = [Pending(*sent.batches[place], sent.values[place]) for sent in self._at(place)]
        return Place(self.newest.get(place, UNKNOWN), tuple(sorted(found))) if found else None

    def count(self) -> int:
        return sum(len(sent.values) for of_producer in self.sent.values() for sent in of_producer)

    def counted(self, taken: _Sent) -> dict[bytes, bytes]:
        """Those of a committed transaction's offsets that count now."""
        counting = taken.values
        for place in self.newest.keys() & counting.keys():
            if taken.batches[place].offset < self.newest[place]:  # equal: a load applies it once more
                del counting[place]
        for place in self._shared.keys() & counting.keys():  # others': it was taken out of `_sole`
            self.newest[place] = taken.batches[place].offset
        return counting

    def overtake(self, place: bytes, offset: int) -> None:
        """Something that is not pending counts since `offset`."""
        if self.holds(place):
            self.newest[place] = max(self.newest.get(place, UNKNOWN), offset)

    def forget(self, places: Mapping[bytes, object]) -> None:
        """Nothing may be pending at these places any more."""
        for place in self.newest.keys() & places.keys():
            if place not in self._sole and place not in self._shared:
                del self.newest[place]


class Ended(NamedTuple):
    """What counts now in a group, by place. `name`: the group id as encoded in a key."""

    name: bytes
    values: dict[bytes, bytes]


class PendingOffsets:
    """Changed only by replay. `name`: a group id as encoded in a key, with its length."""

    def __init__(self) -> None:
        self._by_name: dict[bytes, _Group] = {}
        self._by_group: ByTenant[_Group] = ByTenant()  # the same, by group id
        self._by_producer: dict[int, dict[bytes, None]] = {}  # names of the groups where it has something pending

    def __bool__(self) -> bool:
        return bool(self._by_name)

    # replay ------------------------------------------------------------------------------------------------

    def put(self, name: bytes, place: bytes, pending: Pending) -> None:
        """It replaces an older one of its producer. Raises UnreadableRecord for an invalid key."""
        producer_id = pending.producer.producer_id
        group = self._by_name.get(name) or self._begin(name)
        if producer_id not in group.sent:
            group.sent[producer_id] = [_Sent()]
            self._by_producer.setdefault(producer_id, {})[name] = None
        group.put(place, pending)

    def overtaken(self, name: bytes, place: bytes, offset: int, *, removed: bool) -> None:
        """A record outside of transactions, in the batch at `offset`, has set the offset, or has `removed` it together
        with all that is pending."""
        group = self._by_name.get(name)
        if group is None:
            return
        if not removed:
            group.overtake(place, offset)
        elif (old := group.at(place)) is not None:
            left = tuple(one for one in old.pending if one.offset > offset)
            self.set_place(name, place, Place(max(old.newest, offset), left))

    def end(self, producer_id: int, offset: int, *, commit: bool) -> tuple[int, list[Ended]]:
        """A marker at `offset` ends the producer's transaction. Returns how many places it had, and the offsets that
        count now."""
        ended, counting = 0, []
        for name in list(self._by_producer.get(producer_id, ())):
            group = self._by_name[name]
            for sent in reversed(group.sent[producer_id]):
                taken = group.take_until(sent, offset)
                ended += len(taken.batches)
                if commit and (values := group.counted(taken)):
                    counting.append(Ended(name, values))
                group.forget(taken.batches)
            self._tidy(name, group, producer_id)
        return ended, counting

    def place_of(self, name: bytes, place: bytes) -> Place | None:
        group = self._by_name.get(name)
        return None if group is None else group.at(place)

    def set_place(self, name: bytes, place: bytes, state: Place | None) -> None:
        """None, or one without pending offsets, removes it. Raises UnreadableRecord for an invalid key."""
        group = self._by_name.get(name)
        if group is not None:
            for producer_id in dict.fromkeys(group.clear(place)):
                self._tidy(name, group, producer_id)
        if state is None:
            return
        for one in state.pending:
            self.put(name, place, one)
        if state.pending and state.newest > UNKNOWN:
            self._by_name[name].overtake(place, state.newest)

    def _tidy(self, name: bytes, group: _Group, producer_id: int) -> None:
        """Forget the producer's part of the group, and the group, if nothing is left there."""
        left = [sent for sent in group.sent[producer_id] if sent.values]
        if left:
            group.sent[producer_id] = left
        else:
            del group.sent[producer_id]
            names = self._by_producer[producer_id]
            del names[name]
            if not names:
                del self._by_producer[producer_id]
        if not group.sent:
            del self._by_name[name], self._by_group[name[2:].decode()]

    def _begin(self, name: bytes) -> _Group:
        try:
            group_id = name[2:].decode()
        except UnicodeDecodeError as error:
            raise UnreadableRecord("an invalid group id") from error
        group = self._by_group[group_id] = self._by_name[name] = _Group()
        return group

    # reading -----------------------------------------------------------------------------------------------

    def has(self, group_id: str) -> bool:
        return group_id in self._by_group

    def holds(self, group_id: str, place: bytes) -> bool:
        group = self._by_group.get(group_id)
        return group is not None and group.holds(place)

    def groups(self, prefix: str = "") -> list[str]:
        """Those whose ids begin with `prefix`."""
        return self._by_group.with_prefix(prefix)

    def places(self, group_id: str) -> list[bytes]:
        group = self._by_group.get(group_id)
        return [] if group is None else group.places()

    def size_of(self, producer_id: int) -> tuple[int, int]:
        """How many groups and offsets the producer has something pending in."""
        names = self._by_producer.get(producer_id, {})
        return len(names), sum(len(sent.values) for name in names for sent in self._by_name[name].sent[producer_id])

    def places_of(self, producer_id: int, group_id: str) -> set[bytes]:
        """Those of the group where the producer has something pending."""
        group = self._by_group.get(group_id)
        some = () if group is None else group.sent.get(producer_id, ())
        return set[bytes]().union(*(sent.values for sent in some))

    def values(self, group_id: str, place: bytes) -> list[bytes]:
        group = self._by_group.get(group_id)
        state = None if group is None else group.at(place)
        return [] if state is None else [one.value for one in state.pending]

    def held_bytes(self) -> int:
        ids = 2 * self._by_group.all_id_bytes  # each is the key of two dicts
        return ids + PENDING_BYTES * sum(group.count() for group in self._by_name.values())

    # snapshots ---------------------------------------------------------------------------------------------

    def pack(self) -> Iterator[tuple[bytes, int]]:
        """All pending offsets in runs. Offsets that count must be packed after the last of them: what a marker has
        moved between the two would be nowhere otherwise."""
        for name in list(self._by_name):
            group = self._by_name.get(name)
            places = [] if group is None else group.places()
            for at in range(0, len(places), RUN_RECORDS_MAX):
                pairs = []
                for place in places[at : at + RUN_RECORDS_MAX]:
                    state = None if group is None else group.at(place)
                    for one in () if state is None else state.pending:
                        head = _OFFSETS.pack(one.offset, state.newest if state is not None else UNKNOWN)
                        pairs.append((_PRODUCER.pack(*one.producer) + place, head + one.value))
                yield pack_runs(RUN_MARK + name, pairs), len(pairs)

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


def split_key(key: bytes) -> tuple[bytes, bytes] | None:
    """Name and place of an offset's key; None for the key of another kind of record."""
    if key[:2] not in OFFSET_KEY_PREFIXES:
        return None
    at = 4 + int.from_bytes(key[2:4], "big")
    return key[2:at], key[at:]
