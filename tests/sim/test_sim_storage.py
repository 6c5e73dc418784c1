"""Seeds of one log directory under deaths and losses of power."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from common.directory_config import DirectoryConfig
from common.errors import ProtocolError
from common.ports import Ports
from records.builder import build_batch
from records.record import Record
from storage.audit.audit_trail import NoTrail
from storage.cleaning.cleaner import CleanerConfig, LogCleaner
from storage.directory.log_directory import LogDirectory
from storage.disk.checkpoint_files import CLEANER_OFFSETS
from storage.disk.log_flusher import FlushDepth
from storage.log import tier_start
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from storage.producers.producer_snapshot import Snapshot, SnapshotEntry, encode_snapshot
from tests.sim.sample_nodes import Main, forever, world_of
from tests.sim.storage_scenario import TOPIC_ID, StorageRun
from tests.storage.log_workbench import append, produced

pytestmark = pytest.mark.simulation
SEEDS, CHUNK = 120, 30
OTHER_ID = bytes(range(1, 17))
COMPACTED = LogConfig(cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0)
CLEANED, CUT = 30, 10
FAILED_ONCE = (143, 187, 286, 296, 397, 435, 462, 526, 539, 543, 545, 652)


def run(seed: int) -> StorageRun:
    scenario = StorageRun(seed)
    try:
        scenario.run()
    except Exception as error:
        pytest.fail(f"storage seed {seed}: {type(error).__name__}: {error}")
    return scenario


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_what_was_safe_is_there_after_recovery(first: int) -> None:
    runs = [run(seed) for seed in range(first, first + CHUNK)]
    assert sum(run.model.recoveries for run in runs) > 2 * CHUNK
    assert max(run.model.longest for run in runs) > 50
    assert sum(run.model.aborted_seen for run in runs) > 3 * CHUNK


@pytest.mark.parametrize("seed", FAILED_ONCE)
def test_seeds_that_failed_once(seed: int) -> None:
    """Kept as seeds; a seed takes another course once timing changes, so what was mended has tests of its own."""
    run(seed)


def directory(ports: Ports) -> LogDirectory:
    return LogDirectory(ports, "data", 0, NoTrail(), DirectoryConfig(free_bytes_min=1 << 20))


def run_to_end(*lives: Main) -> None:
    """One node, its lives one after another on the same disk; each is killed a second after its start."""
    done = list[int]()

    async def main(ports: Ports) -> None:
        await lives[len(done)](ports)
        done.append(1)

    world = world_of(store=main)
    for number in range(len(lives)):
        world.run_for(1)
        assert len(done) == number + 1
        world.kill("store")
        if number + 1 < len(lives):
            world.start("store")
    world.close()


def test_a_cut_at_the_end_forgets_an_epoch_without_records() -> None:
    """Else the next leader, which does not know that epoch, finds this log diverged for ever."""

    async def deposed(ports: Ports) -> None:
        logs = directory(ports)
        await logs.open("cluster")
        await logs.recover(lambda topic: LogConfig())
        log = logs.create_log("t", 0, TOPIC_ID, LogConfig())
        log.leader_epochs.assign(4, log.log_end_offset)
        assert log.truncate_to(log.log_end_offset) == log.log_end_offset
        assert log.leader_epochs.latest_epoch == -1
        await logs.close()

    run_to_end(deposed)


def test_a_stop_during_recovery_leaves_no_marker_of_a_clean_one() -> None:
    async def first(ports: Ports) -> None:
        logs = directory(ports)
        await logs.open("cluster")
        await logs.recover(lambda topic: LogConfig())
        logs.create_log("t", 0, TOPIC_ID, LogConfig())
        await logs.close()

    async def stopped_before_recovery(ports: Ports) -> None:
        logs = directory(ports)
        await logs.open("cluster")
        await logs.close_clean(5)

    async def last(ports: Ports) -> None:
        logs = directory(ports)
        await logs.open("cluster")
        assert logs.continues.broker_epoch == -1
        await logs.close()

    run_to_end(first, stopped_before_recovery, last)


TIERED = LogConfig(remote_storage_enable=True, segment_bytes=400, producer_id_expiration_ms=2**60)
TIER_END = 200
OPEN = SnapshotEntry(9, 0, 3, TIER_END - 1, 0, 0, 0, 150)  # a producer, with the start of its open transaction

State = tuple[int, list[tuple[int, int]], list[int], int | None]


def state_of(log: PartitionLog) -> State:
    """Its end, its leader epochs, its producers, and the start of its first open transaction."""
    producers = [view.producer_id for view in log.producers.views()]
    return log.log_end_offset, log.leader_epochs.entries(), producers, log.first_unstable_offset


BEGUN = (TIER_END, [(1, 0), (5, 20)], [9], 150)


def after_a_death(changes: int, *, loses_power: bool) -> State:
    """The state of a replica at its next start, if it dies before that change of its disk while it begins at the tier's
    end."""
    found: list[State] = []

    async def main(ports: Ports) -> None:
        logs = directory(ports)
        await logs.open("cluster")
        await logs.recover(lambda topic: TIERED)
        log = logs.create_log("t", 0, TOPIC_ID, TIERED)
        if world.nodes["store"].life_count > 1:
            found.append(state_of(log))
            await forever()
        for sequence in range(8):
            append(log, produced(1, producer_id=8, sequence=sequence), 3)
        await log.flush()
        await logs.checkpoint_recovery_points()
        world.nodes["store"].device.kill_countdown = changes
        snapshot = encode_snapshot(Snapshot([OPEN], []))
        states, _ = tier_start.read_producers(log.config, snapshot, TIER_END, 0)
        await tier_start.begin(log, snapshot, lambda: log.start_at(TIER_END, 0, BEGUN[1], states))
        await forever()

    world = world_of(store=main)
    if loses_power:
        world.nodes["store"].device.kill = lambda: world.power_off("store")
    world.run_for(1)
    world.kill("store")
    world.start("store")
    world.run_for(1)
    world.close()
    return found[0]


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_replica_has_begun_at_the_tiers_end_completely_or_not_at_all(loses_power: bool) -> None:
    """Else it would lead with an open transaction that it does not know."""
    states = [after_a_death(changes, loses_power=loses_power) for changes in range(1, 40)]
    for end, epochs, producers, unstable in states:
        if end == TIER_END:
            assert (end, epochs, producers, unstable) == BEGUN
        else:
            assert (epochs, producers) == (([(3, 0)], [8]) if end else ([], []))
    assert {0, 8, TIER_END} <= {state[0] for state in states}
    assert states[-1] == BEGUN


# The cleaner's offset

LATER_EPOCH, LATER_RECORDS = 2, 25
OPERATIONS_MAX, LIFE_S = 200, 5


async def opened(ports: Ports) -> tuple[LogDirectory, int]:
    """The directory before its recovery, and the cleaner's offset of t-0 that it finds."""
    logs = directory(ports)
    await logs.open("cluster")
    return logs, logs.context.checkpoints.on_device(CLEANER_OFFSETS).get(("t", 0), 0)


