"""What transactional clients were promised and saw, and whose batch is whose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.sim.history import TopicPartition


class Names(NamedTuple):
    """Of topics and groups, and how those of transactional ids begin. Programs copy from `input` to `output` as members
    of `chain`; producers send offsets to `loose`, which has no members."""

    prefix: str = ""

    @property
    def input(self) -> str:
        return f"{self.prefix}t"

    @property
    def output(self) -> str:
        return f"{self.prefix}u"

    @property
    def chain(self) -> str:
        return f"{self.prefix}chain"

    @property
    def passing(self) -> str:
        """How the names of topics begin that do not last."""
        return f"{self.prefix}passing-"

    @property
    def loose(self) -> str:
        return f"{self.prefix}loose"


class Intent(NamedTuple):
    """The transaction in which a client sent a batch: its transactional id, the producer's number and its own."""

    transactional_id: str
    instance: int
    number: int


class Given(NamedTuple):
    """A producer got an id and epoch, new ones or once more, as `answer` to a request."""

    transactional_id: str
    instance: int
    producer_id: int
    producer_epoch: int
    answer: str


class Refused(NamedTuple):
    """A coordinator said that a producer is over which had this id and epoch."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    answer: str


class Ended(NamedTuple):
    """A coordinator said that a transaction has ended; `batches` were acknowledged in it."""

    intent: Intent
    commit: bool
    batches: tuple[tuple[TopicPartition, int], ...]


class StableRead(NamedTuple):
    """A reader of committed records came from `begin` to `end`, and showed the batches at `shown`."""

    reader: str
    node: int
    partition: TopicPartition
    begin: int
    end: int
    shown: tuple[int, ...]


class OffsetRead(NamedTuple):
    """A group's offset as its coordinator told it. `mark`: which values of it were committed before it was asked."""

    group: str
    partition: TopicPartition
    offset: int
    mark: int


@dataclass(slots=True)
class TransactionHistory:
    """Append-only lists, as in `History`."""

    given: list[Given] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    reads: list[StableRead] = field(default_factory=list)
    offset_reads: list[OffsetRead] = field(default_factory=list)
    instances: dict[str, int] = field(default_factory=dict)  # how many producers an id has had
    passing: str = ""  # a topic that is going to be deleted, or just was
    mark: Callable[[str, TopicPartition], int] = lambda group, partition: 0

    def next_instance(self, transactional_id: str) -> int:
        self.instances[transactional_id] = number = self.instances.get(transactional_id, 0) + 1
        return number


def text_of(intent: Intent, what: str) -> bytes:
    """The value of a record."""
    return f"{intent.transactional_id}/{intent.instance}/{intent.number}/{what}".encode()


def read_text(value: bytes) -> tuple[Intent, str]:
    transactional_id, instance, number, what = value.decode().split("/", 3)
    return Intent(transactional_id, int(instance), int(number)), what
