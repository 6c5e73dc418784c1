"""What one transaction may have pending in a partition of `__consumer_offsets`."""

from __future__ import annotations

from broker.coordination.groups.config import GroupConfig
from common.decision import ProducerStamp
from common.errors import ErrorCode
from tests.broker.test_groups_pending_offsets import ONE, QUICK, TWO, Driver
from tests.common.call_count import counted_calls


def test_the_groups_of_one_transaction_are_bounded_and_so_is_what_its_marker_does() -> None:
    driver = Driver(QUICK)
    for number in range(1_000):
        assert driver.commit_pending(ONE, {("t", 0): number}, group=f"g{number}") == (ErrorCode.NONE,)
    assert driver.commit_pending(ONE, {("t", 0): 1}, group="one more") is ErrorCode.TRANSACTION_ABORTABLE
    assert driver.commit_pending(ONE, {("t", 0): 1, ("t", 1): 1}, group="g0") == (ErrorCode.NONE,) * 2
    assert driver.commit_pending(TWO, {("t", 0): 2}, group="one more") == (ErrorCode.NONE,)
    with counted_calls() as count:
        driver.end(ONE, commit=True)
    assert count.calls < 40 * 1_000
    assert driver.shard.fetch_offset("one more", "t", 0, stable=False) is None
    last = driver.shard.fetch_offset("g999", "t", 0, stable=True)
    assert last is not None
    assert last.offset == 999
    assert driver.commit_pending(ONE, {("t", 0): 1}, group="one more") == (ErrorCode.NONE,), "its next transaction"


def test_the_offsets_of_one_transaction_are_bounded() -> None:
    driver = Driver(GroupConfig(group_initial_rebalance_delay_ms=0, transaction_offsets_max=5))
    assert driver.commit_pending(ONE, {("t", 0): 1, ("t", 1): 1}) == (ErrorCode.NONE,) * 2
    assert driver.commit_pending(ONE, {("t", 0): 1, ("t", 1): 1}, group="h") == (ErrorCode.NONE,) * 2
    for _ in range(3):
        refused = driver.commit_pending(ONE, {("t", 1): 2, ("t", 2): 2, ("u", 0): 2})
        assert refused is ErrorCode.TRANSACTION_ABORTABLE
        assert driver.commit_pending(ONE, {("t", 0): 3, ("t", 1): 3}) == (ErrorCode.NONE,) * 2, "they replace others"
    assert driver.commit_pending(ONE, {("t", 1): 4, ("t", 2): 4}) == (ErrorCode.NONE,) * 2
    assert driver.commit_pending(ONE, {("u", 0): 4}, group="h") is ErrorCode.TRANSACTION_ABORTABLE
    assert driver.commit_pending(TWO, {("u", 0): 4}, group="h") == (ErrorCode.NONE,)
    driver.end(ONE, commit=True)
    assert [driver.offset("t", index, stable=True) for index in range(3)] == [3, 4, 4]
    assert driver.commit_pending(ONE, {("u", 0): 5}) == (ErrorCode.NONE,)


def test_the_transactions_with_offsets_of_one_partition_of_a_group_are_bounded() -> None:
    driver = Driver(GroupConfig(group_initial_rebalance_delay_ms=0, pending_producers_max=3))
    one, two, three, four = (ProducerStamp(number, 0) for number in range(1, 5))
    for producer in (one, two, three):
        assert driver.commit_pending(producer, {("t", 0): 1, ("t", 1): 1}) == (ErrorCode.NONE,) * 2
    refused = driver.commit_pending(four, {("t", 2): 1, ("t", 1): 1})
    assert refused is ErrorCode.TRANSACTION_ABORTABLE
    assert driver.offset("t", 2, stable=True) is None, "nothing of the request is taken"
    assert driver.commit_pending(three, {("t", 1): 2}) == (ErrorCode.NONE,), "it has one there already"
    assert driver.commit_pending(four, {("t", 2): 1}) == (ErrorCode.NONE,)
    driver.end(two, commit=True)
    assert driver.commit_pending(four, {("t", 1): 1}) == (ErrorCode.NONE,)
    assert driver.commit_pending(two, {("t", 1): 1}) is ErrorCode.TRANSACTION_ABORTABLE
