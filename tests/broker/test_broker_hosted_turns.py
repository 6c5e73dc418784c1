"""Thousands of role changes at once: in turns of the loop, each replica to what the newest image says."""

from __future__ import annotations

import asyncio
import errno
import gc
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from broker.partitions.hosted import HostedPartitions
from broker.partitions.log_settings import LogSettings
from broker.partitions.partition import Partition
from broker.partitions.replica import Role
from common.directory_config import DirectoryConfig
from common.errors import ProtocolError
from common.machine_disk import MachineDisk
from common.node_settings.replication import ReplicationSettings
from common.pacing import Pacer
from common.ports import Disk
from kraft.batches import MetadataRecord
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import PartitionChangeRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from storage.audit.audit_trail import NoTrail
from storage.directory.log_directory import LogDirectory
from storage.disk.checkpoint_files import encode_partition_metadata
from tests.broker.replication_lab import eventually
from tests.virtual_time import lab_ports

TOPIC_ID, OTHER_ID, MADE_ID = bytes(range(16)), bytes(range(16, 32)), bytes(range(32, 48))
COUNT = 300
MANY: list[MetadataRecord] = [
    TopicRecord("many", TOPIC_ID),
    *[PartitionRecord(TOPIC_ID, index, (0, 1), (0, 1), index % 2) for index in range(COUNT)],
]


