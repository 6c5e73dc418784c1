"""What must stop a start: one line that names it, a status that says so, and nothing touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.embedded import EmbeddedCluster, free_ports
from tests.faults.watched_node import parse_line
from tidelog.cluster.layout import load_layout
from tidelog.command_line import application

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("faults-starts")]

WRONG_SETTING, REFUSED_START = 2, 70
START_S = 30


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=2, controllers=1) as running:
        yield running


@dataclass
class Place:
    """A node's own configuration, to be spoiled, and where its files would lie."""

    settings: dict[str, str]
    root: Path

    def start(
        self, role: str = "broker", spoilt: dict[str, str] | None = None, *, descriptors: int = 0
    ) -> subprocess.CompletedProcess[str]:
        """`tidelog ROLE --config FILE`, with some settings spoilt."""
        line = [sys.executable, "-m", "tidelog", role, "--config", str(self.write(spoilt or {}))]
        if descriptors:
            line = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *line]
        return subprocess.run(line, capture_output=True, text=True, timeout=START_S, check=False)

    def write(self, spoilt: dict[str, str]) -> Path:
        config = self.root / "node.properties"
        config.write_text("".join(f"{name}={value}\n" for name, value in (self.settings | spoilt).items()))
        return config


def place_of(cluster: EmbeddedCluster, name: str, root: Path) -> Place:
    """As the named node has it, with ports and a directory of its own."""
    layout = load_layout(cluster.data)
    assert layout is not None
    node = layout.node(name)
    assert node is not None
    settings = layout.node_settings(node, cluster.data)
    settings["log.dirs"] = str(root / "data")
    settings["tidelog.metrics.listener"] = "127.0.0.1:0"
    port = free_ports(2)
    listeners = [f"INTERNAL://127.0.0.1:{port}"]
    if node.role == "broker":
        listeners.append(f"PLAINTEXT://127.0.0.1:{port + 1}")
    settings["listeners"] = ",".join(listeners)
    return Place(settings, root)


@pytest.fixture
def broker(cluster: EmbeddedCluster, tmp_path: Path) -> Place:
    return place_of(cluster, "broker-1", tmp_path)


def the_line(done: subprocess.CompletedProcess[str]) -> str:
    """The one line, beside mere information, that a refused start leaves; no traceback."""
    assert done.returncode == REFUSED_START, done.stderr
    lines = [parse_line(line) for line in done.stderr.splitlines()]
    (said,) = [line for line in lines if line.get("level") != "info"]
    assert said.get("level") == "critical", said
    assert "exception" not in said
    return said["event"]


@pytest.mark.parametrize(
    ("spoilt", "named"),
    [
        ({"listeners": "PLAINTEXT:/127.0.0.1:9092"}, "listeners"),
        ({"listeners": "PLAINTEXT://127.0.0.1:99999,INTERNAL://127.0.0.1:1"}, "listeners"),
        ({"listeners": "PLAINTEXT://127.0.0.1:9092"}, "inter.broker.listener.name"),
        ({"listeners": "INTERNAL://127.0.0.1:9092"}, "listeners"),
        ({"listeners": "PLAINTEXT://127.0.0.1:1,INTERNAL://0.0.0.0:2"}, "tidelog.internal.allow.plaintext"),
        ({"advertised.listeners": "OTHER://127.0.0.1:1"}, "advertised.listeners"),
        ({"node.id": "-7"}, "node.id"),
        ({"process.roles": "controller"}, "process.roles"),
        ({"log.dirs": "a,b"}, "log.dirs"),
        ({"log.segment.bytes": "1"}, "log.segment.bytes"),
        ({"log.segment.byte": "1"}, "log.segment.bytes"),
        ({"min.insync.replicas": "two"}, "min.insync.replicas"),
        ({"broker.heartbeat.interval.ms": "2900"}, "broker.heartbeat.interval.ms"),
        ({"controller.quorum.voters": "1000"}, "controller.quorum.voters"),
        ({"tidelog.cluster.secret.file": "/nowhere/secret"}, "tidelog.cluster.secret.file"),
        ({"tidelog.cluster.secret.file": "/dev/null"}, "tidelog.cluster.secret.file"),
        ({"tidelog.metrics.listener": "nowhere"}, "tidelog.metrics.listener"),
    ],
    ids=lambda value: next(iter(value.values())) if isinstance(value, dict) else value,
)
def test_a_wrong_setting_is_named_in_one_line(broker: Place, spoilt: dict[str, str], named: str) -> None:
    done = CliRunner().invoke(application(), ["broker", "--config", str(broker.write(spoilt))])
    assert done.exit_code == WRONG_SETTING, done.stderr
    assert named in done.stderr
    assert done.stderr.strip().count("\n") == 0, done.stderr
    assert not Path(broker.settings["log.dirs"]).exists()


