"""How many producers the logs of a broker remember together. The one idle for longest is forgotten first.

Each partition has a bound of its own, by which every replica forgets alike. By this one they do not, because each
broker hosts other partitions. That is safe: what is appended, every replica takes in alike, and a replica that has
forgotten a producer only judges its next batch differently. It takes that batch at any sequence, as Apache Kafka does
after `producer.id.expiration.ms`. So all that is lost is to recognise a batch that is sent again after its producer was
idle for longer than all others that fit.

Idleness is counted in turns of ten seconds, in which an append notes the turn and does nothing else. Logs are queued by
the turn of their idlest producer, as it was when it was last looked at: it has not become earlier since.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Protocol

from common.pacing import Work
from storage.producers.known_producer import LAST_TIMESTAMP, TURN, KnownProducer

TURN_MS = 10_000
LOOKS_MAX = 16  # logs that are looked at for one producer that is to be forgotten, before an approximation will do
FORGET_PER_NEW = 2  # so that a new producer brings the number nearer to the bound, if others came at once
FORGET_COST = 4
TRIM_STEP = 64
GONE_TURNS_MAX = 64  # beside as many as there are
REMEMBERED_TURNS_MAX = 8_640  # those of a day: what was idle for longer before this run counts as idle for so long


class Remembering(Protocol):
    """The producers of one log."""

    def __len__(self) -> int: ...

    def idlest(self) -> KnownProducer | None:
        """The producer idle for longest without an open transaction; None: there is none."""

    def forget_idlest(self) -> bool:
        """Forget that one; whether there was one."""


class ProducerBound:
    """One per log directory; calls on the loop. `count` producers are known, of which `producers_max` may stay."""

    __slots__ = ("_first_turn", "_queue", "_queued", "_turns", "count", "forgotten_count", "producers_max", "turn")

    def __init__(self, producers_max: int, now_ms: int) -> None:
        self.producers_max = producers_max
        self.turn = self._first_turn = now_ms // TURN_MS
        self.count = 0
        self.forgotten_count = 0  # for this bound, since the start
        # by turn; an ordinary dictionary whose first keys go one by one is slow to find the next one
        self._queue: dict[int, OrderedDict[Remembering, None]] = {}
        self._queued: dict[Remembering, int] = {}  # the turn by which each log is in the queue
        self._turns: list[int] = []  # a heap; each turn of the queue, and some that are there no more

    def grow_older(self, now_ms: int) -> None:
        self.turn = max(self.turn, now_ms // TURN_MS)

    def queue(self, producers: Remembering) -> None:
        """Update the place of a log that may have producers."""
        turn = self._turn_of(producers.idlest())
        if turn == self._queued.get(producers):
            return
        self._take_out(producers)
        if turn is not None:
            self._put_in(producers, turn)

    def added(self, producers: Remembering) -> None:
        """A log has a producer that it did not know."""
        self.count += 1
        if producers not in self._queued:
            self._put_in(producers, self.turn)
        if self.count > self.producers_max:
            for _ in range(FORGET_PER_NEW):
                if self.count > self.producers_max:
                    self._forget()

    def join(self, producers: Remembering) -> None:
        """A log's producers count from now on. If they are too many, `trim` is for the caller to run."""
        self.count += len(producers)
        self.queue(producers)

    def removed(self, count: int) -> None:
        """A log knows so many producers less."""
        self.count -= count

    def leave(self, producers: Remembering) -> None:
        self.count -= len(producers)
        self._take_out(producers)

    @property
    def is_exceeded(self) -> bool:
        return self.count > self.producers_max

    def trim(self) -> Work[None]:
        """Forget what is too much."""
        while self.count > self.producers_max:
            before = self.count
            for _ in range(min(TRIM_STEP, before - self.producers_max)):
                self._forget()
            if self.count == before:
                return  # all that is left has open transactions
            yield FORGET_COST * TRIM_STEP

    def _forget(self) -> None:
        idlest = self._idlest()
        if idlest is not None and idlest.forget_idlest():
            self.forgotten_count += 1

    def _idlest(self) -> Remembering | None:
        """The log with the idlest producer; after some looks at logs where it has become a later one, the best seen."""
        best: tuple[int, Remembering] | None = None
        for _ in range(LOOKS_MAX):
            producers = self._first()
            if producers is None:
                break
            queued = self._queued.get(producers)
            self.queue(producers)
            turn = self._queued.get(producers)
            if turn is not None and turn == queued:
                return producers
            if turn is not None and (best is None or turn < best[0]):
                best = turn, producers
        return best[1] if best is not None else None

    def _first(self) -> Remembering | None:
        turns = self._turns
        while turns:
            queued = self._queue.get(turns[0])
            if queued:
                return next(iter(queued))
            heappop(turns)
        return None

    def _turn_of(self, producer: KnownProducer | None) -> int | None:
        """In which it appended last; of one that is idle since before this run its last record tells."""
        if producer is None or producer[TURN]:
            return producer[TURN] if producer is not None else None
        first = self._first_turn
        return min(max(producer[LAST_TIMESTAMP] // TURN_MS, first - REMEMBERED_TURNS_MAX), first)

    def _put_in(self, producers: Remembering, turn: int) -> None:
        queued = self._queue.get(turn)
        if queued is None:
            queued = self._queue[turn] = OrderedDict()
            if len(self._turns) > 2 * len(self._queue) + GONE_TURNS_MAX:
                self._turns = sorted(self._queue)
            else:
                heappush(self._turns, turn)
        queued[producers] = None
        self._queued[producers] = turn

    def _take_out(self, producers: Remembering) -> None:
        turn = self._queued.pop(producers, None)
        if turn is not None:
            queued = self._queue[turn]
            del queued[producers]
            if not queued:
                del self._queue[turn]
