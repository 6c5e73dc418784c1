"""What holds readers of committed records back, and why: each open transaction with its class. No I/O.

Coordinators know transactional ids, states and partitions; partition leaders know which producer has a transaction
open, and since which offset. Neither alone can tell a young transaction from one that will never end.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import NamedTuple

PREPARED = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")
OPEN_STATES = ("Ongoing", *PREPARED)
STATES = ("Empty", *OPEN_STATES, "CompleteCommit", "CompleteAbort")
STATE_TOPIC = "__transaction_state"
NO_LEADER = "it has no leader"
NAMED_MAX = 20  # partitions or brokers that have not answered for the same reason
LOOK_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
LOOK_INTERVAL_MS = 10_000
"""Its default. A coordinator looks that often for transactions past their timeout."""
SLACK_MS = 5_000  # clocks differ, and an abort takes its time


class Place(NamedTuple):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Class(Enum):
    """YOUNG: within its timeout, or so little past it that its coordinator may not have looked yet. LATE: past its
    timeout, and its coordinator should have ended it. PREPARED: decided, but not all markers are written. UNKNOWN: open
    in a partition, and a coordinator that may know it has not answered. HANGING: open in a partition, and unknown to
    every coordinator, so it never ends."""

    YOUNG = "young"
    LATE = "past its timeout"
    PREPARED = "prepared"
    UNKNOWN = "unknown"
    HANGING = "hanging"


class Coordinated(NamedTuple):
    """A transaction as its coordinator describes it. Times in milliseconds; `partitions` still lack a marker."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int
    partitions: frozenset[Place]


class ProducerClient(NamedTuple):
    """The client that last asked a coordinator for a transactional id. `host`: its address."""

    client_id: str
    host: str


class Opened(NamedTuple):
    """A transaction as a partition's leader sees it."""

    place: Place
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_ms: int


class Unanswered(NamedTuple):
    """A partition or broker that has not answered, and why."""

    who: str
    why: str

    def __str__(self) -> str:
        return f"{self.who}: {self.why}"


def reasons(unanswered: Iterable[Unanswered]) -> list[str]:
    """Who has not answered for each reason: the first few, and how many there are besides."""
    by_reason: dict[str, list[str]] = {}
    for one in unanswered:
        by_reason.setdefault(one.why, []).append(one.who)
    rows = []
    for why, who in by_reason.items():
        more = len(who) - NAMED_MAX
        rows.append(f"{', '.join(who[:NAMED_MAX])}{f' and {more} more' if more > 0 else ''}: {why}")
    return rows


class Held(NamedTuple):
    """What lies behind a partition's last stable offset: records, and bytes that the tier cannot copy (None: it is not
    tiered). `leader` is -1 without one."""

    leader: int
    records_behind: int | None
    tier_bytes: int | None


NOTHING_HELD = Held(-1, None, None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One open transaction. `transactional_id` and `state` are empty for a hanging or unknown one, `age_ms` is then the
    time since its producer's last batch."""

    kind: Class
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    age_ms: int
    timeout_ms: int | None
    open_in: tuple[Opened, ...]
    waits_for: tuple[Place, ...] = ()
    """Partitions without a leader, of a prepared one: their markers cannot be written."""
    records_behind: int = 0
    tier_bytes: int | None = 0
    """None: no broker says."""
    coordinator: int = -1
    places: tuple[Place, ...] = field(default=())
    client: ProducerClient | None = None
    """None if no coordinator knows it, or tells this user."""


class Examined(NamedTuple):
    """Every open transaction that was found. While there is anything `unanswered` there may be others. `tier_unknown`:
    why no broker says what the tier cannot copy."""

    found: list[Finding]
    unanswered: tuple[Unanswered, ...] = ()
    tier_unknown: str = ""


def unclaimed(coordinated: Iterable[Coordinated], opened: Iterable[Opened]) -> list[Opened]:
    """What is open in a partition, and in none of these transactions."""
    claimed = {(one.producer_id, place) for one in coordinated for place in one.partitions}
    return [row for row in opened if (row.producer_id, row.place) not in claimed]


def diagnose(
    coordinated: Iterable[Coordinated],
    opened: Iterable[Opened],
    held: Mapping[Place, Held],
    now_ms: int,
    doubtful: Container[Opened] = (),
    looks: Mapping[int, int] = MappingProxyType({}),
) -> list[Finding]:
    """Every open transaction, hanging ones first, then unknown ones, then the oldest. `doubtful`: rows that some
    coordinator may know which has not answered. `looks`: LOOK_INTERVAL of coordinators, where it is known."""
    by_producer: dict[int, list[Opened]] = {}
    for one in opened:
        by_producer.setdefault(one.producer_id, []).append(one)
    findings = []
    for known in coordinated:
        rows = by_producer.get(known.producer_id, [])
        own = tuple(row for row in rows if row.place in known.partitions)
        by_producer[known.producer_id] = [row for row in rows if row.place not in known.partitions]
        grace_ms = looks.get(known.coordinator, LOOK_INTERVAL_MS) + SLACK_MS
        findings.append(_of_coordinator(known, own, held, now_ms, grace_ms))
    for rows in by_producer.values():
        kinds = [(row, Class.UNKNOWN if row in doubtful else Class.HANGING) for row in rows]
        findings += [_of_leader(kind, row, held, now_ms) for row, kind in kinds]
    order = list(Class)[::-1]
    return sorted(findings, key=lambda one: (order.index(one.kind), -one.age_ms, one.transactional_id))


def is_past_timeout(known: Coordinated, now_ms: int, grace_ms: int = 0) -> bool:
    """Whether it is open, undecided and past its timeout, by more than `grace_ms`."""
    return known.state not in PREPARED and now_ms - known.started_ms > known.timeout_ms + grace_ms


def _of_coordinator(
    known: Coordinated, own: tuple[Opened, ...], held: Mapping[Place, Held], now_ms: int, grace_ms: int
) -> Finding:
    age_ms = max(0, now_ms - known.started_ms)
    if known.state in PREPARED:
        kind = Class.PREPARED
    else:
        kind = Class.LATE if is_past_timeout(known, now_ms, grace_ms) else Class.YOUNG
    places = tuple(sorted(known.partitions))
    lacking = tuple(place for place in places if held.get(place, NOTHING_HELD).leader < 0)
    return Finding(
        kind, known.transactional_id, known.state, known.producer_id, known.producer_epoch, age_ms, known.timeout_ms,
        own, lacking if kind is Class.PREPARED else (), *_behind((row.place for row in own), held), known.coordinator,
        places,
    )  # fmt: skip


def _of_leader(kind: Class, row: Opened, held: Mapping[Place, Held], now_ms: int) -> Finding:
    behind, blocked = _behind([row.place], held)
    return Finding(
        kind, "", "", row.producer_id, row.producer_epoch, max(0, now_ms - row.last_ms), None, (row,), (),
        behind, blocked, -1, (row.place,),
    )  # fmt: skip


def _behind(places: Iterable[Place], held: Mapping[Place, Held]) -> tuple[int, int]:
    """Records behind the last stable offset, and bytes that the tier cannot copy, in these partitions."""
    rows = [held[place] for place in places if place in held]
    return sum(row.records_behind or 0 for row in rows), sum(row.tier_bytes or 0 for row in rows)
