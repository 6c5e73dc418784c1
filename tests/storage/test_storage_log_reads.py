"""Reads, rolls and look-ups of one log, case by case."""

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from records.batch import has_valid_crc, iterate_batches, read_header
from records.control import MarkerKind
from storage.indexes.aborted_look_up import unpack_rows
from storage.log.log_config import LogConfig
from storage.log.partition_log import Appended, PartitionLog
from storage.log.retention import SEGMENTS_AT_ONCE_MAX
from storage.log.tail import TAIL_BATCHES_MAX, Tail
from tests.storage.log_workbench import (
    FOREVER,
    NOW_MS,
    Workbench,
    append,
    marker,
    produced,
    read_all,
    resolved,
)

WITHIN_A_SECOND = replace(FOREVER, cleanup_policy=("compact",), max_compaction_lag_ms=1_000)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Workbench]:
    bench = Workbench(tmp_path)
    await bench.start()
    yield bench
    await bench.directory.close()


async def test_appended_bytes_carry_offset_and_epoch_and_the_clients_crc(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced(3))
    batch = produced(2)
    before = read_header(batch, 0)
    padded = bytearray(b"....") + batch + b"...."
    appended = log.append_as_leader(padded, memoryview(padded), 4, 4 + len(batch), 6, NOW_MS, before)
    assert appended == Appended(3, 5, -1, False)
    region = log.read(3, 1, 5)
    assert region is not None
    header = read_header(region.read(), 0)
    assert (header.base_offset, header.leader_epoch, header.crc) == (3, 6, before.crc)
    assert has_valid_crc(memoryview(region.read()), 0, header)
    region.release()


async def test_log_append_time_is_stamped_and_answered(bench: Workbench) -> None:
    log = bench.directory.create_log("t", 0, bytes(16), replace(FOREVER, message_timestamp_type="LogAppendTime"))
    batch = produced(2, timestamps=[5, 6])
    appended = log.append_as_leader(batch, memoryview(batch), 0, len(batch), 1, NOW_MS, read_header(batch, 0))
    assert appended.max_timestamp == NOW_MS
    header = read_all(log)[0]
    assert (header.max_timestamp, header.is_log_append_time) == (NOW_MS, True)
    assert resolved(log.locate_timestamp(NOW_MS)) == (NOW_MS, 0, 1)
    assert resolved(log.locate_timestamp(NOW_MS + 1)) is None


async def test_limits_of_a_read(bench: Workbench) -> None:
    log = await bench.log()
    sizes = []
    for size in (50, 500, 50):
        batch = produced(1, size=size)
        sizes.append(len(batch))
        append(log, batch)

    def length(offset: int, bytes_max: int, until: int = 3, at_least_one: bool = True) -> int | None:
        region = log.read(offset, bytes_max, until, at_least_one=at_least_one)
        if region is None:
            return None
        region.release()
        return region.length

    for _ in ("from the tail", "cold"):
        assert length(0, 0) == sizes[0]
        assert length(0, 0, at_least_one=False) is None
        assert length(0, sizes[0]) == sizes[0]
        assert length(0, sizes[0] + sizes[1] - 1) == sizes[0]
        assert length(0, sizes[0] + sizes[1]) == sizes[0] + sizes[1]
        assert length(1, 10) == sizes[1]
        assert length(0, 1 << 20) == sum(sizes)
        assert length(0, 1 << 20, 2) == sizes[0] + sizes[1]
        assert length(0, 1 << 20, 99) == sum(sizes)
        assert length(2, 1 << 20, 2) is None
        assert length(3, 1 << 20) is None
        log = await bench.restart(clean=True)


def test_a_tail_is_bounded() -> None:
    tail = Tail(5)
    for at in range(3 * TAIL_BATCHES_MAX):
        tail.append(5 + at, 100 * at)
        assert len(tail.starts) == len(tail.positions) <= TAIL_BATCHES_MAX
        assert (tail.starts[-1], tail.positions[-1]) == (at, 100 * at)


async def test_a_long_tail_forgets_and_answers_all_the_same(bench: Workbench) -> None:
    log = await bench.log()
    count = TAIL_BATCHES_MAX * 2 + 17
    for _ in range(count):
        append(log, produced(1, size=1))
    dice = random.Random(1)
    for _ in range(200):
        offset = dice.randrange(count)
        until = dice.randint(offset + 1, count)
        region = log.read(offset, dice.randrange(1, 5_000), until)
        assert region is not None
        data = region.read()
        region.release()
        assert read_header(data, 0).base_offset == offset
        assert offset + len(data) // len(produced(1, size=1)) <= until


async def test_rolls_by_size_time_and_index(tmp_path: Path) -> None:
    for config, batches in (
        (replace(FOREVER, segment_bytes=300), [produced(1, size=60)] * 4),
        (replace(FOREVER, segment_ms=1_000), [produced(timestamps=[NOW_MS + at]) for at in (0, 900, 1_100, 1_200)]),
        (WITHIN_A_SECOND, [produced(timestamps=[NOW_MS + at]) for at in (0, 900, 1_100, 1_200)]),
        (replace(FOREVER, segment_index_bytes=24, index_interval_bytes=0), [produced(1, size=60)] * 4),
    ):
        bench = Workbench(tmp_path / str(hash(config)), config)
        log = await bench.log()
        for batch in batches:
            append(log, bytearray(batch))
        assert [segment.base_offset for segment in log.segments] == [0, 2]
        assert log.producer_history.snapshots == [2]
        await bench.directory.close()


