"""kafka-python's admin client, with a way to send requests that it does not support: Tidelog's own APIs, and rows that
it hides.

Its connections are created here and passed to it, so that none of its private parts are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from kafka.admin import KafkaAdminClient
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

if TYPE_CHECKING:  # commands begin without the messages
    from wire.messages import Request

R = TypeVar("R")


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
        response: R = self.connections.run(self.connections.send, request, broker)
        return response
