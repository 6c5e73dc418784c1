"""Connections of the library's clients. While a client looks for its cluster, an address that hangs takes a part of the
time and not all of it: the library asks addresses at random, and gives the first one all of the time."""

from __future__ import annotations

from typing import Any

from kafka.errors import NodeNotReadyError
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

ADDRESS_MS = 1_500
"""For each of several addresses, the first time. Once all were tried, the time that is left is for any of them."""


class Connections(KafkaConnectionManager):  # type: ignore[misc]
    def __init__(self, loop: NetworkSelector, **options: Any) -> None:
        super().__init__(loop, **options)
        self.begin = loop.call_soon_with_future
        """Runs a coroutine in the library's loop from now on; returns its future."""
        self._tried: set[Any] = set()

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **options: Any) -> Any:
        addresses = {one.node_id for one in self.cluster.bootstrap_brokers()}
        untried = addresses - self._tried if len(addresses) > 1 and node_id in addresses else set()
        if untried:
            if node_id not in untried:
                raise NodeNotReadyError(node_id)
            self._tried.add(node_id)
            timeout_ms = ADDRESS_MS if timeout_ms is None else min(timeout_ms, ADDRESS_MS)
        return super().get_connection(node_id, timeout_ms=timeout_ms, **options)

    def reset_backoff(self, node_id: Any) -> None:
        """The node has answered, so a later search tries all addresses again."""
        self._tried.clear()
        super().reset_backoff(node_id)


def net_client(**options: Any) -> KafkaNetClient:
    """What the library's producers and consumers take as `kafka_client`."""
    loop = NetworkSelector(**options)
    return KafkaNetClient(loop, Connections(loop, **options), **options)