async def test_a_changed_expiration_holds_for_the_producers_that_are_known(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced(producer_id=7))
    assert at_once(log.producers.expire(NOW_MS + 2_000)) == 0
    log.update_config(replace(FOREVER, producer_id_expiration_ms=1_000))
    assert at_once(log.producers.expire(NOW_MS + 2_000)) == 1


async def test_an_idle_segment_rolls_when_asked(bench: Workbench) -> None:
    log = bench.directory.create_log("t", 0, bytes(16), WITHIN_A_SECOND)
    assert not log.maybe_roll(NOW_MS + 10_000)
    append(log, produced())
    assert not log.maybe_roll(NOW_MS + 1_000)
    assert log.maybe_roll(NOW_MS + 1_001)
    assert [segment.base_offset for segment in log.segments] == [0, 1]
    assert not log.maybe_roll(NOW_MS + 9_999)
    assert append(log, produced()).base_offset == 1


async def test_replicas_roll_at_the_same_batches(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=900, segment_ms=50))
    leader, follower = await bench.log("leader"), await bench.log("follower")
    dice = random.Random(2)
    for at in range(60):
        append(leader, produced(dice.randint(1, 3), size=dice.randint(1, 200), timestamps=[NOW_MS + 3 * at] * 3))
    while follower.log_end_offset < leader.log_end_offset:
        run = bytearray()
        offset = follower.log_end_offset
        for _ in range(3):  # a fetch crosses segments
            region = leader.read(offset, 2_000, leader.log_end_offset) if offset < leader.log_end_offset else None
            if region is not None:
                run += region.read()
                region.release()
                offset = read_all_offsets(run)
        follower.append_as_follower(memoryview(run), 0, len(run))
    assert [segment.base_offset for segment in follower.segments] == [
        segment.base_offset for segment in leader.segments
    ]
    await bench.directory.close_clean(1)
    for path in sorted((tmp_path / "leader-0").glob("*.log")):
        assert (tmp_path / "follower-0" / path.name).read_bytes() == path.read_bytes()


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def read_all_offsets(run: bytearray) -> int:
    """Where the batches in `run` end."""
    at = end = 0
    while at < len(run):
        header = read_header(run, at)
        at, end = at + header.size, header.next_offset
    return end


async def test_a_follower_takes_all_or_nothing(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced(2))
    good, bad, late = produced(1), produced(1), produced(1)
    good[0:8], bad[0:8], late[0:8] = ((at).to_bytes(8, "big") for at in (2, 3, 1))
    bad[-1] ^= 1
    for run, code in ((good + bad, ErrorCode.CORRUPT_MESSAGE), (late, ErrorCode.OFFSET_OUT_OF_RANGE)):
        with pytest.raises(ProtocolError) as caught:
            log.append_as_follower(memoryview(run), 0, len(run))
        assert caught.value.code is code
    assert log.log_end_offset == 2
    assert log.append_as_follower(memoryview(good[:-1]), 0, len(good) - 1) is None
    assert log.append_as_follower(memoryview(good), 0, len(good)) == Appended(2, 3, -1, False)


async def test_retention_by_time_takes_the_active_segment_too(bench: Workbench) -> None:
    log = bench.directory.create_log("t", 0, bytes(16), LogConfig(retention_ms=1_000, segment_bytes=300))
    for at in range(6):
        append(log, produced(1, size=60, timestamps=[NOW_MS + at]))
    assert log.delete_old_segments(NOW_MS + 500, 6) == 0
    assert log.delete_old_segments(NOW_MS + 5_000, 3) == 1  # nothing at or past the high watermark
    assert log.log_start_offset == 2
    assert log.delete_old_segments(NOW_MS + 5_000, 6) == 2
    assert (log.log_start_offset, log.log_end_offset, len(log.segments)) == (6, 6, 1)
    assert bench.audit_lines[-1][1]["cause"] == "retention.ms"
    assert append(log, produced()).base_offset == 6


@pytest.mark.parametrize("limit", ["retention_ms", "retention_bytes"])
async def test_retention_takes_a_bounded_number_of_segments_at_a_time(tmp_path: Path, limit: str) -> None:
    small = replace(FOREVER, segment_bytes=100)
    config = replace(small, retention_ms=1_000) if limit == "retention_ms" else replace(small, retention_bytes=0)
    bench = Workbench(tmp_path, config)
    log = await bench.log()
    for at in range(150):
        append(log, produced(1, size=60, timestamps=[NOW_MS + at]))
    assert len(log.segments) == 150
    await bench.directory.settle()  # a disk that was slow for a moment holds segments back
    assert log.delete_old_segments(NOW_MS + 5_000, 150) == SEGMENTS_AT_ONCE_MAX
    assert (log.log_start_offset, log.segments[0].base_offset) == (SEGMENTS_AT_ONCE_MAX, SEGMENTS_AT_ONCE_MAX)
    while log.delete_old_segments(NOW_MS + 5_000, 150):
        pass
    assert (log.log_start_offset, len(log.segments)) == (150, 1)
    await bench.directory.close()


