"""A node's channel to the active controller: found by trying, kept while it answers, searched again when it moves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

from msgspec import Struct

from common.backoff import Backoff, Retries
from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown
from common.ports import Address
from kraft.links import Link, Links
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import Request


class Coded(Protocol):
    """A response with a top-level error code."""

    error_code: int


C = TypeVar("C", bound=Coded)


class ControllerCalls(Protocol):
    """The channel as its users see it; see `ControllerChannel.call`."""

    async def call(self, request: Request[C], version: int, *, timeout_s: float, repeatable: bool = True) -> C: ...


class ControllerUnavailable(Exception):
    """No active controller was reached in time; nothing was sent that could have taken effect."""


class ChannelConfig(Struct, frozen=True):
    """Seconds."""

    connect_timeout_s: float = 1.0
    attempt_timeout_s: float = 5.0
    backoff_min_s: float = 0.02
    backoff_max_s: float = 0.5
    calls_max: int = 1000


class ControllerChannel:
    """One connection to the active controller, shared by all calls of this channel.

    The peer answers calls in order, so a node uses a separate channel for heartbeats. `leader_hint` returns the id of
    the active controller in the local image, -1 if unknown.
    """

    def __init__(
        self,
        links: Links,
        controllers: Mapping[int, Address],
        rng: random.Random,
        config: ChannelConfig,
        leader_hint: Callable[[], int] = lambda: -1,
        closed: Callable[[], None] | None = None,
    ) -> None:
        self._links = links
        self._controllers = dict(sorted(controllers.items()))
        self._random = rng
        self._backoff = Backoff(config.backoff_min_s, config.backoff_max_s)
        self._config = config
        self._leader_hint = leader_hint
        self._closed = closed
        self._link: Link | None = None
        self._connecting: asyncio.Lock = asyncio.Lock()
        self._next = 0
        self._calls = 0
        self._stopped = False

    async def call(self, request: Request[C], version: int, *, timeout_s: float, repeatable: bool = True) -> C:
        """Send `request` to the active controller and return its response, within `timeout_s` over all attempts.

        After NOT_CONTROLLER in the top-level `error_code`, or a refused connection, the channel tries the next
        controller. A request whose outcome is unknown is resent only if it is `repeatable`; otherwise OutcomeUnknown is
        raised. Raises ControllerUnavailable if time runs out before anything was sent.
        """
        if self._calls >= self._config.calls_max:
            raise ControllerUnavailable("too many calls wait for the controller")
        self._calls += 1
        try:
            return await self._call_until(request, version, asyncio.get_running_loop().time() + timeout_s, repeatable)
        finally:
            self._calls -= 1

    async def close(self) -> None:
        """Close the connection; waiting calls end with ControllerUnavailable or OutcomeUnknown."""
        self._stopped = True
        self._drop(self._link)

    async def _call_until(self, request: Request[C], version: int, deadline: float, repeatable: bool) -> C:
        loop, config = asyncio.get_running_loop(), self._config
        retries, in_doubt = Retries(self._backoff, self._random), False
        while not self._stopped and (left_s := deadline - loop.time()) > 0:
            link: Link | None = None
            try:
                link = await self._connected(min(left_s, config.connect_timeout_s))
                left_s = max(deadline - loop.time(), config.backoff_min_s)
                response = await link.call(request, version, min(left_s, config.attempt_timeout_s))
                if response.error_code != ErrorCode.NOT_CONTROLLER:
                    return response
            except TooManyCalls as error:
                raise ControllerUnavailable("too many calls wait for the controller") from error
            except (ConnectionLost, CallTimeout, MalformedFrame) as error:
                if link is not None:  # it was or may have been sent
                    in_doubt = True
                    if not repeatable:
                        self._drop(link)
                        raise OutcomeUnknown("the controller did not answer") from error
            self._drop(link)
            await asyncio.sleep(min(retries.failed(), max(deadline - loop.time(), 0)))
        if in_doubt:
            raise OutcomeUnknown("the controller did not answer in time")
        raise ControllerUnavailable("no active controller answered in time")

    async def _connected(self, timeout_s: float) -> Link:
        async with self._connecting:
            if self._link is not None and not self._link.is_closed:
                return self._link
            address = self._candidate()
            link = await self._links.connect(address, timeout_s, self._closed)
            if self._stopped:
                link.close()
                raise ConnectionLost("the channel was closed")
            self._link = link
            return link

    def _candidate(self) -> Address:
        """The hinted controller first, then all in turn, so that a wrong hint costs one attempt."""
        attempt, self._next = self._next, self._next + 1
        hinted = self._controllers.get(self._leader_hint())
        if hinted is not None and attempt % 2 == 0:
            return hinted
        ids = list(self._controllers)
        return self._controllers[ids[(attempt // 2 if hinted is not None else attempt) % len(ids)]]

    def _drop(self, link: Link | None) -> None:
        if link is not None:
            if self._link is link:
                self._link = None
            link.close()
