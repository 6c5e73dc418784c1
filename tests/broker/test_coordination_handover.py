"""How a broker hands a tenant's keys over: some partitions at a time, and the controller hears of each."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from broker.coordination.key_moves import KeyHandover, KeyMovesConfig
from broker.coordination.shard import CoordinatorRecord
from broker.coordination.transactions.moving_ids import MovingIds
from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange
from kraft.records import KeysPhase
from kraft.topic_names import TRANSACTION_TOPIC
from tests.kraft.test_controller_key_moves import Cluster
from wire.client import CallTimeout

pytestmark = pytest.mark.virtual_time
AT_ONCE = 2


class Store:
    """All partitions are led here. Each has `keys_each`, and takes a second; so does each read of its keys after
    that, if `is_slow`."""

    topic, keys = TRANSACTION_TOPIC, MovingIds()

    def __init__(self, keys_each: int = 1, *, is_slow: bool = False) -> None:
        self.busy = self.most_busy = 0
        self.keys_each = keys_each
        self.is_slow = is_slow

    def hosted(self, held: KeyRange) -> dict[int, int]:
        return dict.fromkeys(range(held.first, held.end), 1)

    def leader_epoch(self, index: int) -> int:
        return 1

    async def check_ready(self, index: int, tenant: TenantImage) -> None:
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        await asyncio.sleep(1)
        self.busy -= 1

    async def names(self, index: int, tenant: TenantImage) -> list[str]:
        return [f"{tenant.prefix}{index}", *(f"{tenant.prefix}{index}-{one}" for one in range(1, self.keys_each))]

    async def introduced(self, index: int, leader_epoch: int) -> list[CoordinatorRecord]:
        return []

    async def records(self, index: int, names: list[str]) -> list[tuple[str, list[CoordinatorRecord]]]:
        await asyncio.sleep(self.is_slow)
        return [(name, [CoordinatorRecord(name.encode(), b"v")]) for name in names]


class Link:
    """To one broker, for one import at a time. `lost`: numbers of calls, from 1 on, that get no answer."""

    def __init__(self, sent: list[bytes], lost: Container[int] = ()) -> None:
        self.sent = sent
        self.lost = lost
        self.calls = self.largest = 0
        self.first_s: float | None = None
        self.is_used = False

    async def to(self, broker: int) -> Any:
        assert not self.is_used, "two would open it at the same time"
        self.is_used = True
        await asyncio.sleep(0.1)
        return SimpleNamespace(call=self.call)

    async def call(self, request: Any, version: int, timeout_s: float) -> Any:
        self.is_used = False
        self.calls += 1
        if self.calls in self.lost:
            raise CallTimeout
        self.first_s = self.first_s or asyncio.get_running_loop().time()
        self.largest = max(self.largest, len(request.records))
        self.sent += [record.key for record in request.records]
        return SimpleNamespace(error_code=0)

    def drop(self) -> None:
        pass


class Controller:
    def __init__(self) -> None:
        self.reports: list[tuple[float, list[int]]] = []

    async def call(self, request: Any, version: int, **_: Any) -> None:
        (row,) = request.tenants
        now_s = asyncio.get_running_loop().time()
        self.reports.append((now_s, sorted(partition.partition_index for partition in row.partitions)))


async def test_some_partitions_are_handed_over_at_a_time_and_reported_as_they_are_done() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    store, controller, sent = Store(), Controller(), list[bytes]()
    handover = KeyHandover(
        store,  # type: ignore[arg-type]
        lambda: cluster.image,
        controller,  # type: ignore[arg-type]
        lambda: Link(sent),  # type: ignore[arg-type,return-value]
        lambda: (99, 1),
        KeyMovesConfig(partitions_at_once=AT_ONCE),
    )
    began_s = asyncio.get_running_loop().time()
    assert await handover.advance(cluster.tenant.id)
    assert store.most_busy == AT_ONCE
    assert sorted(sent) == [f"{cluster.tenant.prefix}{index}".encode() for index in range(3)]
    assert [partitions for _, partitions in controller.reports] == [[0, 1], [0, 1, 2]]
    assert controller.reports[0][0] - began_s < 2, "a fence lasts for as long as partitions are handed over"
    assert await handover.advance(cluster.tenant.id)
    assert len(sent) == 3, "what is finished is only reported again"
    assert controller.reports[-1][1] == [0, 1, 2]


def handover_of(
    cluster: Cluster, store: Store, controller: Controller, link: Link, config: KeyMovesConfig
) -> KeyHandover:
    """All keys go over one link, one partition after the other."""
    return KeyHandover(
        store,  # type: ignore[arg-type]
        lambda: cluster.image,
        controller,  # type: ignore[arg-type]
        lambda: link,  # type: ignore[arg-type,return-value]
        lambda: (99, 1),
        config,
    )


async def test_small_keys_of_many_reads_go_in_few_requests() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    link = Link([])
    config = KeyMovesConfig(partitions_at_once=1, keys_at_once=5)
    assert await handover_of(cluster, Store(100), Controller(), link, config).advance(cluster.tenant.id)
    assert len(set(link.sent)) == len(link.sent) == 300
    assert link.calls <= 9, "one for each of three partitions to each of three"


async def test_a_request_has_few_records_because_it_is_applied_in_one_turn() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    link = Link([])
    config = KeyMovesConfig(partitions_at_once=1, request_records_max=7)
    assert await handover_of(cluster, Store(100), Controller(), link, config).advance(cluster.tenant.id)
    assert len(set(link.sent)) == len(link.sent) == 300
    assert link.largest == 7


async def test_keys_that_are_read_slowly_are_sent_before_a_request_is_full() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    controller, link, began_s = Controller(), Link([]), asyncio.get_running_loop().time()
    config = KeyMovesConfig(partitions_at_once=1, keys_at_once=5)
    assert await handover_of(cluster, Store(100, is_slow=True), controller, link, config).advance(cluster.tenant.id)
    assert len(set(link.sent)) == len(link.sent) == 300
    assert link.first_s is not None
    assert link.first_s - began_s < 3, "a second for the partition, and one for the first read"
    times_s = [began_s, *(at_s for at_s, _ in controller.reports)]
    assert max(after - before for before, after in pairwise(times_s)) < 4


async def test_a_lost_request_is_sent_again_and_the_partition_goes_on() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    lost = range(60, 70)
    link, config = Link([], lost), KeyMovesConfig(partitions_at_once=1, keys_at_once=1, request_records_max=1)
    assert await handover_of(cluster, Store(100), Controller(), link, config).advance(cluster.tenant.id)
    assert len(set(link.sent)) == len(link.sent) == 300
    assert link.calls == 300 + len(lost)


async def test_a_request_is_not_sent_again_when_the_fence_was_taken_back() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    link, config = Link([], range(1, 1_000)), KeyMovesConfig(partitions_at_once=1, resend_s=1e9)
    work = asyncio.create_task(handover_of(cluster, Store(), Controller(), link, config).advance(cluster.tenant.id))
    await asyncio.sleep(30)
    assert link.calls > 3 and not work.done()
    cluster.go_to(KeysPhase.SETTLED)
    assert not await asyncio.wait_for(work, 5), "a second for each of the other partitions"


async def test_the_controller_hears_of_progress_in_a_partition_with_many_keys_but_not_of_what_is_sent_again() -> None:
    cluster = Cluster()
    cluster.go_to(KeysPhase.IDS_COPYING)
    controller, link = Controller(), Link([], range(60, 1_000))
    config = KeyMovesConfig(partitions_at_once=1, keys_at_once=1, request_records_max=1, resend_s=0)
    handover = handover_of(cluster, Store(100), controller, link, config)

    async def attempt() -> int:
        """The number of reports that say only that the fence goes on."""
        before, link.calls = len(controller.reports), 0
        assert await handover.advance(cluster.tenant.id) is not bool(link.lost)
        return [partitions for _, partitions in controller.reports[before:]].count([])

    assert await attempt() == 5, "one in a second, each key of the first partition takes a tenth"
    assert await attempt() == 0, "it comes as far as before"
    link.lost = ()
    assert 5 + 2 * 9 <= await attempt() <= 5 + 2 * 10, "the rest of the first partition, and all of the others"
