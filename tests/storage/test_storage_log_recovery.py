"""Starts after clean and other stops: what is scanned, what is cut, what is built anew."""

import contextlib
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from common.identifiers import ZERO_UUID
from records.batch import read_header
from records.control import MarkerKind
from records.record import decode_records
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from storage.producers.producer_snapshot import decode_snapshot
from storage.recovery import recovery
from tests.storage.log_workbench import FOREVER, NOW_MS, Killed, Workbench, append, marker, produced, read_all

SMALL = replace(FOREVER, segment_bytes=600, index_interval_bytes=100)
APACHE_KAFKA = Path(__file__).parent / "apache_kafka_4_1_directory.tar.xz"


async def filled(tmp_path: Path, count: int = 20, config: LogConfig = SMALL) -> tuple[Workbench, PartitionLog]:
    bench = Workbench(tmp_path, config)
    log = await bench.log()
    for at in range(count):
        append(
            log,
            produced(2, size=50, timestamps=[NOW_MS + at, NOW_MS + at], producer_id=4, sequence=2 * at),
            1 + at // 8,
        )
    await bench.directory.settle()
    return bench, log


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def segment_bytes_read(bench: Workbench) -> dict[int, int]:
    """How much was read of segments, by base offset."""
    read = bench.disk.bytes_read
    return {int(path[-24:-4]): size for path, size in read.items() if path.endswith(".log")}


