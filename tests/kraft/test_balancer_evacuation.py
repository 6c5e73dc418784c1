"""Emptying a broker: every replica finds a place, racks first, then the fewest replicas."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraft.balancer.evacuation import Evacuation, NoRoom, PlacedPartition, Room


def rooms(*counts: int, racks: tuple[str | None, ...] = ()) -> tuple[list[Room], dict[int, str | None]]:
    named = racks or (None,) * len(counts)
    return [Room(b, named[b], count) for b, count in enumerate(counts)], dict(enumerate(named))


def test_a_replica_keeps_its_place_and_goes_where_the_fewest_are() -> None:
    found = Evacuation(0, *rooms(9, 5, 7, 3)).plan(
        [PlacedPartition("a", 0, (0, 1)), PlacedPartition("a", 1, (3, 0)), PlacedPartition("a", 2, (1, 0, 2))]
    )
    assert [partition.replicas for partition in found] == [(3, 1), (3, 1), (1, 3, 2)]


def test_a_rack_without_a_replica_goes_before_fewer_replicas() -> None:
    racks = ("a", "b", "a", "b")
    (found,) = Evacuation(0, *rooms(1, 1, 50, 0, racks=racks)).plan([PlacedPartition("t", 0, (1, 0))])
    assert found.replicas == (1, 2)


def test_a_partition_on_all_brokers_has_nowhere_to_go() -> None:
    evacuation = Evacuation(2, *rooms(1, 1, 1))
    evacuation.check([PlacedPartition("t", 0, (0, 2))])
    with pytest.raises(NoRoom, match="t-1 has 3 replicas"):
        evacuation.check([PlacedPartition("t", 1, (0, 1, 2))])


def test_replicas_stay_on_the_brokers_of_their_cell() -> None:
    evacuation = Evacuation(0, *rooms(9, 5, 7, 0))
    (inside,) = evacuation.plan([PlacedPartition("a", 0, (0, 1))], allowed=(0, 1, 2))
    (anywhere,) = evacuation.plan([PlacedPartition("b", 0, (0, 1))])
    assert (inside.replicas, anywhere.replicas) == ((2, 1), (3, 1))
    with pytest.raises(NoRoom, match="cell"):
        evacuation.check([PlacedPartition("c", 0, (0, 1))], allowed=(0, 1))


@given(placed=st.lists(st.permutations(range(6)).map(lambda order: tuple(order[:3])), max_size=40))
def test_the_moves_leave_nothing_behind_and_spread_evenly(placed: list[tuple[int, ...]]) -> None:
    partitions = [PlacedPartition("t", index, replicas) for index, replicas in enumerate(placed)]
    counts = [sum(broker in replicas for replicas in placed) for broker in range(6)]
    leaving = [partition for partition in partitions if 0 in partition.replicas]
    moved = Evacuation(0, *rooms(*counts)).plan(leaving)
    for before, after in zip(leaving, moved, strict=True):
        assert 0 not in after.replicas
        assert len(set(after.replicas)) == 3
        assert set(before.replicas) - {0} <= set(after.replicas)
