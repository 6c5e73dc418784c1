"""A killed broker's directory: what it had appended is still there unless the machine went down."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from common.machine import MachineClock, MachineDisk, MachineNetwork
from common.ports import Ports
from storage.audit_trail import NoTrail
from storage.checkpoint_files import RUN
from storage.log_context import DirectoryConfig
from storage.log_directory import LogDirectory


class BootedDisk(MachineDisk):
    """A disk of a machine whose boots the test counts."""

    boot = "first"

    def cache_identity(self) -> str:
        return self.boot


def directory(root: Path, boot: str = "first") -> LogDirectory:
    disk = BootedDisk(root)
    disk.boot = boot
    ports = Ports(MachineNetwork(), disk, MachineClock(), random.Random(1))
    return LogDirectory(ports, "", 1, NoTrail(), DirectoryConfig())


async def killed_run(root: Path, epoch: int) -> None:
    """A run that notes itself and ends without a marker."""
    run = directory(root)
    await run.open("cluster")
    run.begin_run(epoch)
    await run.close()


async def previous_epoch(root: Path, boot: str = "first") -> int:
    again = directory(root, boot)
    await again.open("cluster")
    await again.close()
    return again.previous_broker_epoch


async def test_a_killed_run_has_lost_nothing_while_the_machine_stays_up(tmp_path: Path) -> None:
    await killed_run(tmp_path, 17)
    assert await previous_epoch(tmp_path) == 17


@pytest.mark.parametrize("boot", ["second", ""])
async def test_after_a_restart_of_the_machine_the_stop_was_unclean(tmp_path: Path, boot: str) -> None:
    await killed_run(tmp_path, 17)
    assert await previous_epoch(tmp_path, boot) == -1


async def test_a_run_whose_disk_failed_vouches_for_nothing(tmp_path: Path) -> None:
    run = directory(tmp_path)
    told = asyncio.Event()
    run.on_failed = lambda reason: told.set()
    await run.open("cluster")
    run.begin_run(17)
    run.context.health.fail("fsync: EIO")  # after that the kernel may have let go of the pages
    await told.wait()
    await run.close()
    assert await previous_epoch(tmp_path) == -1


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b'{"cache":"first"}', b'{"cache":"first","brokerEpoch":"x"}'])
async def test_a_torn_note_counts_as_none(tmp_path: Path, note: bytes) -> None:
    await killed_run(tmp_path, 17)
    (tmp_path / RUN).write_bytes(note)
    assert await previous_epoch(tmp_path) == -1


async def test_the_marker_of_a_clean_stop_goes_before_the_note(tmp_path: Path) -> None:
    run = directory(tmp_path)
    await run.open("cluster")
    await run.recover(lambda topic: pytest.fail("there are no logs"))
    run.begin_run(17)
    await run.close_clean(18)
    assert await previous_epoch(tmp_path, "second") == 18


async def test_the_machine_tells_its_boot(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    assert disk.cache_identity() == MachineDisk(tmp_path / "below").cache_identity()
