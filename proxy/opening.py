"""One connection from its acceptance to its relay: hello, route, limits, handshake, broker, PROXY header.

An opening is a chain of callbacks without a task, future or timer of its own. It costs no TLS state before its hello
names a route, and no connection to a broker before its handshake is complete. When a broker does not answer, the
opening tries another one of the cell, as long as no byte of the client has been passed on.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from common.ports import Address
from proxy.client_hello import (
    ACCESS_DENIED,
    UNRECOGNIZED_NAME,
    BadHello,
    ClientHello,
    alert_record,
    peek_bytes,
    read_hello,
)
from proxy.failures import Cause, FailureLog
from proxy.handshake_queue import HandshakeQueue
from proxy.host_addresses import HostAddresses
from proxy.limits import Buckets, Counts, ProxyLimits
from proxy.networks import NetworkRules
from proxy.relay import Relay, Room
from proxy.routing import Route, RouteSource, TenantRoute, find_route
from proxy.server_tls import Places, ServerContext
from proxy.sockets import (
    FULL,
    Connection,
    Readiness,
    begin_connect,
    is_connected,
    local_address,
    peek,
    refuse,
    reset,
    send_ahead,
    wake_at,
)
from wire.proxy_protocol import ProxyHeader, encode

AVOID_S = 2.0  # for this long an unreachable broker is tried last


@dataclass(slots=True)
class Reception:
    """State that all openings of one listener share.

    `client_context` is read for each connection, so that a reload needs only an assignment; None passes TLS through to
    the brokers. `broker_context` None connects to brokers in the clear. `header`: whether brokers get the client's
    address in a PROXY header.
    """

    ready: Readiness
    now: Callable[[], float]
    routes: RouteSource
    domain: str
    limits: ProxyLimits
    rules: NetworkRules
    client_context: ServerContext | None
    broker_context: ssl.SSLContext | None
    header: bool
    addresses: Counts
    tenants: Counts
    failures: FailureLog
    handshake_queue: HandshakeQueue
    room: Room
    hosts: HostAddresses
    quick_places: Places
    rates: Buckets = field(default_factory=Buckets)
    avoided: dict[Address, float] = field(default_factory=dict)
    rotation: int = 0
    bound: Address | None = None  # the listener's address; None when it listens on every one
    deferral_s: int = 0  # how long the kernel withholds a client that sends nothing
    handshakes: int = 0

    def address_problem(self, host: str, counted: str) -> Cause | None:
        """Count one more connection of the address and return None, or return why it is refused."""
        if not self.rules.permits(host):
            return Cause.ADDRESS_DENIED
        if not self.rates.permits(counted, self.limits.address_new_per_second / self.limits.workers, self.now()):
            return Cause.ADDRESS_RATE
        if not self.addresses.enter(counted, self.limits.address_connections):
            return Cause.ADDRESS_CONNECTIONS
        return None

    def tenant_problem(self, tenant: TenantRoute, host: str) -> Cause | None:
        """Count one more connection of the tenant and return None, or return why it is refused."""
        limits = self.limits
        if not tenant.rules.permits(host):
            return Cause.TENANT_DENIED
        rate = limits.tenant_new_per_second if tenant.connection_rate is None else tenant.connection_rate
        if not self.rates.permits(tenant.tenant, rate / limits.workers, self.now()):
            return Cause.TENANT_RATE
        most = limits.tenant_connections if tenant.connections_max is None else tenant.connections_max
        return None if self.tenants.enter(tenant.tenant, most) else Cause.TENANT_CONNECTIONS


class Opening:
    """Calls `done(opening, relay)` once, with None when the connection failed."""

    __slots__ = (
        "_attempt",
        "_broker",
        "_closed",
        "_done",
        "_had",
        "_name",
        "_reception",
        "_route",
        "_trouble",
        "_watched",
        "_writing",
        "address",
        "attempt_since",
        "client",
        "peer",
        "since",
    )

    def __init__(
        self,
        reception: Reception,
        client: Connection,
        peer: Address,
        address: str,
        done: Callable[[Opening, Relay | None], None],
    ) -> None:
        self._reception, self._done = reception, done
        self.client, self.peer, self.address = client, peer, address
        self.since = reception.now()
        self.attempt_since: float | None = None
        self._name = self._trouble = ""
        self._route: Route | None = None
        self._broker: Connection | None = None
        self._attempt = -1
        self._had = 0
        self._closed = self._watched = self._writing = False

    @property
    def tenant(self) -> str | None:
        """None until the hello names it."""
        return None if self._route is None else self._route.tenant.tenant

    # The hello.

    def look(self) -> None:
        """Peek at what the client has sent so far."""
        if self._closed:
            return
        reception = self._reception
        most = reception.limits.hello_bytes
        view = reception.room.whole[: peek_bytes(most)]
        try:
            count = peek(self.client, view)
            hello = read_hello(view[:count], most)
        except (BlockingIOError, InterruptedError):
            if not self._watched:  # accept was deferred: the client has already been silent for that long
                self.since -= reception.deferral_s
            self._watch(self.look)
            return
        except BadHello as bad:
            cause = Cause.UNKNOWN_NAME if bad.alert == UNRECOGNIZED_NAME else Cause.BAD_HELLO
            self._refuse(cause, bad.alert, str(bad))
            return
        except OSError as error:
            self._fail(Cause.GONE, str(error))
            return
        if hello is None:
            self._wait_for_more(count)
        else:
            self._choose(hello)

    def _wait_for_more(self, count: int) -> None:
        """Wake only for more bytes or the end, because peeked bytes keep a level-triggered descriptor ready."""
        if count <= self._had:
            self._fail(Cause.GONE, "ended inside its hello")
            return
        self._had = count
        wake_at(self.client, count + 1)
        self._watch(self.look)

    def _choose(self, hello: ClientHello) -> None:
        reception = self._reception
        name = hello.server_name
        if name is None:
            self._refuse(Cause.NO_SERVER_NAME, UNRECOGNIZED_NAME)
            return
        reception.rotation += 1
        route = find_route(reception.routes.current, reception.domain, name, reception.rotation, reception.avoided)
        if isinstance(route, Cause):
            self._refuse(route, UNRECOGNIZED_NAME if route is Cause.UNKNOWN_NAME else None, name)
            return
        problem = reception.tenant_problem(route.tenant, self.peer[0])
        if problem is not None:
            self._refuse(problem, ACCESS_DENIED if problem is Cause.TENANT_DENIED else None, name)
            return
        self._route, self._name = route, name
        if self._had:
            wake_at(self.client, 1)
        self._unwatch_if_watched()
        if reception.client_context is None:
            self._next_broker()
        else:
            reception.handshake_queue.enter(self._begin_handshake)

    # The client's handshake.

    def _begin_handshake(self) -> None:
        context = self._reception.client_context
        if self._closed:
            return
        if context is None:
            raise RuntimeError("a handshake without a certificate")
        try:
            self.client.accept_tls(context, self._reception.quick_places)
        except (OSError, ValueError) as error:
            self._fail(Cause.GONE, str(error))
            return
        self._shake_hands()

    def _shake_hands(self) -> None:
        client = self.client
        try:
            client.tls.do_handshake()
        except ssl.SSLWantReadError:
            self._watch(self._shake_hands)
            return
        except ssl.SSLWantWriteError:
            self._unwatch_if_watched()
            self._writing = True
            self._reception.ready.add_writer(client.fileno(), self._shake_hands)
            return
        except ConnectionError as error:
            self._fail(Cause.GONE, str(error))
            return
        except OSError as error:
            self._fail(Cause.HANDSHAKE, _reason(error))
            return
        if self._writing:
            self._writing = False
            self._reception.ready.remove_writer(client.fileno())
        if self._watched:
            self._reception.ready.add_reader(client.fileno(), self._unwatch_if_watched)
        self._reception.handshakes += 1
        self._next_broker()

    # The broker.

    def _next_broker(self) -> None:
        route = self._route
        if self._closed or route is None:
            return
        self._attempt += 1
        if self._attempt >= len(route.addresses):
            self._fail(Cause.BROKER_UNREACHABLE, self._trouble)
            return
        self.attempt_since = self._reception.now()
        self._reception.hosts.find(route.addresses[self._attempt][0], partial(self._dial, self._attempt))

    def _dial(self, attempt: int, host: str | None) -> None:
        route = self._route
        if self._closed or route is None or attempt != self._attempt:  # an answer for an earlier attempt
            return
        if host is None:
            self.abandon_attempt("its name is not known")
            return
        try:
            self._broker = begin_connect((host, route.addresses[self._attempt][1]))
        except OSError as error:
            self.abandon_attempt(str(error))
            return
        self._reach()

    def _reach(self) -> None:
        """Try at once, because a broker on the same machine is connected by now; else wait until it is writable."""
        broker, context = self._broker, self._reception.broker_context
        if broker is None:
            return
        try:
            if context is None:
                self._greet(broker)
                return
            if not is_connected(broker):
                self._await_broker(self._reach)
                return
            broker.begin_tls(context, self._target()[0])
        except FULL:
            self._await_broker(self._reach)
            return
        except (OSError, ValueError) as error:
            self.abandon_attempt(_reason(error))
            return
        self._reception.ready.remove_writer(broker.fileno())
        self._writing = False
        self._shake_broker()

    def _shake_broker(self) -> None:
        broker = self._broker
        if broker is None or broker.tls is None:  # another broker than the one that answered
            return
        try:
            broker.tls.do_handshake()
            self._greet(broker)
        except ssl.SSLWantReadError:
            self._reception.ready.add_reader(broker.fileno(), self._broker_answered)
        except FULL:
            self._await_broker(self._shake_broker)
        except OSError as error:
            self.abandon_attempt(_reason(error))

    def _broker_answered(self) -> None:
        """Checking the broker's certificate takes long, so this step is queued as well."""
        broker = self._broker
        if broker is not None:
            self._reception.ready.remove_reader(broker.fileno())
            self._reception.handshake_queue.enter(self._shake_broker)

    def _await_broker(self, then: Callable[[], None]) -> None:
        if self._broker is not None:
            self._writing = True
            self._reception.ready.add_writer(self._broker.fileno(), then)

    def _greet(self, broker: Connection) -> None:
        """Send the PROXY header and start the relay. Raises one of FULL when the broker is not connected yet."""
        reception, route = self._reception, self._route
        if route is None:
            return
        if reception.header:
            authority = self._name if reception.client_context is not None else None
            local = reception.bound or local_address(self.client)
            header = encode(ProxyHeader(self.peer, local, authority))
            if send_ahead(broker, header) < len(header):
                raise ConnectionError("a fresh connection took no header")
        elif reception.broker_context is None and not is_connected(broker):
            raise BlockingIOError
        relay = Relay(
            reception.ready,
            self.client,
            broker,
            reception.room,
            route.tenant.tenant,
            self.address,
        )
        self._closed = True
        relay.start()
        if self._writing:
            reception.ready.remove_writer(broker.fileno())
        self._done(self, relay)
        if not relay.closed:  # bytes that the client has sent meanwhile need not wait for the next turn
            relay.up.pump()

    def _target(self) -> Address:
        return ("", 0) if self._route is None else self._route.addresses[self._attempt]

    def abandon_attempt(self, reason: str) -> None:
        """Try the next broker, because this one does not accept the connection."""
        self._reception.avoided[self._target()] = self._reception.now() + AVOID_S
        self._trouble = f"{self._name} at {':'.join(map(str, self._target()))}: {reason}"
        self._drop_broker()
        self._next_broker()

    # The end.

    def close(self, cause: Cause) -> None:
        """Give up: the client is too slow, or the proxy stops. Idempotent."""
        if not self._closed:
            self._fail(cause, self._name)

    def _refuse(self, cause: Cause, alert: int | None, detail: str = "") -> None:
        """Refuse before TLS has begun, with an alert in the clear. Without an alert clients retry."""
        self._leave(cause, detail)
        refuse(self.client, b"" if alert is None else alert_record(alert), self._reception.room.whole)
        self._done(self, None)

    def _fail(self, cause: Cause, detail: str) -> None:
        self._leave(cause, detail)
        if cause is Cause.BROKER_UNREACHABLE:
            reset(self.client)
        else:
            refuse(self.client, b"", self._reception.room.whole)
        self._done(self, None)

    def _leave(self, cause: Cause, detail: str) -> None:
        reception = self._reception
        self._closed = True
        fd = self.client.fileno()
        if self._watched or self._writing:
            reception.ready.remove_reader(fd)
            reception.ready.remove_writer(fd)
        self._drop_broker()
        if self._route is not None:
            reception.tenants.leave(self._route.tenant.tenant)
        reception.addresses.leave(self.address)
        reception.failures.note(cause, self.address, reception.now(), detail)

    def _drop_broker(self) -> None:
        broker, self._broker = self._broker, None
        if broker is not None:
            self._reception.ready.remove_reader(broker.fileno())
            self._reception.ready.remove_writer(broker.fileno())
            self._writing = False
            with contextlib.suppress(OSError):
                broker.close()

    def _watch(self, then: Callable[[], None]) -> None:
        self._watched = True
        self._reception.ready.add_reader(self.client.fileno(), then)

    def _unwatch_if_watched(self) -> None:
        """Stop watching the client; its bytes wait in the socket until there is a relay."""
        if self._watched:
            self._watched = False
            self._reception.ready.remove_reader(self.client.fileno())


def _reason(error: Exception) -> str:
    """OpenSSL's reason without its file and line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return str(error.verify_message)
    if isinstance(error, ssl.SSLError) and error.reason:
        return str(error.reason).lower().replace("_", " ")
    return str(error)
