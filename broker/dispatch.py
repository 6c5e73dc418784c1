"""Frames to handlers: Produce and Fetch by hand where the frame lies, everything else through schemas and the chain.

A handler outside the hot path may answer at once or later. While one answers later its connection is muted, so that
requests of a connection take effect in the order in which they were sent, as with Apache Kafka. Requests in work are
bounded by the connections' own limits.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from struct import Struct
from typing import Any

from broker.handlers.fetch import FetchHandler
from broker.handlers.produce import ProduceHandler
from broker.request import ClientSession, Handler, RequestChain, RequestContext
from broker.security.login import Login
from broker.security.plane import Security
from common.errors import MalformedFrame, ProtocolError
from common.invariants import InvariantViolation
from wire.apis import API_VERSIONS, api_versions_unsupported, served
from wire.codec import RequestHeader, UnsupportedRequest, decode_request, encode_response
from wire.connection import Connection, Reply
from wire.hot_codec import FETCH, FETCH_VERSIONS, PRODUCE, PRODUCE_VERSIONS, request_head
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol
from wire.primitives import INT32

logger = logging.getLogger(__name__)

_KEY_AND_VERSION = Struct(">hh")
_PRODUCE_FLEXIBLE_FROM, _FETCH_FLEXIBLE_FROM = 9, 12
_SASL_HANDSHAKE, _SASL_AUTHENTICATE = 17, 36
_BEFORE_LOGIN = (_SASL_HANDSHAKE, API_VERSIONS, _SASL_AUTHENTICATE)


class Dispatcher:
    """Owns the tasks of handlers that answer later."""

    def __init__(
        self,
        produce: ProduceHandler,
        fetch: FetchHandler,
        routes: Mapping[int, Handler],
        chain: RequestChain,
        fatal: Callable[[str], None],
        security: Security | None = None,
    ) -> None:
        """`fatal` is told when an invariant broke: the node has to stop. Without `security` no listener has SASL."""
        self._produce = produce
        self._fetch = fetch
        self._routes = routes
        self._chain = chain
        self._fatal = fatal
        self._security = security
        if security is not None:
            security.open, security.shut = self.frame, self.frame_before_login
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._serial = 0
        self.requests = 0  # since the start, over all APIs

    def began(self, connection: Connection) -> None:
        """A new connection, before its first frame."""
        session = connection.state = _session_of(connection)
        if self._security is not None:
            self._security.greet(connection, session)
        elif connection.listener is not None and connection.listener.protocol.uses_sasl:
            connection.close("nobody can authenticate here")

    def frame_before_login(
        self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int
    ) -> None:
        """A whole request of somebody unknown, or a token of theirs. Raises MalformedFrame."""
        session = connection.state
        login = session.login if isinstance(session, ClientSession) else None
        if not isinstance(session, ClientSession) or not isinstance(login, Login) or not login.count_frame():
            raise MalformedFrame("too many requests before authentication")
        self.requests += 1
        if login.takes_tokens:
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
            logger.exception("an authentication failed by a fault of ours")
            connection.close("its authentication failed")
        finally:
            del self._tasks[serial]

    def frame(self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        """A whole request lies at `buffer[at:end]`. Raises MalformedFrame for one that closes its connection."""
        if end - at < _KEY_AND_VERSION.size:
            raise MalformedFrame("request header")
        key, version = _KEY_AND_VERSION.unpack_from(buffer, at)
        session = connection.state
        if not isinstance(session, ClientSession):
            self.began(connection)
            session = connection.state
            if not isinstance(session, ClientSession) or session.login is not None or connection.is_closed:
                raise MalformedFrame("a request before authentication")
        self.requests += 1
        if key == PRODUCE and PRODUCE_VERSIONS[0] <= version <= PRODUCE_VERSIONS[1]:
            head = request_head(buffer, at, end, version >= _PRODUCE_FLEXIBLE_FROM)
            self._produce.handle(session, buffer, view, head.body, end, version, head.correlation)
        elif key == FETCH and FETCH_VERSIONS[0] <= version <= FETCH_VERSIONS[1]:
            head = request_head(buffer, at, end, version >= _FETCH_FLEXIBLE_FROM)
            self._fetch.handle(session, buffer, head.body, end, version, head.correlation)
        else:
            self._by_schema(session, connection, view, at, end)

    @staticmethod
    def closed(connection: Connection) -> None:
        """The connection is gone, and with it whatever waits on its behalf."""
        if isinstance(connection.state, ClientSession):
            connection.state.closed()

    async def stop(self) -> None:
        """Cancel the handlers that have not answered."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _by_schema(self, session: ClientSession, connection: Connection, view: memoryview, at: int, end: int) -> None:
        try:
            header, request = decode_request(view[at:end])
        except UnsupportedRequest as error:
            if error.header.api_key != API_VERSIONS:
                raise
            connection.reply([api_versions_unsupported(error.header.correlation)])
            return
        handler = self._routes.get(header.api_key)
        kind = connection.listener.kind if connection.listener is not None else ListenerKind.OPERATOR
        if handler is None or served(kind, header.api_key, header.version) is None:
            raise MalformedFrame(f"api {header.api_key} version {header.version} is not served here")
        context = RequestContext(session, header.api_key, header.version, header.correlation, header.client_id)
        chain = self._chain
        try:
            pause_ms = chain.throttle.charge(session, header.api_key, end - at)
            outcome = chain.gatekeeper.serve(context, chain.rewriter.inward(context, request), handler)
        except ProtocolError as error:
            raise MalformedFrame(f"api {header.api_key} refused: {error}") from error
        if inspect.isawaitable(outcome):
            connection.mute()
            self._serial += 1
            task = asyncio.get_running_loop().create_task(
                self._later(self._serial, context, header, outcome, connection.reply_later(end - at), pause_ms)
            )
            self._tasks[self._serial] = task
        else:
            connection.reply([self._encoded(context, header, outcome, pause_ms)])
            if pause_ms:
                connection.mute_for(pause_ms / 1000)

    async def _later(
        self,
        serial: int,
        context: RequestContext,
        header: RequestHeader,
        outcome: Awaitable[Any],
        reply: Reply,
        pause_ms: int,
    ) -> None:
        connection: Connection = context.connection
        try:
            reply.send([self._encoded(context, header, await outcome, pause_ms)])
            if pause_ms:
                connection.mute_for(pause_ms / 1000)
            connection.unmute()
        except InvariantViolation as error:
            self._fatal(f"an invariant broke: {error}")
        except ProtocolError as error:
            connection.close(f"api {header.api_key} refused: {error}")
        except Exception:
            logger.exception("a handler failed", extra={"api": header.api_key, "version": header.version})
            connection.close("a handler failed")
        finally:
            del self._tasks[serial]

    def _encoded(self, context: RequestContext, header: RequestHeader, response: Any, pause_ms: int) -> bytes:
        response = self._chain.rewriter.outward(context, response)
        if pause_ms:
            response.throttle_time_ms = pause_ms
        return encode_response(header.api_key, header.version, header.correlation, response)


def _session_of(connection: Connection) -> ClientSession:
    listener: ListenerConfig | None = connection.listener
    name = listener.name if listener is not None else ""
    internal = listener is not None and listener.kind is ListenerKind.INTERNAL
    identity = connection.identity
    if identity is None:
        return ClientSession(name, internal, connection.peer[0], connection)
    session = ClientSession(name, internal, identity.client_address[0], connection)
    if identity.security_protocol is SecurityProtocol.SSL and identity.tls_principal is not None:
        session.principal = identity.tls_principal
    return session
