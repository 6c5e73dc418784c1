"""How a node reaches other nodes' internal listeners: one way for the channel, the observer and the controllers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from msgspec import Struct

from common.ports import Address, Ports
from wire.buffers import BufferPool
from wire.client import ClientConnection
from wire.messages import Request
from wire.tick import Tick
from wire.watch import Watch

R = TypeVar("R")


class Link(Protocol):
    """An open connection to one node; `wire.client.ClientConnection` is one."""

    @property
    def is_closed(self) -> bool: ...

    async def call(self, request: Request[R], version: int, timeout_s: float) -> R:
        """Raises CallTimeout, ConnectionLost, TooManyCalls, MalformedFrame."""
        ...

    def close(self) -> None: ...


class Links(Protocol):
    """What opens them."""

    async def connect(self, address: Address, timeout_s: float, closed: Callable[[], None] | None = None) -> Link:
        """Raises ConnectionLost. `closed` is called once when the link ends."""
        ...


class NodeLinks(Struct, frozen=True):
    """Links over the node's own network, authenticated by the cluster's secret."""

    ports: Ports
    tick: Tick
    pool: BufferPool
    watch: Watch
    client_id: str
    secret: bytes
    cluster: str = ""

    async def connect(self, address: Address, timeout_s: float, closed: Callable[[], None] | None = None) -> Link:
        return await ClientConnection.connect(
            self.ports,
            address,
            self.tick,
            self.pool,
            self.watch,
            client_id=self.client_id,
            secret=self.secret,
            cluster=self.cluster,
            timeout_s=timeout_s,
            closed=None if closed is None else lambda _connection: closed(),
        )
