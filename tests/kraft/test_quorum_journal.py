"""The journal: what survives which crash, and what it refuses to start from."""

from __future__ import annotations

import errno
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.invariants import InvariantViolation
from kraft.quorum.journal_format import DamagedJournal, Entry, SnapshotBase, encode_vote, group_pieces
from kraft.quorum.write_ahead_log import FIRST_ENTRY, REWRITE_BYTES_MIN, WriteAheadLog
from tests.kraft.memory_disk import MemoryDisk, PowerCut

PATH = "quorum/journal"


def create(disk: MemoryDisk, term: int = 0, rewrite_bytes_min: int = REWRITE_BYTES_MIN) -> WriteAheadLog:
    return WriteAheadLog.create(disk, "quorum", random.Random(1), 7, term, rewrite_bytes_min=rewrite_bytes_min)


def reopen(disk: MemoryDisk, base: SnapshotBase | None = None, node_id: int = 7) -> WriteAheadLog:
    return WriteAheadLog.open(disk, "quorum", random.Random(2), node_id, base)


def fill(journal: WriteAheadLog, count: int, term: int = 1) -> list[Entry]:
    """`count` entries, one group each."""
    for _ in range(count):
        index = journal.last_index + 1
        journal.add(b"\0entry %d" % index, index, term)
        journal.sync()
    return journal[:]


def content(disk: MemoryDisk) -> bytearray:
    return disk.names[PATH].cached


def test_everything_comes_back() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    journal.setCurrentTerm(3, 2)
    journal.rely_on(2)
    journal.adopt_cluster_id(b"c" * 16)
    fill(journal, 5, term=3)
    journal.deleteEntriesFrom(4)
    journal.add(b"\0other", 5, 4)
    journal.setRaftCommitIndex(4)
    journal.sync()

    again = reopen(disk)

    assert again[:] == journal[:]
    assert (again.getCurrentTerm(), again.getVotedForNodeId()) == (3, 2)
    assert again.getRaftCommitIndex() == 4
    assert again.has_relied_on(2)
    assert not again.has_relied_on(3)
    assert again.cluster_id == b"c" * 16
    assert again.entry_bytes == journal.entry_bytes


def test_a_group_is_one_write_and_one_sync() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    before = disk.operations
    for index in range(2, 102):
        journal.add(b"\0x", index, 1)
    assert disk.operations == before
    journal.sync()
    assert disk.operations == before + 2
    journal.sync()
    assert disk.operations == before + 2


def test_a_leader_holds_its_own_copy_before_it_commits() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    journal.serve(lambda: True)
    journal.add(b"\0x", 2, 1)
    journal.setRaftCommitIndex(2)
    disk.lose_power(random.Random(0))
    assert reopen(disk).last_index == 2


def test_short_writes_are_continued() -> None:
    disk = MemoryDisk()
    disk.write_bytes_max = 7
    entries = fill(create(disk), 3)
    assert reopen(disk)[:] == entries


def test_a_torn_tail_is_cut_wherever_it_is_torn() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    fill(journal, 3)
    kept = journal.file_bytes
    fill(journal, 1)
    whole = bytes(content(disk))
    for size in range(kept, len(whole)):
        content(disk)[:] = whole[:size]
        again = reopen(disk)
        assert again.last_index == 4
        fill(again, 2, term=2)
        assert [entry[2] for entry in reopen(disk)[:]] == [0, 1, 1, 1, 2, 2]


