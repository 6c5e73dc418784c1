"""One request: its client, its listener, and the chain that every request outside the hot APIs passes.

The chain is throttle -> rewrite -> gate -> handle. Throttle (a quota) and rewriter (tenants' names) are interfaces;
gate and handler belong to the API (`Route`). A throttled request is answered at once with the throttle time, and then
its connection is muted for that time (KIP-219).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from broker.requests.portions import Listing
from broker.security.authorizer import Access
from broker.security.session import ClientSession
from broker.security.usage import ThrottleReason
from common.pacing import Pacer, Work, at_once
from wire.messages import Message, changed

T = TypeVar("T")
M = TypeVar("M", bound="Message")

Handler = Callable[["RequestContext", Any], "Awaitable[Any] | Work[Any] | Any"]
"""Returns a response, an awaitable of it, or work that the node's pacer runs in slices."""
Gate = Callable[["RequestContext", Access, Any, Handler], "Awaitable[Any] | Work[Any] | Any"]
"""Calls the handler with what the session may access, and adds error rows for the rest."""


class RequestContext(Struct):
    """One request outside Produce and Fetch, as its handler sees it."""

    session: ClientSession
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    scope: object = None  # kept by the rewriter from the request to its response
    throttle_ms: int = 0  # throttle time for the response, in milliseconds
    pacer: Pacer | None = None

    def keep_scope(self, scope: object) -> None:
        self.scope = scope

    def owe(self, answer: Message) -> None:
        """Wait for as long as the controller says in `answer`, if that is longer."""
        owed_ms = getattr(answer, "throttle_time_ms", 0)
        if owed_ms > self.throttle_ms:
            self.session.usage.throttled(ThrottleReason.PARTITION_MUTATIONS, owed_ms - self.throttle_ms)
            self.throttle_ms = owed_ms

    def throttled(self, answer: M) -> M:
        """The response, with the throttle time if there is one."""
        self.owe(answer)
        return changed(answer, throttle_time_ms=self.throttle_ms) if self.throttle_ms else answer

    @property
    def lane(self) -> Hashable:
        return self.session.lane

    async def paced(self, work: Work[T]) -> T:
        """Run a handler's work in slices, in the client's lane. Returns its result."""
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
    """A response whose handler has encoded `count` elements of the list `name` itself, in `parts`. Elements that
    `message` has in that list follow them."""

    message: Message
    name: str
    parts: list[bytes]
    count: int


class Rewriter(Protocol):
    """Translates a tenant's names to internal ones, and back."""

    def inward(self, context: RequestContext, request: M) -> M: ...

    def inward_work(self, context: RequestContext, request: M) -> Work[M]:
        """`inward` in slices, for a request with many elements."""
        ...

    def outward(self, context: RequestContext, response: M) -> M: ...

    def outward_work(self, context: RequestContext, response: M) -> Work[M]:
        """`outward` in slices, for a response with many elements."""
        ...


class Throttle(Protocol):
    """Charges requests to quotas. `client_id` is the request's, as its header has it."""

    def charge(
        self, session: ClientSession, client_id: bytes | str | None, api_key: int, in_bytes: int, out_bytes: int
    ) -> int:
        """Milliseconds for which the client must pause after the response; 0 within its quotas. `in_bytes` are those
        of the request, `out_bytes` those of the records in the response."""
        ...

    def refuses_ms(self, session: ClientSession, client_id: bytes | str | None, out_bytes: int) -> int:
        """Milliseconds for which a Fetch must pause before it may have `out_bytes` of records; 0 if it may have them
        now. Charges nothing."""
        ...

    def fetch_bytes_max(self, session: ClientSession, client_id: bytes | str | None, bytes_max: int) -> int:
        """How many bytes a Fetch of at most `bytes_max` should read; reading more would be in vain."""
        ...


UNCUT_ELEMENTS_MAX = 10_000  # in a list of a client's request that cannot be cut, where the API has no lower bound


class Route(Struct, frozen=True):
    """How the requests of one API outside Produce and Fetch are served."""

    handler: Handler
    gate: Gate
    """Called instead of the handler if the session has an `access`."""
    cuts: Sequence[Listing] = ()
    paced: bool = False
    """Whether the handler itself runs the work of a long list in slices."""
    elements_max: int = UNCUT_ELEMENTS_MAX

    def cut(self, version: int) -> Listing | None:
        """How long requests of `version` are cut into portions; None if they are not."""
        for one in self.cuts:
            if one.since <= version <= one.until:
                return one
        return None


class RequestChain(Struct, frozen=True):
    """The parts of the chain that all APIs share."""

    rewriter: Rewriter
    throttle: Throttle
