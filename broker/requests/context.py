"""One request on its way: who asks, over which listener, and the chain that every request passes.

The chain is throttle -> rewrite -> gate -> handle. The first two are seams: a quota and a name rewriter. Gate and
handler are the API's own (`Route`). A throttled request is answered first, with the throttle time in it, and then its
connection is muted for that time (KIP-219).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from broker.requests.portions import Listing
from broker.security.authorizer import Access
from broker.security.session import ClientSession
from common.pacing import Pacer, Work, at_once
from wire.messages import Message, changed

T = TypeVar("T")
M = TypeVar("M", bound="Message")

Handler = Callable[["RequestContext", Any], "Awaitable[Any] | Work[Any] | Any"]
"""Answers at once, later, or by work that the node's pacer does in slices."""
Gate = Callable[["RequestContext", Access, Any, Handler], "Awaitable[Any] | Work[Any] | Any"]
"""Calls the handler for what the session may have, and answers the rest with refusals."""


class RequestContext(Struct):
    """One request outside the two hot APIs, as its handler sees it."""

    session: ClientSession
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    scope: object = None  # the rewriter's own, from the request to its answer
    throttle_ms: int = 0  # what the answer tells the client to wait
    pacer: Pacer | None = None

    def keep_scope(self, scope: object) -> None:
        self.scope = scope

    def throttled(self, answer: M) -> M:
        """The answer, which tells the client to wait if it is to wait."""
        return changed(answer, throttle_time_ms=self.throttle_ms) if self.throttle_ms else answer

    @property
    def lane(self) -> Hashable:
        return self.session.lane

    async def paced(self, work: Work[T]) -> T:
        """The result of a handler's work, done in slices in the client's lane."""
        return at_once(work) if self.pacer is None else await self.pacer.run(work, self.lane)

    @property
    def listener(self) -> str:
        return self.session.listener

    @property
    def internal(self) -> bool:
        return self.session.internal

    @property
    def principal(self) -> str:
        return self.session.principal

    @property
    def tenant(self) -> str | None:
        return self.session.tenant

    @property
    def client_host(self) -> str:
        return self.session.client_host

    @property
    def connection(self) -> Any:
        return self.session.connection


@dataclass(slots=True, frozen=True)
class WrittenRows:
    """An answer with rows that its handler has written itself, as the client is to see them: `count` elements of the
    list `name`. Those that `message` has in it come behind them."""

    message: Message
    name: str
    parts: list[bytes]
    count: int


class Rewriter(Protocol):
    """Turns the names that a client uses into internal ones, and back."""

    def inward(self, context: RequestContext, request: M) -> M: ...

    def outward(self, context: RequestContext, response: M) -> M: ...

    def outward_work(self, context: RequestContext, response: M) -> Work[M]:
        """`outward` in slices, for an answer with many elements."""
        ...


class Throttle(Protocol):
    """Charges a request to its quotas."""

    def charge(self, session: ClientSession, api_key: int, request_bytes: int) -> int:
        """Milliseconds for which the client is to pause; 0 while it is within its quota."""
        ...


class Route(Struct, frozen=True):
    """How requests of one API outside the hot path are served."""

    handler: Handler
    gate: Gate
    """Stands before the handler where the session has an `access`."""
    cuts: Sequence[Listing] = ()
    paced: bool = False
    """The handler does the work of a long list in slices itself."""

    def cut(self, version: int) -> Listing | None:
        """How long requests of `version` are cut; None for those that never are."""
        for one in self.cuts:
            if one.since <= version <= one.until:
                return one
        return None


class RequestChain(Struct, frozen=True):
    """What every request outside the hot APIs passes on its way to its handler."""

    rewriter: Rewriter
    throttle: Throttle
