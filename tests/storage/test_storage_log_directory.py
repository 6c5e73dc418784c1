"""A broker's log directory: identity, creation, strays, deletion, checkpoints, many partitions."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from common.directory_config import DirectoryConfig
from common.errors import StorageFailure
from common.identifiers import uuid_text
from storage.directory import directory_files
from storage.directory.log_directory import LogDirectory
from storage.disk import checkpoint_files
from storage.disk.checkpoint_files import MetaProperties
from tests.storage.log_workbench import (
    CLUSTER,
    FOREVER,
    TOPIC_ID,
    Workbench,
    append,
    checkpoint_high_watermarks,
    produced,
    read_all,
)
from tests.storage.test_storage_log_faults import until

OTHER_ID = bytes(reversed(range(16)))


async def test_identity_is_made_once_and_checked(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    await bench.start()
    first = bench.directory.directory_id
    await bench.directory.close_clean(3)
    await bench.start()
    assert bench.directory.directory_id == first
    assert bench.directory.continues.broker_epoch == 3
    await bench.directory.close()
    for node_id, cluster in ((2, CLUSTER), (1, "another")):
        ports = bench.ports
        with pytest.raises(StorageFailure):
            await LogDirectory(ports, "", node_id, bench.audit, DirectoryConfig()).open(cluster)


async def test_a_directory_below_the_root(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    await bench.start()
    below = LogDirectory(bench.ports, "brokers/1", 1, bench.audit, bench.limits)
    await below.open(CLUSTER)
    await below.recover(lambda topic: FOREVER)
    append(below.create_log("t", 0, TOPIC_ID, FOREVER), produced())
    await below.close_clean(1)
    assert (tmp_path / "brokers/1/t-0" / f"{0:020d}.log").stat().st_size > 0
    assert (tmp_path / "brokers/1/.kafka_cleanshutdown").exists()
    await bench.directory.close()


async def test_files_of_a_new_log_are_apache_kafkas(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    log = await bench.log("orders", 3)
    directory = tmp_path / "orders-3"
    assert bench.disk.list("orders-3") == ["partition.metadata"]  # the rest appears with the first append
    assert (directory / "partition.metadata").read_text() == f"version: 0\ntopic_id: {uuid_text(TOPIC_ID)}"
    append(log, produced(), 5)
    stem = "0" * 20
    assert bench.disk.list("orders-3") == [f"{stem}.index", f"{stem}.log", f"{stem}.timeindex", "partition.metadata"]
    await checkpoint_high_watermarks(bench.directory, {("orders", 3): 1})
    await bench.directory.close_clean(42)
    assert (directory / "leader-epoch-checkpoint").read_text() == "0\n1\n5 0\n"
    assert (tmp_path / "recovery-point-offset-checkpoint").read_text() == "0\n1\norders 3 1\n"
    assert (tmp_path / "replication-offset-checkpoint").read_text() == "0\n1\norders 3 1\n"
    assert (tmp_path / "log-start-offset-checkpoint").read_text() == "0\n0\n"
    assert json.loads((tmp_path / ".kafka_cleanshutdown").read_text()) == {"version": 0, "brokerEpoch": 42}
    meta = checkpoint_files.decode_meta_properties((tmp_path / "meta.properties").read_bytes())
    assert meta == MetaProperties(CLUSTER, 1, bench.directory.directory_id)


async def test_another_topics_log_of_the_same_name_is_set_aside(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    old = await bench.log()
    append(old, produced(3))
    assert await bench.log() is old
    new = bench.directory.create_log("t", 0, OTHER_ID, FOREVER)
    assert (new.log_end_offset, new.topic_id) == (0, OTHER_ID)
    assert old.closed
    stray = [name for name in bench.disk.list("") if name.endswith("-stray")]
    assert len(stray) == bench.directory.stray_count == 1
    assert bench.disk.file_size(f"{stray[0]}/{0:020d}.log") > 0
    await bench.directory.close_clean(1)
    await bench.start()
    assert list(bench.directory.logs) == [("t", 0)]
    assert bench.disk.exists(stray[0])
    assert bench.directory.stray_count == 1
    assert "log_set_aside" in bench.events
    await bench.directory.close()


async def test_deletion_renames_now_and_removes_later(tmp_path: Path) -> None:
    limits = DirectoryConfig(free_bytes_min=0, upkeep_interval_ms=2)
    bench = Workbench(tmp_path, replace(FOREVER, file_delete_delay_ms=5_000), limits)
    log = await bench.log()
    append(log, produced(3))
    region = log.read(0, 1_000, 3)
    assert region is not None
    bench.directory.delete_log(log)
    assert bench.directory.get("t", 0) is None
    names = [name for name in bench.disk.list("") if name.endswith("-delete")]
    assert len(names) == 1
    fresh = await bench.log()
    append(fresh, produced())
    bench.clock.shift_s += 6
    await until(lambda: not bench.disk.exists(names[0]))
    assert len(region.read()) == region.length  # whoever was reading reads on
    region.release()
    assert fresh.log_end_offset == 1
    assert bench.disk.exists("t-0")
    await bench.directory.close()


async def test_readers_outlive_deleted_segments_and_their_files_are_closed_then(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, replace(FOREVER, segment_bytes=300))
    log = await bench.log()
    for _ in range(6):
        append(log, produced(1, size=60))
    region = log.read(0, 1, 6)
    assert region is not None
    assert log.advance_log_start(4, "DeleteRecords")
    moved = dict(bench.audit_lines)["log_start_moved"]
    assert (moved["cause"], moved["before"], moved["after"]) == (
        "DeleteRecords",
        {"log_start_offset": 0},
        {"log_start_offset": 4},
    )
    assert len(region.read()) == region.length
    open_files = bench.directory.open_file_count
    region.release()
    assert bench.directory.open_file_count == open_files - 1
    assert [header.base_offset for header in read_all(log)] == [4, 5]
    log = await bench.restart(clean=True)
    assert log.log_start_offset == 4
    await bench.directory.close()


async def test_the_number_of_open_files_is_bounded(tmp_path: Path) -> None:
    bench = Workbench(tmp_path, limits=DirectoryConfig(free_bytes_min=0, open_files_max=20, slow_write_s=60))
    logs = [await bench.log("t", partition) for partition in range(60)]
    for _ in range(3):
        for log in logs:
            append(log, produced())
        assert bench.directory.open_file_count <= 20
    regions = [log.read(0, 1_000, 3) for log in logs]
    assert all(region is not None and len(region.read()) == region.length for region in regions)
    assert bench.directory.open_file_count == 60  # pinned ones are never closed
    for region in regions:
        assert region is not None
        region.release()
    append(logs[0], produced())
    for log in logs:
        assert len(read_all(log)) >= 3
    assert bench.directory.open_file_count <= 60
    await bench.directory.close()


async def test_two_thousand_partitions_open_after_any_stop(tmp_path: Path) -> None:
    bench = Workbench(tmp_path)
    for partition in range(2_000):
        log = await bench.log("many", partition)
        if partition % 2:
            append(log, produced())
    seen: list[tuple[int, int]] = []
    for stop in (bench.directory.close, lambda: bench.directory.close_clean(1)):
        await stop()
        seen.clear()
        bench.directory = LogDirectory(bench.ports, "", 1, bench.audit, bench.limits)
        await bench.directory.open(CLUSTER)
        await bench.directory.recover(lambda topic: FOREVER, lambda done, total: seen.append((done, total)))
        assert seen[-1] == (2_000, 2_000)
        assert [log.log_end_offset for _, log in sorted(bench.directory.logs.items())] == [0, 1] * 1_000
        assert bench.directory.open_file_count == 0
    await bench.directory.close()


def test_directory_names() -> None:
    assert directory_files.parse_name("my-topic-12") == ("my-topic", 12)
    for name in (
        "topic",
        "topic-",
        "-1",
        "topic-x",
        "topic-01",
        "t-0.0a-delete",
        "t-0.0a-stray",
        "__cluster_metadata-0",
    ):
        assert directory_files.parse_name(name) is None
    long = directory_files.renamed("t" * 249, 7, bytes(16), "-delete")
    assert len(long) == 255
    assert long.endswith(f"-7.{bytes(16).hex()}-delete")


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (checkpoint_files.decode_offsets, b"1\n0\n"),
        (checkpoint_files.decode_offsets, b"0\n2\nt 0 1\n"),
        (checkpoint_files.decode_offsets, b""),
        (checkpoint_files.decode_meta_properties, b"version=0\ncluster.id=x\nnode.id=1\n"),
        (checkpoint_files.decode_meta_properties, b"version=1\ncluster.id=x\nnode.id=1\n"),
        (checkpoint_files.decode_partition_metadata, b"version: 1\ntopic_id: AAECAwQFBgcICQoLDA0ODw"),
        (checkpoint_files.decode_partition_metadata, b"version: 0\n"),
        (checkpoint_files.decode_clean_stop, b"{}"),
        (checkpoint_files.decode_clean_stop, b"\x00"),
    ],
)
def test_damaged_small_files_are_refused(decode: object, data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - its text is for people
        decode(data)  # type: ignore[operator]
