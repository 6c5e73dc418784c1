"""The state of one connection's authentication: SaslHandshake 0-1, SaslAuthenticate 0-2.

Behaviour: a handshake names a mechanism, the exchange follows in SaslAuthenticate, or after a handshake of version 0 in
frames without a header. Until it succeeds only these two and ApiVersions are served. Every failure is answered with the
same delay and message, then the connection closes. A session may expire (KIP-368): before that the client
re-authenticates on the same connection, as the same principal with the same mechanism; after that nothing else is
served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from broker.security.exchange import Authenticated, AuthenticationFailed, Exchange
from broker.security.oauth import OauthExchange
from broker.security.session import ClientSession
from broker.security.verifications import TooManyVerifications
from common.errors import ErrorCode
from wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse

RAW_TOKENS_UNTIL = 0
EXPIRED_GRACE_S = 10.0  # how long a connection stays open after its session has expired
FRAMES_MAX = 32  # requests before authentication, and again after each expiry of the session


class LoginServices(Protocol):
    """The broker as a login uses it: `plane.Security`."""

    mechanisms: Sequence[str]
    """Offered by the connection's listener."""
    max_reauth_ms: int
    failed_delay_s: float
    authentication_s: float
    reauthentication_s: float

    def exchange(self, mechanism: str) -> Exchange: ...

    async def verify(self, work: Callable[[], Authenticated]) -> Authenticated:
        """Raises TooManyVerifications and what `work` raises."""
        ...

    def principal(self, user: str) -> str: ...

    def admit(self, login: Login, user: str) -> str:
        """The connection now belongs to this user: open all APIs to it. Returns "", or why the user is not admitted."""
        ...

    def shut(self, login: Login) -> None:
        """Its session has expired: close everything but authentication to it."""
        ...

    def failed(self, cause: str, mechanism: str) -> None:
        """Log and count a failure."""
        ...

    def gone(self, login: Login) -> None:
        """The connection is closed."""
        ...

    def now_ms(self) -> int: ...


