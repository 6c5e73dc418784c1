"""Groups of deleted tenants that brokers report as removed. Soft state of the active controller.

Brokers repeat their reports while the tenant exists, so a new controller gets them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC


class TenantGroups:
    """Partitions of the groups' topic whose host has durably removed the tenant's groups."""

    def __init__(self) -> None:
        self._cleared: dict[str, dict[int, None]] = {}

    def restart(self) -> None:
        self._cleared.clear()

    def cleared(self, image: MetadataImage, tenant_ids: Iterable[str], partitions: Iterable[int]) -> None:
        """A broker's report; its image knew that the tenants are being deleted."""
        numbers = dict.fromkeys(partitions)
        for tenant_id in tenant_ids:
            if tenant_id in image.tenants:
                self._cleared.setdefault(tenant_id, {}).update(numbers)

    def are_gone(self, image: MetadataImage, tenant_id: str) -> bool:
        topic = image.topics.get(GROUP_TOPIC)
        return topic is None or all(index in self._cleared.get(tenant_id, {}) for index in topic.partitions)

    def forget(self, tenant_id: str) -> None:
        self._cleared.pop(tenant_id, None)
