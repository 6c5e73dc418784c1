"""Groups and transactional ids of deleted tenants that brokers report as removed. Soft state of the active controller.

Brokers repeat their reports while the tenant exists, so a new controller gets them all.
"""

from __future__ import annotations

from collections.abc import Iterable

from kraft.image.metadata import MetadataImage
from kraft.topic_names import CLIENT_KEY_TOPICS


class TenantKeys:
    """Partitions of internal topics whose host has durably removed the tenant's keys."""

    def __init__(self) -> None:
        self._cleared: dict[str, dict[tuple[bytes, int], None]] = {}

    def restart(self) -> None:
        self._cleared.clear()

    def cleared(
        self, image: MetadataImage, tenant_ids: Iterable[str], topic_id: bytes, partitions: Iterable[int]
    ) -> None:
        """A broker's report; its image knew that the tenants are being deleted."""
        done = dict.fromkeys((topic_id, index) for index in partitions)
        for tenant_id in tenant_ids:
            if tenant_id in image.tenants:
                self._cleared.setdefault(tenant_id, {}).update(done)

    def are_gone(self, image: MetadataImage, tenant_id: str) -> bool:
        cleared = self._cleared.get(tenant_id, {})
        topics = filter(None, map(image.topics.get, CLIENT_KEY_TOPICS))
        return all((topic.topic_id, index) in cleared for topic in topics for index in topic.partitions)

    def forget(self, tenant_id: str) -> None:
        self._cleared.pop(tenant_id, None)
