"""A link to another broker's internal listener, by broker id."""

from __future__ import annotations

from collections.abc import Callable

from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.links import Link, Links
from wire.client import ConnectionLost


def brokers_left(delta: MetadataDelta, image: MetadataImage) -> list[int]:
    """Brokers that were lost, or run again: what they were sent has no answer. A host that lost power closes no
    connection."""
    left = []
    for broker_id, before in delta.brokers_changed.items():
        now = image.brokers.get(broker_id)
        if before is not None and (now is None or now.epoch != before.epoch or (now.fenced and not before.fenced)):
            left.append(broker_id)
    return left


class BrokerLink:
    """A link to one broker at a time. Opened on first use, and again when it has closed or another broker is
    requested."""

    def __init__(
        self, links: Links, image: Callable[[], MetadataImage], listener_name: str, connect_timeout_s: float
    ) -> None:
        self._links = links
        self._image = image
        self._listener_name = listener_name
        self._connect_timeout_s = connect_timeout_s
        self._link: Link | None = None
        self._broker_id = -1

    async def to(self, broker_id: int) -> Link:
        """Raises ConnectionLost."""
        if self._link is not None and (self._broker_id != broker_id or self._link.is_closed):
            self.drop()
        if self._link is None:
            broker = self._image().brokers.get(broker_id)
            address = broker.address(self._listener_name) if broker is not None else None
            if address is None:
                raise ConnectionLost(f"broker {broker_id} is not known")
            self._link = await self._links.connect(address, self._connect_timeout_s)
            self._broker_id = broker_id
        return self._link

    def drop(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
