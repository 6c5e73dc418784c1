"""A node with a stuck storage: its sockets end, then its process does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable

import pytest

from common.disk_operations import DiskOperations
from common.metrics import Metrics
from common.node_settings.health import HealthSettings
from tidelog.nodes.storage_watchdog import EXIT_STUCK, BusyTime, StorageWatchdog

SOON = HealthSettings(storage_stuck_ms=100)
LONG_S = 30.0  # ends a test that hangs

# Hangs its loop in a read, as a frozen disk would; the lines of the log and the reason go to stdout.
NODE = """
import asyncio, json, os, socket, sys
from common.node_settings.health import HealthSettings
from tidelog.nodes.storage_watchdog import StorageWatchdog

async def main():
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    accepted, _ = listener.accept()
    report = lambda reason: os.write(1, json.dumps({"told": reason}).encode() + b"\\n")
    StorageWatchdog(settings=HealthSettings(storage_stuck_ms=200), report=report).start()
    os.write(1, json.dumps({"port": listener.getsockname()[1]}).encode() + b"\\n")
    await asyncio.sleep(0)
    read, write = os.pipe()
    os.read(0, 1)  # until the test is connected
    os.read(read, 1)

asyncio.run(main())
"""


def test_a_hanging_loop_loses_its_sockets_and_its_process() -> None:
    with subprocess.Popen([sys.executable, "-c", NODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert node.stdin is not None
        try:
            port = json.loads(node.stdout.readline())["port"]
            with socket.create_connection(("127.0.0.1", port), LONG_S) as client:
                node.stdin.write(b"x")
                node.stdin.flush()
                with contextlib.suppress(ConnectionResetError):  # it was in the backlog
                    assert client.recv(1) == b""
            told = json.loads(node.stdout.readline())["told"]
            assert node.wait(LONG_S) == EXIT_STUCK
        finally:
            node.kill()
    assert told.startswith("the storage is stuck: a turn of the event loop has not ended for 0.")
    assert "in __main__:main" in told


class Laboratory:
    """A watchdog whose thread is this one: `operations` hold one operation that never ends."""

    def __init__(self, settings: HealthSettings, withdraw: Callable[[], Awaitable[str]] | None = None) -> None:
        self.reported: list[str] = []
        self.status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.operations = DiskOperations()
        loop = asyncio.get_running_loop()

        def end(status: int) -> None:
            self.watchdog.stop()
            loop.call_soon_threadsafe(self.status.set_result, status)

        self.watchdog = StorageWatchdog(
            settings=settings,
            report=self.reported.append,
            operations=self.operations,
            withdraw=withdraw,
            shut_down=lambda: 0,
            end=end,
        )
        self.metrics = Metrics()
        self.watchdog.register(self.metrics)


async def test_a_node_whose_loop_runs_asks_to_leave_first() -> None:
    asked: list[str] = []

    async def withdraw() -> str:
        asked.append("now")
        assert not laboratory.reported, "it is told before the connections end"
        return ""

    laboratory = Laboratory(SOON, withdraw)
    with laboratory.operations.operation("flush t-0/0.log"):
        laboratory.watchdog.start()
        assert await asyncio.wait_for(laboratory.status, LONG_S) == EXIT_STUCK
    assert asked == ["now"]
    assert "flush t-0/0.log has not ended" in laboratory.reported[0]


async def test_a_node_that_is_needed_stays_and_asks_again(caplog: pytest.LogCaptureFixture) -> None:
    answers = ["another broker is down or unhealthy", "brokers 2 are down or unhealthy", ""]
    laboratory = Laboratory(SOON, lambda: _answer(answers))
    with laboratory.operations.operation("write t-0/0.log"):
        laboratory.watchdog.start()
        assert await asyncio.wait_for(laboratory.status, LONG_S) == EXIT_STUCK
    assert answers == []
    assert "this node stays, because another broker is down or unhealthy" in caplog.text
    assert len(laboratory.reported) == 1


async def _answer(answers: list[str]) -> str:
    return answers.pop(0)


async def test_a_watch_that_may_not_act_tells_what_it_would_do() -> None:
    logged: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            loop.call_soon_threadsafe(logged.set_result, record.getMessage())

    handler, logger = Handler(), logging.getLogger("tidelog.nodes.storage_watchdog")
    logger.addHandler(handler)
    laboratory = Laboratory(HealthSettings(storage_enable=False, storage_stuck_ms=100))
    with laboratory.operations.operation("write t-0/0.log"):
        laboratory.watchdog.start()
        text = await asyncio.wait_for(logged, LONG_S)
        shown = float(laboratory.metrics.text().split(b"\ntidelog_storage_stuck_seconds ")[1].split(b"\n")[0])
        assert shown >= 0.1
    laboratory.watchdog.stop()
    logger.removeHandler(handler)
    assert "write t-0/0.log has not ended" in text
    assert "tidelog.health.storage.enable is false, so this node stays" in text
    assert not laboratory.status.done()
    assert not laboratory.reported


def _until(holds: Callable[[], bool], what: str) -> None:
    ends = time.monotonic() + LONG_S
    while not holds():
        assert time.monotonic() < ends, what
        os.sched_yield()


def test_a_thread_that_waits_for_a_processor_waits_for_no_disk() -> None:
    """Also in the middle of that wait, which the scheduler adds to its account only at its end."""
    ready, done = threading.Event(), threading.Event()
    ids: dict[str, int] = {}

    def work(name: str, wait: Callable[[], object]) -> None:
        ids[name] = threading.get_native_id()
        if len(ids) == 2:
            ready.set()
        while not done.is_set():
            wait()

    threads = [
        threading.Thread(target=work, args=("spins", lambda: sum(range(1_000)))),
        threading.Thread(target=work, args=("sleeps", lambda: done.wait(LONG_S))),
    ]
    for thread in threads:
        thread.start()
    assert ready.wait(LONG_S)
    try:
        spins, sleeps = (BusyTime(ids[name], 0) for name in ("spins", "sleeps"))
        _until(spins.is_runnable, "it computes")
        _until(lambda: not sleeps.is_runnable(), "it waits")
    finally:
        done.set()
        for thread in threads:
            thread.join()
    _until(lambda: not spins.is_runnable(), "it has ended, which Python says before the system does")
