"""A killed broker's directory: what it had appended is still there unless the machine went down."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.directory_config import DirectoryConfig
from common.identifiers import ZERO_UUID
from common.machine import MachineNetwork
from common.machine_disk import MachineDisk, MachineFile
from common.ports import Buffer, File, Ports
from storage.audit.audit_trail import NoTrail
from storage.directory.continued_run import NO_RUN, ContinuedRun, read_run, withdraw_run, write_run
from storage.directory.log_directory import LogDirectory
from storage.disk.checkpoint_files import RUN
from tests.storage.log_workbench import (
    Workbench,
    append,
    checkpoint_high_watermarks,
    produced,
)
from tests.storage.test_storage_log_faults import until
from tests.virtual_time import LoopClock

SEEDS = itertools.count()  # no two runs draw the same ids


class BootedDisk(MachineDisk):
    """A disk of a machine whose boots the test counts."""

    boot = "first"

    def cache_identity(self) -> str:
        return self.boot


def directory(root: Path, boot: str = "first", **given: Any) -> LogDirectory:
    disk = BootedDisk(root)
    disk.boot = boot
    ports = Ports(MachineNetwork(), disk, LoopClock(), random.Random(next(SEEDS)))
    return LogDirectory(ports, "", 1, NoTrail(), DirectoryConfig(), **given)


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
    return again.continues.broker_epoch


async def test_a_killed_run_has_lost_nothing_while_the_machine_stays_up(tmp_path: Path) -> None:
    await killed_run(tmp_path, 17)
    assert await previous_epoch(tmp_path) == 17


@pytest.mark.parametrize("boot", ["second", ""])
async def test_after_a_restart_of_the_machine_the_stop_was_unclean(tmp_path: Path, boot: str) -> None:
    await killed_run(tmp_path, 17)
    assert await previous_epoch(tmp_path, boot) == -1


@pytest.mark.parametrize("fails_first", [False, True])
async def test_a_run_whose_disk_failed_vouches_for_nothing(tmp_path: Path, fails_first: bool) -> None:
    told = asyncio.Event()
    run = directory(tmp_path, on_failed=lambda reason: told.set())
    await run.open("cluster")
    if not fails_first:
        run.begin_run(17)
    run.context.health.fail("fsync: EIO")  # after that the kernel may have let go of the pages
    await told.wait()
    run.begin_run(17)
    await run.close()
    assert await previous_epoch(tmp_path) == -1


@pytest.mark.parametrize(
    "note", [b"", b"{", b"[]", b'{"cache":"first"}', b'{"cache":"first","inode":1,"brokerEpoch":"x"}']
)
async def test_a_torn_note_counts_as_none(tmp_path: Path, note: bytes) -> None:
    await killed_run(tmp_path, 17)
    (tmp_path / RUN).write_bytes(note)
    assert await previous_epoch(tmp_path) == -1


@pytest.mark.parametrize("in_place", [True, False])
async def test_a_restored_copy_of_the_disk_vouches_for_nothing(tmp_path: Path, in_place: bool) -> None:
    await killed_run(tmp_path, 17)
    note, copy = tmp_path / RUN, tmp_path / "copy"
    shutil.copy2(note, copy)
    if in_place:
        note.write_bytes(copy.read_bytes())
        shutil.copystat(copy, note)  # as archives are unpacked: with the times of the original
    else:
        os.replace(copy, note)
    assert await previous_epoch(tmp_path) == -1


async def started(root: Path, boot: str = "first") -> ContinuedRun:
    """What a start goes on with that is killed before it has recovered or knows its broker epoch."""
    start = directory(root, boot)
    await start.open("cluster")
    await start.close()
    return start.continues


@pytest.mark.parametrize("is_clean", [True, False])
async def test_all_starts_before_the_next_noted_run_have_one_id(tmp_path: Path, is_clean: bool) -> None:
    run = directory(tmp_path)
    await run.open("cluster")
    await run.recover(lambda topic: pytest.fail("there are no logs"))
    run.begin_run(17)
    await (run.close_clean(17) if is_clean else run.close())
    first, second, third = [await started(tmp_path) for _ in range(3)]
    assert first == second == third
    assert first.broker_epoch == 17
    await killed_run(tmp_path, 18)
    fourth = await started(tmp_path)
    assert fourth.broker_epoch == 18
    assert fourth.start_id not in (first.start_id, ZERO_UUID)


async def test_a_start_after_a_loss_of_power_goes_on_with_nothing(tmp_path: Path) -> None:
    await killed_run(tmp_path, 17)
    await started(tmp_path)
    assert await started(tmp_path, "second") == NO_RUN
    assert await started(tmp_path, "second") == NO_RUN


async def test_a_stop_before_the_registration_is_the_clean_end_of_the_run_before(tmp_path: Path) -> None:
    await killed_run(tmp_path, 17)
    start = directory(tmp_path)
    await start.open("cluster")
    await start.recover(lambda topic: pytest.fail("there are no logs"))
    await start.close_clean(-1)
    assert (await started(tmp_path, "second")).broker_epoch == 17


class FullFile:
    """Takes only what replaces bytes of it."""

    def __init__(self, file: File) -> None:
        self.file, self.identity, self.close = file, file.identity, file.close

    def pwrite(self, data: Buffer, position: int) -> int:
        if position + len(data) > self.file.size():
            raise OSError(errno.ENOSPC, "injected")
        return self.file.pwrite(data, position)


class FullDisk(BootedDisk):
    def open(self, path: str, *, create: bool = False) -> Any:
        return FullFile(super().open(path, create=create))


async def test_a_note_replaces_another_without_room(tmp_path: Path) -> None:
    await killed_run(tmp_path, 17)
    run = ContinuedRun(18, bytes(range(16)))
    write_run(FullDisk(tmp_path), "", run)
    assert read_run(BootedDisk(tmp_path), "") == run


class FilledDisk(BootedDisk):
    """No file can be made for the note, the first `refused` times."""

    refused = 3

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        if create and path == RUN and self.refused:
            self.refused -= 1
            raise OSError(errno.ENOSPC, "injected")
        return super().open(path, create=create)


async def test_a_run_that_began_on_a_full_device_is_noted_once_there_is_room(tmp_path: Path) -> None:
    ports = Ports(MachineNetwork(), FilledDisk(tmp_path), LoopClock(), random.Random(next(SEEDS)))
    run = LogDirectory(ports, "", 1, NoTrail(), DirectoryConfig(upkeep_interval_ms=10))
    await run.open("cluster")
    run.begin_run(17)
    assert run.context.health.refuses_appends
    assert await previous_epoch(tmp_path) == -1
    await until(lambda: not run.context.health.refuses_appends)
    await run.close()
    assert await previous_epoch(tmp_path) == 17


class NamelessDisk(BootedDisk):
    """Takes bytes, but no changes of names any more."""

    def remove(self, path: str) -> None:
        raise OSError(30, "injected")


async def test_a_note_that_cannot_be_removed_is_emptied(tmp_path: Path) -> None:
    await killed_run(tmp_path, 17)
    withdraw_run(NamelessDisk(tmp_path), "")
    assert await previous_epoch(tmp_path) == -1


async def killed_bench(tmp_path: Path) -> Workbench:
    """A log of three batches whose broker was killed."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    bench.directory.begin_run(17)
    for _ in range(3):
        append(log, produced(2, size=50), 1)
    await bench.directory.settle()
    await checkpoint_high_watermarks(bench.directory, {("t", 0): log.log_end_offset})
    await bench.directory.close()
    return bench


