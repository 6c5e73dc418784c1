"""Passes frames to handlers: Produce and Fetch in the receive buffer, all other APIs through schemas and the chain.

A Produce or Fetch with very many partitions, or a Produce of many megabytes, is served in slices
(`broker/requests/long_requests.py`).

Other requests are answered at once or later (`broker/requests/serving.py`). While a request waits for its response, its
connection is muted, so that the requests of a connection take effect in the order in which they were sent, as in Apache
Kafka. The connections' own limits bound the requests in progress. Each turn of the event loop serves a limited number
of short requests at once; further ones wait in their client's lane.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct

from broker.handlers.fetch import FetchHandler
from broker.handlers.long_fetch import LongFetch
from broker.handlers.long_produce import LongProduce
from broker.handlers.produce import ProduceHandler
from broker.requests.context import RequestChain, RequestContext, Route
from broker.requests.long_requests import LongRequest, LongServing
from broker.requests.serving import RequestServing
from broker.security.login import Login
from broker.security.plane import FrameHandlers, Security
from broker.security.session import ANONYMOUS, ClientSession
from common.errors import MalformedFrame, ProtocolError
from common.invariants import InvariantViolation
from common.lifecycle import end_tasks
from common.metrics import Metrics
from common.node_settings.connections import ConnectionSettings
from common.pacing import Pacer
from wire.apis import APIS, ApiKey, api_versions_unsupported, served
from wire.codec import UnsupportedRequest, decode_request, request_start
from wire.connection import Connection
from wire.hot_codec import FETCH, FETCH_VERSIONS, PRODUCE, PRODUCE_VERSIONS, request_head
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol
from wire.outgoing import Part, Reply
from wire.primitives import INT32

logger = logging.getLogger(__name__)

_KEY_AND_VERSION = Struct(">hh")
_PRODUCE_FLEXIBLE_FROM, _FETCH_FLEXIBLE_FROM = 9, 12
SHORT_BYTES = 2 << 10  # frames up to this size are decoded in one go
COPIED_BYTES_MAX = 64 << 10  # longer frames are decoded in the receive buffer
SHORT_COST, BYTES_PER_UNIT = 100, 4  # units of `common.pacing`: cost of a short request
UNKNOWN_API = -1
_BEFORE_LOGIN = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.API_VERSIONS, ApiKey.SASL_AUTHENTICATE})


class Dispatcher:
    """Owns the tasks of handlers that respond later."""

    def __init__(
        self,
        produce: ProduceHandler,
        fetch: FetchHandler,
        routes: Mapping[int, Route],
        chain: RequestChain,
        fatal: Callable[[str], None],
        pacer: Pacer,
        security: Security | None = None,
        answer_bytes_max: int = ConnectionSettings().answer_bytes_max,
    ) -> None:
        """`fatal` is called after a broken invariant: the node must stop. Without `security` no listener has SASL."""
        self._produce = produce
        self._fetch = fetch
        self._routes = routes
        self._pacer = pacer
        self.serving = RequestServing(chain, pacer, answer_bytes_max)
        self._fatal = fatal
        self._security = security
        self._handlers = FrameHandlers(self.frame, self.frame_before_login)
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._serial = 0
        self._calls = dict.fromkeys([*APIS, UNKNOWN_API], 0)
        self.client_requests = 0  # those that did not come from other nodes

    @property
    def requests(self) -> int:
        """Since the start, of all APIs."""
        return sum(self._calls.values())

    def register(self, metrics: Metrics) -> None:
        """Requests, in all and by API; what is no API counts as one more."""
        metrics.counter("tidelog_requests_total", lambda: self.requests)
        metrics.family(
            "tidelog_api_requests_total",
            lambda: [({"api": _api_name(key)}, float(count)) for key, count in self._calls.items() if count],
        )

    def began(self, connection: Connection) -> None:
        """Set up a new connection, before its first frame."""
        session = _session_of(connection)
        connection.belong_to(session)
        if self._security is not None:
            self._security.greet(connection, session, self._handlers)
        elif connection.listener is not None and connection.listener.protocol.uses_sasl:
            connection.close("the listener has no authentication")

    def frame_before_login(
        self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int
    ) -> None:
        """A complete request of an unauthenticated client, or a SASL token. Raises MalformedFrame."""
        session = connection.state
        login = session.login if isinstance(session, ClientSession) else None
        if not isinstance(session, ClientSession) or not isinstance(login, Login) or not login.count_frame():
            raise MalformedFrame("too many requests before authentication")
        self.client_requests += 1
        if login.takes_tokens:
            self._calls[ApiKey.SASL_AUTHENTICATE] += 1
            connection.mute()
            self._serial += 1
            work = self._token(self._serial, login, bytes(view[at:end]), connection)
            self._tasks[self._serial] = asyncio.get_running_loop().create_task(work)
            return
        if end - at < _KEY_AND_VERSION.size:
            raise MalformedFrame("request header")
        key, _ = _KEY_AND_VERSION.unpack_from(buffer, at)
        if key not in _BEFORE_LOGIN:
            raise MalformedFrame(f"api {key} before authentication")
        self._calls[key] += 1
        self._by_schema(session, connection, view, at, end)

    async def _token(self, serial: int, login: Login, data: bytes, connection: Connection) -> None:
        try:
            answer = await login.token(data)
            if answer is None:
                connection.close()
            else:
                connection.send([INT32.pack(len(answer)) + answer])
                connection.unmute()
        except Exception:
            logger.exception("an authentication failed because of an internal error")
            connection.close("its authentication failed")
        finally:
            del self._tasks[serial]

    def frame(self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        """A complete request is at `buffer[at:end]`. Raises MalformedFrame to close the connection."""
        if end - at < _KEY_AND_VERSION.size:
            raise MalformedFrame("request header")
        key, version = _KEY_AND_VERSION.unpack_from(buffer, at)
        session = connection.state
        if not isinstance(session, ClientSession):
            self.began(connection)
            session = connection.state
            if not isinstance(session, ClientSession) or session.login is not None or connection.is_closed:
                raise MalformedFrame("a request before authentication")
        self._calls[key if key in self._calls else UNKNOWN_API] += 1
        self.client_requests += not session.internal
        if key == PRODUCE and PRODUCE_VERSIONS[0] <= version <= PRODUCE_VERSIONS[1]:
            head = request_head(buffer, at, end, version >= _PRODUCE_FLEXIBLE_FROM)
            unread = self._produce.handle(session, buffer, view, head, at, end)
            if unread is not None:
                produce = LongProduce(self._produce, unread, buffer, head, end - at)
                self._take_long(session, connection, end - at, produce.serve)
        elif key == FETCH and FETCH_VERSIONS[0] <= version <= FETCH_VERSIONS[1]:
            head = request_head(buffer, at, end, version >= _FETCH_FLEXIBLE_FROM)
            unnamed = self._fetch.handle(session, buffer, head, at, end)
            if unnamed is not None:
                fetch = LongFetch(self._fetch, unnamed, head, end - at)
                self._take_long(session, connection, end - at, fetch.serve)
        else:
            self._by_schema(session, connection, view, at, end)

    @staticmethod
    def closed(connection: Connection) -> None:
        """The connection has closed: cancel what waits on its behalf."""
        if isinstance(connection.state, ClientSession):
            connection.state.closed()

    async def stop(self) -> None:
        """Cancel the handlers that have not responded."""
        await end_tasks(self._tasks.values())

    def _take_long(self, session: ClientSession, connection: Connection, size: int, serving: LongServing) -> None:
        connection.mute()
        reply, release = connection.reply_later(size), connection.keep_buffer()
        long = LongRequest(session, self._pacer, self.serving.admission, reply, release)
        self._serial += 1
        task = asyncio.get_running_loop().create_task(self._serve_long(self._serial, long, serving))
        self._tasks[self._serial] = task

    async def _serve_long(self, serial: int, long: LongRequest, serving: LongServing) -> None:
        connection: Connection = long.session.connection
        try:
            await self._pacer.metered(serving(long), long.session.lane.group)
            long.go_on()
        except InvariantViolation as error:
            self._fatal(f"an invariant broke: {error}")
        except MalformedFrame as error:
            connection.close(f"malformed frame: {error}")
        except Exception:
            logger.exception("a handler failed")
            connection.close("a handler failed")
        finally:
            long.end()
            del self._tasks[serial]

    def _by_schema(self, session: ClientSession, connection: Connection, view: memoryview, at: int, end: int) -> None:
        data, size = view[at:end], end - at
        try:
            header, _ = request_start(data)
        except UnsupportedRequest as error:
            if error.header.api_key != ApiKey.API_VERSIONS:
                raise
            connection.reply([api_versions_unsupported(error.header.correlation)])
            return
        route = self._routes.get(header.api_key)
        kind = connection.listener.kind if connection.listener is not None else ListenerKind.OPERATOR
        if route is None or served(kind, header.api_key, header.version) is None:
            raise MalformedFrame(f"api {header.api_key} version {header.version} is not served here")
        throttle_ms = self.serving.chain.throttle.charge(session, header.client_id, header.api_key, size, 0)
        context = RequestContext(
            session,
            header.api_key,
            header.version,
            header.correlation,
            header.client_id,
            throttle_ms=throttle_ms,
            pacer=self._pacer,
        )
        is_long = size > COPIED_BYTES_MAX
        if is_long:
            connection.mute()
        try:
            outcome: list[bytes] | Awaitable[list[bytes]]
            if size <= SHORT_BYTES and self._pacer.admits(SHORT_COST + size // BYTES_PER_UNIT):
                outcome = self.serving.serve(context, decode_request(data)[1], route)
            elif not is_long:
                outcome = self.serving.frame(context, memoryview(bytes(data)), route, None)
            else:
                outcome = self.serving.frame(context, data, route, connection.keep_buffer())
        except ProtocolError as error:
            raise MalformedFrame(f"api {header.api_key} rejected: {error}") from error
        if inspect.isawaitable(outcome):
            if not is_long:
                connection.mute()
            self._serial += 1
            task = asyncio.get_running_loop().create_task(
                self._later(self._serial, context, outcome, connection.reply_later(size))
            )
            self._tasks[self._serial] = task
        else:
            connection.reply(list[Part](outcome))
            if throttle_ms:
                connection.mute_for(throttle_ms / 1000)

    async def _later(
        self, serial: int, context: RequestContext, outcome: Awaitable[list[bytes]], reply: Reply
    ) -> None:  # fmt: skip
        connection: Connection = context.connection
        try:
            reply.send(list[Part](await self._pacer.metered(outcome, context.session.lane.group)))
            if context.throttle_ms:
                connection.mute_for(context.throttle_ms / 1000)
            connection.unmute()
        except InvariantViolation as error:
            self._fatal(f"an invariant broke: {error}")
        except (ProtocolError, MalformedFrame) as error:
            connection.close(f"api {context.api_key} rejected: {error}")
        except Exception:
            logger.exception("a handler failed", extra={"api": context.api_key, "version": context.api_version})
            connection.close("a handler failed")
        finally:
            if reply.parts is None:
                reply.send([])  # release what it holds
            del self._tasks[serial]


def _api_name(key: int) -> str:
    return "unknown" if key == UNKNOWN_API else APIS[key].name


def _session_of(connection: Connection) -> ClientSession:
    listener: ListenerConfig | None = connection.listener
    name = listener.name if listener is not None else ""
    internal = listener is not None and listener.kind is ListenerKind.INTERNAL
    identity = connection.identity
    if identity is None:
        return ClientSession(name, internal, connection.peer[0], connection)
    host, principal = identity.client_address[0], ANONYMOUS
    if identity.security_protocol is SecurityProtocol.SSL and identity.tls_principal is not None:
        principal = identity.tls_principal
    return ClientSession(name, internal, host, connection, principal)
