"""Very many partitions on one link: what one fetch, one answer and one review may cost is bounded by counts."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.partitions.replica import Role
from broker.partitions.throttles import ReplicationQuota
from broker.replication.fetch_sessions import KEPT_ASLEEP_MAX, FetchSession, FetchSessionCache
from broker.replication.follower import REST_MAX_S, RETRIES_PER_S, FollowedPartitions
from broker.replication.leader_link import PARTS_MAX
from common.errors import ErrorCode
from common.pacing import Work
from storage.log.log_ends import LogEnds
from tests.broker.replication_lab import TOPIC_ID, Lab, eventually
from wire.hot_codec import FetchCall, FetchPart, ReplicatedRow

pytestmark = pytest.mark.virtual_time

COUNT = 3 * PARTS_MAX + 7


def partition(index: int) -> Any:
    log = SimpleNamespace(ends=LogEnds(0, 0, 0), leader_epochs=SimpleNamespace(latest_epoch=-1))
    known = {"leader_epoch": 0, "tier_generation": 0, "role": Role.FOLLOWER, "log": log}
    return SimpleNamespace(topic_id=TOPIC_ID, index=index, **known)


def followed(count: int = COUNT) -> FollowedPartitions:
    found = FollowedPartitions(1 << 20, 1.0, ReplicationQuota(lambda: 0.0))
    for index in range(count):
        found.add(partition(index))
    return found


def named(link: FollowedPartitions, *, new: bool) -> list[int]:
    return [part.partition for parts in link.plan(new, PARTS_MAX).topics.values() for part in parts]


def test_one_fetch_names_so_many_partitions_and_the_next_ones_the_others() -> None:
    link = followed()
    fetches = [named(link, new=True)]
    while link.has_moved:
        fetches.append(named(link, new=False))
    assert [len(fetch) for fetch in fetches] == [PARTS_MAX] * 3 + [7]
    assert sorted(index for fetch in fetches for index in fetch) == list(range(COUNT))
    assert not link.asks_for_nothing


def test_a_new_session_names_everything_again_but_what_rests() -> None:
    link = followed()
    while link.has_moved:
        named(link, new=False)
    resting, _ = link.judge(ReplicatedRow(TOPIC_ID, 3, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 0, 0, 0, None, None, None))
    assert resting is not None
    link.rest(resting, now=10.0)
    link.session_lost()
    found: list[int] = []
    while link.has_moved:
        found += named(link, new=False)
    assert sorted(found) == [index for index in range(COUNT) if index != 3]
    due = link.next_wake()
    assert due is not None and due > 10.0
    assert link.held_up_count == 0
    link.wake_rested(due)
    assert (named(link, new=False), link.next_wake()) == ([3], None)


def test_a_leader_that_refuses_many_is_asked_for_them_all_the_more_seldom() -> None:
    """Else their refusals keep it from taking the roles that would end them."""
    link = followed()
    while link.has_moved:
        named(link, new=False)
    for index in range(COUNT):
        refused, _ = link.judge(
            ReplicatedRow(TOPIC_ID, index, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 0, 0, 0, None, None, None)
        )
        assert refused is not None
        link.rest(refused, now=0.0)
    link.wake_rested(COUNT / RETRIES_PER_S / 2)
    assert COUNT / 3 < len(named(link, new=False)) + sum(len(named(link, new=False)) for _ in range(9)) < COUNT * 2 / 3


def test_none_rests_longer_than_the_longest_rest_however_many_are_refused() -> None:
    count = round(2 * REST_MAX_S * RETRIES_PER_S)
    link = followed(count)
    while link.has_moved:
        named(link, new=False)
    for index in range(count):
        refused, _ = link.judge(
            ReplicatedRow(TOPIC_ID, index, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0, 0, 0, 0, None, None, None)
        )
        assert refused is not None
        link.rest(refused, now=0.0)
    link.wake_rested(REST_MAX_S)
    assert link.next_wake() is None


def test_a_session_that_loses_its_connection_ends_in_pieces_when_it_is_large() -> None:
    works: list[Work[None]] = []
    cache = FetchSessionCache(2, random.Random(1), works.append)
    count = KEPT_ASLEEP_MAX + 1
    parts = [FetchPart(b"topic", index, -1, 0, -1, -1, 1_000) for index in range(count)]
    request = FetchCall(-1, -1, 500, 1, 1_000, 0, 0, 0, parts, [], b"", None)
    session = cache.create(request, 12, 0.0)
    assert session is not None
    session.update(parts, ())
    session.connection_closed()
    assert session.id not in cache
    (work,) = works
    costs = list(work)
    assert max(costs) < count // 10 < count // 2 < sum(costs)
    assert not session.positions
    assert not session.changed


async def test_replicas_that_are_gone_are_not_looked_after_each_time(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        hosted, partition = lab[0].plane.partitions, lab[0].partition
        await lab[2].stop()
        lab.controller.elect(0, isr=(0, 1))
        await eventually(lambda: partition in hosted.quiet_partitions)
        assert partition not in hosted.unsettled_partitions
        session = FetchSession(7, 2, True, 0.0)
        lab.controller.reachable = False
        partition.follower_fetched(2, 1, 0, lab[2].broker_epoch + 1, session)  # not eligible yet: its epoch is unknown
        assert partition in hosted.unsettled_partitions
        assert partition not in hosted.quiet_partitions
