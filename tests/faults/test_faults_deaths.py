"""Controllers die, freeze or lose their directory under load: metadata and records survive, service comes back."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad
from tests.faults.raw_client import wait_until
from tests.faults.watched_node import WatchedNode, make_topic, produce, rows, some_batch
from tidelog.cluster.layout import load_layout

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("faults-deaths")]

ACTIVE_GAUGE = "tidelog_controller_active"
CONTROLLERS = 3
PATIENCE_S = 60.0  # for what has to come; how fast it comes is measured elsewhere, where nothing else runs
FLOWS = 200  # records that must be acknowledged


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {"log.dir.free.bytes.min": "0", "tidelog.balance.moves.max": "1"}
    with EmbeddedCluster(settings=settings) as running:
        yield running


@pytest.fixture
def load(cluster: EmbeddedCluster) -> Iterator[SteadyLoad]:
    """Acknowledged records all the while; at the end every one is there, once and in order."""
    wait_until(lambda: all(row["state"] == "running" for row in rows(cluster)), PATIENCE_S)
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

    wait_until(is_found, PATIENCE_S)
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


def wait_for_metadata(cluster: EmbeddedCluster) -> None:
    """Until a topic can be made, which needs a majority and an active controller. Raises TimeoutError."""

    def made() -> bool:
        try:
            with WatchedNode(cluster).connect() as client:
                client.socket.settimeout(3)
                return produce(client, make_topic(client), some_batch()).error_code in (0, 5, 6)
        except (OSError, AssertionError, EOFError):
            return False

    wait_until(made, PATIENCE_S)


def wait_flowing(load: SteadyLoad) -> None:
    """Until records that were not yet sent are acknowledged. Raises TimeoutError."""
    acknowledged = len(load.acknowledged)
    wait_until(lambda: len(load.acknowledged) >= acknowledged + FLOWS, PATIENCE_S)


def test_a_killed_active_controller_is_replaced(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    name = active_controller(cluster)
    cluster.kill(name)
    wait_for_metadata(cluster)
    assert active_controller(cluster) != name
    wait_flowing(load)
    cluster.command("start", name)


def test_records_need_no_controller(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    pids = [row["pid"] for row in rows(cluster) if row["role"] == "controller"]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_flowing(load)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    wait_for_metadata(cluster)


def test_a_killed_follower_of_the_quorum_is_not_missed(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    active = active_controller(cluster)
    name = next(f"controller-{n}" for n in range(CONTROLLERS) if f"controller-{n}" != active)
    cluster.kill(name)
    wait_for_metadata(cluster)
    wait_flowing(load)
    cluster.command("start", name)


def test_a_frozen_active_controller_is_replaced_and_steps_down(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    name = active_controller(cluster)
    frozen = WatchedNode(cluster, name)
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        wait_for_metadata(cluster)
        wait_flowing(load)
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    wait_until(lambda: any("resigned" in line.get("event", "") for line in frozen.log_lines()), PATIENCE_S)
    wait_for_metadata(cluster)


def test_a_leader_and_the_active_controller_killed_together(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    names = [active_controller(cluster), f"broker-{load.leader()}"]
    pids = [WatchedNode(cluster, name).pid for name in names]
    kill_all(pids)
    wait_flowing(load)
    wait_for_metadata(cluster)


def test_all_controllers_killed_at_once_come_back_by_themselves(cluster: EmbeddedCluster, load: SteadyLoad) -> None:
    pids = [row["pid"] for row in rows(cluster) if row["role"] == "controller"]
    kill_all(pids)
    wait_flowing(load)
    wait_for_metadata(cluster)
    wait_until(lambda: all(row["state"] == "running" for row in rows(cluster)), PATIENCE_S)


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
    wait_for_metadata(cluster)  # the other two go on
    cluster.command("stop", name)
    replace_voter(cluster, name)
    cluster.command("start", name)
    wait_for_metadata(cluster)
    cluster.kill(active_controller(cluster))  # now the one that was replaced is needed for a majority
    wait_for_metadata(cluster)
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
    said: list[str] = []
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for text in process.stderr:
                said.append(text)
                if "node serves" in text:
                    break
        finally:
            process.send_signal(signal.SIGTERM)
            said += process.stderr
            print("".join(said))  # shown when this test fails, whatever it is that fails
    assert any("node serves" in text for text in said)
    assert process.returncode == 0


def test_a_broker_goes_on_filling_when_the_active_controller_is_killed(
    cluster: EmbeddedCluster, load: SteadyLoad
) -> None:
    """The next controller continues the operation where it was, and no partition moves twice."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    topic = NewTopic("levelled", 24, 3, config={"min.insync.replicas": "2"})
    admin.create_topics([topic])["levelled"].result(PATIENCE_S)
    name = active_controller(cluster)
    (added,) = json.loads(cluster.command_of("brokers", "add", "--json"))
    broker = int(added["id"])

    def filling() -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """The operation, and its moves."""
        found = json.loads(cluster.command_of("balance", "history", "--limit", "1000", "--json"))
        (operation,) = [row for row in found["operations"] if row["brokers"] == [broker]]
        return operation, [row for row in found["moves"] if row["operation"] == operation["id"]]

    wait_until(lambda: filling()[0]["moves_done"] > 0, PATIENCE_S)
    assert filling()[0]["state"] == "running", "it has more to move, one partition at a time"
    cluster.kill(name)
    assert active_controller(cluster) != name
    wait_until(lambda: filling()[0]["state"] != "running", PATIENCE_S)
    operation, moves = filling()
    assert operation["state"] == "done"
    assert {row["outcome"] for row in moves} == {"done"}
    moved = Counter((row["topic"], row["partition"]) for row in moves)
    assert len(moved) == len(moves) == operation["moves_done"] > 1, "each partition rests where it has moved"
    for topic in {row["topic"] for row in moves}:
        described = json.loads(cluster.command_of("topics", "describe", topic, "--json"))
        replicas = {row["partition"]: row["replicas"] for row in described["partitions"]}
        assert all(len(brokers) == 3 for brokers in replicas.values()), "no move is left in its middle"
        assert all(broker in replicas[row["partition"]] for row in moves if row["topic"] == topic)
    cluster.command("start", name)