def garble(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def cut_batch(data: bytes) -> bytes:
    return data[: len(data) // 3 * 2]


def torn_write(data: bytes) -> bytes:
    return data + data[: len(data) // 3 - 5]


@pytest.mark.parametrize(
    ("damage", "epoch"), [(garble, -1), (cut_batch, -1), (torn_write, 17), (lambda data: data + data[:20], 17)]
)
async def test_what_the_scan_finds_lost_takes_the_word_back(
    tmp_path: Path, damage: Callable[[bytes], bytes], epoch: int
) -> None:
    bench = await killed_bench(tmp_path)
    file = tmp_path / "t-0" / "00000000000000000000.log"
    file.write_bytes(damage(file.read_bytes()))
    await bench.start()
    assert bench.directory.continues.broker_epoch == epoch
    assert ("records_lost_since_last_run" in bench.events) is (epoch == -1)
    await bench.directory.close()


@pytest.mark.parametrize("stop", ["kill", "clean"])
async def test_a_loss_that_recovery_has_mended_is_not_forgotten_when_the_start_dies(tmp_path: Path, stop: str) -> None:
    """The second scan finds a sound log: its broker has not registered as unclean yet all the same."""
    bench = await killed_bench(tmp_path)
    if stop == "clean":
        await bench.start()
        bench.directory.begin_run(17)
        await bench.directory.close_clean(17)
    file = tmp_path / "t-0" / "00000000000000000000.log"
    damage = garble if stop == "kill" else cut_batch  # after a clean stop a log's last bytes are trusted
    file.write_bytes(damage(file.read_bytes()))
    for _ in range(2):
        await bench.start()
        assert bench.directory.continues == NO_RUN
        await bench.directory.close()


@pytest.mark.parametrize("has_begun", [False, True])
async def test_a_stop_before_a_loss_is_registered_does_not_name_the_epoch_that_knows_of_none(
    tmp_path: Path, has_begun: bool
) -> None:
    """The broker registered as its logs were recovered; it does so again, as unclean, unless it is stopped first."""
    bench = await killed_bench(tmp_path)
    file = tmp_path / "t-0" / "00000000000000000000.log"
    file.write_bytes(garble(file.read_bytes()))
    await bench.start()
    if has_begun:
        bench.directory.begin_run(18)
    await bench.directory.close_clean(18)
    await bench.start()
    assert bench.directory.continues.broker_epoch == (18 if has_begun else -1)
    await bench.directory.close()


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
