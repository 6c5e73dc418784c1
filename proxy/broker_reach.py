"""The brokers outside a tenant's cell that its clients may learn of, and so must be able to reach."""

from __future__ import annotations

from collections.abc import Mapping

from kraft.image.cells import brokers_of
from kraft.image.delta import MetadataDelta
from kraft.image.key_ranges import range_for, range_to_ask
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.tenant_usage import topics_of
from kraft.image.tenants import TenantImage, tenant_of
from kraft.image.topics import KeyRange

GROUP_TOPIC = "__consumer_offsets"

Visited = Mapping[str, tuple[int, ...]]
"""By tenant: ids of brokers outside its home cell, ascending."""


def visited_brokers(image: MetadataImage) -> Visited:
    """The visited brokers of every tenant that has any."""
    return BrokerReach().follow(MetadataDelta(EMPTY_IMAGE), image)


class BrokerReach:
    """Follows the metadata. A step examines only changed tenants, unless brokers or the groups' topic changed.

    A tenant that moves has partitions in two cells, and its groups follow last. Partitions may also lie outside the
    home cell after a rebuild or after a broker changed its cell, and groups while their topic is not divided.
    """

    def __init__(self) -> None:
        self.visited: Visited = {}
        self._image = EMPTY_IMAGE
        self._members: dict[str, frozenset[int]] = {}
        self._keepers: dict[KeyRange, frozenset[int]] = {}

    def follow(self, delta: MetadataDelta, image: MetadataImage) -> Visited:
        """`visited` after the delta that led to `image`; the same object when nothing changed."""
        before, self._image = self._image, image
        topics = self._topics(delta)
        tenants = image.tenants
        if image.brokers is not before.brokers or GROUP_TOPIC in topics:
            self._members, self._keepers = {}, {}
            touched = dict.fromkeys(tenants)
        else:
            owners = map(tenant_of, topics)
            touched = {owner: None for owner in owners if owner is not None and owner in tenants}
            if tenants is not before.tenants:
                touched.update((one, None) for one in tenants if tenants[one] is not before.tenants.get(one))
        new = {one: brokers for one, brokers in self.visited.items() if one in tenants and one not in touched}
        for one in touched:
            if brokers := self._of(tenants[one]):
                new[one] = brokers
        if new != self.visited:
            self.visited = new
        return self.visited

    def _topics(self, delta: MetadataDelta) -> dict[str, None]:
        """Names of the topics that the delta changes."""
        found = {topic.name: None for topic in (*delta.topics_created.values(), *delta.topics_deleted.values())}
        ids = dict.fromkeys(topic_id for topic_id, _ in delta.partitions_changed)
        for topic_id in (*ids, *delta.ranges_changed):
            topic = self._image.topics.get_by_id(topic_id)
            if topic is not None:
                found[topic.name] = None
        return found

    def _of(self, tenant: TenantImage) -> tuple[int, ...]:
        found = set(self._members_of(tenant.cell))
        for topic in topics_of(self._image, tenant):
            for partition in topic.partitions.values():
                found.update(partition.replicas)
        groups = self._image.topics.get(GROUP_TOPIC)
        if groups is not None:
            for held in (range_for(groups, tenant), range_to_ask(groups, tenant)):
                if held is not None:
                    found |= self._keepers_of(held)
        return tuple(sorted(found - self._members_of(tenant.home)))

    def _members_of(self, cell: str) -> frozenset[int]:
        if cell not in self._members:
            brokers = brokers_of(cell, self._image.brokers)
            self._members[cell] = frozenset(broker.broker_id for broker in brokers)
        return self._members[cell]

    def _keepers_of(self, held: KeyRange) -> frozenset[int]:
        """The brokers with replicas of the groups' partitions in that range."""
        if held not in self._keepers:
            topic = self._image.topics.get(GROUP_TOPIC)
            partitions = topic.partitions if topic is not None else {}
            self._keepers[held] = frozenset(
                replica for index, one in partitions.items() if index in held for replica in one.replicas
            )
        return self._keepers[held]
