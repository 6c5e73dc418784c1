"""What open transactions have pending in one group, by producer and by place.

A marker ends thousands of places as a whole: what a producer has sent is taken out in one step, and the index by place
still names it. So the index may name what has ended, and each look at a place passes over that.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from common.decision import ProducerStamp

UNKNOWN = -1
SWEPT_AT_ONCE = 2  # places that have ended, for each that comes: so there are never more than were pending at once


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


class Batch(NamedTuple):
    """Where a record lies. All records of a batch share one, because a marker drops thousands of references to it."""

    offset: int
    producer: ProducerStamp


OLDEST = Batch(UNKNOWN, ProducerStamp(UNKNOWN, UNKNOWN))


class Sent:
    """What one producer has pending in one group."""

    __slots__ = ("batches", "first", "last", "values")

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}  # by place
        self.batches: dict[bytes, Batch] = {}
        self.first = self.last = UNKNOWN  # no batch has a lower or a higher offset

    def put(self, place: bytes, batch: Batch, value: bytes) -> None:
        offset = batch.offset
        if offset < self.first or not self.values:
            self.first = offset
        self.last = max(self.last, offset)
        self.values[place] = value
        self.batches[place] = batch

    def pop(self, place: bytes) -> Batch | None:
        self.values.pop(place, None)
        return self.batches.pop(place, None)

    def at(self, place: bytes) -> Pending | None:
        batch = self.batches.get(place)
        return None if batch is None else Pending(*batch, self.values[place])

    def take_until(self, offset: int) -> tuple[dict[bytes, bytes], dict[bytes, Batch]]:
        """Remove and return values and batches of what lies up to `offset` in the log."""
        if self.last <= offset:
            values, batches = self.values, self.batches
            self.values, self.batches = _NO_VALUES, _NO_BATCHES  # the group drops what is empty
            return values, batches
        batches = {place: batch for place, batch in self.batches.items() if batch.offset <= offset}
        values = {place: self.values[place] for place in batches}
        for place in batches:
            self.pop(place)
        return values, batches


_NO_VALUES: dict[bytes, bytes] = {}
_NO_BATCHES: dict[bytes, Batch] = {}


class PendingGroup:
    """A group may have thousands of producers, of which few have something pending at one place: what is asked of a
    place looks at those only. Places with one are apart, because most have one."""

    __slots__ = ("_ended", "_newest", "_newest_last", "_shared", "_sole", "sent")

    def __init__(self) -> None:
        self.sent: dict[int, list[Sent]] = {}
        """By producer id, never empty. Of a place the first has the newest: there are more where a load replays records
        from before its snapshot."""
        self._sole: dict[bytes, int] = {}  # by place: the producer that alone may have something pending there
        self._shared: dict[bytes, list[int]] = {}  # those of places that are not in `_sole`
        self._newest: dict[bytes, Batch] = {}  # see `Place`; right only where something is pending
        self._newest_last = UNKNOWN  # none of those has a higher offset
        self._ended: dict[bytes, Batch] = {}  # by places that the index may name without a reason

    # replay ------------------------------------------------------------------------------------------------

    def put(self, place: bytes, batch: Batch, value: bytes) -> bool:
        """Whether the producer has one more than before. It replaces an older one otherwise, so of several at one place
        that are to be kept the newest comes first."""
        if self._ended:
            self._sweep()
        of_producer = self.sent[batch.producer.producer_id]
        for sent in of_producer:
            held = sent.batches.get(place)
            if held is None or held.offset <= batch.offset:
                break
        else:
            held, sent = None, Sent()
            of_producer.append(sent)
        if held is None:
            self._note(place, batch.producer.producer_id)
        sent.put(place, batch, value)
        return held is None

    def _note(self, place: bytes, producer_id: int) -> None:
        """The producer gets something pending there."""
        if place not in self._sole and place not in self._shared:
            self._sole[place] = producer_id
            return
        if not self.holds(place):
            self._forget(place)
            self._sole[place] = producer_id
            return
        sole = self._sole.get(place)
        if sole is None:
            shared = self._shared[place]
            if not len(shared) & (len(shared) - 1):  # at each power of two, so that it costs little for each
                shared[:] = [one for one in shared if self._has(one, place)]
            if producer_id not in shared:
                shared.append(producer_id)
        elif sole != producer_id:
            self._shared[place] = [sole, producer_id]
            del self._sole[place]

    def _forget(self, place: bytes) -> None:
        """Nothing is pending there any more."""
        self._sole.pop(place, None)
        self._shared.pop(place, None)
        self._newest.pop(place, None)

    def _sweep(self) -> None:
        """Forget some of the places where nothing is pending any more."""
        for _ in range(min(SWEPT_AT_ONCE, len(self._ended))):
            place, _ = self._ended.popitem()
            if not self.holds(place):
                self._forget(place)

    def end(self, producer_id: int, offset: int, *, commit: bool) -> tuple[int, list[dict[bytes, bytes]]]:
        """A marker at `offset` ends the producer's transaction. Returns how many offsets it had, and those that count
        now, older ones first."""
        of_producer = self.sent[producer_id]
        is_alone = len(self.sent) == len(of_producer) == 1
        ended, counting = 0, []
        for sent in reversed(of_producer):
            values, batches = sent.take_until(offset)
            ended += len(values)
            if commit:
                if self._newest_last > sent.first:
                    values = self._not_overtaken(values, batches)
                if values:
                    counting.append(values)
                if not is_alone:
                    self._count(values, batches, sent.last)
            if is_alone and not sent.values:  # nothing is left of the group
                continue
            if self._ended:
                self._ended.update(batches)
            else:
                self._ended = batches
        self.tidy(producer_id)
        return ended, counting

    def _not_overtaken(self, values: dict[bytes, bytes], batches: dict[bytes, Batch]) -> dict[bytes, bytes]:
        """There may be thousands of places: what is done for each calls nothing."""
        newest = self._newest
        return {
            place: value
            for place, value in values.items()
            if place not in newest or batches[place].offset >= newest[place].offset  # equal: a load applies it again
        }

    def _count(self, values: dict[bytes, bytes], batches: dict[bytes, Batch], last: int) -> None:
        """These values count now, and other producers may have older ones there."""
        if len(values) < len(batches):
            batches = {place: batches[place] for place in values}
        if self._newest:
            self._newest.update(batches)
        else:
            self._newest = batches.copy()  # several times as fast
        self._newest_last = max(self._newest_last, last)

    def tidy(self, producer_id: int) -> None:
        """Forget what has nothing pending any more."""
        of_producer = self.sent.get(producer_id, ())
        left = [sent for sent in of_producer if sent.values]
        if left:
            self.sent[producer_id] = left
        elif of_producer:
            del self.sent[producer_id]

    def overtake(self, place: bytes, offset: int) -> None:
        """Something that is not pending counts since `offset`."""
        if self.holds(place):
            self.set_newest(place, max(self._newest.get(place, OLDEST), Batch(offset, OLDEST.producer)))

    def set_newest(self, place: bytes, newest: Batch | None) -> None:
        if newest is None:
            self._newest.pop(place, None)
        else:
            self._newest[place] = newest
            self._newest_last = max(self._newest_last, newest.offset)

    def clear(self, place: bytes, offset: int) -> dict[int, int]:
        """Something that is not pending has removed all that is older than `offset`. Returns how much of each
        producer."""
        removed, is_left = dict[int, int](), False
        for sent in self._at(place):
            batch = sent.batches[place]
            if batch.offset > offset:
                is_left = True
            else:
                producer_id = batch.producer.producer_id
                removed[producer_id] = removed.get(producer_id, 0) + 1
                sent.pop(place)
                self.tidy(producer_id)
        if is_left:
            self.overtake(place, offset)
        else:
            self._forget(place)
        return removed

    def put_back(self, place: bytes, producer_id: int, former: Pending | None) -> bool:
        """The newest record of the producer there is taken back. Whether it has one less now."""
        if producer_id not in self.sent:
            return False
        sent = self.sent[producer_id][0]
        if former is not None:
            sent.put(place, Batch(former.offset, former.producer), former.value)
            return False
        is_less = sent.pop(place) is not None
        if not self.holds(place):
            self._forget(place)
        self.tidy(producer_id)
        return is_less

    # reading -----------------------------------------------------------------------------------------------

    def _at(self, place: bytes) -> list[Sent]:
        sole = self._sole.get(place)
        named = self._shared.get(place, ()) if sole is None else (sole,)
        return [sent for one in named for sent in self.sent.get(one, ()) if place in sent.values]

    def _has(self, producer_id: int, place: bytes) -> bool:
        for sent in self.sent.get(producer_id, ()):  # noqa: SIM110  # `any` would cost a generator for each place
            if place in sent.values:
                return True
        return False

    def holds(self, place: bytes) -> bool:
        sole = self._sole.get(place)
        if sole is not None:
            return self._has(sole, place)
        for producer_id in self._shared.get(place, ()):  # noqa: SIM110
            if self._has(producer_id, place):
                return True
        return False

    def weight(self, place: bytes) -> int:
        """About how many have something pending there, without a look at them."""
        return len(self._shared[place]) if place in self._shared else 1

    def is_full(self, place: bytes, producer_id: int, most: int) -> bool:
        """Whether `most` others have something pending there, and the producer nothing."""
        if self.weight(place) < most or self._has(producer_id, place):
            return False
        holders = {sent.batches[place].producer.producer_id for sent in self._at(place)}
        return len(holders) >= most

    def newest(self, place: bytes) -> Batch | None:
        return self._newest.get(place) if self.holds(place) else None

    def sent_by(self, producer_id: int, place: bytes) -> Pending | None:
        """What the next record of the producer there replaces."""
        of_producer = self.sent.get(producer_id)
        return None if of_producer is None else of_producer[0].at(place)

    def at(self, place: bytes) -> Place | None:
        found = [Pending(*sent.batches[place], sent.values[place]) for sent in self._at(place)]
        return Place(self._newest.get(place, OLDEST).offset, tuple(sorted(found))) if found else None

    def values(self, place: bytes) -> Iterator[bytes]:
        return (sent.values[place] for sent in self._at(place))

    def places(self) -> Iterator[bytes]:
        """Each at least once; while they are walked, nothing may change."""
        return chain.from_iterable(sent.values for some in self.sent.values() for sent in some)

    def places_in_steps(self) -> Iterator[bytes]:
        """Each that is there now and stays, at least once. The group may change meanwhile."""
        for sent in [sent for some in self.sent.values() for sent in some]:
            yield from list(sent.values)

    def states(self) -> Iterator[tuple[bytes, Place | None]]:
        """As `places_in_steps`, with all that is pending there when it comes first, and None after that. Apart, what is
        pending at one place may be of different moments: if a marker came between two of them, none would say what
        counts since."""
        known = set[bytes]()
        for place in self.places_in_steps():
            if place in known:
                yield place, None
            else:
                known.add(place)
                yield place, self.at(place)
