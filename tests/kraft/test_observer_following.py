"""Observers: they only go forward, remember on disk, and know when they do not belong."""

from __future__ import annotations

import asyncio
import errno
import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from common.backoff import Backoff
from common.errors import ProtocolError, StorageFailure
from common.machine_disk import MachineDisk
from common.pacing import Pacer
from common.ports import Disk
from kraft.batches import Batch, BatchHeader
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.metadata_log import MetadataLog, frame_batch, unframe_batches
from kraft.observers.local_copy import LocalCopy
from kraft.observers.observer import MetadataObserver, ObserverConfig
from kraft.records import NoOpRecord, TopicRecord
from tests.kraft.observed_log import Controller, LocalLinks, Writer
from tests.storage.log_workbench import FaultyDisk
from tests.virtual_time import lab_ports

pytestmark = pytest.mark.virtual_time


def observer_of(
    links: LocalLinks, root: Path, fatal: list[str] | None = None, node_id: int = 0, disk: Disk | None = None
) -> MetadataObserver:
    config = ObserverConfig(
        node_id,
        "metadata",
        fetch_wait_s=0.05,
        backoff=Backoff(0.005, 0.02),
        avoid_s=0.05,
        ahead_patience_s=0.2,
        persist_pause_s=0.001,
        room_pause_s=0.005,
    )
    on_fatal = fatal.append if fatal is not None else pytest.fail
    ports = replace(lab_ports(root), disk=disk or MachineDisk(root))
    return MetadataObserver(ports, links, links.addresses, config, Pacer(), on_fatal)


def three(writer: Writer, **options: int) -> LocalLinks:
    controllers = {node_id: Controller(writer, **options) for node_id in (100, 101, 102)}
    for controller in controllers.values():
        controller.learn()
    return LocalLinks(controllers)


def learn_all(links: LocalLinks) -> None:
    for controller in links.controllers.values():
        controller.learn()


async def seen(observer: MetadataObserver, writer: Writer) -> MetadataImage:
    assert await observer.wait_for(writer.end - 1, 5)
    return observer.image


async def test_it_follows_and_tells_its_subscribers_everything_in_order(tmp_path: Path) -> None:
    writer = Writer()
    links = three(writer)
    observer = observer_of(links, tmp_path)
    steps: list[tuple[int, int]] = []
    observer.subscribe(lambda delta, image: steps.append((delta.base.offset, image.offset)))
    await observer.start()
    for i in range(20):
        writer.topic(f"t{i}")
        learn_all(links)
        await asyncio.sleep(0.002)
    image = await seen(observer, writer)
    assert sorted(image.topics.by_name) == sorted(f"t{i}" for i in range(20))
    assert image == links.controllers[100].machine.image
    assert steps[0][0] == -1
    assert all(a[1] == b[0] for a, b in itertools.pairwise(steps))
    await observer.stop()


async def test_a_controller_that_is_behind_is_left_for_another(tmp_path: Path) -> None:
    writer = Writer()
    links = three(writer)
    observer = observer_of(links, tmp_path)
    await observer.start()
    writer.topic("a")
    learn_all(links)
    await seen(observer, writer)
    links.controllers[100].up = False  # the active one; 101 stays behind from here on
    writer.lead(102)
    writer.topic("b")
    links.controllers[102].learn()
    image = await seen(observer, writer)
    assert "b" in image.topics
    assert image.leader_id == 102
    await observer.stop()


async def test_a_controller_out_of_touch_with_a_quorum_serves_nothing(tmp_path: Path) -> None:
    writer = Writer()
    links = three(writer)
    for node_id in (100, 101):
        links.controllers[node_id].in_touch = False
    observer = observer_of(links, tmp_path)
    await observer.start()
    await seen(observer, writer)
    assert 102 in links.connects
    await observer.stop()


