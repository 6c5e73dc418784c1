"""A node's server: named listeners, accept limits, TLS and proxies, node authentication on internal listeners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from common.errors import MalformedFrame
from common.metrics import Metrics
from common.node_settings.connections import ConnectionSettings
from common.node_settings.listeners import AcceptSettings
from common.ports import Address, Listener, Ports, Socket
from common.settings import INT_MAX
from common.token_bucket import TokenBucket
from wire.buffers import BufferPool
from wire.connection import ClosedHandler, Connection, FrameHandler, ViolationHandler
from wire.failure_log import FailureLog
from wire.identity import PeerIdentity
from wire.listeners import ListenerConfig, ListenerKind, ProxyForm
from wire.node_auth import HELLO_BYTES, Acceptor, AuthenticationFailed
from wire.opening import Openings
from wire.primitives import INT32
from wire.tick import Tick
from wire.tls import CertificateWatch, TlsContexts
from wire.watch import Watch

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServerLimits(AcceptSettings):
    """Limits of a node's listeners together, and those of each connection.

    Connections to internal listeners are not counted in these limits, so that clients cannot cut the nodes off. Above
    `unauthenticated_max` the oldest unauthenticated one is closed.
    """

    files_max: int = INT_MAX  # connections that fit into the limit of open files, whatever max.connections is
    unauthenticated_max: int = 64  # connections to internal listeners that have not authenticated yet
    handshake_s: float = 5.0  # how long a peer may take to authenticate
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)


class Server:
    """Accepts on `listeners` and passes every frame to `handler`, with its `connection.listener` and
    `connection.identity`.

    On internal listeners no frame reaches `handler` before the peer has proven that it knows `secret`; they require a
    secret (ValueError). A connection over the limits is closed at once; above the rates accepting pauses. Failures
    before a peer is authenticated are logged once per cause and address. `began` is called with each connection before
    its first frame, or an internal one's proof; `closed` and `violated` as by `Connection`, also for connections that
    never sent a frame.
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
        began: Callable[[Connection], None] = lambda connection: None,
    ) -> None:
        if secret is None and any(listener.kind is ListenerKind.INTERNAL for listener in listeners):
            raise ValueError("an internal listener needs the cluster secret")
        self._ports = ports
        self._configs = list(listeners)
        self._handler = handler
        self._on_closed = closed
        self._on_began = began
        self._on_violation = violated
        self._limits = limits
        self._tick = tick
        self._pool = pool
        self._watch = watch
        self._secret = secret
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self._doors = {config.name: _Door(config, self) for config in self._configs}
        self._rate = _accept_rate(limits.creation_rate, self._loop.time())
        self._connections: dict[Connection, None] = {}
        self._clients = 0
        self._clients_of_ip: dict[str, int] = {}
        self._unauthenticated: dict[Connection, None] = {}
        self._emptied: asyncio.Event | None = None
        self._certificates = CertificateWatch(self.tls_contexts, limits.certificates_interval_s)
        self.failures = FailureLog(_log, "connection refused", self._loop.time)

    def check_addresses(self) -> None:
        """Raises OSError, with a message that names the listener, when one cannot be bound now.

        A node checks this before its long preparations, because it listens only after them.
        """
        for config in self._configs:
            self._listen(config, lambda socket: socket.abort()).close()

    def start(self) -> None:
        """Bind all listeners. Raises OSError when one cannot be bound; none is open then."""
        for config in self._configs:
            try:
                self._doors[config.name].listener = self._listen(config, partial(self._accepted, config))
            except OSError:
                self.stop_accepting()
                raise
        self._certificates.start()

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
        return {name: door.listener.address for name, door in self._doors.items() if door.listener is not None}

    @property
    def connections(self) -> list[Connection]:
        """Open connections, oldest first."""
        return list(self._connections)

    @property
    def listener_names(self) -> list[str]:
        """The names of the listeners whose connections are limited: all except internal ones."""
        return [config.name for config in self._configs if config.kind is not ListenerKind.INTERNAL]

    def limit_connections(self, limits: ServerLimits) -> None:
        """Change the limits. Open connections stay."""
        self._limits = limits
        self._rate.change(limits.creation_rate, limits.creation_rate)

    def limit_listener(self, name: str, limits: AcceptSettings) -> None:
        """Change the limits of one listener."""
        door = self._doors[name]
        door.connections_max = limits.connections_max
        door.rate.change(limits.creation_rate, limits.creation_rate)

    @property
    def openings(self) -> int:
        """The number of connections before their first Kafka byte."""
        return sum(len(door.openings) for door in self._doors.values())

    @property
    def openings_waited_s(self) -> float:
        """Seconds that connections have waited for a step of their opening, added up."""
        return sum(door.openings.waited_s for door in self._doors.values())

    @property
    def tls_contexts(self) -> list[TlsContexts]:
        """The TLS contexts of the listeners."""
        return [config.tls for config in self._configs if config.tls is not None]

    def certificate_ends(self) -> dict[str, int]:
        """When certificates expire: wall time in milliseconds, by listener with TLS."""
        found = ((config.name, config.tls.expires_ms) for config in self._configs if config.tls is not None)
        return {name: expires_ms for name, expires_ms in found if expires_ms is not None}

    def register_certificates(self, metrics: Metrics) -> None:
        """Of brokers and controllers alike. A controller's voters use the certificate of its listener."""
        metrics.family(
            "tidelog_certificate_expires_seconds",
            lambda: [({"listener": name}, ends_ms / 1000) for name, ends_ms in self.certificate_ends().items()],
        )

    @property
    def refused(self) -> int:
        """Connections that were refused before their first Kafka byte, since the start."""
        return sum(self.failures.counts.values())

    def _accepted(self, listener: ListenerConfig, socket: Socket) -> None:
        door = self._doors[listener.name]
        self._throttle(door)
        ip = socket.peer[0]
        reached = door.limit_reached()
        if listener.kind is not ListenerKind.INTERNAL:
            if self._clients >= self._limits.connections_max:
                reached = "max.connections"
            elif self._clients >= self._limits.files_max:
                reached = "the limit of open files (ulimit -n)"
            elif listener.proxies is ProxyForm.NONE and self._ip_is_full(ip):
                reached = "max.connections.per.ip"
        if reached:
            self._refuse(socket, reached)
            return
        door.connections += 1
        if listener.kind is not ListenerKind.INTERNAL:
            self._clients += 1
        if door.opens_in_steps:
            door.openings.begin(socket, listener)
        else:
            self._opened(listener, socket, PeerIdentity(listener.protocol, socket.peer))

    def _throttle(self, door: _Door) -> None:
        """Count a connection against the rates, and pause accepting accordingly."""
        now = self._loop.time()
        pause_s = _pause_after(door.rate, now)
        if door.config.kind is not ListenerKind.INTERNAL:
            everywhere_s = _pause_after(self._rate, now)
            if everywhere_s:
                for other in self._doors.values():
                    if other.config.kind is not ListenerKind.INTERNAL:
                        other.pause_for(everywhere_s)
        if pause_s:
            door.pause_for(pause_s)

    def _ip_is_full(self, ip: str) -> bool:
        most = self._limits.connections_per_ip.get(ip, self._limits.connections_per_ip_max)
        return self._clients_of_ip.get(ip, 0) >= most

    def _opened(self, listener: ListenerConfig, socket: Socket, identity: PeerIdentity) -> None:
        """Serve a connection whose TLS handshake and PROXY header are complete."""
        internal = listener.kind is ListenerKind.INTERNAL
        if not internal:
            ip = identity.client_address[0]
            if listener.proxies is not ProxyForm.NONE and self._ip_is_full(ip):
                self._forget(listener)
                self._refuse(socket, "max.connections.per.ip", ip)
                return
            self._clients_of_ip[ip] = self._clients_of_ip.get(ip, 0) + 1
        connection = Connection(
            socket, self._tick, self._pool, self._watch, self._handler, self._closed, self._on_violation,
            self._limits.connection, listener, identity,
        )  # fmt: skip
        self._connections[connection] = None
        if internal:
            self._unauthenticated[connection] = None
            _Handshake(connection, self, self._handler, self._unauthenticated)
            if len(self._unauthenticated) > self._limits.unauthenticated_max:
                next(iter(self._unauthenticated)).close(
                    "node authentication: no proof while others wait to give theirs"
                )
        self._on_began(connection)

    def failed(self, listener: ListenerConfig, peer: Address, cause: str, detail: str) -> None:
        """Report a connection that failed before its first Kafka byte."""
        self._forget(listener)
        details = {"detail": detail} if detail else {}
        self.failures.report(cause, peer[0], listener=listener.name, **details)

    def opened(self, listener: ListenerConfig, socket: Socket, identity: PeerIdentity) -> None:
        self._opened(listener, socket, identity)

    def _refuse(self, socket: Socket, reached: str, ip: str | None = None) -> None:
        self.failures.report(f"{reached} is reached", ip if ip is not None else socket.peer[0])
        socket.abort()

    def _forget(self, listener: ListenerConfig) -> None:
        self._doors[listener.name].connections -= 1
        if listener.kind is not ListenerKind.INTERNAL:
            self._clients -= 1

    def _closed(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._unauthenticated.pop(connection, None)
        listener, identity = connection.listener, connection.identity
        if listener is not None:
            self._forget(listener)
            if identity is not None and listener.kind is not ListenerKind.INTERNAL:
                ip = identity.client_address[0]
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
    def tick(self) -> Tick:
        return self._tick

    @property
    def handshake_until(self) -> float:
        return self._watch.now + self._limits.handshake_s

    @property
    def watch(self) -> Watch:
        return self._watch

    @property
    def limits(self) -> ServerLimits:
        return self._limits

    def stop_accepting(self) -> None:
        for door in self._doors.values():
            door.close()

    async def close(self, grace_s: float = 0.0) -> None:
        """Stop accepting, send pending replies for up to `grace_s`, close every connection."""
        self.stop_accepting()
        await self._certificates.stop()
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


def _accept_rate(per_second: int, now: float) -> TokenBucket:
    return TokenBucket(per_second, per_second, now)


def _pause_after(rate: TokenBucket, now: float) -> float:
    """Count a connection; returns the seconds for which no other should be accepted."""
    rate.spend(1, now)
    return rate.wait_s(1)


class _Door:
    """One listener while the server runs, with its openings, its limits and whether it accepts."""

    def __init__(self, config: ListenerConfig, server: Server) -> None:
        limits = server.limits
        self._loop = asyncio.get_running_loop()
        self.config = config
        self.listener: Listener | None = None
        self.connections = 0  # including those that are opening
        self.connections_max = config.connections_max
        self.rate = _accept_rate(config.creation_rate, self._loop.time())
        self.opens_in_steps = config.tls is not None or config.proxies is not ProxyForm.NONE
        self.openings = Openings(
            partial(server.opened, config), partial(server.failed, config), self._openings_full, limits.openings_max,
            limits.opening_s, server.tick,
        )  # fmt: skip
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None

    def limit_reached(self) -> str:
        return "max.connections of the listener" if self.connections >= self.connections_max else ""

    def pause_for(self, pause_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(pause_s, self._go_on)
        if self.listener is not None:
            self.listener.pause()

    def _go_on(self) -> None:
        self._timer = None
        self._settle()

    def _openings_full(self, is_full: bool) -> None:
        self._is_full = is_full
        self._settle()

    def _settle(self) -> None:
        if self.listener is not None:
            if self._is_full or self._timer is not None:
                self.listener.pause()
            else:
                self.listener.resume()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.listener is not None:
            self.listener.close()
            self.listener = None
        self.openings.close()


class _Handshake:
    """Authenticates a new internal connection, then passes it to the handler."""

    def __init__(
        self, connection: Connection, server: Server, handler: FrameHandler, unauthenticated: dict[Connection, None]
    ) -> None:
        self._connection = connection
        self._unauthenticated = unauthenticated
        self._handler = handler
        self._acceptor = server.acceptor()
        self._watch = server.watch
        self._frame_bytes_max = connection.frame_bytes_max
        connection.hand_to(self._frame, HELLO_BYTES)
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
        self._unauthenticated.pop(connection, None)
        connection.hand_to(self._handler, self._frame_bytes_max)

    def check(self, now: float) -> float | None:
        self._connection.close("node authentication: no proof in time")
        return None