@given(st.data())
def test_rot_before_the_last_group_is_refused_anywhere(data: st.DataObject) -> None:
    disk = MemoryDisk()
    journal = create(disk)
    fill(journal, 3)
    last_group = journal.file_bytes
    fill(journal, 1)
    at = data.draw(st.integers(0, last_group - 1))
    content(disk)[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(DamagedJournal):
        reopen(disk)


def test_a_hole_before_an_intact_group_is_refused() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    fill(journal, 2)
    start = journal.file_bytes
    fill(journal, 1)
    end = journal.file_bytes
    fill(journal, 1)
    content(disk)[start:end] = bytes(end - start)
    with pytest.raises(DamagedJournal, match="intact again"):
        reopen(disk)


def test_a_command_that_looks_like_a_group_is_no_group() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    salt = bytes(content(disk)[12:20])
    forged = b"".join(group_pieces(salt[::-1], 9, [encode_vote(99, None)]))
    journal.add(b"\0" + forged, 2, 1)
    journal.sync()
    del content(disk)[-3:]
    assert reopen(disk).getCurrentTerm() == 0


def test_a_clean_stop_tells_rot_from_a_torn_write() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    start = journal.file_bytes
    fill(journal, 1)
    journal.close()
    content(disk)[start + 30] ^= 1
    with pytest.raises(DamagedJournal):
        reopen(disk)


@pytest.mark.parametrize("size", [0, 5, 23, 24, 40])
def test_a_journal_without_its_first_group_is_refused(size: int) -> None:
    disk = MemoryDisk()
    create(disk)
    del content(disk)[size:]
    with pytest.raises(DamagedJournal):
        reopen(disk)


def test_the_journal_of_another_node_is_refused() -> None:
    disk = MemoryDisk()
    create(disk)
    with pytest.raises(DamagedJournal, match="belongs to node 7"):
        reopen(disk, node_id=8)


def test_a_crash_at_any_operation_of_a_cut_keeps_all_entries() -> None:
    for operation in range(12):
        for seed in range(6):
            disk = MemoryDisk()
            journal = create(disk)
            entries = fill(journal, 8)
            base = SnapshotBase(entries[4], entries[5])
            journal.setCurrentTerm(5, 7)
            journal.sync()
            disk.operations_left = operation
            try:
                journal.discard_before(entries[4][1])
                fill(journal, 1, term=5)
            except PowerCut:
                disk.lose_power(random.Random(seed))
            disk.operations_left = None
            again = reopen(disk, base)
            assert again[:4] == entries[4:8]
            assert again.getCurrentTerm() == 5
            fill(again, 1, term=6)
            assert reopen(disk, base)[:] == again[:]


def test_a_leaders_snapshot_replaces_a_log_that_does_not_reach_it() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    fill(journal, 3)
    base = SnapshotBase((b"\0p", 50, 4), (b"\0l", 51, 4))
    # The crash comes after the snapshot's file and before the journal.
    assert reopen(disk, base)[:] == list(base)
    assert reopen(disk, base).getRaftCommitIndex() == 51

    journal = reopen(disk, base)
    later = SnapshotBase((b"\0p", 60, 4), (b"\0l", 61, 4))
    journal.restart_at(later)
    journal.add(b"\0x", 62, 5)
    journal.sync()
    assert reopen(disk, later)[:] == [*later, (b"\0x", 62, 5)]


def test_a_log_that_contradicts_the_snapshot_is_dropped() -> None:
    disk = MemoryDisk()
    fill(create(disk), 8, term=1)
    base = SnapshotBase((b"\0p", 4, 1), (b"\0l", 5, 2))
    assert reopen(disk, base)[:] == list(base)


def test_a_log_whose_beginning_no_snapshot_covers_is_refused() -> None:
    disk = MemoryDisk()
    journal = create(disk)
    entries = fill(journal, 8)
    journal.discard_before(entries[5][1])
    with pytest.raises(DamagedJournal, match="no snapshot"):
        reopen(disk)
    with pytest.raises(DamagedJournal, match="the snapshot ends at"):
        reopen(disk, SnapshotBase(entries[1], entries[2]))


def test_votes_do_not_let_the_file_grow_without_end() -> None:
    disk = MemoryDisk()
    journal = create(disk, rewrite_bytes_min=4_000)
    size_max = 0
    for term in range(1, 500):
        journal.setCurrentTerm(term, None)
        journal.sync()
        size_max = max(size_max, journal.file_bytes)
    assert 2_000 < size_max < 4_100
    assert reopen(disk).getCurrentTerm() == term


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_of_the_disk_comes_out(error: int) -> None:
    disk = MemoryDisk()
    journal = create(disk)
    disk.error = error
    journal.add(b"\0x", 2, 1)
    with pytest.raises(OSError, match=errno.errorcode[error]):
        journal.sync()


def test_a_gap_is_a_broken_invariant() -> None:
    journal = create(MemoryDisk())
    with pytest.raises(InvariantViolation):
        journal.add(b"\0x", 3, 1)
    with pytest.raises(InvariantViolation):
        journal.deleteEntriesFrom(0)


def test_batches_stop_at_their_size_but_hold_one() -> None:
    journal = create(MemoryDisk())
    for index, size in enumerate((10, 10, 500, 10), start=2):
        journal.add(b"\0" * size, index, 1)
    assert [entry[1] for entry in journal.batch(1, 21)] == [1, 2, 3]
    assert [entry[1] for entry in journal.batch(4, 21)] == [4]
    assert journal.batch(6, 21) == []
    assert journal[0] == FIRST_ENTRY


def test_a_large_entry_is_not_copied_on_its_way_to_the_disk() -> None:
    size = 4 << 20
    journal_disk = MemoryDisk()
    journal = create(journal_disk)
    command = bytes(size)
    tracemalloc.start()
    try:
        journal.add(command, journal.last_index + 1, 1)
        journal.sync()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 2.5 * size, "what this disk in memory keeps of it: twice, while its file grows"
    assert reopen(journal_disk).batch(journal.last_index, 1) == [(command, journal.last_index, 1)]
