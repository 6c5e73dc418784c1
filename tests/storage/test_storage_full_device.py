"""A device without a free byte: what cannot be written is refused and tried again, and nothing is given up for good."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.directory_config import DirectoryConfig
from common.errors import ErrorCode, ProtocolError
from storage.disk.directory_health import FreeSpace
from storage.disk.log_flusher import FlushDepth
from storage.log import tier_start
from storage.producers.producer_snapshot import Snapshot, encode_snapshot
from tests.storage.log_workbench import (
    ENOSPC,
    FOREVER,
    TOPIC_ID,
    Workbench,
    append,
    checkpoint_high_watermarks,
    produced,
    read_all,
)

LIMITS = DirectoryConfig(free_bytes_min=1, upkeep_interval_ms=5, checkpoint_interval_ms=5)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Workbench]:
    bench = Workbench(tmp_path, limits=LIMITS)
    await bench.start()
    yield bench
    bench.disk.write_errno = bench.disk.fsync_errno = None
    await bench.directory.close()


async def until(condition: Callable[[], object]) -> None:
    """Let the loop turn until `condition()` holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it never came to hold")


def fill(bench: Workbench) -> None:
    bench.disk.write_errno, bench.disk.free = ENOSPC, 0


def clear(bench: Workbench) -> None:
    bench.disk.write_errno, bench.disk.free = None, 1 << 40


def refused(act: Callable[[], object]) -> None:
    with pytest.raises(ProtocolError) as caught:
        act()
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_log_that_finds_no_room_is_made_later(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced())
    fill(bench)
    refused(lambda: bench.directory.create_log("new", 0, TOPIC_ID, FOREVER))
    assert bench.directory.offline is None
    assert bench.directory.get("new", 0) is None
    assert bench.directory.free_space_state is FreeSpace.REFUSED
    refused(lambda: append(log, produced()))
    assert [header.base_offset for header in read_all(log)] == [0]
    clear(bench)
    new = bench.directory.create_log("new", 0, TOPIC_ID, FOREVER)
    await until(lambda: bench.directory.free_space_state is FreeSpace.PLENTY)
    append(new, produced())
    append(log, produced())
    await bench.restart(clean=True)
    found = bench.directory.get("new", 0)
    assert found is not None
    assert (found.topic_id, found.log_end_offset) == (TOPIC_ID, 1)


async def test_a_look_from_before_the_last_refusal_does_not_count(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced())
    first = bench.disk.look_gate = threading.Event()
    looks = bench.disk.looks
    await until(lambda: bench.disk.looks > looks)
    fill(bench)
    refused(lambda: bench.directory.create_log("new", 0, TOPIC_ID, FOREVER))
    bench.disk.write_errno = None  # so that no checkpoint is refused as well
    second = bench.disk.look_gate = threading.Event()
    first.set()
    looks = bench.disk.looks
    await until(lambda: bench.disk.looks > looks)  # so the first one has been heeded, and this one not yet
    assert bench.directory.free_space_state is FreeSpace.REFUSED
    refused(lambda: append(log, produced()))
    assert bench.directory.offline is None
    second.set()


async def test_checkpoints_and_flushes_wait_for_room(bench: Workbench) -> None:
    bench.config = replace(FOREVER, segment_bytes=200)
    log = await bench.log("rolling")
    for _ in range(3):
        append(log, produced(1, size=100))
    point = log.recovery_point
    fill(bench)
    bench.directory.context.flusher.request(log.durability, FlushDepth.COMPLETE)
    assert not await checkpoint_high_watermarks(bench.directory, {("rolling", 0): 3})
    await asyncio.sleep(0.03)
    assert bench.directory.offline is None
    clear(bench)
    await until(lambda: log.recovery_point > point)
    assert await checkpoint_high_watermarks(bench.directory, {("rolling", 0): 3})
    await bench.restart(clean=True)
    assert bench.directory.continues.broker_epoch >= 0
    assert bench.directory.high_watermark_checkpoint("rolling", 0) == 3


