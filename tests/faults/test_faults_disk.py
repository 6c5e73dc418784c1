"""A disk without room: producers are told, readers and deletions go on, and freed room ends it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from common.errors import ErrorCode
from tests.faults.raw_client import wait_until
from tests.faults.watched_node import WatchedNode, delete_topic, fetch_request, make_topic, produce, some_batch

pytestmark = [pytest.mark.processes, pytest.mark.timeout(400), pytest.mark.xdist_group("faults-disk")]

DISK_BYTES, ONE_DISK_BYTES = "384m", "192m"
SCRIPT_S = 300
MOUNT = 'mkdir -p "$2" && mount -t tmpfs -o size="$1" none "$2"'


@cache
def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(["unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    return tried.returncode == 0


@pytest.mark.parametrize("kind", ["all", "one", "near"])
def test_a_full_disk_loses_nothing_and_service_comes_back(tmp_path: Path, kind: str) -> None:
    if not can_mount():
        pytest.skip("no small file system can be mounted here")
    size, disk = (DISK_BYTES, "") if kind == "all" else (ONE_DISK_BYTES, "cluster/broker-1")
    run = [sys.executable, "-m", "tests.faults.full_disk", kind, str(tmp_path)]
    line = ["unshare", "-m", "sh", "-c", MOUNT + ' && shift 2 && exec "$@"', "sh", size, str(tmp_path / disk), *run]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as script:
        try:
            said, _ = script.communicate(timeout=SCRIPT_S)
        finally:
            script.terminate()
    assert script.returncode == 0, said


def test_below_the_least_free_bytes_writes_are_refused_until_there_is_room(tmp_path: Path) -> None:
    plenty = shutil.disk_usage(tmp_path).free * 4
    cluster = EmbeddedCluster(brokers=1, controllers=1, data=tmp_path / "d")
    with cluster:
        with WatchedNode(cluster).connect() as client:
            topic = make_topic(client)
            assert produce(client, topic, some_batch()).error_code == 0
        cluster.command("down")
        _set(cluster, str(plenty))
        with WatchedNode(cluster).connect() as client:
            wait_until(lambda: produce(client, topic, some_batch()).error_code == ErrorCode.KAFKA_STORAGE_ERROR)
            (read,) = client.ask(fetch_request(topic), 11).responses[0].partitions
            assert read.records
            delete_topic(client, topic)
        cluster.command("down")
        _set(cluster, "0")
        with WatchedNode(cluster).connect() as client:
            assert produce(client, make_topic(client), some_batch()).error_code == 0


def _set(cluster: EmbeddedCluster, least: str) -> None:
    cluster.settings["log.dir.free.bytes.min"] = least
    cluster.up()
