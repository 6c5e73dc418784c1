"""The brokers outside a tenant's cell that its clients may learn of, and so must be able to reach.

A tenant that moves has partitions in two cells, and its transactional ids and groups follow last. Partitions may also
lie outside the home cell after a rebuild or after a broker changed its cell, and ids and groups while their topic is
not divided.
"""

from __future__ import annotations

from common.pacing import Work
from kraft.image.brokers import BrokerImage
from kraft.image.cells import brokers_of, cell_of
from kraft.image.delta import MetadataDelta
from kraft.image.key_ranges import range_for, range_to_ask
from kraft.image.metadata import MetadataImage
from kraft.image.tenant_usage import topics_of
from kraft.image.tenants import TenantImage, tenant_of
from kraft.image.topics import KeyRange, TopicImage

CLIENT_KEY_TOPICS = ("__consumer_offsets", "__transaction_state")
PARTITIONS_AT_ONCE = 200
PARTITION_COST = 2  # units of `common.pacing`


class BrokerReach:
    """Remembers what many tenants have in common: the brokers of cells, and of ranges of internal topics."""

    def __init__(self) -> None:
        self._members: dict[str, frozenset[int]] = {}
        self._keepers: dict[tuple[str, KeyRange], frozenset[int]] = {}

    def following(self, delta: MetadataDelta, image: MetadataImage, touched: dict[str, None]) -> Work[bool]:
        """Add the tenants whose visited brokers `delta`, which led to `image`, may have changed to `touched`.

        Returns whether those of every tenant may have changed. A new leader or ISR changes none.
        """
        for number, one in enumerate(delta.access.tenants.changed, 1):
            touched[one] = None
            if number % PARTITIONS_AT_ONCE == 0:
                yield PARTITIONS_AT_ONCE
        all_are = any(_cell(old) != _cell(image.brokers.get(broker)) for broker, old in delta.brokers_changed.items())
        names = {image.topics.by_id[topic_id].name: None for topic_id in delta.ranges_changed}
        for number, topic in enumerate(delta.topics_deleted.values(), 1):
            names[topic.name] = None
            if number % PARTITIONS_AT_ONCE == 0:
                yield PARTITIONS_AT_ONCE
        for number, ((topic_id, index), before) in enumerate(delta.partitions_changed.items(), 1):
            now = image.partition(topic_id, index)
            if now is not None and (before is None or before.replicas != now.replicas):
                names[image.topics.by_id[topic_id].name] = None
            if number % PARTITIONS_AT_ONCE == 0:
                yield PARTITIONS_AT_ONCE * PARTITION_COST
        for number, name in enumerate(names, 1):
            owner = tenant_of(name)
            if owner is not None:
                touched[owner] = None
            if number % PARTITIONS_AT_ONCE == 0:
                yield PARTITIONS_AT_ONCE * PARTITION_COST
        all_are = all_are or any(name in names for name in CLIENT_KEY_TOPICS)
        if all_are:
            self._members, self._keepers = {}, {}
        return all_are

    def visiting(self, image: MetadataImage, tenant: TenantImage) -> Work[tuple[int, ...]]:
        """The ids of the brokers outside the tenant's home cell, ascending. `image` is that of the last `following`."""
        found = set(self._members_of(image, tenant.cell))
        looked_at = 0
        for topic in topics_of(image, tenant):
            for partition in topic.partitions.values():
                found.update(partition.replicas)
                looked_at += 1
                if looked_at % PARTITIONS_AT_ONCE == 0:
                    yield PARTITIONS_AT_ONCE * PARTITION_COST
        for keyed in filter(None, map(image.topics.get, CLIENT_KEY_TOPICS)):
            for held in (range_for(keyed, tenant), range_to_ask(keyed, tenant)):
                if held is not None:
                    found |= self._keepers_of(keyed, held)
        return tuple(sorted(found - self._members_of(image, tenant.home)))

    def _members_of(self, image: MetadataImage, cell: str) -> frozenset[int]:
        if cell not in self._members:
            self._members[cell] = frozenset(broker.broker_id for broker in brokers_of(cell, image.brokers))
        return self._members[cell]

    def _keepers_of(self, topic: TopicImage, held: KeyRange) -> frozenset[int]:
        """The brokers with replicas of an internal topic's partitions in that range."""
        key = topic.name, held
        if key not in self._keepers:
            self._keepers[key] = frozenset(
                replica
                for index in range(held.first, held.end)
                if index in topic.partitions
                for replica in topic.partitions[index].replicas
            )
        return self._keepers[key]


def _cell(broker: BrokerImage | None) -> str | None:
    return None if broker is None else cell_of(broker)
