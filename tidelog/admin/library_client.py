"""kafka-python's admin client, with a way to send requests that it does not support: Tidelog's own APIs, and rows that
it hides.

Its connections are created here and passed to it, so that none of its private parts are used.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, UnknownBrokerIdError
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector

from tidelog.admin.connections import Connections

if TYPE_CHECKING:  # commands begin without the messages
    from wire.messages import Request

Q = TypeVar("Q")
R = TypeVar("R")

Start = Callable[[Coroutine[Any, Any, None]], Awaitable[None]]

AT_ONCE_MAX = 4
"""Requests of one question to one broker. The library fails what a connection has beyond its own limit."""
UNDER_WAY_MAX = 64  # that limit: a console's session asks some questions at once


class Unsendable(KafkaError):  # type: ignore[misc]
    """A request has a value that its field cannot hold."""

    def __str__(self) -> str:
        return str(self.args[0])


class AdminClient(KafkaAdminClient):  # type: ignore[misc]
    connections: Connections

    def __init__(self, **options: Any) -> None:
        options.setdefault("max_in_flight_requests_per_connection", UNDER_WAY_MAX)
        super().__init__(kafka_client=self._connected, **options)

    def _connected(self, **options: Any) -> KafkaNetClient:
        loop = NetworkSelector(**options)
        self.connections = Connections(loop, **options)
        return KafkaNetClient(loop, self.connections, **options)

    def send(self, request: Request[R], broker: int | None = None) -> R:
        """The response to a request of `wire.messages`, from any broker or that one. Raises KafkaError."""
        (answer,) = self.send_all([(request, broker)])
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def send_all(self, requests: Sequence[tuple[Request[R], int | None]]) -> list[R | KafkaError]:
        """The responses to requests that are on their way at the same time, each to any broker or to one; an error in
        the place of a response. Raises Unsendable."""
        for request, _ in requests:
            check_encodes(request)
        answers: list[R | KafkaError] = self.connections.run(self._answers_of, requests)
        return answers

    async def _answers_of(self, requests: Sequence[tuple[Request[R], int | None]]) -> list[R | KafkaError]:
        found = await self._sent(requests)
        unknown = [at for at, one in enumerate(found) if isinstance(one, UnknownBrokerIdError)]
        if unknown:  # a broker has come, or come back, since the library looked, which it does every few minutes
            try:
                await self.connections.cluster.refresh_metadata()
            except KafkaError:
                return found
            for at, one in zip(unknown, await self._sent([requests[at] for at in unknown]), strict=True):
                found[at] = one
        return found

    async def _sent(self, requests: Sequence[tuple[Request[R], int | None]]) -> list[R | KafkaError]:
        return await answered(self.connections.send, self.connections.begin, requests)


async def answered(
    send: Callable[[Q, int | None], Awaitable[R]], start: Start, requests: Sequence[tuple[Q, int | None]]
) -> list[R | KafkaError]:
    """The responses, or errors, in order. Each broker has `AT_ONCE_MAX` requests at most at a time, and none waits for
    another broker. `start`: runs a coroutine from now on."""
    found: dict[int, R | KafkaError] = {}
    failed: list[Exception] = []

    async def settle(at: int, answer: Awaitable[R]) -> None:
        try:
            found[at] = await answer
        except KafkaError as error:
            found[at] = error

    async def ask(places: Sequence[int]) -> None:
        under_way = deque[tuple[int, Awaitable[R]]]()
        try:
            for at in places:
                if len(under_way) == AT_ONCE_MAX:
                    await settle(*under_way.popleft())
                if failed:
                    return
                try:
                    under_way.append((at, send(*requests[at])))
                except KafkaError as error:
                    found[at] = error
            for at, answer in under_way:
                await settle(at, answer)
        except Exception as error:  # raised below, when no broker is asked any more
            failed.append(error)

    of_broker: dict[int | None, list[int]] = {}
    for at, (_, broker) in enumerate(requests):
        of_broker.setdefault(broker, []).append(at)
    for asked in [start(ask(places)) for places in of_broker.values()]:
        await asked
    if failed:
        raise failed[0]
    return [found[at] for at in range(len(requests))]


def check_encodes(request: Request[Any]) -> None:
    """Raises Unsendable. In the library's thread such an error ends nothing, and the command would wait for ever."""
    from wire.apis import APIS  # noqa: PLC0415
    from wire.codec import encode_request  # noqa: PLC0415

    try:
        encode_request(request, APIS[request.API_KEY].max_version, 0, "")
    except (struct.error, OverflowError, ValueError) as error:
        raise Unsendable("a number or text is too large for its field of the request") from error
