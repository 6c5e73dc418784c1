"""Tests in virtual time: what they wait for costs nothing, and what never comes is reported."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from tests.sim.loop import Deadlock, Livelock
from tests.virtual_time import HOST, LoopClock, VirtualLoop, lab_ports, stall

pytestmark = pytest.mark.virtual_time
DAY_S = 86_400.0


async def test_a_day_passes_at_once() -> None:
    loop, clock, began_ms = asyncio.get_running_loop(), LoopClock(), time.time_ns() // 1_000_000
    before_s, before_ms = loop.time(), clock.wall_ms()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(DAY_S):
            await asyncio.sleep(2 * DAY_S)
    assert loop.time() - before_s >= DAY_S
    assert clock.wall_ms() - before_ms >= DAY_S * 1000
    assert time.time_ns() // 1_000_000 - began_ms < DAY_S * 1000


async def test_a_stall_is_time_that_passes_for_others_too() -> None:
    loop, woken = asyncio.get_running_loop(), []
    loop.call_later(0.1, lambda: woken.append(loop.time()))
    stall(5.0)
    await asyncio.sleep(0.2)
    assert woken and woken[0] >= 5.0


async def test_a_thread_has_done_its_work_when_it_is_awaited(tmp_path: Path) -> None:
    assert await asyncio.to_thread((tmp_path / "file").write_text, "text") == 4
    assert (tmp_path / "file").read_text() == "text"


async def test_a_connection_carries_bytes_in_order(tmp_path: Path) -> None:
    ports, accepted = lab_ports(tmp_path), list[Any]()
    ports.network.listen((HOST, 1_000), accepted.append)
    client = await ports.network.connect((HOST, 1_000))
    sent, got, into = bytes(range(256)) * 100, b"", bytearray(1 << 16)
    left = sent
    while len(got) < len(sent):
        left = left[client.send(left) :] if left else left
        await asyncio.sleep(0.001)
        if accepted:
            try:
                got += into[: accepted[0].recv_into(memoryview(into))]
            except BlockingIOError:
                continue
    assert got == sent
    with pytest.raises(ConnectionRefusedError):
        await ports.network.connect((HOST, 1_001))


def test_what_nobody_wakes_is_named() -> None:
    async def forgotten() -> None:
        await asyncio.get_running_loop().create_future()

    with asyncio.Runner(loop_factory=loop_of) as runner, pytest.raises(Deadlock, match="forgotten"):
        runner.run(forgotten())


def test_a_busy_loop_ends() -> None:
    async def busy() -> None:
        while True:  # noqa: ASYNC110  it waits for nothing
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop_of) as runner, pytest.raises(Livelock):
        runner.run(busy())


def loop_of() -> Any:
    return VirtualLoop()
