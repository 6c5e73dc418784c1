"""The command as a user types it: a cluster up, asked, hurt, stopped and started again."""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import ConfigResource, ConfigResourceType, KafkaAdminClient

from bench.embedded import EmbeddedCluster, free_ports
from tests.common.metric_rules import problems
from tests.prepared_command import prepared

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def tidelog(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return prepared(words, environment=os.environ | environment)


def test_a_cluster_lives_is_hurt_and_keeps_its_records(tmp_path: Path) -> None:
    data = tmp_path / "cluster"
    with EmbeddedCluster(data=data) as cluster:
        nodes = {node["node"]: node for node in cluster.nodes()}
        assert set(nodes) == {f"{role}-{i}" for role in ("broker", "controller") for i in range(3)}
        broker = nodes["broker-1"]
        assert broker["state"] == "running"
        assert broker["listeners"]["PLAINTEXT"] == f"127.0.0.1:{cluster.port + 1}"
        assert Path(broker["dir"]).is_dir()
        assert_pages_are_served(nodes)
        cluster.command("kill", "broker-1")
        assert {n["node"]: n["state"] for n in cluster.nodes()}["broker-1"] == "stopped"
        again = tidelog("kill", "broker-1", "--data", str(data))
        assert again.returncode == 1
        assert "not running" in again.stderr
        cluster.command("start", "broker-1")
        cluster.command("stop", "controller-0")
        cluster.command("start", "controller-0")
        second = tidelog("up", "--data", str(data), "--detach")
        assert second.returncode == 1
        assert "already" in second.stderr
        at = ("--data", str(data))
        assert tidelog("topics", "create", "words", "--partitions", "2", *at).returncode == 0
        assert tidelog("topics", "alter", "words", "--config", "retention.ms=1000000", *at).returncode == 0
        with KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{cluster.port}") as admin:
            change = {"log.retention.bytes": ("SET", "1000000000")}
            admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, str(i), change) for i in range(3)])
        before = json.loads(tidelog("topics", "describe", "words", "--json", *at).stdout)
        assert before["configs"] == {"retention.ms": "1000000"}, "only what the topic overrides, not a broker"
        assert len(before["partitions"]) == 2
        for wrong in (
            ["words", "--partitions", "1"],
            ["none", "--config", "retention.ms=1"],
            ["none", "--reset", "retention.ms"],
        ):
            refused = tidelog("topics", "alter", *wrong, *at)
            assert (refused.returncode, refused.stderr.count("\n")) == (1, 1), refused.stderr
            assert wrong[0] in refused.stderr
            assert "Request" not in refused.stderr  # the client's own words for what it sent help nobody
        altered = json.loads(tidelog("topics", "alter", "words", "--reset", "retention.ms", "--json", *at).stdout)
        assert altered == {"topic": "words", "altered": ["retention.ms"], "partitions": None}
    with EmbeddedCluster(data=data) as cluster:
        after = json.loads(tidelog("topics", "describe", "words", "--json", *at).stdout)
        assert after["id"] == before["id"]
        listed = json.loads(tidelog("topics", "list", "--json", *at).stdout)
        assert "words" in {row["topic"] for row in listed}
        assert tidelog("topics", "delete", "words", *at).returncode == 0
        missing = tidelog("topics", "describe", "words", *at)
        assert (missing.returncode, missing.stderr) == (1, "tidelog: there is no topic words\n")
        assert json.loads(tidelog("groups", "list", "--json", *at).stdout) == []
        assert tidelog("groups", "describe", "nobody", *at).returncode == 1
    assert tidelog("ps", "--data", str(data)).returncode == 1


def assert_pages_are_served(nodes: dict[str, dict[str, Any]]) -> None:
    for name, node in nodes.items():
        for page in ("healthz", "readyz"):
            assert urllib.request.urlopen(f"http://{node['metrics']}/{page}", timeout=5).read() == b"ok\n"
        metrics = urllib.request.urlopen(f"http://{node['metrics']}/metrics", timeout=5).read()
        one = b"tidelog_log_flushes_total" if name.startswith("broker") else b"tidelog_quorum_journal_syncs_total"
        assert b"\n" + one in metrics
        assert problems(metrics.decode()) == []


def test_the_version_is_that_of_the_package() -> None:
    done = tidelog("--version")
    assert (done.returncode, done.stdout) == (0, f"tidelog {importlib.metadata.version('tidelog')}\n")


def test_no_cluster_is_begun_over_a_store_at_which_nobody_answers(tmp_path: Path) -> None:
    """Neither the cluster nor its settings are there afterwards, so the next `up` is not misled."""
    uri = "s3://bucket/prefix?endpoint=http://127.0.0.1:1"
    words = ("up", "--data", str(tmp_path / "d"), "--detach", "--tier", uri)
    done = tidelog(*words, AWS_ACCESS_KEY_ID="x", AWS_SECRET_ACCESS_KEY="y")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert f"the object store {uri} does not answer" in done.stderr
    assert not (tmp_path / "d").exists()


