"""Connections of browsers that ask slowly, never read, or are too many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from console.web.connection import ASK_S, OF_AN_ADDRESS_MAX, READ_S, BoundedConnection


class Timer:
    def __init__(self, after_s: float, call: Callable[[], None]) -> None:
        self.after_s = after_s
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """In the place of a loop: keeps timers and tasks, and runs none."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, after_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(after_s, call))
        return self.timers[-1]

    def create_task(self, running: Any, **_: Any) -> asyncio.Future[None]:
        running.close()
        loop = asyncio.new_event_loop()
        task = loop.create_future()
        loop.close()
        return task

    def waits(self) -> list[float]:
        return [one.after_s for one in self.timers if not one.is_cancelled]


class Wire:
    """A transport to a client at this address."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def get_extra_info(self, name: str) -> Any:
        return (self._address, 5) if name in ("peername", "sockname") else None

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_: None


class Server:
    def __init__(self) -> None:
        async def app(*_: Any) -> None:
            return None

        self._config = Config(app, http=BoundedConnection, lifespan="off", log_config=None, ws="none")
        self._config.load()
        self._state = ServerState()

    def connected(self, address: str = "192.0.2.1") -> tuple[Any, Wire, Clock]:
        clock, wire = Clock(), Wire(address)
        made: Any = BoundedConnection(self._config, self._state, {}, clock)  # type: ignore[arg-type]
        made.connection_made(wire)
        return made, wire, clock


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


def test_a_client_that_asks_nothing_or_slowly_is_closed(server: Server) -> None:
    made, wire, clock = server.connected()
    assert clock.waits() == [ASK_S]
    for part in (b"G", b"ET / HT", b"TP/1.1\r\nHost: x\r\nX-A"):
        made.data_received(part)
        assert clock.waits() == [ASK_S], "no byte gives it more time"
    clock.timers[0].call()
    assert wire.is_aborted


def test_a_whole_request_has_its_time(server: Server) -> None:
    made, wire, clock = server.connected()
    made.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert clock.waits() == []
    made.data_received(b"GET /next")  # behind the first, which is not answered yet
    assert clock.waits() == []
    assert not wire.is_aborted


def test_a_client_that_does_not_read_is_closed(server: Server) -> None:
    made, wire, clock = server.connected()
    made.data_received(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    made.pause_writing()
    assert clock.waits() == [READ_S]
    made.resume_writing()
    assert clock.waits() == []
    made.pause_writing()
    clock.timers[-1].call()
    assert wire.is_aborted
    made.connection_lost(None)
    assert clock.waits() == []


def test_an_address_has_its_part_of_connections() -> None:
    server = Server()
    opened = [server.connected() for _ in range(OF_AN_ADDRESS_MAX + 1)]
    assert [wire.is_aborted for _, wire, _ in opened] == [False] * OF_AN_ADDRESS_MAX + [True]
    opened[-1][0].connection_lost(None)
    assert not server.connected("192.0.2.2")[1].is_aborted
    opened[0][0].connection_lost(None)
    assert not server.connected()[1].is_aborted