async def test_an_observer_tells_how_old_its_image_may_be(tmp_path: Path) -> None:
    """Without a record that changes nothing: an answer is enough, and only one in touch with a majority counts."""
    writer = Writer()
    links = three(writer)
    observer = observer_of(links, tmp_path)
    await observer.start()
    image = await seen(observer, writer)
    for controller in links.controllers.values():
        controller.in_touch = False
    async with asyncio.timeout(5):
        while observer.heard_s < 0.3:  # noqa: ASYNC110  no event tells of silence
            await asyncio.sleep(0.01)
        for controller in links.controllers.values():
            controller.in_touch = True
        while observer.heard_s > 0.2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert observer.image is image, "nothing was committed meanwhile"
    await observer.stop()


async def test_it_prefers_the_active_controller(tmp_path: Path) -> None:
    writer = Writer()
    links = three(writer)
    observer = observer_of(links, tmp_path, node_id=1)
    await observer.start()
    await seen(observer, writer)
    await asyncio.sleep(0.2)
    assert links.connects[-1] == 100
    await observer.stop()


async def test_a_restart_begins_at_its_own_end(tmp_path: Path) -> None:
    writer = Writer()
    links = three(writer)
    observer = observer_of(links, tmp_path)
    await observer.start()
    writer.topic("a")
    learn_all(links)
    held = await seen(observer, writer)
    await observer.stop()
    writer.topic("b")
    learn_all(links)
    for controller in links.controllers.values():
        controller.fetches.clear()
    again = observer_of(links, tmp_path)
    await again.start()
    assert again.image == held  # before any controller was asked
    await seen(again, writer)
    assert min(f for c in links.controllers.values() for f in c.fetches) == held.next_offset
    await again.stop()


async def test_too_far_behind_for_the_tail_it_takes_a_snapshot_and_keeps_it(tmp_path: Path) -> None:
    writer = Writer()
    links = three(writer, batches_max=10)
    for i in range(50):
        writer.topic(f"t{i}")
    learn_all(links)
    observer = observer_of(links, tmp_path)
    await observer.start()
    image = await seen(observer, writer)
    assert sum(c.snapshots_sent for c in links.controllers.values()) > 0
    assert image == links.controllers[100].machine.image
    await observer.stop()
    again = observer_of(links, tmp_path)
    await again.start()
    assert again.image == image
    await again.stop()


async def test_local_metadata_ahead_of_the_quorum_is_fatal(tmp_path: Path) -> None:
    writer = Writer()
    for i in range(5):
        writer.topic(f"t{i}")
    links = three(writer)
    observer = observer_of(links, tmp_path)
    await observer.start()
    await seen(observer, writer)
    await observer.stop()
    younger = Writer()  # the controllers' disks were wiped: the same cluster id, a shorter history
    fatal: list[str] = []
    again = observer_of(three(younger), tmp_path, fatal)
    await again.start()
    async with asyncio.timeout(5):
        while not fatal:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(fatal) == 1
    assert "quorum" in fatal[0]
    await again.stop()


async def test_a_lagging_follower_is_no_reason_to_stop(tmp_path: Path) -> None:
    writer = Writer()
    links = three(writer)
    observer = observer_of(links, tmp_path)
    await observer.start()
    writer.topic("a")
    links.controllers[100].learn()
    await seen(observer, writer)
    links.controllers[100].up = False
    await asyncio.sleep(0.5)  # longer than the patience; 101 and 102 say that they are behind
    links.controllers[100].up = True
    writer.topic("b")
    learn_all(links)
    await seen(observer, writer)
    await observer.stop()


async def test_another_history_at_the_same_offset_is_fatal(tmp_path: Path) -> None:
    writer = Writer()
    writer.topic("a")
    observer = observer_of(three(writer), tmp_path)
    await observer.start()
    await seen(observer, writer)
    await observer.stop()
    other = Writer()
    other.lead(100)
    other.topic("x")
    other.topic("y")
    fatal: list[str] = []
    again = observer_of(three(other), tmp_path, fatal)
    await again.start()
    async with asyncio.timeout(5):
        while not fatal:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "differs" in fatal[0]
    await again.stop()


