"""The partitions of the groups' topic that hold the keys of a tenant or of the operators.

A topic without ranges is one range for all tenants. While a tenant's keys are handed over, no broker serves them:
clients are sent to the new range, and the old range stays authoritative in case the handover is cancelled.
"""

from __future__ import annotations

from enum import Enum

from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange, TopicImage
from kraft.records import KeysPhase


class Keeping(Enum):
    """A partition's part for a tenant's keys. SERVED: its leader serves them. LEAVING, COMING: they are being handed
    over. FOREIGN: any keys there are leftovers."""

    SERVED = "served"
    LEAVING = "leaving"
    COMING = "coming"
    FOREIGN = "foreign"


def range_for(topic: TopicImage, tenant: TenantImage | None) -> KeyRange | None:
    """The partitions over which the keys of `tenant` are hashed; None stands for the operators.

    None while the tenant's cell has no range of the topic yet.
    """
    if not topic.ranges:
        return KeyRange("", 0, len(topic.partitions)) if topic.partitions else None
    if tenant is None or tenant.keys_cell is None:
        return topic.ranges[0]
    return topic.range_of(tenant.keys_cell)


def range_at(topic: TopicImage, tenant: TenantImage, cell: str) -> KeyRange | None:
    """The range of the tenant's keys if it lives in that cell."""
    return topic.range_of(cell) if topic.ranges else range_for(topic, tenant)


def range_to_ask(topic: TopicImage, tenant: TenantImage | None) -> KeyRange | None:
    """The range to which clients are sent for the keys: the new one as soon as no other broker serves them."""
    if tenant is not None and tenant.keys_phase is KeysPhase.COPYING and tenant.keys_target is not None:
        return range_at(topic, tenant, tenant.keys_target)
    return range_for(topic, tenant)


def keeping(topic: TopicImage, tenant: TenantImage | None, partition: int) -> Keeping:
    held = range_for(topic, tenant)
    copies = tenant is not None and tenant.keys_phase is KeysPhase.COPYING
    if held is not None and partition in held:
        return Keeping.LEAVING if copies else Keeping.SERVED
    asked = range_to_ask(topic, tenant)
    return Keeping.COMING if copies and asked is not None and partition in asked else Keeping.FOREIGN
