"""A node's listening side: named listeners, accept limits, node authentication on internal ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from common.ports import Address, Ports
from wire.buffers import BufferPool
from wire.connection import ClosedHandler, Connection, ConnectionLimits, FrameHandler, ViolationHandler
from wire.listeners import ListenerConfig
from wire.tick import Tick
from wire.watch import Watch


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a node's listeners together; the settings that set them stand beside."""

    connections_max: int = 20_000  # max.connections
    connections_per_ip_max: int = 2**31 - 1  # max.connections.per.ip
    handshake_s: float = 5.0  # tidelog.internal.handshake.timeout.ms
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class Server:
    """Accepts on `listeners` and hands every frame to `handler`; `connection.listener` says where it came in.

    On internal listeners no frame reaches `handler` before the peer has proven that it knows `secret`; without a
    secret an internal listener does not start (ValueError). `closed` is called once per connection that
    `handler` has seen a frame of.
    """

    def __init__(
        self,
        ports: Ports,
        listeners: Sequence[ListenerConfig],
        handler: FrameHandler,
        closed: ClosedHandler,
        violated: ViolationHandler,
        limits: ServerLimits,
        tick: Tick,
        pool: BufferPool,
        watch: Watch,
        *,
        secret: bytes | None = None,
        cluster: str = "",
    ) -> None: ...

    def start(self) -> None:
        """Bind all listeners. Raises OSError when one cannot be bound; none is open then."""
        raise NotImplementedError

    @property
    def addresses(self) -> dict[str, Address]:
        """The bound address of each listener by name."""
        raise NotImplementedError

    @property
    def connections(self) -> list[Connection]:
        """Open connections, oldest first."""
        raise NotImplementedError

    def stop_accepting(self) -> None:
        raise NotImplementedError

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting, let unsent replies leave for `grace_s`, close every connection."""
        raise NotImplementedError
