"""Small programs for the tests of the simulator itself."""

from __future__ import annotations

import asyncio
import contextvars
import errno
from collections.abc import Callable, Coroutine
from typing import Any, cast

from common.ports import Ports, Socket
from tests.sim.world import World

Main = Callable[[Ports], Coroutine[Any, Any, None]]
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")


def world_of(seed: int = 1, **mains: Main) -> World:
    world = World(seed, keep_trace=True)
    for name, main in mains.items():
        world.add_node(name, main)
        world.start(name)
    return world


async def forever() -> None:
    await asyncio.Event().wait()


class Recorder:
    """Keeps all that a socket gives."""

    def __init__(self) -> None:
        self.socket: Socket = cast(Socket, None)
        self.got = b""
        self.lost = "no"
        self.tenant = ""

    def attach(self, socket: Socket) -> None:
        self.socket = socket
        socket.on_readable(self.read)

    def read(self) -> None:
        buffer = bytearray(7000)
        self.tenant = tenant.get()
        try:
            count = self.socket.recv_into(memoryview(buffer))
        except BlockingIOError:
            return
        except OSError as error:
            self.lost = errno.errorcode[error.errno or 0]
            self.socket.close()
            return
        self.got += buffer[:count]
        if count == 0:
            self.lost = "end"
            self.socket.close()


class Pair:
    """`a` connects to `b` and both keep what they get."""

    def __init__(self, seed: int = 1) -> None:
        self.client, self.server = Recorder(), Recorder()
        self.world = world_of(seed, b=self.b, a=self.a)
        self.world.run_for(1)

    async def a(self, ports: Ports) -> None:
        await asyncio.sleep(0.1)
        self.client.attach(await ports.network.connect(("b", 1)))
        tenant.set("a's own")
        self.client.socket.send(b"hello")
        await forever()

    async def b(self, ports: Ports) -> None:
        ports.network.listen(("b", 1), self.server.attach)
        await forever()
