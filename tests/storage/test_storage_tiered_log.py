"""A log whose history lies in a tier: what goes from the disk and what stays, what is read out for a copy, and how a
replica begins where the tier ends."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from common.checksum import crc32c
from common.errors import ErrorCode, ProtocolError
from common.whole_files import TEMPORARY_SUFFIX, join
from records.batch import iterate_batches
from records.control import MarkerKind
from storage.disk.checkpoint_files import PARTITION_METADATA
from storage.disk.log_flusher import FlushDepth
from storage.indexes.offset_index import OffsetIndex
from storage.indexes.time_index import TimeIndex
from storage.indexes.transaction_index import decode
from storage.log import tier_start
from storage.log.closed_segments import ClosedSegment, Contents
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from storage.producers.producer_state import ProducerStates
from tests.storage.log_workbench import FOREVER, NOW_MS, Killed, Workbench, append, marker, produced

TIERED = replace(FOREVER, remote_storage_enable=True, segment_bytes=1024, index_interval_bytes=0)
FIRST_MS = 1_000


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Workbench]:
    bench = Workbench(tmp_path, TIERED)
    await bench.start()
    yield bench
    await bench.directory.close()


async def filled(bench: Workbench, segments: int = 4, config: LogConfig = TIERED) -> PartitionLog:
    """Offsets 0, 1, …; four batches per segment, the last one active with one."""
    log = await bench.log()
    log.update_config(config)
    while len(log.segments) <= segments:
        append(log, produced(1, size=200, timestamps=[FIRST_MS + log.log_end_offset], producer_id=7,
                             sequence=log.log_end_offset), epoch=1 + len(log.segments) // 2)  # fmt: skip
    await log.flush()
    return log


def moved(log: PartitionLog, offset: int) -> bool:
    try:
        region = log.read(offset, 1 << 20, log.log_end_offset)
    except ProtocolError as error:
        return error.code is ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE
    assert region is not None
    region.release()
    return False


def read_out(log: PartitionLog, closed: ClosedSegment) -> tuple[bytes, Contents]:
    reader = log.read_closed(closed)
    assert sum(reader.steps()) == closed.size
    data = reader.file.pread(closed.size, closed.position)
    reader.close()
    return data, reader.contents


def states_of(log: PartitionLog, contents: Contents, offset: int) -> ProducerStates:
    return tier_start.read_producers(log.config, contents.producer_snapshot, offset, NOW_MS).states


async def test_local_retention_takes_only_what_the_tier_holds(bench: Workbench) -> None:
    log = await filled(bench, config=replace(TIERED, local_retention_ms=0))
    bases = [segment.base_offset for segment in log.segments]
    assert log.delete_old_segments(NOW_MS, log.log_end_offset) == 0
    assert log.delete_old_segments(NOW_MS, log.log_end_offset, bases[2] - 1) == 1
    assert log.delete_old_segments(NOW_MS, bases[2] - 1, bases[3]) == 0
    assert log.delete_old_segments(NOW_MS, log.log_end_offset, bases[2]) == 1
    assert (log.log_start_offset, log.local_log_start_offset) == (0, bases[2])
    assert moved(log, 0)
    assert moved(log, bases[2] - 1)
    assert not moved(log, bases[2])
    assert log.leader_epochs.epoch_of(0) == 1
    with pytest.raises(ProtocolError) as caught:
        log.read(-1, 10, log.log_end_offset)
    assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("how", ["retention", "erasure"])
async def test_nothing_goes_before_its_producers_are_on_the_device(bench: Workbench, how: str) -> None:
    """What they did is known from the snapshot behind it alone, which a loss of power may take."""
    config = replace(TIERED, local_retention_ms=0)
    await filled(bench, config=config)
    log = await bench.restart(clean=False)  # all is written anew, and nothing of it is on the device
    log.update_config(config)
    assert log.recovery_point == 0
    gate = bench.disk.fsync_gate = threading.Event()
    end, tier_end = log.log_end_offset, log.active.base_offset

    def drop() -> int:
        if how == "retention":
            return log.delete_old_segments(NOW_MS, end, tier_end)
        return log.drop_erased(NOW_MS, end, tier_end, tier_end)

    for _ in range(3):
        assert drop() == 0
        await asyncio.sleep(0.005)
    gate.set()
    assert await log.flush_closed() == tier_end
    assert f"{log.directory}/{tier_end:020d}.snapshot" in bench.disk.fsyncs
    assert drop() == 4
    assert log.local_log_start_offset == tier_end


def bases_from(log: PartitionLog, offset: int) -> list[int]:
    """The base offsets of all batches from `offset` on."""
    found = []
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset)
        assert region is not None
        data = memoryview(region.file.pread(region.length, region.position))
        region.release()
        for _, header in iterate_batches(data, 0, len(data)):
            found.append(header.base_offset)
            offset = header.next_offset
    return found


@pytest.mark.parametrize("renames", range(13))
async def test_a_kill_among_segments_that_go_leaves_no_hole(bench: Workbench, renames: int) -> None:
    log = await filled(bench, config=replace(TIERED, local_retention_ms=0))
    held = bases_from(log, 0)
    bench.disk.renames_left = renames
    bases = [segment.base_offset for segment in log.segments]
    with contextlib.suppress(Killed):
        log.delete_old_segments(NOW_MS, log.log_end_offset, bases[3])
    bench.disk.renames_left = None
    log = await bench.restart(clean=False)
    assert log.log_end_offset == held[-1] + 1
    assert log.local_log_start_offset in bases[:4]
    first = log.local_log_start_offset
    assert bases_from(log, first) == [offset for offset in held if offset >= first]


@pytest.mark.parametrize("how", ["retention", "erasure"])
async def test_while_the_disk_is_slow_some_file_keeps_the_logs_end(bench: Workbench, how: str) -> None:
    """All that the log has goes, and the empty segment behind it has no file before the disk has caught up."""
    log, other = await filled(bench, config=replace(TIERED, local_retention_ms=0)), await bench.log("other")
    end = log.log_end_offset
    await log.durability.flush_once(FlushDepth.COMPLETE)
    assert log.recovery_point == end
    bench.disk.slow_s = 1.0
    append(other, produced())
    gate = bench.disk.write_gate = threading.Event()

    def drop() -> int:
        if how == "retention":
            return log.delete_old_segments(NOW_MS, end, end)
        return log.drop_erased(NOW_MS, end, end, end)

    held = [segment.base_offset for segment in log.segments]
    for _ in range(2):
        assert drop() == 0
    files = bench.root / log.directory
    assert {int(path.stem) for path in files.glob("*.log")} >= set(held)
    bench.disk.slow_s = 0.0
    gate.set()
    await bench.directory.settle()
    assert drop() == len(held)
    assert [int(path.stem) for path in files.glob("*.log")] == [end]
    assert (await bench.restart(clean=False)).log_end_offset == end


async def test_local_retention_is_the_total_one_where_none_is_given(bench: Workbench) -> None:
    size = (await filled(bench)).segments[0].size
    log = bench.directory.logs["t", 0]
    log.update_config(replace(TIERED, retention_bytes=2 * size, local_retention_bytes=-2))
    assert log.delete_old_segments(NOW_MS, log.log_end_offset, log.log_end_offset) == 2
    log.update_config(replace(TIERED, retention_bytes=2 * size, local_retention_bytes=-1))
    assert log.delete_old_segments(NOW_MS, log.log_end_offset, log.log_end_offset) == 0
    compacted = replace(TIERED, cleanup_policy=("compact",), retention_bytes=0)
    log.update_config(compacted)
    assert log.delete_old_segments(NOW_MS, log.log_end_offset, log.log_end_offset) == 0
    log.update_config(replace(compacted, local_retention_bytes=0))
    assert log.delete_old_segments(NOW_MS, log.log_end_offset, log.active.base_offset) == 2


async def test_below_the_logs_start_segments_go_whether_copied_or_not(bench: Workbench) -> None:
    log = await filled(bench)
    bases = [segment.base_offset for segment in log.segments]
    log.advance_log_start(bases[2] + 1, "test")
    assert (log.log_start_offset, log.local_log_start_offset) == (bases[2] + 1, bases[2] + 1)
    assert log.delete_old_segments(NOW_MS, log.log_end_offset) == 0


@pytest.mark.parametrize("clean", [True, False])
async def test_a_restart_keeps_the_start_of_what_is_in_the_tier(bench: Workbench, clean: bool) -> None:
    log = await filled(bench, config=replace(TIERED, local_retention_ms=0))
    log.advance_log_start(2, "test")
    bases = [segment.base_offset for segment in log.segments]
    log.delete_old_segments(NOW_MS, log.log_end_offset, bases[2])
    await bench.directory.checkpoint_recovery_points()
    end, epochs, producers = log.log_end_offset, log.leader_epochs.entries(), log.producers.snapshot()
    log = await bench.restart(clean=clean)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (2, bases[2], end)
    assert log.leader_epochs.entries() == epochs
    assert log.producers.snapshot() == producers
    assert moved(log, 2)


async def test_without_a_note_of_its_start_a_tiered_log_begins_at_zero(bench: Workbench) -> None:
    log = await filled(bench, config=replace(TIERED, local_retention_ms=0))
    log.delete_old_segments(NOW_MS, log.log_end_offset, log.segments[2].base_offset)
    log = await bench.restart(clean=False)  # killed before the checkpoint
    assert log.log_start_offset == 0
    assert log.local_log_start_offset > 0


async def test_a_closed_segment_is_read_out_whole(bench: Workbench) -> None:
    log = await filled(bench)
    closed = log.closed_segment_at(0)
    assert closed is not None
    assert (closed.base_offset, closed.end_offset, closed.position) == (0, log.segments[1].base_offset, 0)
    data, contents = read_out(log, closed)
    assert crc32c(data) == contents.log_crc32c
    assert contents.records == closed.end_offset
    assert contents.max_timestamp == FIRST_MS + closed.end_offset - 1
    assert (contents.has_transactions, contents.transaction_index) == (False, b"")
    offsets, times = log.segments[0].indexes.offset_file, log.segments[0].indexes.time_file
    assert contents.offset_index == offsets.pread(log.segments[0].indexes.offsets.size, 0)
    assert contents.time_index == times.pread(log.segments[0].indexes.times.size, 0)
    assert LeaderEpochCache.decode(contents.leader_epochs).entries() == [(1, 0)]
    states = ProducerStates(2**60, 10)
    states.load_snapshot(contents.producer_snapshot, closed.end_offset, NOW_MS)
    assert [view.last_sequence for view in states.views()] == [closed.end_offset - 1]


async def test_a_copy_may_begin_inside_a_segment(bench: Workbench) -> None:
    log = await filled(bench)
    end_offset = log.segments[1].base_offset
    closed = log.closed_segment_at(2)
    assert closed is not None
    assert (closed.base_offset, closed.end_offset) == (2, end_offset)
    data, contents = read_out(log, closed)
    region = log.read(2, 1 << 20, end_offset)
    assert region is not None
    assert region.read() == data
    region.release()
    assert contents.records == end_offset - 2
    index = OffsetIndex.load(2, lambda size, at: contents.offset_index[at : at + size], len(contents.offset_index))
    positions = [entry.position for entry in index.entries(lambda size, at: contents.offset_index[at : at + size])]
    assert positions == [region.length // (end_offset - 2) * at for at in range(1, end_offset - 2)]
    times = TimeIndex.load(2, lambda size, at: contents.time_index[at : at + size], len(contents.time_index))
    assert times.last_timestamp == contents.max_timestamp == FIRST_MS + end_offset - 1


async def test_a_missing_snapshot_is_made_from_the_batches(bench: Workbench) -> None:
    log = await filled(bench)
    closed = log.closed_segment_at(log.segments[1].base_offset)
    assert closed is not None
    _, whole = read_out(log, closed)
    _, rebuilt = read_out(log, closed._replace(snapshots=()))
    assert rebuilt.producer_snapshot == whole.producer_snapshot


async def test_nothing_is_closed_at_the_end(bench: Workbench) -> None:
    log = await filled(bench)
    assert log.closed_segment_at(log.active.base_offset) is None
    assert log.closed_segment_at(log.log_end_offset + 5) is None
    log.roll(NOW_MS)
    closed = log.closed_segment_at(log.segments[-2].base_offset)
    assert closed is not None
    assert closed.end_offset == log.log_end_offset


async def test_damaged_bytes_are_not_copied(bench: Workbench) -> None:
    log = await filled(bench)
    closed = log.closed_segment_at(0)
    assert closed is not None
    file = bench.disk.open(closed.segment.stem + ".log")
    file.pwrite(b"?", closed.size - 3)
    file.close()
    reader = log.read_closed(closed)
    with pytest.raises(ProtocolError) as caught:
        list(reader.steps())
    reader.close()
    assert caught.value.code is ErrorCode.CORRUPT_MESSAGE


async def test_the_aborted_list_goes_along(bench: Workbench) -> None:
    log = await bench.log()
    for producer in (1, 2):
        append(log, produced(1, producer_id=producer, transactional=True))
        append(log, marker(MarkerKind.ABORT, producer))
    log.roll(NOW_MS)
    await log.flush()
    for base, aborted in ((0, [1, 2]), (2, [2])):
        closed = log.closed_segment_at(base)
        assert closed is not None
        _, contents = read_out(log, closed)
        assert contents.has_transactions
        assert [entry.producer_id for entry in decode(contents.transaction_index)] == aborted


async def test_a_segment_is_rolled_for_the_tier_by_its_own_age(bench: Workbench) -> None:
    log = await bench.log()
    append(log, produced(2, timestamps=[1, NOW_MS]))  # records that span years
    append(log, produced(1, timestamps=[5]))
    assert len(log.segments) == 1
    assert not log.roll_for_tier(NOW_MS + 600_000)
    log.update_config(replace(log.config, remote_log_copy_disable=True))
    assert not log.roll_for_tier(NOW_MS + 600_001)
    log.update_config(replace(log.config, remote_log_copy_disable=False))
    assert log.roll_for_tier(NOW_MS + 600_001)
    assert not log.roll_for_tier(NOW_MS + 10_000_000)  # empty


async def test_a_replica_begins_where_the_tier_ends(bench: Workbench) -> None:
    leader = await filled(bench)
    base = leader.segments[3].base_offset
    closed = leader.closed_segment_at(leader.segments[2].base_offset)
    assert closed is not None
    _, contents = read_out(leader, closed)
    log = bench.directory.create_log("u", 0, bytes(15) + b"u", TIERED)
    append(log, produced(1))
    epochs = LeaderEpochCache.decode(contents.leader_epochs).entries()
    log.start_at(base, 1, epochs, states_of(log, contents, base))
    await tier_start.make_durable(log, contents.producer_snapshot)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (1, base, base)
    assert log.leader_epochs.epoch_of(1) == 1
    assert [view.last_sequence for view in log.producers.views()] == [base - 1]
    assert moved(log, 1)
    region = leader.read(base, 1 << 20, leader.log_end_offset)
    assert region is not None
    data = region.read()
    region.release()
    appended = log.append_as_follower(memoryview(data), 0, len(data))
    assert appended is not None
    await bench.directory.close()
    await bench.start()
    log = bench.directory.create_log("u", 0, bytes(15) + b"u", TIERED)
    assert (log.local_log_start_offset, log.log_end_offset) == (base, appended.next_offset)
    assert log.leader_epochs.epoch_of(1) == 1
    assert [view.last_sequence for view in log.producers.views()] == [appended.next_offset - 1]


async def test_where_a_replica_begins_survives_a_loss_of_power(bench: Workbench) -> None:
    leader = await filled(bench)
    base = leader.segments[3].base_offset
    closed = leader.closed_segment_at(leader.segments[2].base_offset)
    assert closed is not None
    _, contents = read_out(leader, closed)
    log = bench.directory.create_log("u", 0, bytes(15) + b"u", TIERED)
    epochs = LeaderEpochCache.decode(contents.leader_epochs).entries()
    bench.disk.fsyncs.clear()
    log.start_at(base, 0, epochs, states_of(log, contents, base))
    await tier_start.make_durable(log, contents.producer_snapshot)
    synced = {path.removesuffix(TEMPORARY_SUFFIX).removesuffix(".beginning") for path in bench.disk.fsyncs}
    await bench.directory.close()
    for name in bench.disk.list(log.directory):
        if name != PARTITION_METADATA and join(log.directory, name) not in synced:
            file = bench.disk.open(join(log.directory, name))
            file.truncate(0)  # the name is there, the bytes never came
            file.close()
    await bench.start()
    log = bench.directory.create_log("u", 0, bytes(15) + b"u", TIERED)
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, base, base)
    assert log.leader_epochs.entries() == epochs
    assert [view.last_sequence for view in log.producers.views()] == [base - 1]


def test_a_damaged_snapshot_of_producers_is_named() -> None:
    with pytest.raises(ValueError, match="snapshot"):
        tier_start.read_producers(TIERED, b"damaged", 100, NOW_MS)


async def test_a_cut_below_what_is_left_begins_at_the_logs_start(bench: Workbench) -> None:
    log = await filled(bench, config=replace(TIERED, local_retention_ms=0))
    log.delete_old_segments(NOW_MS, log.log_end_offset, log.segments[2].base_offset)
    assert log.truncate_to(3) == 0
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 0, 0)


@pytest.mark.parametrize("from_tier", [False, True])
async def test_a_cut_of_all_that_is_left_keeps_what_the_tier_has(bench: Workbench, from_tier: bool) -> None:
    """A follower whose leader ends where its own local part begins has lost nothing of the tier, nor its place."""
    leader = await filled(bench)
    base, end = leader.segments[3].base_offset, leader.log_end_offset
    closed = leader.closed_segment_at(leader.segments[2].base_offset)
    assert closed is not None
    _, contents = read_out(leader, closed)
    known = leader.leader_epochs.epoch_of(base - 1)
    log = leader
    if from_tier:
        log = bench.directory.create_log("u", 0, bytes(15) + b"u", TIERED)
        epochs = LeaderEpochCache.decode(contents.leader_epochs).entries()
        log.start_at(base, 0, epochs, states_of(log, contents, base))
        await tier_start.make_durable(log, contents.producer_snapshot)
        region = leader.read(base, 1 << 20, end)
        assert region is not None
        data = region.read()
        region.release()
        assert log.append_as_follower(memoryview(data), 0, len(data)) is not None
    else:
        log.update_config(replace(TIERED, local_retention_ms=0))
        log.delete_old_segments(NOW_MS, end, base)
    assert log.local_log_start_offset == base < log.log_end_offset
    assert log.truncate_to(base) == base
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, base, base)
    assert log.leader_epochs.epoch_of(base - 1) == known
    assert [view.last_sequence for view in log.producers.views()] == [base - 1]


def test_epochs_before_the_first_known_one_are_taken_in() -> None:
    cache = LeaderEpochCache()
    cache.assign(5, 100)
    assert not cache.restore([(5, 100), (6, 40)])
    assert cache.restore([(1, 0), (3, 50), (5, 80)])
    assert cache.entries() == [(1, 0), (3, 50), (5, 80)]
    assert cache.chain(60, 80) == [(3, 50)]
    assert cache.chain(50, 81) == [(3, 50), (5, 80)]
    cache.truncate_from_start(70)
    assert cache.chain(60, 90) == [(3, 60), (5, 80)]
