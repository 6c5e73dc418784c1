"""A node's listening side: named listeners, accept limits, node authentication on internal ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from common.errors import MalformedFrame
from common.ports import Address, Listener, Ports, Socket
from wire.buffers import BufferPool
from wire.connection import ClosedHandler, Connection, ConnectionLimits, FrameHandler, ViolationHandler
from wire.listeners import ListenerConfig, ListenerKind
from wire.node_auth import HELLO_BYTES, Acceptor, AuthenticationFailed
from wire.primitives import INT32
from wire.tick import Tick
from wire.watch import Watch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of a node's listeners together; where a setting sets one it stands beside.

    Internal listeners are outside the first two counts: clients that use up the connections must not cut the nodes
    off. There the third one holds, over which the connection that has waited longest with its proof is closed.
    """

    connections_max: int = 2**31 - 1  # max.connections
    connections_per_ip_max: int = 2**31 - 1  # max.connections.per.ip
    strangers_max: int = 64  # connections to internal listeners whose peer has not proven itself
    handshake_s: float = 5.0  # what a peer may take to prove itself
    connection: ConnectionLimits = field(default_factory=ConnectionLimits)


class Server:
    """Accepts on `listeners` and hands every frame to `handler`; `connection.listener` says where it came in.

    On internal listeners no frame reaches `handler` before the peer has proven that it knows `secret`; without a
    secret an internal listener is refused (ValueError). A connection over the limits is closed at once, with one log
    line. `closed` and `violated` are called as `Connection` does, also for connections that never sent a frame.
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
    ) -> None:
        if secret is None and any(listener.kind is ListenerKind.INTERNAL for listener in listeners):
            raise ValueError("an internal listener needs the cluster secret")
        self._ports = ports
        self._configs = list(listeners)
        self._handler = handler
        self._on_closed = closed
        self._on_violation = violated
        self._limits = limits
        self._tick = tick
        self._pool = pool
        self._watch = watch
        self._secret = secret
        self._cluster = cluster
        self._listeners: dict[str, Listener] = {}
        self._connections: dict[Connection, None] = {}
        self._clients = 0
        self._clients_of_ip: dict[str, int] = {}
        self._strangers: dict[Connection, None] = {}
        self._emptied: asyncio.Event | None = None
        self.refused = 0  # connections over a limit, since the start

    def check_addresses(self) -> None:
        """Raises OSError, with a sentence that names the listener, when one cannot be bound now.

        For a node that listens only after long preparations: better refused before it has touched anything.
        """
        for config in self._configs:
            self._listen(config, lambda socket: socket.abort()).close()

    def start(self) -> None:
        """Bind all listeners. Raises OSError when one cannot be bound; none is open then."""
        for config in self._configs:
            try:
                self._listeners[config.name] = self._listen(config, partial(self._accepted, config))
            except OSError:
                self.stop_accepting()
                raise

    def _listen(self, config: ListenerConfig, accepted: Callable[[Socket], None]) -> Listener:
        host, port = config.address
        try:
            return self._ports.network.listen(config.address, accepted)
        except OSError as error:
            why = error.strerror or str(error)
            raise OSError(error.errno, f"listeners: {config.name}://{host}:{port} cannot be bound: {why}") from error

    @property
    def addresses(self) -> dict[str, Address]:
        """The bound address of each listener by name, while it is open."""
        return {name: listener.address for name, listener in self._listeners.items()}

    @property
    def connections(self) -> list[Connection]:
        """Open connections, oldest first."""
        return list(self._connections)

    def _accepted(self, listener: ListenerConfig, socket: Socket) -> None:
        internal = listener.kind is ListenerKind.INTERNAL
        ip = socket.peer[0]
        if not internal:
            of_ip = self._clients_of_ip.get(ip, 0)
            reached = "max.connections" if self._clients >= self._limits.connections_max else ""
            if of_ip >= self._limits.connections_per_ip_max:
                reached = "max.connections.per.ip"
            if reached:
                self._refuse(socket, reached)
                return
            self._clients += 1
            self._clients_of_ip[ip] = of_ip + 1
        connection = Connection(
            socket, self._tick, self._pool, self._watch, self._handler, self._closed, self._on_violation,
            self._limits.connection, listener,
        )  # fmt: skip
        self._connections[connection] = None
        if internal:
            self._strangers[connection] = None
            _Handshake(connection, self, self._handler, self._strangers)
            if len(self._strangers) > self._limits.strangers_max:
                next(iter(self._strangers)).close("node authentication: no proof while others wait to give theirs")

    def _refuse(self, socket: Socket, reached: str) -> None:
        self.refused += 1
        peer = f"{socket.peer[0]}:{socket.peer[1]}"
        _log.warning("connection refused", extra={"peer": peer, "reason": f"{reached} is reached"})
        socket.abort()

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._strangers.pop(connection, None)
        if connection.listener is not None and connection.listener.kind is not ListenerKind.INTERNAL:
            ip = connection.peer[0]
            self._clients -= 1
            left = self._clients_of_ip[ip] - 1
            if left:
                self._clients_of_ip[ip] = left
            else:
                del self._clients_of_ip[ip]
        if self._emptied is not None and not self._connections:
            self._emptied.set()
        self._on_closed(connection)

    def acceptor(self) -> Acceptor:
        """The authenticating side for one new connection."""
        return Acceptor(self._secret or b"", self._cluster, self._ports.random)

    @property
    def handshake_until(self) -> float:
        return self._watch.now + self._limits.handshake_s

    @property
    def watch(self) -> Watch:
        return self._watch

    def stop_accepting(self) -> None:
        for listener in self._listeners.values():
            listener.close()
        self._listeners.clear()

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting, let unsent replies leave for `grace_s`, close every connection."""
        self.stop_accepting()
        if grace_s > 0 and self._connections:
            self._emptied = asyncio.Event()
            for connection in self.connections:
                connection.close_after_flush()
            if self._connections:
                try:
                    async with asyncio.timeout(grace_s):
                        await self._emptied.wait()
                except TimeoutError:
                    pass
        for connection in self.connections:
            connection.close()


class _Handshake:
    """A new internal connection until its peer has proven itself; then the connection is the handler's."""

    def __init__(
        self, connection: Connection, server: Server, handler: FrameHandler, strangers: dict[Connection, None]
    ) -> None:
        self._connection = connection
        self._strangers = strangers
        self._handler = handler
        self._acceptor = server.acceptor()
        self._watch = server.watch
        self._frame_bytes_max = connection.frame_bytes_max
        connection.frame_bytes_max = HELLO_BYTES
        connection.handler = self._frame
        self._watch.at(server.handshake_until, self)

    def _frame(self, connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        message = bytes(view[at:end])
        try:
            if not self._acceptor.is_challenging:
                challenge = self._acceptor.challenge(message)
                connection.send([INT32.pack(len(challenge)) + challenge])
                return
            self._acceptor.verify(message)
        except AuthenticationFailed as error:
            raise MalformedFrame(f"node authentication: {error}") from error
        self._watch.forget(self)
        self._strangers.pop(connection, None)
        connection.frame_bytes_max = self._frame_bytes_max
        connection.handler = self._handler

    def check(self, now: float) -> float | None:
        self._connection.close("node authentication: no proof in time")
        return None