async def test_another_cluster_is_fatal(tmp_path: Path) -> None:
    observer = observer_of(three(Writer()), tmp_path)
    await observer.start()
    assert await observer.wait_until(lambda image: image.cluster_id is not None, 5)
    await observer.stop()
    fatal: list[str] = []
    again = observer_of(three(Writer("BBBBBBBBBBBBBBBBBBBBBB")), tmp_path, fatal)
    await again.start()
    async with asyncio.timeout(5):
        while not fatal:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "cluster" in fatal[0]
    await again.stop()


async def test_whoever_waits_can_tell_why(tmp_path: Path) -> None:
    links = three(Writer())
    for controller in links.controllers.values():
        controller.up = False
    observer = observer_of(links, tmp_path)
    await observer.start()
    assert not await observer.wait_for(10_000, 0.05)
    assert observer.trouble in {f"controller {node_id}: refused" for node_id in links.controllers}
    await observer.stop()


async def test_waiting_gives_up_in_time(tmp_path: Path) -> None:
    links = three(Writer())
    observer = observer_of(links, tmp_path)
    await observer.start()
    assert not await observer.wait_for(10_000, 0.05)
    await observer.stop()


# -- the local copy


def batches(count: int) -> list[Batch]:
    return [
        Batch(BatchHeader(1, 1, i + 1, i), [TopicRecord(f"t{i}", bytes([1, i // 256, i % 256, *([0] * 13)]))])
        for i in range(count)
    ]


def copied(disk: MachineDisk, saved: list[Batch], tail_bytes_max: int = 1 << 20) -> LocalCopy:
    copy = LocalCopy(disk, "m", tail_bytes_max)
    image = copy.load()
    for batch in saved:
        delta = MetadataDelta(image)
        delta.replay_batch(batch)
        image = delta.image()
        copy.save(bytes(frame_batch(batch)), image)
    copy.close()
    return copy


def loaded(disk: MachineDisk) -> MetadataImage:
    copy = LocalCopy(disk, "m")
    try:
        return copy.load()
    finally:
        copy.close()


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    copied(disk, batches(30))
    assert loaded(disk).offset == 29
    assert len(loaded(disk).topics) == 30


def test_a_torn_or_damaged_end_is_cut_and_the_rest_is_kept(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    copied(disk, batches(10))
    whole = (tmp_path / "m/tail").read_bytes()
    (tmp_path / "m/tail").write_bytes(whole[:-5])
    assert loaded(disk).offset == 8
    assert loaded(disk).offset == 8
    (tmp_path / "m/tail").write_bytes(whole[:-5] + b"\xff" * 5)
    assert loaded(disk).offset == 8
    (tmp_path / "m/tail").write_bytes(whole + bytes(100))
    assert loaded(disk).offset == 9
    assert (tmp_path / "m/tail").stat().st_size == len(whole)


def test_a_long_tail_becomes_a_snapshot_and_old_batches_before_it_are_skipped(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    made = batches(40)
    copied(disk, made, tail_bytes_max=1000)
    assert (tmp_path / "m/snapshot").exists()
    assert (tmp_path / "m/tail").stat().st_size <= 1000
    assert loaded(disk).offset == 39
    frames = b"".join(frame_batch(batch) for batch in made)
    (tmp_path / "m/tail").write_bytes(frames)  # as a crash between rename and truncation leaves it
    assert loaded(disk).offset == 39
    assert len(loaded(disk).topics) == 40


async def test_a_copy_without_room_is_written_later(tmp_path: Path) -> None:
    writer, disk = Writer(), FaultyDisk(tmp_path)
    links = three(writer)
    observer = observer_of(links, tmp_path, disk=disk)
    await observer.start()
    disk.write_errno, before = errno.ENOSPC, disk.writes_refused
    for i in range(3):
        writer.topic(f"t{i}")
        learn_all(links)
        await seen(observer, writer)  # it goes on from memory
    for _ in range(1_000):
        await asyncio.sleep(0.001)
        if disk.writes_refused > before + 3:
            break
    assert disk.writes_refused > before + 3
    disk.write_errno = None
    writer.topic("last")
    learn_all(links)
    image = await seen(observer, writer)
    await observer.stop()
    assert LocalCopy(MachineDisk(tmp_path), "metadata").load() == image


async def test_a_stop_does_not_wait_for_room(tmp_path: Path) -> None:
    writer, disk = Writer(), FaultyDisk(tmp_path)
    links = three(writer)
    observer = observer_of(links, tmp_path, disk=disk)
    await observer.start()
    disk.write_errno = errno.ENOSPC
    writer.topic("t")
    learn_all(links)
    await seen(observer, writer)
    async with asyncio.timeout(5):
        await observer.stop()


def test_a_damaged_snapshot_is_refused(tmp_path: Path) -> None:
    disk = MachineDisk(tmp_path)
    copied(disk, batches(40), tail_bytes_max=1000)
    data = bytearray((tmp_path / "m/snapshot").read_bytes())
    data[10] ^= 1
    (tmp_path / "m/snapshot").write_bytes(bytes(data))
    with pytest.raises(StorageFailure, match="checksum"):
        loaded(disk)


def test_a_new_directory_is_empty(tmp_path: Path) -> None:
    assert loaded(MachineDisk(tmp_path)) == EMPTY_IMAGE


# -- the log of committed batches


def log_of(count: int, batches_max: int = 1000, bytes_max: int = 1 << 20) -> MetadataLog:
    log = MetadataLog(batches_max, bytes_max)
    base = 0
    for i in range(count):
        size = i % 3 + 1
        log.append(Batch(BatchHeader(1 + i // 10, 1, i + 1, base), [NoOpRecord()] * size))
        base += size
    return log


def test_reading_gives_whole_batches_from_the_one_that_holds_the_offset() -> None:
    log = log_of(30)
    for offset in range(log.end_offset):
        found = list(unframe_batches(memoryview(log.read(offset, 1) or b"")))
        assert len(found) == 1
        assert found[0].batch.header.base_offset <= offset < found[0].batch.end_offset
    whole = list(unframe_batches(memoryview(log.read(0, 1 << 30) or b"")))
    assert [b.batch.header.base_offset for b in whole][:4] == [0, 1, 3, 6]
    assert whole[-1].batch.end_offset == log.end_offset
    assert log.read(log.end_offset, 100) == b""


def test_the_tail_is_bounded_and_knows_where_it_begins() -> None:
    log = log_of(200, batches_max=40)
    assert 40 <= log.batch_count <= 60
    assert log.read(0, 100) is None
    assert log.read(log.start_offset - 1, 100) is None
    first = next(iter(unframe_batches(memoryview(log.read(log.start_offset, 1) or b""))))
    assert first.batch.header.base_offset == log.start_offset
    small = log_of(200, bytes_max=2000)
    assert small.batch_count < 60
    assert len(small.read(small.start_offset, 1 << 30) or b"") <= 3000


def test_epochs_of_offsets() -> None:
    log = log_of(30)
    by_end = {
        b.batch.end_offset: b.batch.header.epoch for b in unframe_batches(memoryview(log.read(0, 1 << 30) or b""))
    }
    for end, epoch in by_end.items():
        assert log.epoch_before(end) == epoch
    assert log.epoch_before(0) == 0
    assert log.epoch_before(log.end_offset + 1) is None
    cut = log_of(200, batches_max=40)
    assert cut.epoch_before(cut.start_offset - 1) is None
    assert cut.epoch_before(cut.start_offset) is not None


def test_a_damaged_frame_is_an_error_and_a_torn_one_the_end() -> None:
    frames = bytearray(log_of(3).read(0, 1 << 20) or b"")
    assert len(list(unframe_batches(memoryview(frames[:-1])))) == 2
    frames[-1] ^= 1
    with pytest.raises(ProtocolError):
        list(unframe_batches(memoryview(frames)))
