"""Which client is behind a transactional id: an operator who finds a transaction asks whose program it is.

No record of Apache Kafka's has it, so it is known only to the coordinator that the client last asked.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

IDS_MAX = 100_000  # those of which nothing was heard for the longest are forgotten
CLIENT_ID_LENGTH_MAX = 256


class ProducerClient(NamedTuple):
    """`host`: as the broker sees it; behind a proxy, as the proxy does."""

    client_id: str
    host: str


class ProducerClients:
    """By transactional id, as tenants' ids are called inside."""

    def __init__(self, ids_max: int = IDS_MAX) -> None:
        self._ids_max = ids_max
        self._clients: OrderedDict[str, ProducerClient] = OrderedDict()

    def __len__(self) -> int:
        return len(self._clients)

    def note(self, transactional_id: str, client_id: str | None, host: str) -> None:
        """This client has asked, and was the id's producer."""
        clients = self._clients
        clients[transactional_id] = ProducerClient((client_id or "")[:CLIENT_ID_LENGTH_MAX], host)
        clients.move_to_end(transactional_id)
        if len(clients) > self._ids_max:
            clients.popitem(last=False)

    def of(self, transactional_id: str) -> ProducerClient | None:
        return self._clients.get(transactional_id)
