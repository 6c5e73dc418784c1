"""Logs whose audit is slow: nothing is cut, moved or removed before its event is durable, and then all of it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from records.audit_event import AuditKind
from storage.audit.audit_trail import AuditPending
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from storage.producers.producer_state import ProducerStates
from tests.storage.log_workbench import FOREVER, NOW_MS, Workbench, append, produced, read_all

pytestmark = pytest.mark.virtual_time

SMALL = replace(FOREVER, segment_bytes=300)


async def filled(tmp_path: Path, config: LogConfig = SMALL, count: int = 10) -> tuple[Workbench, PartitionLog]:
    bench = Workbench(tmp_path, config)
    log = await bench.log()
    for at in range(count):
        append(log, produced(1, size=60, timestamps=[NOW_MS + at]))
    await bench.directory.settle()
    return bench, log


def shape(log: PartitionLog) -> tuple[int, int, list[int]]:
    return log.log_start_offset, log.log_end_offset, [segment.base_offset for segment in log.segments]


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (lambda log: log.truncate_to(5), AuditKind.LOG_TRUNCATED),
        (lambda log: log.truncate_fully_and_start_at(50), AuditKind.LOG_TRUNCATED),
        (lambda log: log.start_at(50, 7, [(1, 0)], ProducerStates(1 << 40, 10)), AuditKind.LOG_TRUNCATED),
        (lambda log: log.advance_log_start(4, "a test", "someone"), AuditKind.LOG_START_MOVED),
    ],
    ids=["truncate", "start again", "begin from the tier", "log start"],
)
async def test_a_log_waits_for_its_event(tmp_path: Path, act: Callable[[PartitionLog], object], kind: str) -> None:
    bench, log = await filled(tmp_path)
    bench.audit.slow = True
    before, names = shape(log), sorted(path.name for path in (tmp_path / "t-0").iterdir())
    for _ in range(3):
        with pytest.raises(AuditPending):
            act(log)
        assert shape(log) == before
        assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == names
    assert [one.event for one in bench.audit.waiting] == [kind], "asked for once"
    bench.audit.flush()
    act(log)
    assert shape(log) != before
    (done,) = bench.audit.acts
    after = {"log_start_offset": log.log_start_offset, "log_end_offset": log.log_end_offset}
    assert done.after.items() <= after.items()
    await bench.directory.close()


async def test_retention_waits_and_takes_what_it_asked_for(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path, replace(SMALL, retention_ms=1_000))
    bench.audit.slow = True
    with pytest.raises(AuditPending):
        log.delete_old_segments(NOW_MS + 5_000, 10)
    start = bench.audit.waiting[0].after["log_start_offset"]
    bench.audit.flush()
    assert log.delete_old_segments(NOW_MS + 5_000, 10) > 0
    assert log.log_start_offset == start == 10
    await bench.directory.close()


async def test_local_segments_of_a_tiered_log_wait_as_well(tmp_path: Path) -> None:
    config = replace(SMALL, remote_storage_enable=True, local_retention_ms=1_000)
    bench, log = await filled(tmp_path, config)
    bench.audit.slow = True
    count = len(log.segments)
    with pytest.raises(AuditPending):
        log.delete_old_segments(NOW_MS + 5_000, 10, 10)
    assert len(log.segments) >= count
    (act,) = bench.audit.waiting
    assert (act.event, act.cause) == (AuditKind.SEGMENTS_DELETED, "local retention")
    bench.audit.flush()
    assert log.delete_old_segments(NOW_MS + 5_000, 10, 10) > 0
    assert log.log_start_offset == 0
    assert log.local_log_start_offset == act.after["local_log_start_offset"]
    await bench.directory.close()


BY_SIZE = replace(SMALL, retention_bytes=600)
BY_LOCAL_SIZE = replace(SMALL, remote_storage_enable=True, local_retention_bytes=600)


@pytest.mark.parametrize("config", [BY_SIZE, BY_LOCAL_SIZE], ids=["retention", "local retention"])
async def test_a_log_that_grows_while_it_waits_deletes_what_it_asked_for(tmp_path: Path, config: LogConfig) -> None:
    bench, log = await filled(tmp_path, config)
    bench.audit.slow = True
    for _ in range(3):
        with pytest.raises(AuditPending):
            log.delete_old_segments(NOW_MS, log.log_end_offset, log.log_end_offset)
        (asked,) = bench.audit.waiting
        for _ in range(8):  # two segments and more
            append(log, produced(1, size=60))
        await bench.directory.settle()
        bench.audit.flush()
        assert log.delete_old_segments(NOW_MS, log.log_end_offset, log.log_end_offset) > 0
        assert bench.audit.acts[-1] == asked and not bench.audit.waiting, (
            "the audit has no event of a deletion that was not done"
        )
    await bench.directory.close()


async def test_what_was_asked_for_is_not_done_once_it_may_stay(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path, BY_SIZE)
    bench.audit.slow = True
    before = shape(log)
    with pytest.raises(AuditPending):
        log.delete_old_segments(NOW_MS, log.log_end_offset)
    bench.audit.flush()
    assert log.delete_old_segments(NOW_MS, 0) == 0, "a new leader's high watermark is lower"
    log.update_config(replace(SMALL, retention_bytes=1_000_000))
    assert log.delete_old_segments(NOW_MS, log.log_end_offset) == 0
    assert shape(log) == before
    log.update_config(BY_SIZE)
    for _ in range(8):
        append(log, produced(1, size=60))
    await bench.directory.settle()
    with pytest.raises(AuditPending):  # what was asked for long ago is not done by the way
        log.delete_old_segments(NOW_MS, log.log_end_offset)
    await bench.directory.close()


async def test_segments_that_came_in_place_of_others_are_asked_for_again(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path, BY_SIZE)
    bench.audit.slow = True
    with pytest.raises(AuditPending):
        log.delete_old_segments(NOW_MS, log.log_end_offset)
    with pytest.raises(AuditPending):
        log.truncate_fully_and_start_at(100)
    bench.audit.flush()
    log.truncate_fully_and_start_at(100)
    for _ in range(20):
        append(log, produced(1, size=60))
    await bench.directory.settle()
    with pytest.raises(AuditPending):
        log.delete_old_segments(NOW_MS, log.log_end_offset)
    (asked,) = bench.audit.waiting
    assert asked.after["log_start_offset"] > 100
    await bench.directory.close()


async def test_a_log_that_leaves_its_directory_waits(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path)
    bench.audit.slow = True
    with pytest.raises(AuditPending):
        bench.directory.delete_log(log)
    assert bench.directory.get("t", 0) is log and not log.closed
    assert len(read_all(log)) == 10
    bench.audit.flush()
    bench.directory.delete_log(log)
    assert bench.directory.get("t", 0) is None
    with pytest.raises(AuditPending):
        bench.directory.set_stray(bench.directory.create_log("u", 0, bytes(range(16)), SMALL))
    await bench.directory.close()


async def test_recovery_cuts_nothing_before_it_is_told(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path)
    second = log.segments[1]
    await bench.directory.close()
    path = tmp_path / f"{second.stem}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    bench.audit.slow = True
    starting = asyncio.ensure_future(bench.start())
    told: list[str] = []
    while not starting.done():
        await asyncio.sleep(0.001)
        if bench.audit.waiting:
            told += [f"{act.event}: {act.cause}" for act in bench.audit.waiting]
            assert path.read_bytes() == bytes(data) or "log_truncated: torn tail" in told[:-1]
            bench.audit.flush()
    await starting
    assert told[0].startswith("unclean_start")
    assert told[1:] == ["log_truncated: segments behind damage", "log_truncated: torn tail"]
    log = await bench.log()
    assert log.active.base_offset == second.base_offset
    assert log.log_end_offset == read_all(log)[-1].next_offset < 10
    await bench.directory.close()