def test_in_the_foreground_it_ends_on_a_signal_with_status_0(tmp_path: Path) -> None:
    port = free_ports(1)
    line = [sys.executable, "-m", "tidelog", "up", "--data", str(tmp_path / "d"), "--brokers", "1", "--controllers",
            "1", "--port", str(port)]  # fmt: skip
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"ready bootstrap=127.0.0.1:{port}\n"
        process.send_signal(signal.SIGINT)
        more, told = process.communicate(timeout=60)
        assert (process.returncode, more) == (0, "")
    for word in (str(tmp_path / "d"), "/metrics", "NODE.log", "topics create", "Ctrl-C", "stopping: ", "stopped; "):
        assert word in told


def test_a_crashed_node_is_started_again_and_a_lost_supervisor_ends_its_nodes(tmp_path: Path) -> None:
    data = tmp_path / "d"
    port = free_ports(1)
    at = ("--data", str(data))
    up = tidelog("up", *at, "--brokers", "1", "--controllers", "1", "--port", str(port), "--detach")
    assert up.stdout == f"ready bootstrap=127.0.0.1:{port}\n"
    nodes = json.loads(tidelog("ps", *at, "--json").stdout)
    first = next(node["pid"] for node in nodes if node["role"] == "broker")
    os.kill(first, signal.SIGKILL)

    def broker() -> dict[str, object]:
        return next(n for n in json.loads(tidelog("ps", *at, "--json").stdout) if n["role"] == "broker")

    deadline = time.monotonic() + 120
    while not (broker()["state"] == "running" and broker()["pid"] != first):
        assert time.monotonic() < deadline
    pids = [node["pid"] for node in json.loads(tidelog("ps", *at, "--json").stdout)]
    supervisor = int(Path(f"/proc/{pids[0]}/stat").read_text().rsplit(")", 1)[1].split()[1])
    os.kill(supervisor, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < deadline, "nodes outlive their supervisor"
        time.sleep(0.1)


def alive(pid: int) -> bool:
    """A zombie that its new parent has yet to reap counts as dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["up", "--set", "num.partitions=0"], "num.partitions"),
        (["up", "--set", "num.partition=3"], "num.partitions"),
        (["up", "--set", "nonsense"], "NAME=VALUE"),
        (["up", "--brokers", "0"], "--brokers"),
        (["up", "--controllers", "2"], "--controllers"),
        (["up", "--port", "70000"], "--port"),
        (["up", "--set", "log.dirs=/tmp/x"], "log.dirs"),
        (["up", "--tier", "tier"], "tidelog.tier.uri"),
        (["up", "--tenants", "demo"], "--proxies"),
        (["config", "--describe", "no.such"], "no.such"),
        (["broker"], "node.id"),
        (["controller", "--set", "node.id=1"], "controller.quorum.voters"),
        (["topics", "create", "t", "--config", "retention.ms=x", "--data", "."], "retention.ms"),
        (["topics", "alter", "t", "--reset", "no.such", "--data", "."], "no.such"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_names_it(tmp_path: Path, words: list[str], named: str) -> None:
    if words[0] == "up":
        words = [*words, "--data", str(tmp_path / "d")]
    done = tidelog(*words)
    assert done.returncode == 2, done.stderr
    assert named in done.stderr
    assert "Traceback" not in done.stderr


def test_a_configuration_that_is_no_text_is_named(tmp_path: Path) -> None:
    config = tmp_path / "broker.properties"
    config.write_bytes(b"\xff\xfe")
    done = tidelog("broker", "--config", str(config))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert str(config) in done.stderr


def test_a_variable_sets_a_setting_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    done = tidelog("up", "--data", str(tmp_path / "d"), TIDELOG_NUM_PARTITIONS="none")
    assert done.returncode == 2
    assert "num.partitions" in done.stderr


def test_every_setting_is_described() -> None:
    rows = json.loads(tidelog("config", "--json").stdout)
    assert {"name", "type", "default", "range", "meaning", "needs_restart"} <= set(rows[0])
    one = json.loads(tidelog("config", "--describe", "log.segment.bytes", "--json").stdout)
    assert one["default"] == str(1 << 30)
    assert one["variable"] == "TIDELOG_LOG_SEGMENT_BYTES"


def test_a_foreign_request_to_the_health_page_is_answered(tmp_path: Path) -> None:
    with EmbeddedCluster(brokers=1, data=tmp_path / "d") as cluster:
        address = cluster.nodes()[0]["metrics"]
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{address}/etc/passwd", timeout=5)
        with pytest.raises(urllib.error.HTTPError, match="405"):
            urllib.request.urlopen(f"http://{address}/metrics", data=b"x", timeout=5)
