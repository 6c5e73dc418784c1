"""What clients sent, were promised and saw: the outside of the cluster, on which its promise is checked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

TopicPartition = tuple[str, int]


class Acknowledged(NamedTuple):
    """A batch that the cluster said to hold. `base_offset` is -1 where a late duplicate's offset was not told."""

    partition: TopicPartition
    base_offset: int
    record_count: int
    crc: int
    producer_id: int
    base_sequence: int


class Shown(NamedTuple):
    """A batch that a consumer got. `node` is the broker that served it."""

    partition: TopicPartition
    base_offset: int
    next_offset: int
    crc: int
    node: int


class OutOfRange(NamedTuple):
    """A leader said that it does not have an offset."""

    partition: TopicPartition
    offset: int
    node: int


class Pass(NamedTuple):
    """A reader got all from `begin`, where the log began, to `end`. `settled`: it began when all was at rest."""

    partition: TopicPartition
    begin: int
    end: int
    settled: bool


class Committed(NamedTuple):
    """A group's offset that the coordinator said to hold."""

    group: str
    partition: TopicPartition
    offset: int


class Fetched(NamedTuple):
    """A group's offset as the coordinator told it; `expected` was acknowledged before it was asked."""

    group: str
    partition: TopicPartition
    offset: int
    expected: int


class Joined(NamedTuple):
    """A generation that a member was let into; `expected` was synced before it asked."""

    group: str
    member: str
    generation: int
    expected: int


class Synced(NamedTuple):
    """A generation that the coordinator has written down, as a member learned it."""

    group: str
    member: str
    generation: int
    leader: str


@dataclass(slots=True)
class History:
    """Append-only lists in the order in which clients learned of things; invariants read on from where they were."""

    acknowledged: list[Acknowledged] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)
    commits: list[Committed] = field(default_factory=list)
    offset_fetches: list[Fetched] = field(default_factory=list)
    joins: list[Joined] = field(default_factory=list)
    syncs: list[Synced] = field(default_factory=list)
    positions: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)  # (consumer, partition)
    group_offsets: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)  # acknowledged, the highest
    generations: dict[str, int] = field(default_factory=dict)  # synced, the highest
    unacknowledged: Counter[str] = field(default_factory=Counter)  # producer: batches it still tries to send
    counts: Counter[str] = field(default_factory=Counter)  # what happened, for the coverage of states
    impossible: list[str] = field(default_factory=list)  # replies that no correct cluster gives
    moved_to: dict[TopicPartition, tuple[int, ...]] = field(default_factory=dict)  # the operator's last word
    out_of_range: list[OutOfRange] = field(default_factory=list)
    passes: dict[TopicPartition, Pass] = field(default_factory=dict)  # the newest of each
    beginnings: list[tuple[TopicPartition, int]] = field(default_factory=list)  # where leaders said that logs begin
    deletions: dict[TopicPartition, int] = field(default_factory=dict)  # DeleteRecords asked for, the highest offset
    deleted: dict[TopicPartition, int] = field(default_factory=dict)  # and granted
    all_healed: bool = False
    stop_producing: bool = False
    settled: bool = False  # nothing is to change any more
    explains: Callable[[TopicPartition, int, int], bool] = lambda partition, begin, end: False
    """Whether nobody is to see anything of some offsets any more: they were rewritten away."""

    def committed_offset(self, group: str, partition: TopicPartition, offset: int) -> None:
        self.commits.append(Committed(group, partition, offset))
        key = (group, partition)
        self.group_offsets[key] = max(self.group_offsets.get(key, -1), offset)

    def synced(self, group: str, member: str, generation: int, leader: str) -> None:
        self.syncs.append(Synced(group, member, generation, leader))
        self.generations[group] = max(self.generations.get(group, -1), generation)