def put(log: PartitionLog, epoch: int) -> None:
    batch = build_batch([Record(0, 1, b"key", b"value", ())])
    with memoryview(batch) as view:
        log.append_as_leader(batch, view, 0, len(batch), epoch, 1)


async def make_again(logs: LogDirectory, log: PartitionLog) -> PartitionLog:
    logs.delete_log(log)
    log = logs.create_log("t", 0, OTHER_ID, COMPACTED)
    await logs.context.checkpoints.idle()
    return log


async def cut(logs: LogDirectory, log: PartitionLog) -> PartitionLog:
    with pytest.raises(ProtocolError):
        log.truncate_to(CUT)
    await logs.context.checkpoints.idle()
    assert log.truncate_to(CUT) == CUT
    return log


@pytest.mark.parametrize("change", [make_again, cut])
def test_wherever_power_is_lost_the_cleaners_offset_reaches_into_no_later_record(
    change: Callable[[LogDirectory, PartitionLog], Awaitable[PartitionLog]],
) -> None:
    """The device dies at each operation in turn, from the moment on when the first log is clean up to its end."""
    found: list[tuple[int, int]] = []  # the offset, and where later records begin, -1 if there are none
    lived: list[int] = []  # the last number of a life that ended by itself

    async def first(ports: Ports) -> None:
        logs, _ = await opened(ports)
        await logs.recover(lambda topic: COMPACTED)
        log = logs.create_log("t", 0, TOPIC_ID, COMPACTED)
        for _ in range(CLEANED):
            put(log, 1)
        log.roll(1)
        await log.flush(depth=FlushDepth.COMPLETE)
        cleaner = LogCleaner(logs.context, lambda: [log], lambda log: log.log_end_offset, CleanerConfig())
        assert await cleaner.clean_dirtiest()
        await logs.settle()
        device.kill_countdown = dies_at
        log = await change(logs, log)
        for _ in range(LATER_RECORDS):
            put(log, LATER_EPOCH)
        await log.flush(depth=FlushDepth.COMPLETE)
        await logs.settle()
        lived.append(dies_at)
        await forever()

    async def second(ports: Ports) -> None:
        logs, offset = await opened(ports)
        await logs.recover(lambda topic: COMPACTED)
        log = logs.get("t", 0)
        entries = log.leader_epochs.entries() if log is not None else []
        found.append((offset, dict(entries).get(LATER_EPOCH, -1)))
        await logs.close()

    async def main(ports: Ports) -> None:
        await (first if world.nodes["store"].life_count == 1 else second)(ports)

    for dies_at in range(1, OPERATIONS_MAX):
        world = world_of(dies_at, store=main)
        device = world.nodes["store"].device
        device.kill = partial(world.power_off, "store")
        world.run_for(LIFE_S)
        world.power_off("store")
        world.start("store")
        world.run_for(LIFE_S)
        world.close()
        if lived:
            break
    assert len(found) == dies_at
    assert all(offset <= begins for offset, begins in found if begins >= 0), found
    assert {begins >= 0 for _, begins in found} == {False, True}
    assert {offset == CLEANED for offset, _ in found} == {False, True}