class Login:
    """Owned by its connection's session."""

    def __init__(self, session: ClientSession, services: LoginServices) -> None:
        self.session = session
        self.user = ""
        """Empty before authentication."""
        self.mechanism = ""
        self.takes_tokens = False
        """Whether the next frames have no header."""
        self._services = services
        self._loop = asyncio.get_running_loop()
        self._exchange: Exchange | None = None
        self._asked = ""  # the mechanism of the exchange under way
        self._begun_at = float("-inf")
        self._frames = 0
        self._is_over = False
        self._timer = self._loop.call_later(services.authentication_s, self._late)

    # what the dispatcher asks ------------------------------------------------------------------------------

    def count_frame(self) -> bool:
        """Whether another frame of an unauthenticated connection may be read."""
        self._frames += 1
        return self._frames <= FRAMES_MAX and not self._is_over

    def handshake(self, version: int, mechanism: str) -> SaslHandshakeResponse:
        """The response to SaslHandshake."""
        offered = list(self._services.mechanisms)
        now = self._loop.time()
        too_soon = self.user != "" and now - self._begun_at < self._services.reauthentication_s
        if self._exchange is not None or self._is_over or too_soon:
            self._fail("handshake out of turn", "")
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=offered)
        if mechanism not in offered or self.mechanism not in ("", mechanism):
            self._fail("unsupported mechanism", "")
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=offered)
        self._begun_at = now
        self._asked = mechanism
        self._exchange = self._services.exchange(mechanism)
        self.takes_tokens = version <= RAW_TOKENS_UNTIL
        if self.takes_tokens and self.user:
            self._services.shut(self)  # tokens follow, not requests
        return SaslHandshakeResponse(error_code=ErrorCode.NONE, mechanisms=offered)

    async def authenticate(self, data: bytes) -> SaslAuthenticateResponse:
        """The response to SaslAuthenticate."""
        if self._exchange is None or self.takes_tokens or self._is_over:
            self._fail("no handshake", "")
            return _refusal(ErrorCode.ILLEGAL_SASL_STATE, "SaslHandshake comes before SaslAuthenticate.")
        mechanism = self._asked
        answer, lifetime_ms = await self._advance(data)
        if answer is None:
            return _refusal(
                ErrorCode.SASL_AUTHENTICATION_FAILED,
                f"Authentication failed due to invalid credentials with SASL mechanism {mechanism}",
            )
        return SaslAuthenticateResponse(
            error_code=ErrorCode.NONE, error_message=None, auth_bytes=answer, session_lifetime_ms=lifetime_ms
        )

    async def token(self, data: bytes) -> bytes | None:
        """The response to a frame without a header; None: no response, and the connection closes."""
        answer, _ = await self._advance(data)
        return answer

    def connection_closed(self) -> None:
        self._timer.cancel()
        self._is_over = True
        self._services.gone(self)

    # the exchange ------------------------------------------------------------------------------------------

    async def _advance(self, data: bytes) -> tuple[bytes | None, int]:
        exchange, services = self._exchange, self._services
        if exchange is None:
            return None, 0
        asked_at = self._loop.time()
        try:
            step = exchange.step(data)
            if isinstance(step, bytes):
                return step, 0
            done = step if isinstance(step, Authenticated) else await services.verify(step)
            return done.answer, self._succeeded(done)
        except AuthenticationFailed as failure:
            if isinstance(exchange, OauthExchange) and not exchange.is_refused:
                return exchange.refuse(failure), 0
            await self._failed(failure.cause, asked_at)
        except TooManyVerifications:
            self._is_over = True
            services.failed("too many at once", self._asked)
            self.session.connection.close()
        return None, 0

    def _succeeded(self, done: Authenticated) -> int:
        """The session's lifetime in milliseconds, 0 without an end. Raises AuthenticationFailed."""
        services = self._services
        if self.session.connection.is_closed:
            raise AuthenticationFailed("closed meanwhile")
        if self.user and services.principal(done.user) != self.session.principal:
            raise AuthenticationFailed("another principal")
        lifetime_ms = services.max_reauth_ms
        if done.expires_ms is not None:
            left_ms = max(done.expires_ms - services.now_ms(), 1)
            lifetime_ms = min(lifetime_ms, left_ms) if lifetime_ms else left_ms
        refusal = services.admit(self, done.user)
        if refusal:
            raise AuthenticationFailed(refusal)
        self.user, self.mechanism = done.user, self._asked
        self._exchange, self.takes_tokens = None, False
        self._frames = 0
        self._timer.cancel()
        if lifetime_ms:
            self._timer = self._loop.call_later(lifetime_ms / 1000, self._expire)
        return lifetime_ms

    async def _failed(self, cause: str, asked_at: float) -> None:
        self._fail(cause, self._asked)
        await asyncio.sleep(until_answer(self._loop.time() - asked_at, self._services.failed_delay_s))

    def _fail(self, cause: str, mechanism: str) -> None:
        """Serve nothing more; the connection closes after the response."""
        first, self._is_over = not self._is_over, True
        if first:
            self._services.failed(cause, mechanism)
        self._services.shut(self)

    def answer_follows(self) -> None:
        """The response is queued in this turn of the loop; if it is the last one, the connection closes after it."""
        if self._is_over:
            self._loop.call_soon(self.session.connection.close_after_flush)

    # the session's end -------------------------------------------------------------------------------------

    def _expire(self) -> None:
        self._services.shut(self)
        self._timer = self._loop.call_later(EXPIRED_GRACE_S, self._expired)

    def _expired(self) -> None:
        self._services.failed("session expired", self.mechanism)
        self.session.connection.close()

    def _late(self) -> None:
        self._services.failed("not in time", self._asked)
        self.session.connection.close()


def until_answer(taken_s: float, delay_s: float) -> float:
    """Seconds to delay the answer to a failure whose check took `taken_s`. Together they are a multiple of `delay_s`,
    so that the time does not reveal which verifier was checked, if any."""
    return delay_s - taken_s % delay_s if delay_s > 0 else 0.0


def _refusal(code: ErrorCode, message: str) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=code, error_message=message, auth_bytes=b"", session_lifetime_ms=0)
