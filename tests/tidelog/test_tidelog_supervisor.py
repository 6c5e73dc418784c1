"""Nodes that end by themselves again and again: started ever more seldom, and asked why."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TextIO

import pytest

from bench.embedded import free_ports
from tests.tidelog.test_tidelog_command import tidelog
from tidelog.cluster import control
from tidelog.cluster.layout import ClusterLayout, NodeLayout
from tidelog.cluster.node_child import RESTART_BACKOFF_S, STEADY_S, Child, stop_timeout_s
from tidelog.cluster.supervisor import Supervisor
from tidelog.nodes.node_code import NodeCode

BROKER = NodeLayout("broker-0", "broker", 0, 9092, 9093, 9094)
PROXY = NodeLayout("proxy-0", "proxy", 2000, 10092, 0, 1)
FORKS = multiprocessing.get_context("fork")


def test_the_pauses_grow_to_a_minute_and_a_steady_life_ends_them() -> None:
    now, pauses = 1_000.0, []
    child = Child(BROKER, started_at=now)
    for _ in range(11):
        pause = child.ended(70, now)
        assert pause is not None and child.restart_at == now + pause
        pauses.append(pause)
        child.started_at = now
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert pauses == sorted(pauses)
    assert pauses[-1] == RESTART_BACKOFF_S[-1] == 60.0
    assert child.ended(70, now + STEADY_S) == 60.0
    assert child.ended(70, now + STEADY_S + 1) == RESTART_BACKOFF_S[0]
    child.stopping = True
    assert child.ended(0, now) is None


def status_of(log: Path, work: Callable[[int], int]) -> int:
    """How a process ends that is started as a node is, and does `work`."""
    child = Child(BROKER)
    life = os.open(os.devnull, os.O_RDONLY)
    try:
        child.start(work, log, life, 0.0)
        _, status = os.waitpid(child.pid, 0)
        child.hear_no_more()
    finally:
        os.close(life)
    return os.waitstatus_to_exitcode(status)


SIGNALLED_AT_BIRTH: list[int] = []
"""Signals that a process gets before it runs any code after its fork."""


def _signal_newborn() -> None:
    for number in SIGNALLED_AT_BIRTH:
        os.kill(os.getpid(), number)


os.register_at_fork(after_in_child=_signal_newborn)


def test_a_stop_before_a_node_has_run_at_all_ends_that_node_alone(tmp_path: Path) -> None:
    heard, wakes = os.pipe()
    os.set_blocking(heard, False)
    os.set_blocking(wakes, False)
    handler, woken = signal.signal(signal.SIGTERM, lambda *_: None), signal.set_wakeup_fd(wakes)
    SIGNALLED_AT_BIRTH.append(signal.SIGTERM)
    try:
        assert status_of(tmp_path / "log", lambda _: 0) == -signal.SIGTERM
        with pytest.raises(BlockingIOError):
            os.read(heard, 1)  # where the supervisor would have heard that it is to end
    finally:
        SIGNALLED_AT_BIRTH.clear()
        signal.set_wakeup_fd(woken)
        signal.signal(signal.SIGTERM, handler)
        os.close(heard)
        os.close(wakes)
    assert status_of(tmp_path / "log", lambda _: 0) == 0


def test_a_full_disk_under_its_own_log_keeps_no_node_from_starting(tmp_path: Path) -> None:
    full = open("/dev/full", "w")  # noqa: SIM115  its end fails
    with contextlib.redirect_stdout(full), contextlib.redirect_stderr(full):
        print("node ended by itself", file=sys.stderr)  # what a failed write leaves behind
        status = status_of(tmp_path / "log", lambda _: 7)
    with contextlib.suppress(OSError):
        full.close()
    assert status == 7


class Script(NodeCode):
    """Nodes that do `work` with their role and their end of the status pipe; no code of nodes is imported."""

    def __init__(self, work: Callable[[str, int], int]) -> None:
        self._work = work

    def load(self, role: str, settings: Iterable[str]) -> None:
        pass

    def run(self, role: str, settings: Mapping[str, str], status_fd: int, life_fd: int) -> int:
        return self._work(role, status_fd)


@contextlib.contextmanager
def supervised(root: Path, layout: ClusterLayout, work: Callable[[str, int], int]) -> Iterator[tuple[int, TextIO]]:
    """A supervisor of such nodes in a process of its own, and the lines that it says; `down` when the block ends."""
    (root / "logs").mkdir()
    read, write = os.pipe()

    def say(line: str) -> None:
        os.write(write, line.encode() + b"\n")

    process = FORKS.Process(target=lambda: Supervisor(root, layout, say, code=Script(work)).run())
    process.start()
    os.close(write)
    with os.fdopen(read) as lines:
        assert process.pid is not None
        yield process.pid, lines
        with contextlib.suppress(control.ClusterDown):
            control.ask(root, {"do": "down"}, 30.0)
        process.join(30)
    assert process.exitcode == 0


def test_its_last_words_are_kept_until_it_serves(tmp_path: Path) -> None:
    """It fails, is started again and serves, is killed, and then fails again."""
    lives = tmp_path / "lives"

    def work(_: str, status_fd: int) -> int:
        with lives.open("a") as file:
            file.write(".")
        if len(lives.read_text()) != 2:
            os.write(status_fd, b"fatal the directory belongs to another cluster\n")
            return 70
        os.write(status_fd, b"ready\n")
        signal.pause()
        return 9

    def ask(action: str) -> dict[str, object]:
        return control.ask(tmp_path, {"do": action, "node": "broker-0"}, 30.0)

    def descriptors() -> int:
        return len(os.listdir(f"/proc/{pid}/fd"))

    with supervised(tmp_path, ClusterLayout(9092, [BROKER], {}), work) as (pid, lines):
        assert lines.readline().startswith("broker-0 ended (status 70: the directory belongs to another cluster), ")
        (row,) = control.ask(tmp_path, {"do": "ps"}, 30.0)["nodes"]
        assert (row["state"], row["reason"]) == ("crashed", "status 70: the directory belongs to another cluster")
        at_rest = descriptors()
        assert lines.readline().startswith("ready ")
        assert control.ask(tmp_path, {"do": "ps"}, 30.0)["nodes"][0]["reason"] == ""
        os.kill(control.ask(tmp_path, {"do": "ps"}, 30.0)["nodes"][0]["pid"], signal.SIGKILL)
        while not (line := lines.readline()).startswith("broker-0 ended"):
            assert line
        assert line.startswith("broker-0 ended (signal 9), "), "what is over is not told"
        assert lines.readline().startswith("broker-0 ended (status 70: the directory belongs to another cluster), ")
        assert ask("stop")["ok"]
        assert any(descriptors() <= at_rest for _ in range(10_000)), (
            "the last answer's connection closes a moment later"
        )


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


def test_a_second_signal_asks_proxies_again_and_nobody_else(tmp_path: Path) -> None:
    """The proxy here lets itself be asked three times; brokers are told when no proxy is left."""
    layout = ClusterLayout(9092, [BROKER, PROXY], {"tidelog.proxy.drain.ms": "60000"})
    told = tmp_path / "told"
    os.mkfifo(told)

    def work(role: str, status_fd: int) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        with told.open("w", buffering=1) as out:
            out.write(f"{role} runs\n")
            for _ in range(3 if role == "proxy" else 1):
                signal.sigwait([signal.SIGTERM])
                out.write(f"{role} is asked\n")
        return 0

    with supervised(tmp_path, layout, work) as (pid, _), told.open() as heard:
        assert sorted(heard.readline() for _ in range(2)) == ["broker runs\n", "proxy runs\n"]
        for number in (signal.SIGINT, signal.SIGINT, signal.SIGTERM):
            os.kill(pid, number)
            assert heard.readline() == "proxy is asked\n"
        assert heard.read() == "broker is asked\n"
    limits = {node.role: stop_timeout_s(node, layout.shared_settings()) for node in layout.nodes}
    assert limits == {"broker": 30.0, "proxy": 90.0}
