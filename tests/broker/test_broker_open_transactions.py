"""Which partitions hold readers of committed records back, and for how long: known without a walk over all."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.partitions.open_transactions import OpenTransactions
from common.pacing import SLICE_COST, at_once
from storage.disk.checkpoint_files import TopicPartition
from tests.broker.replication_lab import NOW_MS, Lab, eventually, produce
from tests.broker.transaction_lab import TXN_ID, coordinated, marker, of_transaction
from tests.common.call_count import counted_calls


class Partitions:
    """Partitions whose open transactions a test decides."""

    def __init__(self) -> None:
        self.first: dict[int, int] = {}  # where committed records stop, by partition
        self.led: set[int] = set()
        self.barred: dict[int, str] = {}
        self.noted: dict[TopicPartition, None] = {}
        self.now_s = 0.0
        self.open = OpenTransactions(self.noted, self.find, lambda: self.now_s)

    def find(self, topic: str, index: int) -> Any:
        producers = SimpleNamespace(first_undecided_offset=self.first.get(index))
        log = SimpleNamespace(producers=producers, barred=self.barred.get(index))
        return SimpleNamespace(is_leader=index in self.led, log=log) if index < 4 else None

    def note(self, index: int) -> None:
        self.noted["t", index] = None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.integers(0, 4), st.integers(0, 3)),
        st.tuples(st.just("end"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("lead"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("resign"), st.integers(0, 4), st.just(0)),
        st.tuples(st.just("wait"), st.just(0), st.integers(1, 5)),
    ),
    max_size=40,
)


@given(STEPS)
def test_count_and_age_are_those_of_a_walk_over_all(steps: list[tuple[str, int, int]]) -> None:
    world = Partitions()
    since: dict[int, tuple[int, float]] = {}
    for kind, index, value in steps:
        if kind == "open":
            world.first[index] = value
        elif kind == "end":
            world.first.pop(index, None)
        elif kind == "lead":
            world.led.add(index)
        elif kind == "resign":
            world.led.discard(index)
        else:
            world.now_s += value
        if kind != "wait":
            world.note(index)
        at_once(world.open.look())
        stops = {one: first for one, first in world.first.items() if one in world.led and one < 4}
        since = {
            one: since[one] if one in since and since[one][0] == first else (first, world.now_s)
            for one, first in stops.items()
        }
        assert len(world.open) == len(since)
        assert world.open.age_s == max((world.now_s - begun for _, begun in since.values()), default=0)


def test_a_hundred_thousand_cost_a_scrape_nothing_and_a_round_slices() -> None:
    world = Partitions()
    world.led.add(0)
    world.first[0] = 7
    world.open = OpenTransactions(world.noted, lambda topic, index: world.find(topic, 0), lambda: world.now_s)
    for index in range(100_000):
        world.note(index)
    assert max(world.open.look()) <= SLICE_COST // 10
    with counted_calls() as count:
        assert (len(world.open), world.open.age_s) == (100_000, 0)
    assert count.calls < 20
    with counted_calls() as count:
        at_once(world.open.look())
    assert count.calls < 20, "nothing has changed"


def test_a_partition_whose_producers_are_from_before_a_truncation_is_looked_at_later() -> None:
    world = Partitions()
    world.led.add(0)
    world.barred[0] = "unread"
    world.note(0)
    for _ in range(2):
        at_once(world.open.look())
        assert len(world.open) == 0
    del world.barred[0]
    world.first[0] = 7
    at_once(world.open.look())
    assert (len(world.open), world.noted) == (1, {})


@pytest.mark.virtual_time
async def test_a_leader_shows_its_open_transactions_and_so_does_the_next_one(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=2) as lab:
        lab.controller.create_topic((0, 1))
        coordinated(lab)

        def look(node: int) -> OpenTransactions:
            shown = lab[node].plane.duties.open_transactions
            at_once(shown.look())
            return shown

        assert len(look(0)) == 0
        client = await lab[0].connect()
        await produce(client, of_transaction(), transactional_id=TXN_ID, version=11)
        await eventually(lambda: lab[1].partition.high_watermark == 1)
        assert (len(look(0)), len(look(1))) == (1, 0)
        lab.controller.elect(1)
        await eventually(lambda: lab[1].partition.is_leader)
        await eventually(lambda: not lab[0].partition.is_leader)
        assert (len(look(0)), len(look(1))) == (0, 1)
        lab[1].partition.append_marker(marker(), NOW_MS)
        assert len(look(1)) == 0
