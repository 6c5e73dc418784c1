"""The partitions of an internal topic that hold the keys of a tenant or of the operators: group ids, transactional ids.

A topic without ranges is one range for all tenants. While a tenant's keys are handed over, no broker serves them:
clients are sent to the new range, and the old range stays authoritative in case the handover is cancelled.
"""

from __future__ import annotations

from enum import Enum

from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange, TopicImage
from kraft.records import KeysPhase

IDS_TOPIC = "__transaction_state"
"""Its keys are transactional ids; those of the other topic with ranges are groups. The two move one after another."""
GROUPS_HELD_BACK = (KeysPhase.DRAINING, KeysPhase.COPYING)
"""Phases in which no transaction of the tenant may begin to send offsets to a group. In HOLDING an ongoing one may, but
none may begin."""


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
    cell = None if tenant is None else cell_of_keys(topic, tenant)
    return topic.ranges[0] if cell is None else topic.range_of(cell)


def cell_of_keys(topic: TopicImage, tenant: TenantImage) -> str | None:
    """The cell whose range of the topic holds the tenant's keys; None stands for the first range."""
    return tenant.ids_cell if topic.name == IDS_TOPIC else tenant.keys_cell


def range_at(topic: TopicImage, tenant: TenantImage, cell: str) -> KeyRange | None:
    """The range of the tenant's keys if it lives in that cell."""
    return topic.range_of(cell) if topic.ranges else range_for(topic, tenant)


def range_to_ask(topic: TopicImage, tenant: TenantImage | None) -> KeyRange | None:
    """The range to which clients are sent for the keys: the new one as soon as no other broker serves them."""
    copied_to = _copied_to(topic, tenant)
    return range_for(topic, tenant) if copied_to is None else copied_to


def keeping(topic: TopicImage, tenant: TenantImage | None, partition: int) -> Keeping:
    held, copied_to = range_for(topic, tenant), _copied_to(topic, tenant)
    if held is not None and partition in held:
        return Keeping.SERVED if copied_to is None else Keeping.LEAVING
    return Keeping.COMING if copied_to is not None and partition in copied_to else Keeping.FOREIGN


def is_copied(topic: TopicImage, tenant: TenantImage) -> bool:
    """Whether no broker serves the tenant's keys of this topic, because they are being handed over."""
    return tenant.keys_phase is (KeysPhase.IDS_COPYING if topic.name == IDS_TOPIC else KeysPhase.COPYING)


def _copied_to(topic: TopicImage, tenant: TenantImage | None) -> KeyRange | None:
    """The range to which the tenant's keys are being handed over; None if those of this topic stay where they are."""
    if tenant is None or not is_copied(topic, tenant) or tenant.keys_target is None:
        return None
    there = range_at(topic, tenant, tenant.keys_target)
    return None if there == range_for(topic, tenant) else there
