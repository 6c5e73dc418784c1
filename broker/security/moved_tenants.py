"""Closes connections of tenants that have moved to another cell.

A client that requests a partition or a group gets an error that leads it to the new cell. A connection that is only
used for metadata would stay for good. So the broker closes a tenant's connections some time after the tenant's last
replica has left; its clients find the new cell by their bootstrap addresses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kraft.image.cells import cell_of
from kraft.image.key_ranges import range_for, range_to_ask
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import topics_of
from kraft.image.tenants import TenantImage
from kraft.topic_names import CLIENT_KEY_TOPICS

LEFT_ALONE_S = 60.0
"""How long clients may leave by themselves, and the interval of checks for remaining replicas."""


class MovedTenants:
    """`close` closes a tenant's connections. `look` is called for a tenant's new connection, and when the metadata of
    such a tenant or of this broker changes; `forget` when its last connection has ended."""

    def __init__(self, image: Callable[[], MetadataImage], broker_id: int, close: Callable[[str], None]) -> None:
        self._image = image
        self._broker_id = broker_id
        self._close = close
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def look(self, tenant_id: str) -> None:
        if not self._is_elsewhere(tenant_id):
            self.forget(tenant_id)
        elif tenant_id not in self._timers:
            self._timers[tenant_id] = asyncio.get_running_loop().call_later(LEFT_ALONE_S, self._due, tenant_id)

    def forget(self, tenant_id: str) -> None:
        timer = self._timers.pop(tenant_id, None)
        if timer is not None:
            timer.cancel()

    def _due(self, tenant_id: str) -> None:
        del self._timers[tenant_id]
        if self._is_elsewhere(tenant_id) and not self._keeps(self._image().tenants[tenant_id]):
            self._close(tenant_id)
        self.look(tenant_id)

    def _is_elsewhere(self, tenant_id: str) -> bool:
        image = self._image()
        tenant, own = image.tenants.get(tenant_id), image.brokers.get(self._broker_id)
        return tenant is not None and own is not None and cell_of(own) not in (tenant.cell, tenant.home)

    def _keeps(self, tenant: TenantImage) -> bool:
        """Whether this broker has a replica of the tenant's partitions, or of those that hold its groups."""
        image, own = self._image(), self._broker_id
        if any(own in one.replicas for topic in topics_of(image, tenant) for one in topic.partitions.values()):
            return True
        for topic in filter(None, map(image.topics.get, CLIENT_KEY_TOPICS)):
            for held in (range_for(topic, tenant), range_to_ask(topic, tenant)):
                if held is not None and any(own in topic.partitions[i].replicas for i in range(held.first, held.end)):
                    return True
        return False
