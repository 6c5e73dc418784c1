"""What deleted tenants leave in coordinators: each one's keys go by themselves, in short steps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.coordination.tenant_cleanup import CleanupConfig, TenantCleanup
from broker.coordination.transactions.removals import LOOKS_AT_ONCE
from broker.coordination.transactions.values import InitProducer, Transaction, TransactionState
from common.errors import ErrorCode, ProtocolError
from kraft.image.delta import MetadataDelta
from kraft.image.key_ranges import Keeping
from kraft.records import RemoveTenantRecord, TenantRecord, TenantState, TopicRecord
from kraft.topic_names import TRANSACTION_TOPIC
from tests.broker.broker_world import BrokerWorld
from tests.broker.test_transactions_coordinator import World, code_of
from tests.broker.transaction_driver import TransactionDriver

A, B, C = "lkc-aaaaaa", "lkc-bbbbbb", "lkc-cccccc"
PREPARED = Transaction(7, 1, 60_000, TransactionState.PREPARE_ABORT, {"flights": (0,)}, 1, 1, version=2)
IDLE = Transaction(7, 1, 60_000, TransactionState.COMPLETE_ABORT, {}, 1, 1, version=2)


class Driver(TransactionDriver):
    """Counts ids that are looked at."""

    looks = 0

    @property
    def keeping(self) -> Keeping:
        self.looks += 1
        return Keeping.SERVED

    @keeping.setter
    def keeping(self, value: Keeping) -> None:
        pass

    def remove(self, *tenants: str, most: int = 100) -> int | None:
        """How many steps; None if those that are left have to wait."""
        self.looks = 0
        try:
            decision = self.shard.remove_ids(tuple(f"{tenant}_" for tenant in tenants), most, self.now)
        except ProtocolError as error:
            if error.code is ErrorCode.CONCURRENT_TRANSACTIONS:
                return None
            raise
        assert len({record.key for record in decision.records}) == len(decision.records), "one step for each id"
        return self.decided(decision)


def test_a_step_looks_at_few_ids_and_the_next_one_goes_on_behind_them() -> None:
    driver = Driver()
    for number in range(3 * LOOKS_AT_ONCE):
        driver.put(f"{A}_{number}", PREPARED)
    for tenant in (A, B):
        driver.put(f"{tenant}_idle", IDLE)
    for _ in range(3):
        assert driver.remove(A, B) is None
        assert driver.looks <= LOOKS_AT_ONCE
    assert driver.remove(A, B) == 1
    assert driver.remove(B) == 1
    assert driver.remove(B) == 0
    driver.put(f"{A}_0", IDLE)
    found = 0
    for _ in range(4):
        found += driver.remove(A) or 0
        assert driver.looks <= LOOKS_AT_ONCE
    assert found == 1
    driver.write_markers()
    while driver.remove(A):
        assert driver.looks <= LOOKS_AT_ONCE
    assert driver.remove(A) == 0
    assert not driver.shard.committed


@pytest.mark.parametrize("most", [1, 2, 7])
def test_ids_are_aborted_and_removed_in_steps_of_any_size(most: int) -> None:
    driver = Driver()
    for number in range(10):
        for tenant in (A, B):
            _, producer = driver.init(f"{tenant}_{number}")
            if number % 3:
                driver.add(f"{tenant}_{number}", producer, ("flights", number))
    steps = 0
    for _ in range(200):
        found = driver.remove(A, B, most=most)
        if found is None:
            driver.write_markers()
        elif not found:
            break
        steps += found or 0
    assert not driver.shard.committed
    assert steps == 2 * (10 + 6), "one for each id, and one more for each transaction"


@pytest.mark.virtual_time
@pytest.mark.parametrize("is_gone", [False, True])
async def test_a_deleted_tenant_gets_no_id_behind_the_removal(is_gone: bool) -> None:
    """Its producer waits for a producer id, and meanwhile its partition has none of its ids left."""
    world = World()
    await world.elected()
    delta = MetadataDelta(world.image)
    delta.replay(TenantRecord(A, "a", "default", 1))
    world.image = delta.image()
    waiting = asyncio.ensure_future(world.coordinator.init_producer_id(InitProducer(f"{A}_t", 60_000)))
    await asyncio.sleep(0)
    delta = MetadataDelta(world.image)
    if is_gone:
        delta.replay(RemoveTenantRecord(A))
    else:
        delta.replay(TenantRecord(A, "a", "default", 1, state=TenantState.DELETING))
    world.image = delta.image()
    assert await world.coordinator.remove_keys(0, (f"{A}_",), 100) == 0
    assert await code_of(waiting) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert await world.coordinator.remove_keys(0, (f"{A}_",), 100) == 0
    await world.coordinator.stop()
    await world.runtime.stop()


class Ids:
    """Partition 0 has nothing left of any tenant, and partition 1 a transaction of one that does not end."""

    topic = TRANSACTION_TOPIC

    def hosted(self) -> list[int]:
        return [0, 1, 2]

    async def remove_keys(self, index: int, prefixes: tuple[str, ...], most: int) -> int:
        await asyncio.sleep(0)
        if index == 2:
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        if index == 1 and f"{B}_" in prefixes:
            raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS)
        return 0


class Controller:
    def __init__(self) -> None:
        self.reports: list[tuple[list[str], list[int]]] = []

    async def call(self, request: Any, version: int, **_: Any) -> None:
        self.reports.append((request.tenants, request.partitions))


@pytest.mark.virtual_time
async def test_a_tenant_whose_transaction_does_not_end_holds_up_no_other() -> None:
    world, controller = BrokerWorld(), Controller()
    delta = MetadataDelta(world.image)
    delta.replay(TopicRecord(TRANSACTION_TOPIC, b"t" * 16))
    for tenant_id in (A, B, C):
        delta.replay(TenantRecord(tenant_id, tenant_id[-1], "default", 1, state=TenantState.DELETING))
    image = delta.image()
    cleanup = TenantCleanup(
        [Ids()],
        lambda: image,
        controller,  # type: ignore[arg-type]
        lambda: (0, 7),
        CleanupConfig(round_s=1.0),
    )
    cleanup.metadata_changed(delta, image)
    await asyncio.sleep(0.5)
    await cleanup.stop()
    assert controller.reports == [([A, B, C], [0]), ([A, C], [1])]
