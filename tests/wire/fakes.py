"""In-memory sockets in pairs: ordered bytes, a bounded pipe, level-triggered readiness on the running loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from common.node_settings.connections import ConnectionSettings
from common.ports import Address, Buffer, Ports
from wire.buffers import BufferPool
from wire.connection import Connection
from wire.tick import Tick
from wire.watch import Watch

PIPE_BYTES = 64 << 10


@dataclass
class FakeFile:
    data: bytes

    def pread(self, size: int, position: int) -> bytes:
        return self.data[position : position + size]


@dataclass
class FakeRegion:
    """A region of a file; counts its releases."""

    file: Any
    position: int
    length: int
    released: int = 0

    def release(self) -> None:
        self.released += 1


class FakeSocket:
    """One end; `other` is its peer. `send` takes as much as fits into the peer's pipe of `pipe_bytes`."""

    def __init__(self, peer: Address, pipe_bytes: int) -> None:
        self.peer = peer
        self.pipe_bytes = pipe_bytes
        self.other: FakeSocket = self
        self.inbox = bytearray()
        self.sends = 0
        self.sendfiles = 0
        self.is_closed = False
        self.ended = False  # the peer has closed
        self.was_aborted = False
        self.receive_max = 1 << 30  # bytes per recv, to cut frames anywhere
        self._loop = asyncio.get_running_loop()
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None
        self._scheduled = False

    def recv_into(self, view: memoryview) -> int:
        if not len(view):
            raise AssertionError("a receive into nothing looks like the end of the stream")
        if not self.inbox:
            if self.ended:
                return 0
            raise BlockingIOError
        size = min(len(view), len(self.inbox), self.receive_max)
        view[:size] = self.inbox[:size]
        del self.inbox[:size]
        self.other.poll()
        return size

    def send(self, data: Buffer, more: bool = False) -> int:
        self.sends += 1
        return self._put(bytes(data))

    def sendfile(self, file: Any, position: int, length: int) -> int:
        self.sendfiles += 1
        data = file.pread(length, position)
        return self._put(data) if data else 0

    def _put(self, data: bytes) -> int:
        if self.is_closed or self.ended:
            raise BrokenPipeError
        room = self.pipe_bytes - len(self.other.inbox)
        if room <= 0:
            raise BlockingIOError
        self.other.inbox += data[:room]
        self.other.poll()
        return min(room, len(data))

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self._readable = callback
        self.poll()

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self._writable = callback
        self.poll()

    def poll(self) -> None:
        if not self._scheduled and not self.is_closed:
            self._scheduled = True
            self._loop.call_soon(self._fire)

    def _fire(self) -> None:
        self._scheduled = False
        if self.is_closed:
            return
        if self._readable is not None and (self.inbox or self.ended):
            self._readable()
            self.poll()
        if not self.is_closed and self._writable is not None:
            room = self.ended or len(self.other.inbox) < self.pipe_bytes
            if room:
                self._writable()
                self.poll()

    def secure(self, context: Any, *, server_side: bool, server_hostname: str | None = None) -> Any:
        raise NotImplementedError("no TLS over memory")

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._readable = self._writable = None
            self.other.ended = True
            self.other.poll()

    def abort(self) -> None:
        self.was_aborted = True
        self.close()


def socket_pair(pipe_bytes: int = PIPE_BYTES) -> tuple[FakeSocket, FakeSocket]:
    one, two = FakeSocket(("10.0.0.1", 1), pipe_bytes), FakeSocket(("10.0.0.2", 2), pipe_bytes)
    one.other, two.other = two, one
    return one, two


@dataclass
class FakeListener:
    address: Address
    accepted: Callable[[Any], None]
    network: FakeNetwork
    is_paused: bool = False
    waiting: list[Any] = field(default_factory=list)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        while self.waiting and not self.is_paused:
            self.accepted(self.waiting.pop(0))

    def close(self) -> None:
        self.network.listeners.pop(self.address, None)


@dataclass
class FakeNetwork:
    listeners: dict[Address, FakeListener] = field(default_factory=dict)
    silent: bool = False  # connects never come back
    client_ip: str = "10.0.0.9"

    def listen(self, address: Address, accepted: Callable[[Any], None]) -> FakeListener:
        if address in self.listeners:
            raise OSError("address in use")
        listener = self.listeners[address] = FakeListener(address, accepted, self)
        return listener

    async def connect(self, address: Address) -> FakeSocket:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        if address not in self.listeners:
            raise ConnectionRefusedError(f"nobody listens on {address}")
        here, there = socket_pair()
        here.peer, there.peer = address, (self.client_ip, 40000)
        listener = self.listeners[address]
        if listener.is_paused:
            listener.waiting.append(there)
        else:
            listener.accepted(there)
        return here


def fake_ports(network: FakeNetwork, seed: int = 1) -> Ports:
    unused: Any = None
    return Ports(network, unused, unused, random.Random(seed))


class CountingPool(BufferPool):
    """Knows how many of its buffers are lent, and how many ever were at once."""

    lent = lent_most = 0

    def take(self, size: int) -> bytearray:
        self.lent += 1
        self.lent_most = max(self.lent_most, self.lent)
        return super().take(size)

    def give(self, buffer: bytearray) -> None:
        self.lent -= 1
        super().give(buffer)


class Bench:
    """What the connections of one node share, and one connection with a raw peer to talk to it."""

    def __init__(
        self, *, step_s: float = 0.01, pool: CountingPool | None = None, now: Callable[[], float] | None = None
    ) -> None:
        self.tick = Tick(now)
        self.pool = pool or CountingPool()
        self.watch = Watch(step_s)
        self.closed: list[Connection] = []
        self.violations: list[str] = []
        self.frames: list[bytes] = []

    def connect(
        self,
        handler: Callable[..., None] | None = None,
        limits: ConnectionSettings | None = None,
        pipe_bytes: int = PIPE_BYTES,
    ) -> tuple[Connection, FakeSocket]:
        """A connection under test and the peer's end of its socket."""
        here, there = socket_pair(pipe_bytes)
        connection = Connection(
            here, self.tick, self.pool, self.watch, handler or self.collect, self.closed.append,
            lambda _, reason: self.violations.append(reason), limits or ConnectionSettings(),
        )  # fmt: skip
        return connection, there

    def collect(self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        self.frames.append(bytes(view[at:end]))


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(4, "big") + payload


def frames_in(data: bytes | bytearray) -> list[bytes]:
    """The payloads of whole frames; raises when bytes are left over."""
    payloads, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        assert at + 4 + size <= len(data), "half a frame"
        payloads.append(bytes(data[at + 4 : at + 4 + size]))
        at += 4 + size
    return payloads


async def turns(count: int = 20) -> None:
    """Let the loop go round."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - any condition, over any number of turns
            await asyncio.sleep(0)
