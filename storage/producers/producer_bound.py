"""A limit on the number of producers that a broker's logs remember together. The longest idle is forgotten first.

Each partition also has its own limit, by which every replica forgets the same producers. By this limit they do not,
because each broker hosts other partitions. That is safe: every replica processes appended batches alike, and a replica
that has forgotten a producer only judges its next batch differently: it accepts any sequence, as Apache Kafka does
after `producer.id.expiration.ms`. So the only loss is that a repeated batch is not recognized if its producer was idle
for longer than all others that fit.

Idleness is counted in turns of ten seconds; an append only records the turn. Logs are queued by the turn of their
longest-idle producer as of the last check, which can only have become later since.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heappop, heappush
from typing import Protocol

from common.pacing import Work
from storage.producers.known_producer import LAST_TIMESTAMP, TURN, KnownProducer

TURN_MS = 10_000
LOOKS_MAX = 16  # logs checked per producer to forget, before an approximation is used
FORGET_PER_NEW = 2  # so that each new producer brings the number nearer to the limit
FORGET_COST = 4
TRIM_STEP = 64
GONE_TURNS_MAX = 64  # in addition to the number of current ones
REMEMBERED_TURNS_MAX = 8_640  # one day: producers idle for longer before this run count as idle that long


class Remembering(Protocol):
    """The producers of one log."""

    def __len__(self) -> int: ...

    def idlest(self) -> KnownProducer | None:
        """The longest-idle producer without an open transaction, or None."""

    def forget_idlest(self) -> bool:
        """Forget that producer. Returns whether there was one."""


class ProducerBound:
    """One per log directory; calls on the loop. `count` producers are known; at most `producers_max` may be."""

    __slots__ = ("_first_turn", "_queue", "_queued", "_turns", "count", "forgotten_count", "producers_max", "turn")

    def __init__(self, producers_max: int, now_ms: int) -> None:
        self.producers_max = producers_max
        self.turn = self._first_turn = now_ms // TURN_MS
        self.count = 0
        self.forgotten_count = 0  # because of this limit, since the start
        # by turn; an ordinary dictionary is slow to find its next key when the first keys are removed one by one
        self._queue: dict[int, OrderedDict[Remembering, None]] = {}
        self._queued: dict[Remembering, int] = {}  # the turn under which each log is queued
        self._turns: list[int] = []  # a heap with all turns of the queue, and some that are no longer in it

    def grow_older(self, now_ms: int) -> None:
        self.turn = max(self.turn, now_ms // TURN_MS)

    def queue(self, producers: Remembering) -> None:
        """Update the position of a log that may have producers."""
        turn = self._turn_of(producers.idlest())
        if turn == self._queued.get(producers):
            return
        self._take_out(producers)
        if turn is not None:
            self._put_in(producers, turn)

    def added(self, producers: Remembering) -> None:
        """A log has a new producer."""
        self.count += 1
        if producers not in self._queued:
            self._put_in(producers, self.turn)
        if self.count > self.producers_max:
            for _ in range(FORGET_PER_NEW):
                if self.count > self.producers_max:
                    self._forget()

    def join(self, producers: Remembering) -> None:
        """Count a log's producers from now on. If there are too many, the caller must run `trim`."""
        self.count += len(producers)
        self.queue(producers)

    def removed(self, count: int) -> None:
        """A log has `count` fewer producers."""
        self.count -= count

    def leave(self, producers: Remembering) -> None:
        self.count -= len(producers)
        self._take_out(producers)

    @property
    def is_exceeded(self) -> bool:
        return self.count > self.producers_max

    def trim(self) -> Work[None]:
        """Forget producers until the limit is met."""
        while self.count > self.producers_max:
            before = self.count
            for _ in range(min(TRIM_STEP, before - self.producers_max)):
                self._forget()
            if self.count == before:
                return  # all remaining ones have open transactions
            yield FORGET_COST * TRIM_STEP

    def _forget(self) -> None:
        idlest = self._idlest()
        if idlest is not None and idlest.forget_idlest():
            self.forgotten_count += 1

    def _idlest(self) -> Remembering | None:
        """The log with the longest-idle producer; after LOOKS_MAX outdated queue entries, the best one seen."""
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
        """The turn of its last append; if idle since before this run, derived from its last record."""
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
