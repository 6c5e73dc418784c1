"""kafka-python's admin client, with a way to send requests that it does not support: Tidelog's own APIs, and rows that
it hides.

Its connections are created here and passed to it, so that none of its private parts are used.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

if TYPE_CHECKING:  # commands begin without the messages
    from wire.messages import Request

R = TypeVar("R")


class Unsendable(KafkaError):  # type: ignore[misc]
    """A request has a value that its field cannot hold."""

    def __str__(self) -> str:
        return str(self.args[0])


class AdminClient(KafkaAdminClient):  # type: ignore[misc]
    connections: KafkaConnectionManager

    def __init__(self, **options: Any) -> None:
        super().__init__(kafka_client=self._connected, **options)

    def _connected(self, **options: Any) -> KafkaNetClient:
        loop = NetworkSelector(**options)
        self.connections = KafkaConnectionManager(loop, **options)
        return KafkaNetClient(loop, self.connections, **options)

    def send(self, request: Request[R], broker: int | None = None) -> R:
        """The response to a request of `wire.messages`, from any broker or that one. Raises KafkaError."""
        _check_encodes(request)
        response: R = self.connections.run(self.connections.send, request, broker)
        return response


def _check_encodes(request: Request[Any]) -> None:
    """Raises Unsendable. In the library's thread such an error ends nothing, and the command would wait for ever."""
    from wire.apis import APIS  # noqa: PLC0415
    from wire.codec import encode_request  # noqa: PLC0415

    try:
        encode_request(request, APIS[request.API_KEY].max_version, 0, "")
    except (struct.error, OverflowError, ValueError) as error:
        raise Unsendable(f"a number or text is too large: {error}") from error