async def test_a_clean_start_scans_nothing(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path)
    entries = log.leader_epochs.entries()
    await bench.directory.close_clean(7)
    bench.disk.bytes_read.clear()
    await bench.start()
    assert segment_bytes_read(bench) == {log.active.base_offset: log.active.size // 2}  # the last of its two batches
    log = await bench.log()
    assert bench.directory.continues.broker_epoch >= 0
    assert bench.directory.continues.broker_epoch == 7
    assert log.log_end_offset == log.recovery_point == 40
    assert log.leader_epochs.entries() == entries
    assert [view.last_sequence for view in log.producers.views()] == [39]
    assert not (tmp_path / ".kafka_cleanshutdown").exists()
    assert "unclean_start" not in bench.events


async def test_recovery_builds_every_file_as_it_was(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path)
    log = await bench.restart(clean=True)
    before = files(tmp_path / "t-0")
    await bench.directory.close()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    for name in before:
        if name.endswith((".index", ".timeindex", ".snapshot")):
            (tmp_path / "t-0" / name).write_bytes(b"\xff" * 37)
    await bench.start()
    log = await bench.log()
    assert "unclean_start" in bench.events
    assert len(read_all(log)) == 20
    assert [view.last_sequence for view in log.producers.views()] == [39]
    await bench.directory.close_clean(8)
    assert files(tmp_path / "t-0") == before


async def test_only_segments_from_the_recovery_point_on_are_scanned(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path)
    assert log.recovery_point == log.active.base_offset > 0
    first_unflushed = log.active.base_offset
    await bench.directory.checkpoint_recovery_points()
    await bench.directory.close()
    bench.disk.bytes_read.clear()
    await bench.start()
    assert segment_bytes_read(bench) == {first_unflushed: log.active.size}
    log = await bench.log()
    assert len(read_all(log)) == 20


async def test_every_unflushed_segment_is_scanned_not_only_the_last(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path)
    second = log.segments[1]
    await bench.directory.close()
    path = tmp_path / f"{second.stem}.log"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    await bench.start()
    log = await bench.log()
    assert log.active.base_offset == second.base_offset
    assert log.log_end_offset == read_all(log)[-1].next_offset < 20
    causes = [fields["cause"] for event, fields in bench.audit_lines if event == "log_truncated"]
    assert causes == ["segments behind damage", "torn tail"]
    assert max(epoch for epoch, _ in log.leader_epochs.entries()) == read_all(log)[-1].leader_epoch


async def test_a_segment_that_lost_its_end_at_a_batch_boundary_ends_the_log(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path)
    second = log.segments[1]
    size = read_all(log)[0].size
    await bench.directory.close()
    path = tmp_path / f"{second.stem}.log"
    path.write_bytes(path.read_bytes()[:-size])
    await bench.start()
    log = await bench.log()
    headers = read_all(log)
    assert [header.base_offset for header in headers] == list(range(0, 2 * len(headers), 2))
    assert log.active.base_offset == second.base_offset


@pytest.mark.parametrize("left", [0, 1])
async def test_a_compacted_log_ends_there_too(tmp_path: Path, left: int) -> None:
    """Also where nothing is left of the segment: nobody has compacted what is not on the device."""
    bench, log = await filled(tmp_path, config=replace(SMALL, cleanup_policy=("compact",)))
    assert len(log.segments) > 3
    second, size = log.segments[1], read_all(log)[0].size
    await bench.directory.close()
    path = tmp_path / f"{second.stem}.log"
    path.write_bytes(path.read_bytes()[: left * size])
    await bench.start()
    log = await bench.log()
    assert log.log_end_offset == second.base_offset + 2 * left
    assert log.active.base_offset == second.base_offset
    causes = [fields["cause"] for event, fields in bench.audit_lines if event == "log_truncated"]
    assert causes == ["segments behind damage"]


@pytest.mark.parametrize("removals", range(0, 12, 2))
async def test_a_kill_while_it_is_cut_leaves_no_gap_in_a_compacted_log(tmp_path: Path, removals: int) -> None:
    """The cleaner has been there, so the gap would pass for its work."""
    bench, log = await filled(tmp_path, config=replace(SMALL, cleanup_policy=("compact",)))
    second, cleaned = log.segments[1], log.log_end_offset
    assert len(log.segments) > 4
    await bench.directory.close()
    path = tmp_path / f"{second.stem}.log"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")  # of the last batch
    (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {cleaned}\n")
    bench.disk.removals_left = removals
    with contextlib.suppress(Killed):
        await bench.start()
    assert bench.disk.removals_left < 0
    bench.disk.removals_left = None
    await bench.start()
    log = await bench.log()
    assert log.active.base_offset == second.base_offset
    headers = read_all(log)
    assert [header.base_offset for header in headers] == list(range(0, log.log_end_offset, 2))
    assert headers[-1].next_offset > second.base_offset


async def test_what_was_on_the_device_may_have_gaps_and_what_follows_it_may_not(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path, config=replace(SMALL, cleanup_policy=("compact",)))
    first, second, third = log.segments[1:4]
    size = read_all(log)[0].size
    await bench.directory.close()
    for segment in (first, second, third):  # the recovery point comes to lie between the last two
        path = tmp_path / f"{segment.stem}.log"
        path.write_bytes(path.read_bytes()[:size])
    (tmp_path / "cleaner-offset-checkpoint").write_text(f"0\n1\nt 0 {third.base_offset}\n")
    await bench.start()
    log = await bench.log()
    assert [one.base_offset for one in log.segments] == [0, first.base_offset, second.base_offset, third.base_offset]
    assert log.log_end_offset == third.base_offset + 2


async def test_gaps_between_compacted_segments_are_no_damage(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(SMALL, cleanup_policy=("compact",)))
    log = await bench.log()
    for base in range(0, 100, 10):
        batch = produced(2, size=100)
        batch[0:8] = base.to_bytes(8, "big")
        log.append_as_follower(memoryview(batch), 0, len(batch))
    assert len(log.segments) > 2
    ends = [segment.base_offset for segment in log.segments[1:]]
    assert ends == [base // 10 * 10 + 2 for base in ends], "each begins where the one before ends"
    log = await bench.restart(clean=False)
    assert [header.base_offset for header in read_all(log)] == list(range(0, 100, 10))
    region = log.read(15, 1, 92)
    assert region is not None
    assert read_header(region.read(), 0).base_offset == 20  # the next batch, where the offset is gone
    region.release()
    assert log.truncate_to(15) == 15
    assert [header.base_offset for header in read_all(log)] == [0, 10]


async def test_a_start_past_the_recovery_point_within_a_segment(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path, config=replace(SMALL, segment_bytes=1 << 20))
    log = await bench.restart(clean=True)
    for at in range(20, 25):
        append(log, produced(2, size=50, producer_id=4, sequence=2 * at), 9)
    path = tmp_path / f"{log.active.stem}.log"
    flushed = sum(header.size for header in read_all(log)[:20])
    await bench.directory.close()
    data = bytearray(path.read_bytes())
    data[200] ^= 1  # below the recovery point nothing is looked at
    path.write_bytes(bytes(data[:flushed]) + bytes(data[flushed:-10]))
    await bench.start()
    log = await bench.log()
    assert log.log_end_offset == 48
    assert log.leader_epochs.latest_epoch == 9
    assert [view.last_sequence for view in log.producers.views()] == [47]


async def test_a_log_start_past_the_end_starts_over(tmp_path: Path) -> None:
    bench, log = await filled(tmp_path, 3)
    log.advance_log_start(6, "test")
    await bench.directory.checkpoint_recovery_points()
    await bench.directory.close()
    (tmp_path / "t-0" / f"{0:020d}.log").write_bytes(b"")
    await bench.start()
    log = await bench.log()
    assert (log.log_start_offset, log.log_end_offset) == (6, 6)
    assert "log_started_over" in bench.events
    assert append(log, produced()).base_offset == 6
    log = await bench.restart(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (6, 7)


async def test_epochs_of_a_log_that_was_given_up_do_not_count_against_the_next_one(tmp_path: Path) -> None:
    """Its leader was elected out of sync: the records that this replica then got have a lower epoch."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(5), 8)
    log = await bench.restart(clean=True)
    log.truncate_fully_and_start_at(10)
    append(log, produced(2), 4)
    append(log, produced(1), 9)
    log = await bench.restart(clean=False)
    assert (log.log_start_offset, log.log_end_offset) == (10, 13)
    assert log.leader_epochs.entries() == [(4, 10), (9, 12)]


@pytest.mark.parametrize("damage", [bytes(34), b"\xff" * 34, bytes(68)])
async def test_a_damaged_transaction_index_is_built_again(tmp_path: Path, damage: bytes) -> None:
    """All of the segment is scanned for it; what was damaged is replaced by a file that the device has."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(2, producer_id=1, transactional=True))
    append(log, marker(MarkerKind.ABORT, 1))
    await bench.restart(clean=True)
    await bench.directory.close()
    path = tmp_path / "t-0" / f"{0:020d}.txnindex"
    sound, inode = path.read_bytes(), path.stat().st_ino
    path.write_bytes(damage)
    bench.disk.fsyncs.clear()
    await bench.start()
    log = await bench.log()
    assert log.aborted_transactions(0, 3) == [(1, 0)]
    assert path.read_bytes() == sound
    assert path.stat().st_ino != inode
    assert bench.disk.fsyncs.count(f"t-0/{0:020d}.txnindex.tmp") == 1


async def test_recovery_does_not_touch_what_the_device_has_of_a_transaction_index(tmp_path: Path) -> None:
    """A loss of power could take what it writes, and the next recovery trusts what was flushed."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(2, producer_id=1, transactional=True))
    append(log, marker(MarkerKind.ABORT, 1))
    log = await bench.restart(clean=True)
    path = tmp_path / "t-0" / f"{0:020d}.txnindex"
    flushed = path.read_bytes()
    append(log, produced(2, producer_id=1, transactional=True))
    append(log, marker(MarkerKind.ABORT, 1))
    await bench.directory.close()
    path.write_bytes(flushed + b"torn")
    bench.disk.changes.clear()
    await bench.start()
    log = await bench.log()
    assert log.aborted_transactions(0, 6) == [(1, 0), (1, 3)]
    assert {position for name, position in bench.disk.changes if name.endswith(".txnindex")} == {len(flushed)}


async def test_transactions_survive_every_start(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(2, producer_id=1, transactional=True))
    append(log, marker(MarkerKind.ABORT, 1))
    append(log, produced(1, producer_id=2, transactional=True))
    for clean in (True, False, True):
        log = await bench.restart(clean=clean)
        assert log.first_unstable_offset == 3 if clean else log.producers.first_undecided_offset == 3
        assert log.last_stable_offset(4) == 3
        assert log.aborted_transactions(0, 4) == [(1, 0)]
        assert log.aborted_transactions(3, 4) == []
    (tmp_path / "t-0" / f"{0:020d}.txnindex").unlink()
    (tmp_path / "recovery-point-offset-checkpoint").unlink()
    log = await bench.restart(clean=False)
    (tmp_path / "t-0" / f"{0:020d}.txnindex").unlink(missing_ok=True)
    await bench.directory.close()
    (tmp_path / "recovery-point-offset-checkpoint").unlink(missing_ok=True)
    await bench.start()
    log = await bench.log()
    assert log.aborted_transactions(0, 4) == [(1, 0)]
    log.truncate_to(2)
    assert log.aborted_transactions(0, 4) == []
    assert log.producers.first_undecided_offset == 0


async def test_damaged_metadata_sets_records_aside_but_not_an_empty_log(tmp_path: Path) -> None:
    bench, _ = await filled(tmp_path, 2)
    await bench.log("empty")
    await bench.directory.close()
    for name in ("t-0", "empty-0"):
        (tmp_path / name / "partition.metadata").write_bytes(b"vers")
    await bench.start()
    assert bench.directory.get("t", 0) is None
    assert any(name.endswith("-stray") for name in bench.disk.list(""))
    empty = bench.directory.get("empty", 0)
    assert empty is not None and empty.topic_id == ZERO_UUID
    assert (await bench.log("empty")).topic_id != ZERO_UUID


async def test_leftovers_of_swaps_deletions_and_checkpoints_go(tmp_path: Path) -> None:
    bench, _ = await filled(tmp_path, 4)
    await bench.directory.close()
    directory = tmp_path / "t-0"
    for name in (f"{0:020d}.log.cleaned", f"{0:020d}.log.deleted", "leader-epoch-checkpoint.tmp", f"{77:020d}.index"):
        (directory / name).write_bytes(b"x")
    (tmp_path / "gone-0.0123-delete").mkdir()
    await bench.start()
    log = await bench.log()
    assert len(read_all(log)) == 4
    await bench.directory.close()
    assert not [name for name in files(directory) if name.endswith((".cleaned", ".deleted", ".tmp")) or "77" in name]
    assert not bench.disk.exists("gone-0.0123-delete")


@pytest.mark.parametrize("how", ["clean", "killed"])
async def test_opens_a_directory_that_apache_kafka_wrote(tmp_path: Path, how: str) -> None:
    """Written by Apache Kafka 4.1.1: five producers, one per codec; `killed` has its preallocated index files."""
    with tarfile.open(APACHE_KAFKA) as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # from 3.11.4 on
        archive.extractall(tmp_path)
    config = replace(FOREVER, index_interval_bytes=1_024)
    bench = Workbench(tmp_path / how, config)
    await bench.start()
    assert (bench.directory.continues.broker_epoch >= 0) is (how == "clean")
    log = bench.directory.get("k", 0)
    assert log is not None
    found: list[tuple[bytes | None, bytes | None]] = []
    offset = 0
    while (region := log.read(offset, 2_000, log.log_end_offset)) is not None:
        data = memoryview(region.read())
        region.release()
        at = 0
        while at < len(data):
            header = read_header(data, at)
            records = decode_records(data, at, header.size, inflated_bytes_max=1 << 20)
            found += [(record.key, record.value) for record in records]
            offset = header.next_offset
            at += header.size
    assert found == [(f"key{n}".encode(), f"value{n}-{'x' * 40}".encode()) for n in range(400)]
    await bench.directory.close_clean(10)
    theirs, ours = files(tmp_path / "clean" / "k-0"), files(tmp_path / how / "k-0")
    for name in theirs:
        if name.endswith((".log", ".index", ".timeindex", "checkpoint")):
            assert ours[name] == theirs[name], name
        elif name.endswith(".snapshot"):  # ours tells older batches behind Kafka's entries
            assert decode_snapshot(ours[name]).entries == decode_snapshot(theirs[name]).entries


async def test_damage_below_the_recovery_point_has_everything_scanned(tmp_path: Path) -> None:
    """Without snapshots the producers are read from trusted segments, where the damage shows."""
    bench, log = await filled(tmp_path)
    first = log.segments[0]
    await bench.directory.checkpoint_recovery_points()
    await bench.directory.close()
    path = tmp_path / f"{first.stem}.log"
    path.write_bytes(b"\xff" * path.stat().st_size)
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    await bench.start()
    log = await bench.log()
    assert "damage_below_recovery_point" in bench.events
    assert (log.log_start_offset, log.log_end_offset, read_all(log)) == (0, 0, [])
    assert bench.directory.continues.broker_epoch == -1
    await bench.directory.close()


def test_the_first_segment_to_scan_holds_the_recovery_point() -> None:
    assert recovery.first_to_scan([0, 10, 20], 0) == 0
    assert recovery.first_to_scan([0, 10, 20], 9) == 0
    assert recovery.first_to_scan([0, 10, 20], 10) == 1
    assert recovery.first_to_scan([0, 10, 20], 99) == 2
    assert recovery.first_to_scan([5], 0) == 0


async def test_a_log_that_starts_over_forgets_its_producers_for_good(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(producer_id=7))
    log.roll(NOW_MS)
    append(log, produced())
    log.advance_log_start(2, "a test")
    await bench.directory.checkpoint_recovery_points()
    await bench.directory.close()
    (tmp_path / "t-0" / f"{1:020d}.log").write_bytes(b"")
    await bench.start()
    log = await bench.log()
    for _ in range(2):
        assert (log.log_start_offset, log.log_end_offset, len(log.producers)) == (2, 2, 0)
        log = await bench.restart(clean=False)
    await bench.directory.close()


@pytest.mark.parametrize(("epoch", "kept"), [(1, False), (2, True), (3, False)])
async def test_a_batch_that_was_cut_and_came_back_does_not_follow_what_took_its_place(
    tmp_path: Path, epoch: int, kept: bool
) -> None:
    """The sizes may fit by chance. Another epoch and a gap, or an epoch that falls, give it away."""
    bench = Workbench(tmp_path)
    log = await bench.log()
    append(log, produced(2), epoch=1)
    append(log, produced(2), epoch=2)
    stale = produced(2)
    stale[0:8] = (7 if epoch > 2 else 4).to_bytes(8, "big")
    stale[12:16] = epoch.to_bytes(4, "big")
    await bench.directory.close()
    path = tmp_path / f"{log.active.stem}.log"
    path.write_bytes(path.read_bytes() + stale)
    await bench.start()
    log = await bench.log()
    assert log.log_end_offset == (6 if kept else 4)
    await bench.directory.close()


async def test_whose_log_it_is_is_flushed_by_the_next_run_if_not_by_that_which_made_it(tmp_path: Path) -> None:
    """A log whose topic nobody can tell is set aside, with all that it holds."""
    bench = Workbench(tmp_path)
    append(await bench.log(), produced())
    log = await bench.restart(clean=False)
    assert bench.disk.fsyncs.count("t-0/partition.metadata") == 0
    append(log, produced())
    await log.flush()
    assert bench.disk.fsyncs.count("t-0/partition.metadata") == 1
    await bench.directory.close()


async def test_a_clean_stop_leaves_a_log_without_records_to_the_next_run(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    await bench.log()
    log = await bench.restart(clean=True)
    assert bench.disk.fsyncs.count("t-0/partition.metadata") == 0
    for _ in range(2):
        append(log, produced())
        await log.flush()
        assert bench.disk.fsyncs.count("t-0/partition.metadata") == 1
    await bench.restart(clean=True)
    append(await bench.log(), produced())
    assert await bench.directory.logs["t", 0].flush() == 3
    assert bench.disk.fsyncs.count("t-0/partition.metadata") == 1
    await bench.directory.close()