@pytest.mark.parametrize("kind", ["PLAINTEXT", "INTERNAL", "metrics"])
def test_a_taken_port_is_named(broker: Place, kind: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        if kind == "metrics":
            done = broker.start(spoilt={"tidelog.metrics.listener": f"127.0.0.1:{port}"})
        else:
            kept = [one for one in broker.settings["listeners"].split(",") if not one.startswith(kind)]
            done = broker.start(spoilt={"listeners": ",".join([*kept, f"{kind}://127.0.0.1:{port}"])})
    said = the_line(done)
    assert f"127.0.0.1:{port}" in said
    assert "Address already in use" in said


def test_an_address_of_another_machine_is_named(broker: Place) -> None:
    internal = broker.settings["listeners"].split(",")[0]
    said = the_line(broker.start(spoilt={"listeners": f"{internal},PLAINTEXT://192.0.2.1:9092"}))
    assert "192.0.2.1:9092" in said


@pytest.mark.parametrize("listener", ["internal", "quorum"])
def test_a_controllers_taken_port_is_named(cluster: EmbeddedCluster, tmp_path: Path, listener: str) -> None:
    place = place_of(cluster, "controller-0", tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        if listener == "internal":
            done = place.start("controller", {"listeners": f"INTERNAL://127.0.0.1:{port}"})
        else:
            done = place.start("controller", {"tidelog.quorum.voters": f"1000@127.0.0.1:{port}"})
    said = the_line(done)
    assert f"127.0.0.1:{port}" in said
    assert "Address already in use" in said


def test_a_directory_in_use_is_named(cluster: EmbeddedCluster, broker: Place) -> None:
    directory = cluster.data / "broker-1"
    said = the_line(broker.start(spoilt={"log.dirs": str(directory)}))
    assert str(directory) in said
    assert "another process" in said


def test_too_few_open_files_are_named(broker: Place) -> None:
    assert "ulimit -n" in the_line(broker.start(descriptors=100))


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda text: text.replace("node.id=1", "node.id=5"), "belongs to node 5, not to 1"),
        (lambda text: text.replace("cluster.id=", "cluster.id=x"), "belongs to cluster x"),
        (lambda text: "node.id=1\n", "meta.properties"),
    ],
    ids=["node", "cluster", "damaged"],
)
def test_a_directory_of_another_node_or_cluster_is_not_used(
    cluster: EmbeddedCluster, broker: Place, spoil: Callable[[str], str], named: str
) -> None:
    data = Path(broker.settings["log.dirs"])
    shutil.copytree(cluster.data / "broker-1", data)
    meta = data / "meta.properties"
    meta.write_text(spoil(meta.read_text()))
    before = sorted(os.listdir(data))
    assert named in the_line(broker.start())
    assert sorted(os.listdir(data)) == before


def test_a_broker_id_that_is_taken_is_refused(cluster: EmbeddedCluster, broker: Place) -> None:
    """Its owner is alive: two brokers of one id would fence each other for ever."""
    said = the_line(broker.start())
    assert "broker 1 cannot register: another process has this node.id" in said
