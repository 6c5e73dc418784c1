"""Removals of segments that a kill or a loss of power cuts off: nothing of what went belongs to what comes after."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest

from records.batch import read_header
from records.control import MarkerKind
from tests.storage.log_workbench import (
    FOREVER,
    NOW_MS,
    Killed,
    Workbench,
    append,
    marker,
    produced,
    resolved,
)


@pytest.mark.parametrize("renames", range(17))
async def test_a_kill_among_the_files_of_a_log_that_is_emptied_leaves_no_index_to_the_next(
    tmp_path: Path, renames: int
) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, index_interval_bytes=0))
    log = await bench.log()
    ends = [0]
    for _ in range(3):
        append(log, produced(1, producer_id=1, transactional=True))
        for _ in range(6):
            append(log, produced(1, timestamps=[NOW_MS + 1_000]))
        append(log, marker(MarkerKind.ABORT, 1))
        ends.append(log.log_end_offset)
        log.roll(NOW_MS)
    await bench.directory.settle()
    aborted = log.aborted_transactions(0, log.log_end_offset)
    bench.disk.renames_left = renames
    with contextlib.suppress(Killed):
        log.truncate_to(0)
    bench.disk.renames_left = None
    log = await bench.restart(clean=False)
    kept = log.log_end_offset
    assert kept in ends
    append(log, produced(1, producer_id=1, transactional=True))
    for at in range(20):
        append(log, produced(3, size=80, timestamps=[NOW_MS + at] * 3))
    append(log, marker(MarkerKind.COMMIT, 1))
    log = await bench.restart(clean=True)
    assert log.log_end_offset == kept + 62
    assert log.aborted_transactions(0, kept + 62) == [one for one in aborted if one[1] < kept]
    for offset in range(kept + 62):
        region = log.read(offset, 1, kept + 62)
        assert region is not None
        header = read_header(region.read(), 0)
        region.release()
        assert header.base_offset <= offset < header.next_offset
    latest = resolved(log.locate_max_timestamp())
    assert latest is not None and latest[0] == NOW_MS + (1_000 if kept else 19)


async def test_a_log_without_a_segment_has_no_producers_and_epochs_of_an_earlier_one(tmp_path: Path) -> None:
    """Of what begins at its start, a start that reads them would take an earlier log's for its own."""
    bench = Workbench(tmp_path, replace(FOREVER, remote_storage_enable=True))
    log = await bench.log()
    append(log, produced(5, producer_id=1), 8)
    log.roll(NOW_MS)
    append(log, produced(5), 9)
    await log.flush_closed()
    log.advance_log_start(5, "test")
    await bench.directory.checkpoint_recovery_points()
    assert f"{5:020d}.snapshot" in bench.disk.list(log.directory)
    bench.disk.renames_left = 1
    with contextlib.suppress(Killed):
        log.truncate_fully_and_start_at(5)
    bench.disk.renames_left = None
    log = await bench.restart(clean=False)
    assert (log.log_start_offset, log.log_end_offset, len(log.producers)) == (5, 5, 0)
    append(log, produced(2), 4)  # its leader was elected out of sync
    log = await bench.restart(clean=False)
    assert (log.log_end_offset, len(log.producers)) == (7, 0)
    assert log.leader_epochs.entries() == [(4, 5)]


async def test_a_log_that_starts_over_inherits_no_index(tmp_path: Path) -> None:
    """It was being cut at its start, where a segment begins, when the power failed: of that segment only the `.log` is
    gone, and the one before has lost its records."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(6))
    log.advance_log_start(6, "test")
    await bench.directory.checkpoint_recovery_points()
    log.roll(NOW_MS)
    append(log, produced(1, producer_id=1, transactional=True))
    append(log, marker(MarkerKind.ABORT, 1))
    await bench.directory.close()
    directory = tmp_path / "t-0"
    (directory / f"{0:020d}.log").write_bytes(b"")
    (directory / f"{6:020d}.log").unlink()
    await bench.start()
    log = await bench.log()
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    append(log, produced(1, producer_id=1, transactional=True))
    append(log, marker(MarkerKind.COMMIT, 1))
    log = await bench.restart(clean=True)
    assert (log.log_end_offset, log.aborted_transactions(6, 8)) == (8, [])
