"""How far groups are behind: in records, and in time, which is the age of the first record that is not read yet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.admin.partition_offsets import LATEST, leaders_of, offsets_of, portions
from tidelog.admin.transaction_doctor import Place

if TYPE_CHECKING:
    from kafka import KafkaConsumer

    from tidelog.admin.library_client import AdminClient

GROUPS_AT_ONCE = 200  # of one request
LOOK_S = 5.0
FIRST_BYTES = 4_096  # of a partition; a broker sends one whole batch at least


class Behind(NamedTuple):
    """One partition of a group. None is what no leader answered; `behind_ms` is 0 for what is read."""

    group: str
    place: Place
    committed: int
    end: int | None
    behind_ms: int | None = None

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.committed)


def lags(client: AdminClient, groups: Sequence[str]) -> list[Behind]:
    """Every partition in which these groups have committed. Raises KafkaError."""
    committed: dict[str, dict[Any, Any]] = {}
    for some in portions(groups, GROUPS_AT_ONCE):
        committed |= client.list_group_offsets(dict.fromkeys(some))
    rows = [
        (group, Place(one.topic, one.partition), int(found.offset))
        for group, offsets in committed.items()
        for one, found in offsets.items()
    ]
    places = {place for _, place, _ in rows}
    leaders = leaders_of(client, sorted({place.topic for place in places})) if places else {}
    ends = offsets_of(client, {one: leaders[one] for one in places if one in leaders}, LATEST)
    return sorted(Behind(group, place, at, ends.get(place)) for group, place, at in rows)


def with_times(consumer: KafkaConsumer, rows: Iterable[Behind], now_ms: int) -> list[Behind]:
    """The same with `behind_ms`, as far as a first record comes within a few seconds. The consumer has no group."""
    rows = list(rows)
    wanted = {(row.place, row.committed) for row in rows if row.lag}
    found: dict[tuple[Place, int], int] = {}
    while wanted:  # two groups may be at two offsets of one partition, and a consumer has one of each
        once = dict(sorted(wanted))
        wanted -= set(once.items())
        found |= _first_times(consumer, once)
    return [row._replace(behind_ms=_age(row, found, now_ms)) for row in rows]


def _age(row: Behind, found: Mapping[tuple[Place, int], int], now_ms: int) -> int | None:
    if row.lag == 0:
        return 0
    first = found.get((row.place, row.committed), -1)
    return max(0, now_ms - first) if first >= 0 else None


def _first_times(consumer: KafkaConsumer, at: Mapping[Place, int]) -> dict[tuple[Place, int], int]:
    from kafka.structs import TopicPartition  # noqa: PLC0415

    waiting = {TopicPartition(place.topic, place.partition): (place, offset) for place, offset in at.items()}
    consumer.assign(list(waiting))
    for one, (_, offset) in waiting.items():
        consumer.seek(one, offset)
    found: dict[tuple[Place, int], int] = {}
    deadline = time.monotonic() + LOOK_S
    while waiting and time.monotonic() < deadline:
        for one, records in consumer.poll(200, max_records=len(waiting) * 10).items():
            if one in waiting and records:
                found[waiting.pop(one)] = records[0].timestamp
                consumer.pause(one)
    return found
