"""Where in an internal topic the keys of a tenant, and those of the operators, are kept."""

from __future__ import annotations

from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange, TopicImage


def range_for(topic: TopicImage, tenant: TenantImage | None) -> KeyRange | None:
    """The partitions over which the keys of `tenant` are spread; None stands for the operators.

    None while the tenant's cell has no range of the topic yet.
    """
    if not topic.ranges:
        return KeyRange("", 0, len(topic.partitions)) if topic.partitions else None
    if tenant is None or tenant.keys_cell is None:
        return topic.ranges[0]
    return topic.range_of(tenant.keys_cell)
