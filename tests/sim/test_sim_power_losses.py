"""Losses of power that keep exactly what a test says: what a later start trusts has to be on the device."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from common.directory_config import DirectoryConfig
from common.errors import ProtocolError
from common.ports import Ports
from records.builder import build_batch
from records.control import MarkerKind
from records.record import Record
from storage.audit.audit_trail import NoTrail
from storage.directory.log_directory import LogDirectory
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from tests.records.control_batches import build_control_batch
from tests.sim.sample_nodes import forever
from tests.sim.storage_scenario import TOPIC_ID
from tests.sim.world import World

pytestmark = pytest.mark.simulation

Life = Callable[[LogDirectory, PartitionLog], Awaitable[None]]
End = Callable[[World], None]
PRODUCER = 8


def nothing(path: str, position: int, data: bytes | None) -> bool:
    return False


def kill(world: World) -> None:
    world.kill("store")


def stop(world: World) -> None:
    world.stop("store")
    world.run_for(5)
    assert world.nodes["store"].loop is None


def lose_power(world: World) -> None:
    """Nothing is kept that was not flushed."""
    world.power_off("store", nothing)


def stop_and_lose_power(world: World) -> None:
    stop(world)
    lose_power(world)


def keep(*suffixes: str) -> End:
    """A loss of power that keeps the writes to these files alone."""
    return lambda world: world.power_off("store", lambda path, position, data: path.endswith(suffixes))


def run(config: LogConfig, *steps: tuple[Life, End], rest_s: float = 5.0) -> None:
    """The lives of one directory, each with its end, `rest_s` after what it does."""
    seen = list[int]()

    async def main(ports: Ports) -> None:
        directory = LogDirectory(ports, "data", 0, NoTrail(), DirectoryConfig(free_bytes_min=1 << 20))
        await directory.open("cluster")
        await directory.recover(lambda topic: config)
        log = directory.create_log("t", 0, TOPIC_ID, config)
        try:
            await steps[len(seen)][0](directory, log)
            seen.append(1)
            await forever()
        finally:
            await directory.close_clean(5)

    world = World(1)
    world.add_node("store", main)
    for number, (_, end) in enumerate(steps, 1):
        world.start("store")
        world.run_until(lambda: len(seen) == number, 5)  # noqa: B023
        assert len(seen) == number
        world.run_for(rest_s)
        end(world)
    world.close()


def append(log: PartitionLog, data: bytearray, epoch: int = 1) -> None:
    with memoryview(data) as view:
        log.append_as_leader(data, view, 0, len(data), epoch, 0)


def at_time(timestamp: int, *, transactional: bool = False) -> bytearray:
    """A batch of one record."""
    records = [Record(0, timestamp, b"k", b"v" * 20, ())]
    if not transactional:
        return build_batch(records)
    return build_batch(records, producer_id=PRODUCER, producer_epoch=0, base_sequence=0, transactional=True)


def ended(kind: MarkerKind) -> bytearray:
    return build_control_batch(kind, producer_id=PRODUCER, producer_epoch=0, coordinator_epoch=0, timestamp=1)


def found_at(log: PartitionLog, timestamp: int) -> int | None:
    hit = log.locate_timestamp(timestamp)
    if hit is None:
        return None
    hit.region.release()
    return hit.header.base_offset


@pytest.mark.parametrize("kept", [(".txnindex",), (".index", ".timeindex", ".txnindex")])
def test_what_a_recovery_cuts_behind_a_flushed_log_stays_cut(kept: tuple[str, ...]) -> None:
    """The log ends at the recovery point, so that no later flush has a reason to include its files."""

    async def flushed(directory: LogDirectory, log: PartitionLog) -> None:
        for time in range(10):
            append(log, at_time(1_000 + time, transactional=True))
        append(log, ended(MarkerKind.COMMIT))

    async def lost(directory: LogDirectory, log: PartitionLog) -> None:
        for time in range(200):
            append(log, at_time(2_000 + time, transactional=True))
        append(log, ended(MarkerKind.ABORT))

    async def recovered(directory: LogDirectory, log: PartitionLog) -> None:
        assert (log.log_end_offset, log.recovery_point) == (11, 11)
        assert log.aborted_transactions(0, 11) == []

    async def again(directory: LogDirectory, log: PartitionLog) -> None:
        assert log.log_end_offset == 11
        for time in range(300):
            append(log, at_time(3_000 + time, transactional=True))
        append(log, ended(MarkerKind.COMMIT))
        assert log.aborted_transactions(0, log.log_end_offset) == []
        assert found_at(log, 1_009) == 9

    config = LogConfig(index_interval_bytes=1)
    run(config, (flushed, stop), (lost, keep(*kept)), (recovered, stop_and_lose_power), (again, kill))


def test_a_segment_that_is_cut_to_nothing_is_so_after_a_clean_stop() -> None:
    async def truncated(directory: LogDirectory, log: PartitionLog) -> None:
        for time in range(3):
            append(log, at_time(1_000 + time))
        log.roll(1)
        await log.flush_closed()
        for time in range(3):
            append(log, at_time(2_000 + time), epoch=2)
        await log.flush()
        try:
            log.truncate_to(3)
        except ProtocolError:  # the checkpoints are withdrawn first
            await directory.checkpoint_recovery_points()
            log.truncate_to(3)
        assert log.log_end_offset == log.recovery_point == 3

    async def after(directory: LogDirectory, log: PartitionLog) -> None:
        assert log.log_end_offset == 3
        append(log, at_time(3_000), epoch=3)
        assert log.leader_epochs.entries() == [(1, 0), (3, 3)]

    run(LogConfig(index_interval_bytes=1), (truncated, stop_and_lose_power), (after, kill))


def test_a_segment_that_is_closed_after_a_clean_start_keeps_its_largest_time() -> None:
    async def flushed(directory: LogDirectory, log: PartitionLog) -> None:
        for time in range(3):
            append(log, at_time(1_000 + time))

    async def rolled(directory: LogDirectory, log: PartitionLog) -> None:
        log.roll(1)
        append(log, at_time(5_000))
        await log.flush()
        await directory.checkpoint_recovery_points()

    async def after(directory: LogDirectory, log: PartitionLog) -> None:
        assert log.segments[0].largest_timestamp() == (1_002, 2)
        assert found_at(log, 1_001) == 1

    run(LogConfig(), (flushed, stop), (rolled, lose_power), (after, kill))


def test_what_was_killed_before_its_flush_counts_when_it_is_flushed() -> None:
    """With flush.messages=1: a replica must not acknowledge what only the page cache has."""
    config = LogConfig(flush_messages=1)

    async def killed(directory: LogDirectory, log: PartitionLog) -> None:
        append(log, at_time(1_000))
        await log.flush()
        await directory.checkpoint_recovery_points()
        append(log, at_time(1_001))
        assert (log.written_end_offset, log.log_end_offset) == (1, 2)

    async def after(directory: LogDirectory, log: PartitionLog) -> None:
        assert log.written_end_offset == log.flushed_end_offset < log.log_end_offset == 2
        written = asyncio.Event()
        log.ends.notify(written.set)
        await written.wait()  # without a further append
        assert log.written_end_offset == 2

    async def last(directory: LogDirectory, log: PartitionLog) -> None:
        assert log.log_end_offset == 2

    run(config, (killed, kill), (after, lose_power), (last, kill), rest_s=0.0)


def test_a_hole_in_a_time_index_hides_no_time() -> None:
    """A loss of power takes one lump of entries and keeps the next one."""
    kept = list[int]()

    def second_lump(path: str, position: int, data: bytes | None) -> bool:
        if not path.endswith(".timeindex") or not data:
            return False
        kept.append(position)
        return len(kept) == 2

    async def flushed(directory: LogDirectory, log: PartitionLog) -> None:
        for time in range(20):
            append(log, at_time(6_000 if time == 10 else 1_000 + time))

    async def lost(directory: LogDirectory, log: PartitionLog) -> None:
        for time in range(300):
            append(log, at_time(6_001 + time))

    async def after(directory: LogDirectory, log: PartitionLog) -> None:
        assert len(kept) >= 2
        assert log.log_end_offset == 20
        assert log.active.largest_timestamp().timestamp == 6_000
        assert found_at(log, 5_500) == 10

    def hole(world: World) -> None:
        world.power_off("store", second_lump)

    run(LogConfig(index_interval_bytes=1), (flushed, stop), (lost, hole), (after, kill))
