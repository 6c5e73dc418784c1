"""Which groups of deleted tenants are gone, as the brokers that host them say. Soft state of the active controller.

Brokers say it again and again while the tenant is there, so a new controller hears it all again.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC


class TenantGroups:
    """Partitions of the groups' topic whose host has removed the tenant's groups, and made that durable."""

    def __init__(self) -> None:
        self._cleared: dict[str, dict[int, None]] = {}

    def restart(self) -> None:
        self._cleared.clear()

    def cleared(self, image: MetadataImage, tenant_ids: Iterable[str], partitions: Iterable[int]) -> None:
        """A broker said so; its image knew that the tenants are being deleted."""
        numbers = dict.fromkeys(partitions)
        for tenant_id in tenant_ids:
            if tenant_id in image.tenants:
                self._cleared.setdefault(tenant_id, {}).update(numbers)

    def are_gone(self, image: MetadataImage, tenant_id: str) -> bool:
        topic = image.topics.get(GROUP_TOPIC)
        return topic is None or all(index in self._cleared.get(tenant_id, {}) for index in topic.partitions)

    def forget(self, tenant_id: str) -> None:
        self._cleared.pop(tenant_id, None)