@pytest.mark.parametrize("from_tier", [False, True])
@pytest.mark.parametrize("upkeep", [False, True])
async def test_a_log_that_begins_anew_without_room_takes_batches_once_there_is_some(
    bench: Workbench, *, from_tier: bool, upkeep: bool
) -> None:
    bench.config = replace(FOREVER, remote_storage_enable=from_tier)
    log = await bench.log()
    append(log, produced())
    await log.flush()
    fill(bench)
    if upkeep:
        await until(lambda: bench.directory.free_space_state is FreeSpace.REFUSED)
    beginning: asyncio.Task[None] | None = None
    if from_tier:
        nothing = encode_snapshot(Snapshot([], []))
        states, _ = tier_start.read_producers(log.config, nothing, 100, 0)
        beginning = asyncio.create_task(tier_start.begin(log, nothing, lambda: log.start_at(100, 0, [(1, 0)], states)))
    else:
        log.truncate_fully_and_start_at(100)
    await until(lambda: log.log_end_offset == 100)
    assert (log.local_log_start_offset, log.size_bytes) == (100, 0)
    refused(lambda: append(log, produced()))
    assert bench.directory.offline is None
    clear(bench)
    await until(lambda: bench.directory.free_space_state is FreeSpace.PLENTY)
    if beginning is not None:
        await beginning
    for _ in range(2):
        append(log, produced())
    await bench.restart(clean=False)
    log = await bench.log()
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0 if from_tier else 100, 100, 102)


async def test_a_log_that_begins_anew_twice_without_room_keeps_nothing_of_the_first_time(bench: Workbench) -> None:
    """An empty segment before the first one would pass for a gap at the next start, which cuts off what follows."""
    log = await bench.log()
    append(log, produced())
    fill(bench)
    for offset in (100, 200):
        log.truncate_fully_and_start_at(offset)
    clear(bench)
    await until(lambda: bench.directory.free_space_state is FreeSpace.PLENTY)
    append(log, produced())
    names = {path.name for path in (bench.root / log.directory).iterdir() if not path.name.endswith(".deleted")}
    assert not [name for name in names if name.startswith("00000000000000000100")]
    await bench.restart(clean=False)
    log = await bench.log()
    assert (log.log_start_offset, log.log_end_offset) == (200, 201)


async def test_a_sync_without_room_is_final(bench: Workbench) -> None:
    """The kernel may have dropped the pages; a later sync would say that all is well."""
    log = await bench.log()
    append(log, produced())
    bench.disk.fsync_errno = ENOSPC
    with pytest.raises(ProtocolError):
        await log.flush()
    assert bench.directory.offline is not None


async def test_a_stop_does_not_wait_for_room(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, limits=LIMITS)
    log = await bench.log()
    append(log, produced())
    fill(bench)
    bench.directory.context.flusher.request(log.durability, FlushDepth.COMPLETE)
    async with asyncio.timeout(10):
        await bench.directory.close_clean(3)
    clear(bench)
    await bench.start()
    assert bench.directory.continues.broker_epoch == -1
    assert (await bench.log()).log_end_offset == 1
    await bench.directory.close()


steps = st.lists(st.sampled_from(["append", "fill", "clear", "roll", "flush", "create"]), max_size=30)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=steps)
async def test_whatever_is_tried_while_it_is_full_nothing_is_lost(
    tmp_path_factory: pytest.TempPathFactory, history: list[str]
) -> None:
    config = replace(FOREVER, segment_bytes=300, index_interval_bytes=1)
    by_hand = replace(LIMITS, upkeep_interval_ms=3_600_000)  # the steps tell what is found, no look of its own
    bench = Workbench(tmp_path_factory.mktemp("full"), config, by_hand)
    log = await bench.log()
    append(log, produced())
    count = 1
    for step in history:
        if step == "fill":
            fill(bench)
            bench.directory.context.health.update_free_space(FreeSpace.REFUSED)
        elif step == "clear":
            clear(bench)
            bench.directory.context.health.update_free_space(FreeSpace.PLENTY)
        elif step == "flush":
            bench.directory.context.flusher.request(log.durability, FlushDepth.COMPLETE)
            await asyncio.sleep(0)
        else:
            try:
                if step == "append":
                    append(log, produced(1, size=90))
                    count += 1
                elif step == "roll":
                    log.roll(0)
                else:
                    bench.directory.create_log(f"other{count}", 0, TOPIC_ID, config)
            except ProtocolError:
                assert bench.disk.write_errno is not None
    assert bench.directory.offline is None
    clear(bench)
    await bench.restart(clean=False)
    log = await bench.log()
    assert [header.base_offset for header in read_all(log)] == list(range(count))
    await bench.directory.close()
