"""The newest matching audit events, from the object store or from `__audit`."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from object_store.store import ObjectStore
from records.audit_event import AuditEvent, decode_audit_event
from tiering.bucket.keys import TierRoot
from tiering.exports.audit_reading import AuditProblem, iterate_audit
from tiering.upkeep.inventory import list_partitions

if TYPE_CHECKING:
    from kafka import KafkaConsumer, TopicPartition

CLOCKS_APART_MS = 3_600_000
"""How far the clock of a store, or of a leader of `__audit`, may be behind that of an event's writer."""
SILENCE_S = 30.0
LOOK_UP_MS = 5_000
POLL_MS = 500

T = TypeVar("T")


class NotAnswering(Exception):
    """The brokers no longer respond about `__audit`."""


@dataclass(slots=True)
class Wanted:
    """The filter for events; empty fields match everything.

    `topic`: a name; `topic_ids` (hexadecimal): ids of topics with that name, for events that have no name. With
    `of_one` only topics with these ids match, whatever else had the name. With a partition, its topic's own events
    match too.
    """

    topic: str = ""
    topic_ids: set[str] = field(default_factory=set)
    of_one: bool = False
    partition: int | None = None
    kinds: frozenset[str] = frozenset()
    since_ms: int = 0
    passes_over: Callable[[str], bool] | None = None  # skips events of topics for whose names it returns true
    passed_over: int = 0  # number of matching events that are not listed
    _is_known: bool = False

    @property
    def is_known(self) -> bool:
        """Whether the topic has any event, even of another kind or partition; true without a topic."""
        return not self.topic or self._is_known

    def knows(self, names: Iterable[str]) -> None:
        """Note that topics of these names exist."""
        self._is_known = self._is_known or (not self.of_one and self.topic in names)

    def has(self, event: AuditEvent) -> bool:
        if not self._is_of_topic(event):
            return False
        self._is_known = True
        if event.wall_ms < self.since_ms:
            return False
        if self.partition is not None and event.partition not in (self.partition, -1):
            return False
        if self.kinds and event.event not in self.kinds:
            return False
        if self.passes_over is not None and self.passes_over(event.topic):
            self.passed_over += 1
            return False
        return True

    def _is_of_topic(self, event: AuditEvent) -> bool:
        if not self.topic:
            return True
        if not self.of_one and event.topic == self.topic:
            if event.topic_id:
                self.topic_ids.add(event.topic_id)
            return True
        return event.topic_id in self.topic_ids


class Listing:
    """Keeps the newest `most` events. `problems`: what could not be read."""

    def __init__(self, wanted: Wanted, most: int) -> None:
        self.wanted = wanted
        self.problems: list[str] = []
        self.left_out = 0
        self._most = most
        self._newest: list[tuple[int, int, AuditEvent]] = []
        self._count = 0

    def add(self, event: AuditEvent) -> None:
        if not self.wanted.has(event):
            return
        self._count += 1
        entry = (event.wall_ms, self._count, event)
        if len(self._newest) < self._most:
            heapq.heappush(self._newest, entry)
        else:
            heapq.heappushpop(self._newest, entry)
            self.left_out += 1

    def events(self) -> list[AuditEvent]:
        """Ordered by their writers' clocks."""
        return [event for _, _, event in sorted(self._newest)]


async def read_store(store: ObjectStore, root: TierRoot, listing: Listing) -> None:
    """All sources. Raises StoreError."""
    wanted = listing.wanted
    if wanted.topic and not wanted.of_one:
        there = await list_partitions(store, root, wanted.topic)
        wanted.topic_ids |= {place.topic_id.hex() for place in there}
        wanted.knows(place.name for place in there)
    async for item in iterate_audit(store, root, written_since_ms=wanted.since_ms - CLOCKS_APART_MS):
        if isinstance(item, AuditProblem):
            listing.problems.append(f"{item.key}: {item.reason}")
        else:
            listing.add(item)


def read_topic(consumer: KafkaConsumer, topic: str, listing: Listing) -> None:
    """Read the events that brokers have written so far. Raises NotAnswering, and KafkaError."""
    from kafka import TopicPartition  # noqa: PLC0415

    places = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    consumer.assign(places)
    ends = _looked_up(consumer, lambda: consumer.end_offsets(places, timeout_ms=LOOK_UP_MS))
    since_ms = max(listing.wanted.since_ms - CLOCKS_APART_MS, 0)
    times = dict.fromkeys(places, since_ms)
    starts = _looked_up(consumer, lambda: consumer.offsets_for_times(times, timeout_ms=LOOK_UP_MS))
    for place in places:
        start = starts[place]
        consumer.seek(place, ends[place] if start is None else start.offset)
    for place, offset, value in _records(consumer, {place: end for place, end in ends.items() if end}):
        try:
            listing.add(decode_audit_event(value))
        except ValueError as error:
            listing.problems.append(f"{place.topic}-{place.partition}, offset {offset}: {error}")


def _looked_up(consumer: KafkaConsumer, ask: Callable[[], T]) -> T:
    """kafka-python retries at a broker that no longer leads until its timeout, so it gets a short one, and then has to
    refresh its metadata. Raises NotAnswering."""
    from kafka.errors import KafkaTimeoutError  # noqa: PLC0415

    for _ in range(int(SILENCE_S * 1000) // LOOK_UP_MS):
        try:
            return ask()
        except KafkaTimeoutError:
            consumer.topics()
    raise NotAnswering(f"the brokers have not answered for {SILENCE_S:g} s")


def _records(consumer: KafkaConsumer, ends: dict[TopicPartition, int]) -> Iterator[tuple[TopicPartition, int, bytes]]:
    """The records of all partitions up to `ends`."""
    silent_ms = 0
    while any(consumer.position(place) < end for place, end in ends.items()):
        found = consumer.poll(POLL_MS)
        silent_ms = 0 if found else silent_ms + POLL_MS
        if silent_ms > SILENCE_S * 1000:
            raise NotAnswering(f"the brokers have not answered for {SILENCE_S:g} s")
        for place, records in found.items():
            for record in records:
                yield place, record.offset, record.value or b""
