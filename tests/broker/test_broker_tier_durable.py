"""Replicas that begin where the tier ends, on a disk that cannot write that down yet: no leader hears of them."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace
from pathlib import Path

import pytest

from broker.replication.follower import BACKOFF_MIN_S
from common.machine_disk import MachineDisk, MachineFile
from common.ports import Ports
from kraft.records import PartitionChangeRecord
from storage.disk.checkpoint_files import LEADER_EPOCHS
from tests.broker.replication_lab import TOPIC_ID, eventually
from tests.broker.test_broker_tier import filled
from tests.broker.tier_lab import QUICK, TierLab
from tests.virtual_time import lab_ports

pytestmark = pytest.mark.virtual_time

A_WHILE_S = 10 * BACKOFF_MIN_S  # far longer than a replica rests before it asks again


class FilelessDisk(MachineDisk):
    """There are no files left for leader epochs until `has_files`; `refused` times they were missing."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.has_files = False
        self.refused = 0

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        if create and LEADER_EPOCHS in path and not self.has_files:
            self.refused += 1
            raise OSError(errno.EMFILE, "no file is left")
        return super().open(path, create=create)


class FilelessLab(TierLab):
    """The last broker, where the topic is not to begin with, has such a disk."""

    def __init__(self, root: Path, count: int) -> None:
        super().__init__(root, count, QUICK, self._ports)
        self.disk = FilelessDisk(root / f"broker-{count - 1}")

    def _ports(self, root: Path) -> Ports:
        ports = lab_ports(root)
        return replace(ports, disk=self.disk) if root == self.disk.root else ports


async def test_a_leader_hears_of_a_new_replicas_place_once_it_is_durable(tmp_path: Path) -> None:
    async with FilelessLab(tmp_path, 2) as lab:
        lab.create_tiered(0, local_retention_ms="0")
        await filled(lab)
        await lab.copied()
        assert await lab.drop_local() > 3
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
        await eventually(lambda: lab.disk.refused)
        new, tier_end = lab.partition(1).log, lab.bucket.tier.tier_end_offset
        await asyncio.sleep(A_WHILE_S)
        assert (new.local_log_start_offset, new.log_end_offset, lab.controller.isr) == (tier_end, tier_end, (0,))
        lab.disk.has_files = True
        await eventually(lambda: lab.controller.isr == (0, 1))
        assert new.log_end_offset == 20 > tier_end


async def test_no_new_leader_hears_of_a_place_that_is_not_durable(tmp_path: Path) -> None:
    async with FilelessLab(tmp_path, 3) as lab:
        lab.create_tiered(0, 1, local_retention_ms="0")
        await filled(lab)
        await lab.copied()
        assert await lab.drop_local() > 3
        tier_end = lab.bucket.tier.tier_end_offset
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1, 2)))
        await eventually(lambda: lab.disk.refused)
        lab.controller.elect(1)
        await eventually(lambda: lab.partition(1).is_leader)
        await eventually(lambda: lab.partition(2).leader_epoch == lab.partition(1).leader_epoch)
        end = lab.partition(1).log.log_end_offset
        await filled(lab, 5, node=1)  # committed by the two others, who are fetched from and fetch meanwhile
        await asyncio.sleep(A_WHILE_S)
        log = lab.partition(2).log
        assert (log.local_log_start_offset, log.log_end_offset) == (tier_end, tier_end), "nothing is appended before"
        assert 2 not in lab.controller.isr
        lab.disk.has_files = True
        await eventually(lambda: 2 in lab.controller.isr)
        assert log.log_end_offset == end + 5
