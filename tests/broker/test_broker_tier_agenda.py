"""Which led partitions the tier looks at: an idle one is left alone, whoever waits for a place comes in turn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from broker.partitions.partition import Partition
from broker.tier.agenda import Agenda
from broker.tier.config import TierConfig, WorkKind
from broker.tier.led import CopyLag, LedPartition
from common.pacing import SLICE_COST, Work, at_once
from storage.log.log_config import LogConfig


def led(
    *, size: int = 0, created_ms: int = 0, sizes: tuple[int, ...] = (), undecided: int | None = None
) -> LedPartition:
    active = SimpleNamespace(size=size, created_ms=created_ms)
    segments = [SimpleNamespace(base_offset=number, size=one) for number, one in enumerate(sizes)]
    log = SimpleNamespace(
        active=active,
        segments=segments,
        config=LogConfig(tier_roll_ms=600_000, remote_storage_enable=True),
        producers=SimpleNamespace(first_undecided_offset=undecided),
    )
    partition = cast(Partition, SimpleNamespace(log=log))
    return LedPartition(partition, 1, 1, held_back=False, on_unclaimed=lambda _: None)


def test_idle_partitions_are_not_looked_at_before_their_time() -> None:
    agenda, many = Agenda({WorkKind.COPY: 1}), [led() for _ in range(10_000)]
    for number, one in enumerate(many):
        agenda.at(one, 100.0 + number, now=0.0)
    looks = [at_once(agenda.take(now)) for now in range(99)]
    assert sum(len(taken) for taken in looks) == 0
    agenda.soon(many[7])
    assert at_once(agenda.take(99.0)) == [many[7]]
    assert at_once(agenda.take(102.0)) == many[:3]


def counted(work: Work[list[LedPartition]], costs: list[int]) -> Work[list[LedPartition]]:
    """The same work, whose steps' costs are noted."""
    while True:
        try:
            costs.append(next(work))
        except StopIteration as end:
            taken: list[LedPartition] = end.value
            return taken
        yield costs[-1]


def test_all_that_are_due_at_once_are_taken_in_slices() -> None:
    agenda, many = Agenda({WorkKind.COPY: 1}), [led() for _ in range(5_000)]
    for one in many:
        agenda.at(one, 100.0, now=0.0)
    costs: list[int] = []
    assert at_once(counted(agenda.take(100.0), costs)) == many
    assert len(costs) == len(many)
    assert max(costs) <= SLICE_COST // 10


def test_what_waits_to_be_copied_is_known_without_a_walk_over_all() -> None:
    lag, first, second = CopyLag(lambda: 0.0), led(sizes=(5, 7, 100)), led(sizes=(9, 100))
    for one in (first, second):
        one.partition.tier_end_offset = 0
        lag.note(one)
    assert lag.bytes == 21
    first.partition.tier_end_offset = 1
    lag.note(first)
    assert lag.bytes == 16
    lag.forget(second)
    assert lag.bytes == 7


def test_how_long_a_copy_waits_is_of_the_partition_that_makes_no_progress() -> None:
    now = [0.0]
    lag, first, second = CopyLag(lambda: now[0]), led(sizes=(5, 7, 100)), led(sizes=(9, 100))
    assert lag.waiting_s == 0

    def waiting_s(at: float) -> float:
        now[0] = at
        return lag.waiting_s

    for one, now[0] in ((first, 1.0), (second, 2.0), (first, 3.0)):
        one.partition.tier_end_offset = 0
        lag.note(one)
    assert waiting_s(11.0) == 10
    first.partition.tier_end_offset, now[0] = 1, 4.0
    lag.note(first)
    assert (lag.bytes, waiting_s(11.0)) == (16, 9)
    lag.forget(second)
    assert waiting_s(11.0) == 7
    lag.forget(first)
    assert (lag.bytes, waiting_s(11.0)) == (0, 0)


def test_what_waits_for_the_end_of_a_transaction_is_part_of_the_lag() -> None:
    lag, one = CopyLag(lambda: 0.0), led(sizes=(5, 7, 11, 100), undecided=2)
    one.partition.tier_end_offset = 0
    lag.note(one)
    assert (lag.bytes, lag.undecided_bytes) == (23, 11), "segments end where the next ones begin"
    for undecided, waits in ((1, 18), (0, 23), (3, 0), (None, 0)):
        cast(SimpleNamespace, one.partition.log.producers).first_undecided_offset = undecided
        lag.note(one)
        assert (lag.bytes, lag.undecided_bytes) == (23, waits)
    lag.forget(one)
    assert (lag.bytes, lag.undecided_bytes) == (0, 0)


def test_a_time_that_is_named_again_and_again_is_kept_once() -> None:
    agenda, busy = Agenda({WorkKind.COPY: 1}), led()
    for now in range(1_000):
        agenda.at(busy, 5_000.0 + now, now=float(now))
    agenda.at(busy, 2_000.0, now=1_000.0)
    assert at_once(agenda.take(2_000.0)) == [busy]
    costs: list[int] = []
    assert at_once(counted(agenda.take(10_000.0), costs)) == []
    assert len(costs) == 1, "what was named before that"


def test_who_finds_no_place_comes_in_turn_when_there_is_one() -> None:
    agenda, (first, second, third) = Agenda({WorkKind.COPY: 1}), (led(), led(), led())
    assert agenda.may_begin(first, WorkKind.COPY)
    agenda.began(WorkKind.COPY)
    assert not agenda.may_begin(second, WorkKind.COPY)
    assert not agenda.may_begin(third, WorkKind.COPY)
    assert at_once(agenda.take(0.0)) == []
    agenda.ended(WorkKind.COPY)
    assert at_once(agenda.take(0.0)) == [second]
    agenda.forget(third)
    assert at_once(agenda.take(0.0)) == []


def test_it_is_due_for_its_retention_or_for_the_age_of_its_segment() -> None:
    config = TierConfig(retention_interval_ms=300_000)
    idle, old = led(), led(size=1, created_ms=1_000)
    assert not idle.begin_retention(50.0)
    assert not old.begin_retention(50.0)
    assert idle.due_at(config, 60.0, wall_ms=500_000) == 350.0
    assert old.due_at(config, 60.0, wall_ms=500_000) == 60.0 + 101.001
    old.partition.log.config = replace(old.partition.log.config, remote_log_copy_disable=True)
    assert old.due_at(config, 60.0, wall_ms=500_000) == 350.0, "its segment is not closed for the tier"
    assert not idle.is_due(config, 349.0)
    assert idle.is_due(config, 350.0)
