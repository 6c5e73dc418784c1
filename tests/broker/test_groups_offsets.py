"""Committed offsets: who may commit, what is kept, and how long."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.records import (
    GroupKey,
    OffsetKey,
    UnreadableRecord,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from broker.coordination.groups.values import CommittedOffset, GroupMetadata, GroupState, MemberMetadata
from common.errors import ErrorCode, ProtocolError
from common.identifiers import ZERO_UUID
from common.pacing import at_once
from tests.broker.group_driver import GROUP, GroupDriver

QUICK = GroupConfig(group_initial_rebalance_delay_ms=0)
DAY_S = 86_400.0


def fetched(driver: GroupDriver, topic: str = "t", partition: int = 0, group: str = GROUP) -> int | None:
    committed = driver.shard.fetch_offset(group, topic, partition)
    return None if committed is None else committed.offset


def delete_topic(driver: GroupDriver, successor: bytes | None = None) -> None:
    """Topic t is gone, but for one that has its name now."""
    del driver.topics["t"]
    if successor is not None:
        driver.topics["t"] = successor
    driver.append(driver.shard.topics_deleted(driver.now))
    driver.advance(1.0)


def test_a_simple_consumer_commits_without_a_group() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 5, ("u", 1): 7}, metadata="m") == (ErrorCode.NONE, ErrorCode.NONE)
    assert (fetched(driver), fetched(driver, "u", 1), fetched(driver, "u", 0)) == (5, 7, None)
    assert driver.shard.describe(GROUP).state is GroupState.EMPTY
    assert [listed.protocol_type for listed in at_once(driver.shard.list_groups())] == [""]


def test_a_member_is_unknown_to_a_group_that_has_only_offsets_and_a_group_without_them_is_not_found() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 6}, "m", 3) is ErrorCode.GROUP_ID_NOT_FOUND
    driver.commit({("t", 0): 5})
    assert driver.commit({("t", 0): 6}, "m", 3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit({("t", 0): 7}, "m") == (ErrorCode.NONE,)


def test_members_commit_in_their_generation_alone() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(1)
    assert driver.commit({("t", 0): 1}, ids[0], generation) == (ErrorCode.NONE,)
    assert driver.commit({("t", 0): 2}, ids[0], generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert driver.commit({("t", 0): 2}, "nobody", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit({("t", 0): 2}) is ErrorCode.UNKNOWN_MEMBER_ID  # the group has members
    driver.join(ids[0])
    assert driver.commit({("t", 0): 3}, ids[0], generation + 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert fetched(driver) == 1


def test_a_commit_shows_that_the_member_lives() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(1, session_ms=10_000)
    for offset in range(5):
        driver.advance(6.0)
        assert driver.commit({("t", 0): offset}, ids[0], generation) == (ErrorCode.NONE,)


def test_metadata_over_the_limit_is_refused_for_its_partition() -> None:
    driver = GroupDriver(GroupConfig(offset_metadata_max_bytes=3))
    assert driver.commit({("t", 0): 1}, metadata="äb") == (ErrorCode.NONE,)
    assert driver.commit({("t", 0): 2}, metadata="ääb") == (ErrorCode.OFFSET_METADATA_TOO_LARGE,)
    assert fetched(driver) == 1


def test_offsets_of_an_empty_group_expire_after_the_last_member_left() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(1, session_ms=1_800_000)
    driver.commit({("t", 0): 1}, ids[0], generation)
    for _ in range(8 * 48):  # eight days of heartbeats: longer than the retention
        driver.advance(1_790.0)
        driver.heartbeat(ids[0], generation)
    assert fetched(driver) == 1
    driver.leave(ids[0])
    driver.advance(6.9 * DAY_S)
    assert fetched(driver) == 1
    driver.advance(0.2 * DAY_S)
    assert fetched(driver) is None
    assert (driver.shard.groups, driver.shard.committed) == ({}, {})  # and the group is gone with them
    assert driver.log[-1].value is None


def test_a_retention_to_the_end_of_time_is_taken() -> None:
    driver = GroupDriver()
    assert driver.commit({("t", 0): 1}, retention_ms=2**63 - 1) == (ErrorCode.NONE,)
    committed = driver.shard.fetch_offset(GROUP, "t", 0)
    assert committed is not None
    assert committed.expire_timestamp == 2**63 - 1


def test_offsets_of_a_simple_consumer_expire_after_its_last_commit() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1, ("t", 1): 1})
    driver.advance(4 * DAY_S)
    driver.commit({("t", 1): 2})
    driver.advance(3.1 * DAY_S)
    assert (fetched(driver, "t", 0), fetched(driver, "t", 1)) == (None, 2)


def test_an_old_client_gives_its_own_retention() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1}, retention_ms=3_600_000)
    driver.advance(0.5 * DAY_S)
    assert fetched(driver) is None


def test_a_stable_group_loses_only_topics_nobody_subscribes_to() -> None:
    driver = GroupDriver(QUICK)
    generation, ids = driver.stable_group(1, session_ms=1_800_000)  # its subscription names topic t
    driver.commit({("t", 0): 1, ("u", 0): 1}, ids[0], generation)
    for _ in range(8 * 48):
        driver.advance(1_790.0)
        driver.heartbeat(ids[0], generation)
    assert (fetched(driver, "t"), fetched(driver, "u")) == (1, None)


def test_deleted_topics_take_their_offsets_with_them() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1, ("u", 0): 1})
    driver.commit({("t", 3): 1}, group="other")
    delete_topic(driver)
    assert (fetched(driver, "t"), fetched(driver, "u"), fetched(driver, "t", 3, "other")) == (None, 1, None)


def test_a_late_word_of_a_deletion_spares_the_topic_that_has_the_name_now() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1})
    driver.topics["t"] = bytes([9] * 16)
    driver.commit({("t", 1): 2})
    delete_topic(driver, bytes([9] * 16))
    assert (fetched(driver, "t", 0), fetched(driver, "t", 1)) == (None, 2)


def test_a_deletion_that_no_coordinator_saw_is_found_though_the_name_is_taken_again() -> None:
    before = GroupDriver()
    before.commit({("t", 0): 1, ("t", 1): 1, ("u", 0): 1})
    after = GroupDriver(log=before.log)
    after.topics["t"] = bytes([9] * 16)
    after.commit({("t", 1): 5})
    after.advance(601)
    assert (fetched(after, "t", 0), fetched(after, "t", 1), fetched(after, "u")) == (None, 5, 1)


def test_offsets_without_a_topic_id_go_with_the_name() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1}, retention_ms=3_600_000)
    committed = driver.shard.fetch_offset(GROUP, "t", 0)
    assert committed is not None
    assert committed.topic_id == ZERO_UUID
    delete_topic(driver)
    assert fetched(driver) is None


def test_offsets_of_topics_that_went_unnoticed_are_found() -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1, ("u", 0): 1})
    del driver.topics["t"]
    driver.advance(601)
    assert (fetched(driver, "t"), fetched(driver, "u")) == (None, 1)


def test_retention_goes_through_many_groups_in_short_turns() -> None:
    driver = GroupDriver(GroupConfig(expiries_per_turn_max=15))
    for number in range(10):
        driver.commit({("gone", 0): 1}, group=f"g{number}")
    driver.commit(dict.fromkeys((("gone", partition) for partition in range(100)), 1), group="large")
    before = len(driver.log)
    driver.advance(600.0)
    assert len(driver.log) == before + 3
    driver.advance(0.1)
    assert before + 3 < len(driver.log) < before + 80, "a large group's offsets go some at a time"
    driver.advance(1.0)
    assert driver.shard.offsets.groups() == []


def test_offsets_are_deleted_by_partition() -> None:
    driver = GroupDriver(QUICK)
    with pytest.raises(ProtocolError, match="GROUP_ID_NOT_FOUND"):
        driver.shard.delete_offsets(GROUP, (("t", 0),))
    generation, ids = driver.stable_group(1)
    driver.commit({("t", 0): 1, ("u", 0): 1}, ids[0], generation)
    decision = driver.shard.delete_offsets(GROUP, (("t", 0), ("u", 0), ("u", 9)))
    driver.append(decision.records)
    assert decision.reply == (ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE, ErrorCode.NONE)
    assert (fetched(driver, "t"), fetched(driver, "u")) == (1, None)


def test_a_group_is_deleted_once_it_is_empty() -> None:
    driver = GroupDriver(QUICK)
    assert driver.shard.delete_group(GROUP).reply is ErrorCode.GROUP_ID_NOT_FOUND
    generation, ids = driver.stable_group(1)
    driver.commit({("t", 0): 1}, ids[0], generation)
    assert driver.shard.delete_group(GROUP).reply is ErrorCode.NON_EMPTY_GROUP
    driver.leave(ids[0])
    driver.append(driver.shard.delete_group(GROUP).records)
    assert driver.shard.describe(GROUP).state is GroupState.DEAD
    after = GroupDriver(QUICK, driver.log)
    assert (after.shard.committed, after.shard.offsets.groups()) == ({}, [])


@pytest.mark.parametrize("most", [1, 100])
def test_groups_of_a_prefix_go_in_whatever_state_they_are_and_the_others_stay(most: int) -> None:
    driver = GroupDriver()
    driver.commit({("t", 0): 1, ("t", 1): 2}, group="doomed-simple")
    driver.join(group="doomed-gathering")
    driver.join(group="doomed-unnamed", known=False)
    waiting = driver.join(group="doomed-static", instance="i")
    driver.join(group="kept-gathering")
    driver.commit({("t", 0): 3}, group="kept-simple")
    driver.advance(4.0)
    assert driver.replies[waiting].error is ErrorCode.NONE
    joined = driver.join(group="doomed-late")
    rounds = 0
    while True:
        decision = driver.shard.remove_groups(("doomed-",), most, driver.now)
        driver.append(decision.records)
        driver.collect()
        if not decision.reply:
            break
        rounds += 1
        assert rounds < 20
    assert driver.replies[joined].error is not ErrorCode.NONE, "who waits is told"
    for shard in (driver.shard, GroupDriver(log=driver.log).shard):
        assert {g.group_id for g in at_once(shard.list_groups())} - {"kept-gathering"} == {"kept-simple"}
        assert not [name for name in (*shard.committed, *shard.offsets.groups()) if name.startswith("doomed-")]
    assert fetched(driver, group="kept-simple") == 3


# records --------------------------------------------------------------------------------------------------------

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize(
    ("committed", "version"),
    [
        (CommittedOffset(7, 3, "käse", 1_000), 3),
        (CommittedOffset(7, -1, "", 1_000, 2_000), 1),
        (CommittedOffset(7, 3, "m" * 200, 1_000, -1, TOPIC_ID), 4),
        (CommittedOffset(7, 3, "m" * 126, 1_000, -1, TOPIC_ID), 4),
        (CommittedOffset(7, 3, "m" * 127, 1_000, -1, TOPIC_ID), 4),
        (CommittedOffset(7, 3, "", 1_000, -1, TOPIC_ID), 4),
    ],
)
def test_offset_values_come_back(committed: CommittedOffset, version: int) -> None:
    value = encode_offset_value(committed)
    assert value[:2] == version.to_bytes(2, "big")
    assert decode_offset_value(value) == committed
    with pytest.raises(UnreadableRecord):
        decode_offset_value(value[:-1])


def test_offset_values_of_older_versions_are_read() -> None:
    body = (9).to_bytes(8, "big") + b"\0\1x" + (5).to_bytes(8, "big")
    assert decode_offset_value(b"\0\0" + body) == CommittedOffset(9, -1, "x", 5)
    assert decode_offset_value(b"\0\2" + body) == CommittedOffset(9, -1, "x", 5)
    flexible = (9).to_bytes(8, "big") + (3).to_bytes(4, "big") + b"\2x" + (5).to_bytes(8, "big")
    assert decode_offset_value(b"\0\4" + flexible + b"\0") == CommittedOffset(9, 3, "x", 5)


def test_group_values_come_back() -> None:
    members = (
        MemberMetadata("m", "i", "c", "/h", 5, 6, b"sub", b"ass"),
        MemberMetadata("n", None, "c", "/h", 5, 6, b"", b""),
    )
    metadata = GroupMetadata("consumer", 4, "range", "m", 99, members)
    value = encode_group_value(metadata)
    assert decode_group_value(value) == metadata
    for end in range(2, len(value)):
        with pytest.raises(UnreadableRecord):
            decode_group_value(value[:end])
    empty = GroupMetadata("", 1, None, None, 99)
    assert decode_group_value(encode_group_value(empty)) == empty


def test_a_flexible_group_value_is_read() -> None:
    value = b"\0\4" + b"\x09consumer" + (4).to_bytes(4, "big") + b"\0\0" + (9).to_bytes(8, "big") + b"\x01" + b"\0"
    assert decode_group_value(value) == GroupMetadata("consumer", 4, None, None, 9)


def test_keys_come_back_and_unknown_kinds_are_told_apart() -> None:
    assert encode_offset_key("g", "t", 2) == b"\0\1\0\1g\0\1t\0\0\0\2"
    assert decode_key(encode_offset_key("g", "t", 2)) == OffsetKey("g", "t", 2)
    assert decode_key(b"\0\0" + encode_offset_key("g", "t", 2)[2:]) == OffsetKey("g", "t", 2)
    assert encode_group_key("g") == b"\0\2\0\1g"
    assert decode_key(encode_group_key("g")) == GroupKey("g")
    assert decode_key(b"\0\3\0\1g") is None
    with pytest.raises(UnreadableRecord):
        decode_key(b"\0\2\0\5g")


@given(st.binary(max_size=60))
def test_garbled_records_are_told_apart_from_broken_code(data: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value):
        for prefix in (b"", b"\0\0", b"\0\1", b"\0\2", b"\0\3", b"\0\4"):
            with contextlib.suppress(UnreadableRecord):
                decode(prefix + data)
