"""The audit journal: an act waits for its event, groups share a flush, a torn end is survived, files stay bounded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from common.errors import ProtocolError
from common.machine_disk import MachineDisk, MachineFile
from records.audit_event import AuditEvent, AuditKind, decode_audit_event
from storage.audit.audit_journal import JOURNAL_DIRECTORY, AuditJournal
from storage.audit.audit_trail import Act, AuditPending, audited, require
from storage.audit.journal_files import FILE_BYTES, entries_in, file_name, journal_files
from storage.audit.journal_writer import JournalWriter
from tests.storage.log_workbench import EIO, ENOSPC, FaultyDisk
from tests.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time

MADE = "0123456789abcdef" * 2


class ForgetfulDisk(MachineDisk):
    """Remembers what of each file an fsync has reached."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.synced: dict[str, bytes] = {}

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        disk, file = self, super().open(path, create=create)

        class SyncedFile(MachineFile):
            def fsync(self) -> None:
                disk.synced[path] = self.pread(self.size(), 0)

        return SyncedFile(file.fd)


def act(number: int = 0, **fields: object) -> Act:
    return Act(AuditKind.LOG_TRUNCATED, "t", bytes(16), number, "a test", after={"log_end_offset": number}, **fields)  # type: ignore[arg-type]


def journal_on(disk: MachineDisk, bytes_max: int = 64 << 20, made: str = MADE, **given: Any) -> AuditJournal:
    return AuditJournal(JournalWriter(disk, JOURNAL_DIRECTORY, 1, made, bytes_max), LoopClock(), **given)


async def durable(journal: AuditJournal, *acts: Act) -> None:
    for one in acts:
        journal.announce(one)
    done = asyncio.Event()
    journal.when_durable(done.set)
    await done.wait()


async def taken(journal: AuditJournal, from_sequence: int = 0) -> list[AuditEvent]:
    events: list[AuditEvent] = []
    while some := await journal.take(from_sequence, 1 << 20):
        events += [decode_audit_event(payload) for _, payload in some]
        from_sequence = some[-1][0] + 1
    return events


async def test_an_act_is_permitted_once_when_its_event_is_on_the_device(tmp_path: Path) -> None:
    disk = ForgetfulDisk(tmp_path)
    journal = journal_on(disk)
    with pytest.raises(AuditPending) as pending:
        require(journal, act(7))
    assert not journal.permits(act(7)), "it is still being written"
    await pending.value.wait()
    assert journal.permits(act(7))
    synced = disk.synced[f"{JOURNAL_DIRECTORY}/{file_name(0)}"]
    assert [decode_audit_event(entry.payload).partition for entry in entries_in(synced)] == [7]
    assert not journal.permits(act(7)), "the next one like it is another act"
    await journal.close()


async def test_another_act_of_the_same_kind_needs_another_event(tmp_path: Path) -> None:
    journal = journal_on(MachineDisk(tmp_path))
    first = act(1)
    await durable(journal, first)
    changed = first._replace(after={"log_end_offset": 0})
    assert not journal.permits(changed)
    await durable(journal)
    assert journal.permits(changed)
    await journal.close()