class Broker:
    """The replicas of broker 0, and the metadata they are led by."""

    def __init__(self, logs: LogDirectory) -> None:
        self.logs = logs
        self.pacer = Pacer()
        self.hosted = HostedPartitions(0, logs, LogSettings(0, {}), lambda: 0.0, ReplicationSettings(), self.pacer)
        self.image: MetadataImage = EMPTY_IMAGE

    @classmethod
    async def open(cls, root: Path, disk: Disk | None = None) -> Broker:
        ports = lab_ports(root)
        logs = LogDirectory(
            replace(ports, disk=disk or ports.disk), "", 0, NoTrail(), DirectoryConfig(free_bytes_min=0)
        )
        await logs.open("AAAAAAAAAAAAAAAAAAAAAQ")
        return cls(logs)

    def change(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.image()
        self.hosted.apply(delta, self.image)


class WatchedDisk(MachineDisk):
    """Remembers in which threads directories were made; `gate` holds up those that are not the loop's."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.threads: list[int] = []
        self.gate = threading.Event()
        self.gate.set()
        self.is_full = False

    def make_directory(self, path: str) -> None:
        if threading.current_thread() is not threading.main_thread():
            self.gate.wait(10)
        if self.is_full:
            raise OSError(errno.ENOSPC, "injected")
        self.threads.append(threading.get_ident())
        super().make_directory(path)


async def made_just_now(tmp_path: Path) -> tuple[Broker, WatchedDisk]:
    """A broker that has begun to open the replicas of a new topic."""
    disk = WatchedDisk(tmp_path)
    broker = await Broker.open(tmp_path, disk)
    broker.change(TopicRecord("old", OTHER_ID), PartitionRecord(OTHER_ID, 0, (0, 1), (0, 1), 0))
    disk.threads.clear()
    disk.gate.clear()
    broker.change(*MANY)
    return broker, disk


async def test_directories_of_many_new_replicas_are_made_off_the_loop(tmp_path: Path) -> None:
    broker, disk = await made_just_now(tmp_path)
    disk.gate.set()
    await broker.hosted.roles.wait_applied()
    assert len(broker.hosted) == COUNT + 1
    assert len(disk.threads) == COUNT
    assert threading.get_ident() not in disk.threads


async def test_a_topic_that_goes_while_its_directories_are_made_leaves_none(tmp_path: Path) -> None:
    broker, disk = await made_just_now(tmp_path)
    await eventually(lambda: bool(broker.logs.prepared.is_busy))
    broker.change(RemoveTopicRecord(TOPIC_ID))
    disk.gate.set()
    await broker.hosted.roles.wait_applied()
    assert kept_directories(tmp_path) == ["old-0"]


async def test_a_topic_made_anew_while_directories_are_made_has_its_own_id(tmp_path: Path) -> None:
    broker, disk = await made_just_now(tmp_path)
    await eventually(lambda: bool(broker.logs.prepared.is_busy))
    anew = [PartitionRecord(MADE_ID, index, (0, 1), (0, 1), 0) for index in range(COUNT)]
    broker.change(RemoveTopicRecord(TOPIC_ID), TopicRecord("many", MADE_ID), *anew)
    broker.change(PartitionChangeRecord(MADE_ID, 0, leader=1))  # changed before it was opened
    disk.gate.set()
    await broker.hosted.roles.wait_applied()
    assert len(broker.hosted) == COUNT + 1
    for index in range(COUNT):
        text = (tmp_path / f"many-{index}" / "partition.metadata").read_bytes()
        assert text == encode_partition_metadata(MADE_ID)
    assert broker.hosted.find("many", 0).role is Role.FOLLOWER


async def test_what_a_thread_finds_no_room_for_is_tried_again(tmp_path: Path) -> None:
    broker, disk = await made_just_now(tmp_path)
    disk.is_full = True
    disk.gate.set()
    await eventually(lambda: bool(broker.hosted.roomless))
    disk.is_full = False
    assert broker.logs.offline is None
    broker.hosted.roles.add_keys(list(broker.hosted.roomless))
    await broker.hosted.roles.wait_applied()
    assert not broker.hosted.offline


def kept_directories(root: Path) -> list[str]:
    return [path.name for path in root.iterdir() if path.is_dir() and "-delete" not in path.name]


async def test_many_changes_leave_the_loop_to_others_in_between(tmp_path: Path) -> None:
    broker = await Broker.open(tmp_path)
    told: list[int] = []
    broker.hosted.roles.subscribe(lambda: told.append(broker.hosted.applied_offset))
    broker.change(*MANY)
    assert 0 < len(broker.hosted) < COUNT // 10
    assert broker.hosted.applied_offset < broker.image.offset
    await broker.hosted.roles.wait_applied()
    assert len(broker.hosted) == COUNT
    assert told == [broker.image.offset] == [broker.hosted.applied_offset]
    roles = [broker.hosted.find("many", index).role for index in range(COUNT)]
    assert roles == [Role.LEADER, Role.FOLLOWER] * (COUNT // 2)


async def test_few_changes_are_done_at_once(tmp_path: Path) -> None:
    broker = await Broker.open(tmp_path)
    broker.change(TopicRecord("few", TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (0, 1), (0, 1), 0))
    assert broker.hosted.find("few", 0).is_leader
    assert broker.hosted.applied_offset == broker.image.offset


async def test_what_changes_again_before_its_turn_takes_the_newest_role(tmp_path: Path) -> None:
    broker = await Broker.open(tmp_path)
    broker.change(*MANY)
    last = COUNT - 1
    broker.change(PartitionChangeRecord(TOPIC_ID, 0, leader=1), PartitionChangeRecord(TOPIC_ID, last, leader=0))
    assert broker.hosted.find("many", 0).is_leader  # its second change waits behind all the others
    assert broker.hosted.applied_offset < broker.image.offset
    await broker.hosted.roles.wait_applied()
    assert not broker.hosted.find("many", 0).is_leader
    assert broker.hosted.find("many", last).is_leader
    assert broker.hosted.find("many", last).leader_epoch == 1


async def test_leaderships_move_before_what_was_made_just_now_is_opened(tmp_path: Path) -> None:
    broker = await Broker.open(tmp_path)
    broker.change(*MANY)
    await broker.hosted.roles.wait_applied()
    made = [PartitionRecord(MADE_ID, index, (0, 1), (0, 1), 0) for index in range(COUNT)]
    broker.change(TopicRecord("made", MADE_ID), *made)
    broker.change(*[PartitionChangeRecord(TOPIC_ID, index, leader=0) for index in range(1, COUNT, 2)])
    while not all(broker.hosted.find("many", index).is_leader for index in range(COUNT)):
        assert broker.hosted.applied_offset < broker.image.offset
        await asyncio.sleep(0)
    assert len(broker.hosted) < 2 * COUNT - COUNT // 4
    await broker.hosted.roles.wait_applied()
    assert len(broker.hosted) == 2 * COUNT
    assert broker.hosted.applied_offset == broker.image.offset


async def test_a_topic_that_goes_while_its_replicas_wait_leaves_nothing_behind(tmp_path: Path) -> None:
    broker = await Broker.open(tmp_path)
    broker.change(*MANY)
    broker.change(
        RemoveTopicRecord(TOPIC_ID),
        TopicRecord("many", OTHER_ID),
        PartitionRecord(OTHER_ID, 0, (0, 1), (0, 1), 0),
    )
    await broker.hosted.roles.wait_applied()
    assert len(broker.hosted) == 1
    assert broker.hosted.find("many", 0).topic_id == OTHER_ID
    assert kept_directories(tmp_path) == ["many-0"]


async def test_deleted_replicas_are_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """It leaves out what was made in thousands."""
    broker = await Broker.open(tmp_path)
    broker.change(TopicRecord("few", OTHER_ID), PartitionRecord(OTHER_ID, 0, (0, 1), (0, 1), 0))
    gc.collect()
    gc.disable()
    try:
        broker.change(RemoveTopicRecord(OTHER_ID))
        assert not [found for found in gc.get_objects() if isinstance(found, Partition) and found.topic_id == OTHER_ID]
    finally:
        gc.enable()


async def test_a_broker_whose_disk_failed_leads_nothing_any_more(tmp_path: Path) -> None:
    broker = await Broker.open(tmp_path)
    broker.change(*MANY)
    broker.hosted.go_offline()
    broker.change(PartitionChangeRecord(TOPIC_ID, 0, leader=1), PartitionChangeRecord(TOPIC_ID, COUNT - 1, leader=0))
    await broker.pacer.rest("offline")
    assert {partition.role for partition in broker.hosted} == {Role.OFFLINE}
    with pytest.raises(ProtocolError, match="KAFKA_STORAGE_ERROR"):
        broker.hosted.find("many", 0)


async def test_a_broker_that_stops_takes_no_more_roles(tmp_path: Path) -> None:
    broker = await Broker.open(tmp_path)
    broker.change(*MANY)
    broker.hosted.stop()
    await broker.hosted.roles.wait_applied()
    broker.change(TopicRecord("later", OTHER_ID), PartitionRecord(OTHER_ID, 0, (0, 1), (0, 1), 0))
    assert 0 < len(broker.hosted) < COUNT // 10
    assert broker.hosted.image is broker.image
