"""Controllers die, freeze or lose their directory under load: metadata and records survive, service comes back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial

import pytest

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad
from tests.faults.raw_client import wait_until
from tests.faults.watched_node import WatchedNode, make_topic, produce, rows, some_batch
from tidelog.cluster_layout import load_layout

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240), pytest.mark.xdist_group("faults-deaths")]

ACTIVE_GAUGE = "tidelog_controller_active"
CONTROLLERS = 3
SERVES_AGAIN_S = 10.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(settings={"log.dir.free.bytes.min": "0"}) as running:
        yield running


@pytest.fixture
def load(cluster: EmbeddedCluster) -> Iterator[SteadyLoad]:
    """Acknowledged records all the while; at the end every one is there, once and in order."""
    wait_until(lambda: all(row["state"] == "running" for row in rows(cluster)), 60)
    load = SteadyLoad(cluster.bootstrap)
    try:
        load.wait_flowing()
        yield load
        load.wait_flowing()
    finally:
        outcome = load.finish()
    assert not (outcome["lost"] or outcome["doubled"] or outcome["reordered"] or outcome["unflushed"]), outcome
    assert outcome["acknowledged"] > 100


def active_controller(cluster: EmbeddedCluster) -> str:
    """The one whose page says so; TimeoutError when there is none."""
    found: list[str] = []

    def is_found() -> bool:
        voters = [row for row in rows(cluster) if row["role"] == "controller" and row["state"] == "running"]
        found[:] = [row["node"] for row in voters if _is_active(row["metrics"])]
        return len(found) == 1

    wait_until(is_found)
    return found[0]


def _is_active(page: str) -> bool:
    try:
        text = urllib.request.urlopen(f"http://{page}/metrics", timeout=1).read().decode()
    except OSError:
        return False
    return any(line.startswith(ACTIVE_GAUGE + " 1") for line in text.splitlines())


def kill_all(pids: list[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def metadata_answers_again(cluster: EmbeddedCluster) -> float:
    """Seconds until a topic can be made, which needs a majority and an active controller."""
    began = time.monotonic()

    def made() -> bool:
        try:
            with WatchedNode(cluster).connect() as client:
                client.socket.settimeout(3)
                return produce(client, make_topic(client), some_batch()).error_code in (0, 5, 6)
        except (OSError, AssertionError, EOFError):
            return False

    wait_until(made, 30)
    return time.monotonic() - began


def test_a_killed_active_controller_is_replaced(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    name = active_controller(cluster)
    gap = load.gap(lambda: cluster.kill(name), watch_s=2)
    assert metadata_answers_again(cluster) < SERVES_AGAIN_S
    assert active_controller(cluster) != name
    assert gap < 1.0  # records need no controller
    cluster.command("start", name)


def test_a_killed_follower_of_the_quorum_is_not_missed(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    active = active_controller(cluster)
    name = next(f"controller-{n}" for n in range(CONTROLLERS) if f"controller-{n}" != active)
    gap = load.gap(lambda: cluster.kill(name), watch_s=1)
    assert metadata_answers_again(cluster) < 3.0
    assert active_controller(cluster) == active
    assert gap < 1.0
    cluster.command("start", name)


def test_a_frozen_active_controller_is_replaced_and_steps_down(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    name = active_controller(cluster)
    pid = WatchedNode(cluster, name).pid
    os.kill(pid, signal.SIGSTOP)
    try:
        gap = load.gap(lambda: None, watch_s=2)
        assert metadata_answers_again(cluster) < SERVES_AGAIN_S
        assert gap < 6.0
    finally:
        os.kill(pid, signal.SIGCONT)
    assert active_controller(cluster) != name


def test_a_leader_and_the_active_controller_killed_together(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    names = [active_controller(cluster), f"broker-{load.leader()}"]
    pids = [WatchedNode(cluster, name).pid for name in names]
    gap = load.gap(partial(kill_all, pids), watch_s=4)
    assert gap < SERVES_AGAIN_S
    assert metadata_answers_again(cluster) < SERVES_AGAIN_S


def test_all_controllers_killed_at_once_come_back_by_themselves(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    pids = [row["pid"] for row in rows(cluster) if row["role"] == "controller"]
    gap = load.gap(partial(kill_all, pids), watch_s=4)
    assert gap < SERVES_AGAIN_S
    assert metadata_answers_again(cluster) < SERVES_AGAIN_S
    wait_until(lambda: all(row["state"] == "running" for row in rows(cluster)))


def test_an_emptied_controller_does_not_join_quietly(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    name = next(f"controller-{n}" for n in range(CONTROLLERS) if f"controller-{n}" != active_controller(cluster))
    node = WatchedNode(cluster, name)
    cluster.kill(name)
    shutil.rmtree(node.row["dir"])
    with pytest.raises(RuntimeError, match="instead of serving"):
        cluster.command("start", name)
    said = [line for line in node.log_lines() if line.get("level") in ("error", "critical")]
    assert said
    assert "directory is empty" in said[0]["event"]
    assert "tidelog.controllers.replace.voter" in said[0]["event"]
    assert not any("exception" in line for line in said)
    assert metadata_answers_again(cluster) < 3.0  # the other two go on
    cluster.command("stop", name)
    replace_voter(cluster, name)
    cluster.command("start", name)
    assert metadata_answers_again(cluster) < 3.0
    cluster.kill(active_controller(cluster))  # now the one that was replaced is needed for a majority
    assert metadata_answers_again(cluster) < SERVES_AGAIN_S
    for row in rows(cluster):
        if row["state"] == "stopped":
            cluster.command("start", row["node"])


def replace_voter(cluster: EmbeddedCluster, name: str) -> None:
    """As an operator does it: in the foreground, with the setting that allows it, until it serves."""
    layout = load_layout(cluster.data)
    assert layout is not None
    node = layout.node(name)
    assert node is not None
    config = cluster.data / "replaced.properties"
    config.write_text("".join(f"{n}={v}\n" for n, v in layout.node_settings(node, cluster.data).items()))
    line = [sys.executable, "-m", "tidelog", "controller", "--config", str(config), "--set",
            "tidelog.controllers.replace.voter=true"]  # fmt: skip
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = next(text for text in process.stderr if "node serves" in text or "level=critical" in text)
            assert "node serves" in said
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0, said