async def test_a_log_start_that_jumps_takes_its_segments_in_turns(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=100))
    log = await bench.log()
    for _ in range(100):
        append(log, produced(1, size=60))
    while log.written_end_offset < log.log_end_offset:  # noqa: ASYNC110  a thread writes where the disk is slow
        await asyncio.sleep(0)
    assert log.advance_log_start(99, "test")
    assert (log.log_start_offset, log.segments[0].base_offset) == (99, SEGMENTS_AT_ONCE_MAX)
    assert log.delete_old_segments(NOW_MS, 100) == 99 - SEGMENTS_AT_ONCE_MAX
    assert log.segments[0].base_offset == 99
    log = await bench.restart(clean=True)
    assert (log.log_start_offset, [header.base_offset for header in read_all(log)]) == (99, [99])
    await bench.directory.close()


async def test_retention_by_time_looks_into_no_segment_behind_the_first_that_stays(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=100, retention_ms=10_000))
    log = await bench.log()
    for at in range(30):
        append(log, produced(1, size=60, timestamps=[NOW_MS + at]))
    log = await bench.restart(clean=True)
    before = bench.directory.context.open_files.opened_count
    assert log.delete_old_segments(NOW_MS + 5_000, 30) == 0
    assert bench.directory.context.open_files.opened_count - before <= 2
    await bench.directory.close()


async def test_time_look_ups_skip_what_the_log_start_cut(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced(3, timestamps=[NOW_MS + 9, NOW_MS, NOW_MS]))
    append(log, produced(2, timestamps=[NOW_MS + 1, NOW_MS + 9]))
    assert resolved(log.locate_timestamp(NOW_MS + 5)) == (NOW_MS + 9, 0, 1)
    log.advance_log_start(1, "test")
    assert resolved(log.locate_timestamp(NOW_MS + 5)) == (NOW_MS + 9, 4, 1)
    assert resolved(log.locate_timestamp(NOW_MS)) == (NOW_MS, 1, 1)
    assert resolved(log.locate_max_timestamp()) == (NOW_MS + 9, 4, 1)
    assert log.active.log.pins == 0


async def test_a_removed_index_is_built_again_when_it_is_needed(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=2_000, index_interval_bytes=100))
    log = await bench.log()
    for at in range(40):
        append(log, produced(1, size=60, timestamps=[NOW_MS + at]))
    log = await bench.restart(clean=True)
    for name in bench.disk.list("t-0"):
        if name.endswith((".index", ".timeindex")) and not name.startswith(f"{log.active.base_offset:020d}"):
            bench.disk.remove(f"t-0/{name}")
    assert resolved(log.locate_timestamp(NOW_MS + 3)) == (NOW_MS + 3, 3, 1)
    assert len(read_all(log, bytes_max=300)) == 40
    await bench.directory.close()


async def aborted_log(tmp_path: Path, *, restarted: bool) -> tuple[Workbench, PartitionLog]:
    """Transactions 0 to 59, of a batch and its marker each, in some segments; read from files or from memory."""
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=1_500, index_interval_bytes=200))
    log = await bench.log()
    for number in range(60):
        append(log, produced(1, size=40, producer_id=number, transactional=True))
        append(log, marker(MarkerKind.ABORT, number))
    return bench, await bench.restart(clean=True) if restarted else log


@pytest.mark.parametrize("restarted", [False, True])
async def test_readers_learn_of_the_aborted_transactions_that_touch_what_they_get(
    tmp_path: Path, restarted: bool
) -> None:
    _, log = await aborted_log(tmp_path, restarted=restarted)
    bytes_max, end = 400, log.log_end_offset
    for offset in range(0, end, 7):
        region = await log.when_in_memory(partial(log.read, offset, bytes_max, end, only_in_memory=True))
        assert region is not None
        headers = [header for _, header in iterate_batches(memoryview(region.read()), 0, region.length)]
        touched = [(at // 2, at - at % 2) for at in range(offset - offset % 2, headers[-1].next_offset, 2)]
        told = unpack_rows((await log.when_in_memory(partial(log.aborted_in, offset, region, end)))[1])
        assert told[: len(touched)] == touched
        assert len(told) <= len(touched) + 3, "up to the next entry of the index"
        region.release()


async def test_no_later_index_is_opened_for_a_reader_of_the_first_segment(tmp_path: Path) -> None:
    bench, log = await aborted_log(tmp_path, restarted=False)
    await bench.directory.settle()
    region = log.read(0, 400, log.log_end_offset)
    assert region is not None
    bench.disk.opened.clear()
    await log.when_in_memory(lambda: log.aborted_in(0, region, log.log_end_offset))
    assert [path for path in bench.disk.opened if path.endswith(".txnindex")] == ["t-0/00000000000000000000.txnindex"]
    region.release()
