"""Nodes that end by themselves again and again: started ever more seldom, and asked why."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.embedded import free_ports
from tests.tidelog.test_tidelog_command import tidelog
from tidelog.cluster import supervisor as module
from tidelog.cluster.layout import ClusterLayout, NodeLayout
from tidelog.cluster.node_child import Child, stop_timeout_s
from tidelog.cluster.supervisor import RESTART_BACKOFF_S, Supervisor


@pytest.fixture
def child(tmp_path: Path) -> tuple[Supervisor, Child, list[str]]:
    """A supervisor whose one node is a process that only says something and ends."""
    said: list[str] = []
    node = NodeLayout("broker-0", "broker", 0, 9092, 9093, 9094)
    (tmp_path / "logs").mkdir()
    supervisor = Supervisor(tmp_path, ClusterLayout(9092, [node], {}), said.append)
    return supervisor, supervisor._children["broker-0"], said


def lives(supervisor: Supervisor, child: Child, work: Callable[[int], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """One life of the child: it does `work` with its pipe and ends with what that returns."""

    def become(_: object, status_fd: int) -> None:
        os._exit(work(status_fd))

    monkeypatch.setattr(supervisor, "_become", become)
    supervisor._start(child)
    _, status = os.waitpid(child.pid, 0)
    supervisor._ended(child, os.waitstatus_to_exitcode(status))


def test_the_pauses_grow_to_a_minute_and_a_steady_life_ends_them(
    child: tuple[Supervisor, Child, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, node, _ = child
    now = 1_000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    pauses = []
    for _ in range(11):
        lives(supervisor, node, lambda fd: 70, monkeypatch)
        assert node.restart_at is not None
        pauses.append(node.restart_at - now)
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == RESTART_BACKOFF_S[-1] == 60.0
    monkeypatch.setattr(module, "STEADY_S", -1.0)
    lives(supervisor, node, lambda fd: 70, monkeypatch)
    assert node.restart_at is not None
    assert node.restart_at - now == pytest.approx(RESTART_BACKOFF_S[0])


def test_its_last_words_are_kept_until_it_serves(
    child: tuple[Supervisor, Child, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, node, said = child

    def fails(fd: int) -> int:
        os.write(fd, b"fatal the directory belongs to another cluster\n")
        return 70

    lives(supervisor, node, fails, monkeypatch)
    assert supervisor._row(node)["reason"] == "status 70: the directory belongs to another cluster"
    assert "the directory belongs to another cluster" in said[-1]

    def serves_and_dies(fd: int) -> int:
        os.write(fd, b"ready\n")
        return 9

    lives(supervisor, node, serves_and_dies, monkeypatch)
    assert node.why == "status 9", "what is over is not told"
    open_files = os.listdir("/proc/self/fd")
    lives(supervisor, node, fails, monkeypatch)
    assert len(os.listdir("/proc/self/fd")) == len(open_files)


def test_a_stop_before_a_node_has_run_at_all_ends_that_node_alone(
    child: tuple[Supervisor, Child, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, node, _ = child
    forks = os.fork

    def fork() -> int:
        pid = forks()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return pid

    monkeypatch.setattr(os, "fork", fork)
    monkeypatch.setattr("tidelog.nodes.node_process.run_node", lambda *_, **__: 0)
    heard, wakes = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(wakes, False)
    handler, woken = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(wakes)
    try:
        supervisor._start(node)
        _, status = os.waitpid(node.pid, 0)
        with pytest.raises(BlockingIOError):
            os.read(heard, 1)  # where the supervisor would have heard that it is to end
    finally:
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGTERM, handler)
        os.close(heard)
        os.close(wakes)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGTERM


def test_a_full_disk_under_its_own_log_keeps_no_node_from_starting(
    child: tuple[Supervisor, Child, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    supervisor, node, _ = child
    monkeypatch.setattr("tidelog.nodes.node_process.run_node", lambda *_, **__: 7)
    with open("/dev/full", "w") as full:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, full)
        print("node ended by itself", file=sys.stderr)  # what a failed write leaves behind
        try:
            supervisor._start(node)
            _, status = os.waitpid(node.pid, 0)
        finally:
            monkeypatch.undo()
            with contextlib.suppress(OSError):
                full.close()
    assert os.waitstatus_to_exitcode(status) == 7


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_a_node_that_cannot_start_tells_its_reason(tmp_path: Path) -> None:
    data, port = tmp_path / "d", free_ports(1)
    at = ("--data", str(data))
    up = tidelog("up", *at, "--brokers", "1", "--controllers", "1", "--port", str(port), "--detach")
    assert up.returncode == 0, up.stderr
    try:
        assert tidelog("stop", "broker-0", *at).returncode == 0
        meta = next(data.rglob("meta.properties"))
        meta.write_text(meta.read_text().replace("cluster.id=", "cluster.id=x"))
        refused = tidelog("start", "broker-0", *at)
        assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
        assert "cluster" in refused.stderr.partition("status 70: ")[2]
        row = next(node for node in json.loads(tidelog("ps", *at, "--json").stdout) if node["role"] == "broker")
        assert row["reason"].startswith("status 70: ")
        assert f"broker-0 does not serve: {row['reason']}\n" in tidelog("ps", *at).stdout
    finally:
        tidelog("down", *at)


def test_a_second_signal_asks_proxies_again_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [NodeLayout("broker-0", "broker", 0, 9092, 9093, 9094), NodeLayout("proxy-0", "proxy", 2000, 10092, 0, 1)]
    supervisor = Supervisor(tmp_path, ClusterLayout(9092, nodes, {"tidelog.proxy.drain.ms": "60000"}), print)
    for pid, child in enumerate(supervisor._children.values(), 100):
        child.pid = pid
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(supervisor, "_reap", lambda: None)
    reading, writing = os.pipe()
    told = []
    for signals in ([signal.SIGINT], [signal.SIGINT], [signal.SIGTERM, signal.SIGCHLD]):
        os.write(writing, bytes(signals))
        supervisor._signalled(reading)
        told.append([pid for pid, number in sent if number == signal.SIGTERM])
        sent.clear()
    os.close(reading)
    os.close(writing)
    assert told == [[101], [101], [101]], "brokers are told when no proxy is left"
    limits = {node.role: stop_timeout_s(node, supervisor._shared) for node in nodes}
    assert limits == {"broker": 30.0, "proxy": 90.0}
