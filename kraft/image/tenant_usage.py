"""Usage of tenants, counted from the image. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from common.pacing import Work
from kraft.image.cells import brokers_of
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.tenants import TenantImage, tenant_of
from kraft.image.topics import TopicImage


class TenantUsage(Struct):
    """`to_move`: partitions with a replica outside the tenant's cell; `moving`: partitions being reassigned."""

    topics: int = 0
    partitions: int = 0
    to_move: int = 0
    moving: int = 0

    def count(self, topic: TopicImage, home: frozenset[int]) -> None:
        """Count a topic of the tenant, whose partitions belong on the brokers `home`."""
        self.topics += 1
        self.partitions += len(topic.partitions)
        for partition in topic.partitions.values():
            self.to_move += is_outside(partition, home)
            self.moving += partition.is_reassigning


def topics_of(image: MetadataImage, tenant: TenantImage) -> Iterator[TopicImage]:
    """In order of creation."""
    return image.topics.iterate_tenant(tenant.id)


def counting_partitions(image: MetadataImage, tenant: TenantImage) -> Work[int]:
    """Number of partitions of a tenant."""
    count = 0
    for topic in topics_of(image, tenant):
        count += len(topic.partitions)
        yield 1
    return count


def home_ids(image: MetadataImage, tenant: TenantImage) -> frozenset[int]:
    """The brokers on which the tenant's partitions belong."""
    return frozenset(broker.broker_id for broker in brokers_of(tenant.home, image.brokers))


def is_outside(partition: PartitionImage, home: frozenset[int]) -> bool:
    """Whether a replica is elsewhere, or will be."""
    return not home.issuperset(partition.replicas)


def usage_work(image: MetadataImage) -> Work[dict[str, TenantUsage]]:
    """One pass over all topics, in steps of one topic; every tenant has an entry."""
    found = {tenant_id: TenantUsage() for tenant_id in image.tenants}
    homes: dict[str, frozenset[int]] = {}
    for topic in image.topics:
        owner = tenant_of(topic.name)
        usage = found.get(owner) if owner is not None else None
        yield 1
        if owner is None or usage is None:
            continue
        yield len(topic.partitions)
        if owner not in homes:
            homes[owner] = home_ids(image, image.tenants[owner])
        usage.count(topic, homes[owner])
    return found
