"""Connections to other nodes' internal listeners, for channel, observer and controllers."""

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
    """An open connection to one node: `wire.client.ClientConnection`."""

    @property
    def is_closed(self) -> bool: ...

    async def call(self, request: Request[R], version: int, timeout_s: float) -> R:
        """Raises CallTimeout, ConnectionLost, TooManyCalls, MalformedFrame."""
        ...

    def close(self) -> None: ...


class Links(Protocol):
    """Opens links."""

    async def connect(self, address: Address, timeout_s: float, closed: Callable[[], None] | None = None) -> Link:
        """Raises ConnectionLost. `closed` is called once when the link ends."""
        ...


class NodeLinks(Struct, frozen=True):
    """Links over the node's own network, authenticated with the cluster's secret."""

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