async def test_acts_that_wait_share_a_flush(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    journal = journal_on(disk)
    await durable(journal, act(0))
    disk.fsyncs.clear()
    await asyncio.gather(*(audited(lambda n=n: require(journal, act(n))) for n in range(1, 100)))  # type: ignore[misc]
    assert len(disk.fsyncs) <= 2
    assert [event.sequence for event in await taken(journal)] == list(range(100))
    await journal.close()


async def test_it_goes_on_after_a_restart_under_its_own_name(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    journal = journal_on(disk)
    await durable(journal, act(0), act(1))
    await journal.close()
    again = journal_on(disk, made="f" * 32)
    await durable(again, act(2))
    events = await taken(again)
    assert [event.sequence for event in events] == [0, 1, 2]
    assert {event.incarnation for event in events} == {MADE}
    await again.close()


@pytest.mark.parametrize("cut", [1, 9, 40])
async def test_a_torn_end_is_left_behind(tmp_path: Path, cut: int) -> None:
    disk = MachineDisk(tmp_path)
    journal = journal_on(disk)
    await durable(journal, act(0), act(1))
    await journal.close()
    path = tmp_path / JOURNAL_DIRECTORY / file_name(0)
    data = bytearray(path.read_bytes())
    end = len(bytes(data).rstrip(b"\0"))
    data[end - cut : end] = bytes(cut)
    path.write_bytes(data)
    again = journal_on(disk)
    await durable(again, act(5))
    events = await taken(again)
    assert [(event.sequence, event.partition) for event in events] == [(0, 0), (1, 5)]
    await again.close()


async def test_files_go_when_they_were_shipped_and_the_newest_keeps_the_count(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    journal = journal_on(disk)
    for at in range(0, 3_000, 500):
        await durable(journal, *(act(n) for n in range(at, at + 500)))
    files = journal_files(disk, JOURNAL_DIRECTORY)
    assert len(files) > 2
    await journal.release(3_000)
    assert journal_files(disk, JOURNAL_DIRECTORY) == files[-1:]
    await journal.close()
    again = journal_on(disk)
    await durable(again, act(1))
    assert (await taken(again))[-1].sequence == 3_000
    assert again.lost == 0
    await again.close()


async def test_a_full_journal_loses_the_oldest_and_says_so(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    journal = journal_on(disk, bytes_max=2 * FILE_BYTES)
    for at in range(0, 4_000, 500):
        await durable(journal, *(act(n) for n in range(at, at + 500)))
    events = await taken(journal)
    lost = [event for event in events if event.event == AuditKind.EVENTS_LOST]
    assert lost and lost[-1].after["events"] == journal.lost > 0
    assert len(journal_files(disk, JOURNAL_DIRECTORY)) == 2
    await journal.close()


async def test_a_full_device_is_waited_for(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path)
    disk.write_errno = ENOSPC
    waits = 0

    def passes(what: str, error: OSError) -> bool:
        nonlocal waits
        waits += 1
        if waits == 3:
            disk.write_errno = None
        return error.errno == ENOSPC

    journal = journal_on(disk, passes=passes)
    await audited(lambda: require(journal, act(1)))
    assert waits == 3
    await journal.close()


async def test_a_failed_disk_refuses_every_act(tmp_path: Path) -> None:
    told: list[str] = []

    def fails(what: str, error: OSError) -> bool:
        told.append(what)
        return False

    disk = FaultyDisk(tmp_path)
    disk.write_errno = EIO
    journal = journal_on(disk, passes=fails)
    with pytest.raises(ProtocolError, match="KAFKA_STORAGE_ERROR"):
        await audited(lambda: require(journal, act(1)))
    assert told
    await journal.close()


async def test_different_acts_on_one_partition_do_not_displace_each_other(tmp_path: Path) -> None:
    """Retention and two clients move one log start at the same time: each decides anew until its turn has come."""
    journal = journal_on(MachineDisk(tmp_path))
    start = 0

    def move_to(offset: int, actor: str) -> None:
        nonlocal start
        if offset > start:
            fields = {"before": {"log_start_offset": start}, "after": {"log_start_offset": offset}}
            require(journal, Act(AuditKind.LOG_START_MOVED, "t", bytes(16), 0, "a test", actor, **fields))  # type: ignore[arg-type]
            start = offset

    wanted = [(50, "one"), (100, "one"), (100, "two"), (70, "three")]
    async with asyncio.timeout(30):
        await asyncio.gather(*(audited(lambda one=one: move_to(*one)) for one in wanted))  # type: ignore[misc]
    assert start == 100
    assert len(await taken(journal)) <= len(wanted) ** 2
    await journal.close()
