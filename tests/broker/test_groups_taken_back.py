"""What a full device refuses is taken back: offsets, and generations, whose members join again."""

from __future__ import annotations

from typing import Any

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.values import GroupState
from broker.coordination.shard import CoordinatorRecord
from common.errors import ErrorCode
from tests.broker.group_driver import GROUP, GroupDriver

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)


class FullDriver(GroupDriver):
    """While `is_full`, whatever a decision yields is replayed and then taken back, as a coordinator does."""

    is_full = False

    def append(self, records: list[CoordinatorRecord]) -> None:
        if not self.is_full:
            super().append(records)
            return
        before: list[Any] = []
        for record in records:
            before.append(self.shard.before(record))
            self.shard.replay(record.key, record.value)
        self.shard.undo(before[::-1], self.now)


def test_offsets_are_what_they_were() -> None:
    driver = FullDriver(QUICK)
    driver.commit({("t", 0): 5})
    driver.is_full = True
    driver.commit({("t", 0): 6, ("t", 1): 7})
    first, second = (driver.shard.fetch_offset(GROUP, "t", at) for at in (0, 1))
    assert first is not None
    assert (first.offset, second) == (5, None)
    assert driver.shard.offsets.count(GROUP) == 1


def test_members_of_a_generation_that_was_not_written_join_again() -> None:
    driver = FullDriver(QUICK)
    generation, members = driver.stable_group(2)
    durable = driver.shard.committed[GROUP]
    tickets = [driver.join(member) for member in members]
    leader = driver.replies[tickets[0]].leader
    driver.is_full = True
    driver.sync(leader, generation + 1, dict.fromkeys(members, b"new"))
    assert driver.shard.describe(GROUP).state is GroupState.PREPARING_REBALANCE
    assert driver.shard.committed[GROUP] == durable
    driver.is_full = False
    assert driver.heartbeat(leader, generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    tickets = [driver.join(member) for member in members]
    assert driver.replies[tickets[0]].generation == generation + 2
    driver.sync(leader, generation + 2, dict.fromkeys(members, b"new"))
    assert driver.shard.describe(GROUP).state is GroupState.STABLE
    assert driver.shard.committed[GROUP] != durable


def test_a_group_that_was_not_deleted_is_still_there() -> None:
    driver = FullDriver(QUICK)
    _, (member,) = driver.stable_group(1)
    driver.leave(member)
    driver.advance(1.0)
    durable = driver.shard.committed[GROUP]
    driver.is_full = True
    driver.ask("delete", lambda now, _: driver.shard.delete_group(GROUP))
    assert driver.shard.committed[GROUP] == durable
    assert driver.shard.describe(GROUP).state is GroupState.EMPTY
