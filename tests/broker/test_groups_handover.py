"""A group that another partition takes over: nobody waits in vain, its members go on where it comes to, and neither
side touches what is on its way."""

from __future__ import annotations

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.values import GroupState
from common.errors import ErrorCode
from common.pacing import at_once
from kraft.image.key_ranges import Keeping
from tests.broker.group_driver import GROUP, GroupDriver

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)
DAY_S = 86_400.0


class Side(GroupDriver):
    """A partition whose part in the handover the test changes."""

    def become(self, keeping: Keeping) -> None:
        self.keeping = keeping
        self.append(self.shard.keeping_changed(GROUP, self.now))
        self.collect()


def handed_over(old: GroupDriver, new: Side) -> None:
    for group_id in list(filter(None, old.shard.names((GROUP,)))):
        new.append(at_once(old.shard.records_of(group_id)))


def coming() -> Side:
    return Side(QUICK, keeping=Keeping.COMING)


def test_members_go_on_in_their_generation() -> None:
    old, new = Side(QUICK), coming()
    generation, ids = old.stable_group(2)
    old.commit({("t", 0): 5, ("u", 1): 7}, ids[0], generation)
    old.become(Keeping.LEAVING)
    handed_over(old, new)
    assert not at_once(new.shard.list_groups())
    new.become(Keeping.SERVED)
    assert new.shard.describe(GROUP).state is GroupState.STABLE
    assert new.heartbeat(ids[1], generation) is ErrorCode.NONE
    assert new.commit({("t", 0): 6}, ids[0], generation) == (ErrorCode.NONE,)
    assert [offset.offset for offset in at_once(new.shard.fetch_offsets(GROUP))["u"].values()] == [7]
    assert [listed.group_id for listed in at_once(new.shard.list_groups())] == [GROUP]
    assert not at_once(old.shard.list_groups())
    new.advance(11.0)
    assert new.shard.describe(GROUP).state is GroupState.EMPTY, "sessions run where the group is"


def test_whoever_waits_looks_for_the_new_coordinator_at_once() -> None:
    old = Side(QUICK)
    generation, ids = old.stable_group(2)
    joining = old.join(ids[0])
    assert joining not in old.replies
    old.become(Keeping.LEAVING)
    assert old.replies[joining].error is ErrorCode.NOT_COORDINATOR
    records = len(old.log)
    old.advance(100.0)
    assert len(old.log) == records, "no timer of the group runs any more"
    old.become(Keeping.SERVED)
    assert old.heartbeat(ids[1], generation) is ErrorCode.NONE, "a handover that was given up"


def test_offsets_on_their_way_do_not_expire_and_what_is_left_behind_goes() -> None:
    old, new = Side(QUICK), coming()
    generation, ids = old.stable_group(1)
    old.commit({("t", 0): 5}, ids[0], generation)
    old.become(Keeping.LEAVING)
    handed_over(old, new)
    for side in (old, new):
        side.advance(8 * DAY_S)
        assert side.shard.fetch_offset(GROUP, "t", 0) is not None
    new.become(Keeping.SERVED)
    old.become(Keeping.FOREIGN)
    old.advance(1.0)
    assert not list(filter(None, old.shard.names((GROUP,))))
    assert new.shard.describe(GROUP).state is GroupState.STABLE


def test_a_leader_that_loads_meanwhile_takes_up_nothing_before_its_time() -> None:
    old = Side(QUICK)
    generation, ids = old.stable_group(1)
    new = coming()
    handed_over(old, new)
    again = Side(QUICK, new.log, Keeping.COMING)
    again.advance(1.0)
    assert not again.shard.groups
    again.become(Keeping.SERVED)
    assert again.heartbeat(ids[0], generation) is ErrorCode.NONE


def test_a_thousand_groups_are_given_up_in_turns_and_none_runs_a_timer_meanwhile() -> None:
    old = Side(QUICK)
    for number in range(300):
        old.stable_group(1, group=f"{GROUP}-{number}")
    old.become(Keeping.LEAVING)
    assert 100 < len(old.shard.groups) < 300
    records = len(old.log)
    old.now_s += 100.0  # every session is over
    old.advance(0.0)
    old.advance(1.0)
    assert not old.shard.groups
    assert len(old.log) == records
