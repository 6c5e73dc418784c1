"""Replicas for whose logs the disk has no room: they are tried again, and the others go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.partitions.hosted import ROOM_PAUSE_S
from broker.partitions.replica import Role
from common.errors import ErrorCode, ProtocolError
from kraft.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from tests.broker.replication_lab import eventually
from tests.broker.test_broker_hosted_turns import OTHER_ID, TOPIC_ID, Broker, WatchedDisk, kept_directories

pytestmark = pytest.mark.virtual_time


async def test_a_replica_without_room_for_its_log_is_tried_again_and_the_others_go_on(tmp_path: Path) -> None:
    disk = WatchedDisk(tmp_path)
    broker = await Broker.open(tmp_path, disk)
    broker.change(TopicRecord("old", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (0, 1), (0, 1), 1))
    disk.is_full = True
    broker.change(
        TopicRecord("new", OTHER_ID),
        PartitionRecord(OTHER_ID, 0, (0, 1), (0, 1), 0),
        PartitionRecord(OTHER_ID, 1, (0, 1), (0, 1), 1),
        PartitionChangeRecord(TOPIC_ID, 0, leader=0),
    )
    assert not broker.hosted.offline
    assert broker.hosted.find("old", 0).is_leader
    for index in range(2):
        assert broker.hosted.missing_by_id(OTHER_ID, index) is ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(ProtocolError, match="KAFKA_STORAGE_ERROR"):
            broker.hosted.find("new", index)
    assert len(broker.hosted.roomless) == 2
    broker.change(PartitionChangeRecord(OTHER_ID, 0, replicas=(1, 2), leader=1))  # it need not be made any more
    await asyncio.sleep(2 * ROOM_PAUSE_S)
    assert len(broker.hosted.roomless) == 1
    assert broker.hosted.missing_by_id(OTHER_ID, 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    disk.is_full = False
    await eventually(lambda: not broker.hosted.roomless)
    assert broker.hosted.find("new", 1).role is Role.FOLLOWER
    assert kept_directories(tmp_path).count("new-0") == 0
    broker.hosted.stop()
