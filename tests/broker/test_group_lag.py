"""How far groups lag: as one look finds it, from own replicas and from other brokers, and what metrics show of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.broker_link import BrokerLink
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.lag import OFFSET_COST, OFFSETS_AT_ONCE, LagBook, LagTotals
from broker.coordination.groups.lag_watch import LABEL_LENGTH_MAX, GroupLagWatch
from broker.coordination.shard import Now
from common.metrics import Metrics
from common.node_settings.monitoring import MonitoringSettings
from common.pacing import SLICE_COST, Work, at_once
from kraft.links import NodeLinks
from tests.broker.group_driver import GroupDriver
from tests.broker.replication_lab import SECRET, TOPIC, Lab, LabBroker, batch, eventually, produce

PLACES = [f"{number}".encode() for number in range(4)]
ROUNDS = st.lists(
    st.dictionaries(st.sampled_from("abcde"), st.dictionaries(st.sampled_from(PLACES), st.integers(0, 9))), max_size=4
)
"""By group and place: what it has committed at a look."""


def value_of(offset: int) -> bytes:
    return b"\0\3" + offset.to_bytes(8, "big") + b"more"


@given(ROUNDS, st.lists(st.integers(0, 9), min_size=4, max_size=4), st.integers(1, 6))
def test_sums_are_over_all_and_the_worst_are_named(
    rounds: list[dict[str, dict[bytes, int]]], ends: list[int], named_max: int
) -> None:
    book = LagBook(named_max)
    known: dict[bytes, int | None] = dict(zip(PLACES[:3], ends, strict=False))  # the last one has no known end
    for number, groups in enumerate(rounds):
        book.begin(10.0 * number)
        for group, offsets in groups.items():
            at_once(book.add(group, [(place, value_of(at)) for place, at in offsets.items()], known.get))
        at_once(book.finish())
        lags = {
            group: sum(max(0, (known.get(place) or 0) - at) for place, at in offsets.items())
            for group, offsets in groups.items()
        }
        totals = book.totals
        assert totals is not None
        assert (totals.groups, totals.records) == (len(groups), sum(lags.values()))
        assert totals.lagging == sum(lag > 0 for lag in lags.values())
        assert totals.unknown == sum(PLACES[3] in offsets for offsets in groups.values())
        assert totals.seconds <= 10.0 * number
        assert len(book.named) <= named_max and all(lags[one.group] == one.records > 0 for one in book.named)
        worst = max(lags.values(), default=0)
        assert not worst or worst in [one.records for one in book.named]
        slowest = max((one.seconds for one in book.named), default=0.0)
        assert named_max == 1 or slowest == totals.seconds


def test_a_group_that_stands_still_is_behind_longer_and_longer() -> None:
    book, end = LagBook(10), 0
    for number in range(6):
        end += 10
        book.begin(10.0 * number)
        at_once(book.add("stuck", [(b"p", value_of(10))], {b"p": end}.get))
        at_once(book.add("steady", [(b"p", value_of(end - 5))], {b"p": end}.get))
        at_once(book.finish())
    assert book.totals == LagTotals(2, 2, 55, 50.0, 0)
    assert {one.group: one.seconds for one in book.named} == {"stuck": 50.0, "steady": 5.0}


@pytest.mark.parametrize("offsets", [0, 1, 99, 100, 101, 250])
def test_each_offset_of_a_look_is_counted(offsets: int) -> None:
    """A slice would hold thousands of them where groups have less than are counted at once."""
    book = LagBook(10)
    book.begin(0.0)
    costs = list(book.add("g", [(b"p", value_of(0))] * offsets, {b"p": 1}.get))
    assert sum(costs) == offsets * OFFSET_COST
    assert max(costs, default=0) <= OFFSETS_AT_ONCE * OFFSET_COST < SLICE_COST


class Shards:
    """A group coordinator with the one shard of a driver."""

    def __init__(self, driver: GroupDriver) -> None:
        self._driver = driver

    def hosted(self) -> list[int]:
        return [0]

    async def read_shard_slowly(self, index: int, query: Callable[[GroupShard, Now], Work[Any]]) -> Any:
        return at_once(query(self._driver.shard, self._driver.now))


def watch_at(broker: LabBroker, driver: GroupDriver, groups_max: int = 10) -> tuple[GroupLagWatch, Metrics]:
    machinery = broker.machinery
    links = NodeLinks(machinery.ports, machinery.tick, machinery.pool, machinery.watch, "lag", SECRET)
    watch = GroupLagWatch(
        groups=cast(GroupCoordinator, Shards(driver)),
        hosted=broker.plane.partitions,
        new_link=lambda: BrokerLink(links, lambda: broker.plane.partitions.image, "NODES", 1.0),
        pacer=machinery.pacer,
        now=machinery.ports.clock.monotonic,
        settings=MonitoringSettings(groups_max=groups_max),
    )
    metrics = Metrics()
    watch.register(metrics)
    return watch, metrics


def shown(metrics: Metrics) -> dict[str, float]:
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


@pytest.mark.virtual_time
async def test_ends_come_from_own_replicas_and_from_leaders(tmp_path: Path) -> None:
    driver = GroupDriver()
    driver.commit({(TOPIC, 0): 1, ("deleted", 0): 5}, group="slow")
    driver.commit({(TOPIC, 0): 3}, group="quick")
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        for _ in range(3):
            assert (await produce(client, batch(b"v"))).error_code == 0
        await eventually(lambda: lab[1].partition.high_watermark == 3)
        for broker in lab.brokers:
            watch, metrics = watch_at(broker, driver)
            assert shown(metrics) == {}, "nothing before the first look"
            await watch.look()
            found = shown(metrics)
            assert found["tidelog_groups"] == 2 and found["tidelog_groups_lagging"] == 1
            assert found["tidelog_groups_lag_records"] == 2 and found["tidelog_groups_lag_unknown_partitions"] == 0
            assert found['tidelog_group_lag_records{group="slow",tenant=""}'] == 2
        watch, metrics = watch_at(lab[2], driver)
        await lab[0].stop()
        await watch.look()
        assert shown(metrics)["tidelog_groups_lag_unknown_partitions"] == 2


def test_a_long_name_does_not_make_a_long_label() -> None:
    driver = GroupDriver()
    for name in ("g" * 1_000 + "1", "g" * 1_000 + "2"):
        driver.commit({("t", 0): 1}, group=name)
    hosted = SimpleNamespace(image=SimpleNamespace(tenants=SimpleNamespace(owner=lambda _: None)))
    watch = GroupLagWatch(
        groups=cast(GroupCoordinator, Shards(driver)), hosted=cast(Any, hosted), new_link=cast(Any, None),
        pacer=cast(Any, None), now=lambda: 0.0, settings=MonitoringSettings(),
    )  # fmt: skip
    book = watch.book
    book.begin(0.0)
    for number, name in enumerate(driver.shard.offsets.groups(), 1):
        at_once(book.add(name, [(b"p", value_of(0))], lambda _, end=number: end))  # type: ignore[misc]
    at_once(book.finish())
    metrics = Metrics()
    watch.register(metrics)
    lines = [line for line in metrics.text().decode().splitlines() if line.startswith("tidelog_group_lag_records")]
    assert lines == [f'tidelog_group_lag_records{{group="{"g" * LABEL_LENGTH_MAX}",tenant=""}} 2.0']


def test_many_groups_and_a_group_with_many_offsets_are_measured_in_slices() -> None:
    """No step is longer than a slice, whether a client has ten thousand groups or one with all partitions."""
    book, costs = LagBook(100), list[int]()

    def run(work: Work[None]) -> None:
        costs.extend(work)

    places = [(b"%d" % number, value_of(number % 7)) for number in range(50_000)]
    book.begin(0.0)
    run(book.add("wide", places, lambda _: 10))
    for number in range(10_000):
        run(book.add(f"group-{number}", places[number % 100 : number % 100 + 3], lambda _: 10))
    run(book.finish())
    assert max(costs) <= SLICE_COST // 2
    assert book.totals is not None and book.totals.groups == 10_001
    assert len(book.named) <= 100 and book.named[0].group == "wide"
