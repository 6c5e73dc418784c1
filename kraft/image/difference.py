"""The delta between two images whose records in between are not available."""

from __future__ import annotations

from itertools import chain

from common.pacing import Work
from kraft.image.access_delta import access_difference
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage

TOPIC_COST, PARTITION_COST, RESOURCE_COST = 2, 2, 3
PARTITIONS_AT_ONCE = 100


def differing(old: MetadataImage, new: MetadataImage) -> Work[MetadataDelta]:
    """A delta from `old` to `new`, for a node that skips ahead with a snapshot.

    The cost is proportional to the size of both images.
    """
    delta = MetadataDelta(old, result=new)
    for topic_id, topic in old.topics.by_id.items():
        if topic_id not in new.topics.by_id:
            delta.topics_deleted[topic_id] = topic
        yield TOPIC_COST
    for topic_id, topic in new.topics.by_id.items():
        before = old.topics.by_id.get(topic_id)
        if before is None:
            delta.topics_created[topic_id] = topic
        if topic.ranges != (before.ranges if before is not None else ()):
            delta.ranges_changed[topic_id] = None
        for number, (index, partition) in enumerate(topic.partitions.items(), 1):
            known = before.partitions.get(index) if before is not None else None
            if known != partition:
                delta.partitions_changed[topic_id, index] = known
            if number % PARTITIONS_AT_ONCE == 0:
                yield PARTITION_COST * PARTITIONS_AT_ONCE
        yield TOPIC_COST + PARTITION_COST * (len(topic.partitions) % PARTITIONS_AT_ONCE)
    for broker_id in sorted({*old.brokers, *new.brokers}):
        if old.brokers.get(broker_id) != new.brokers.get(broker_id):
            delta.brokers_changed[broker_id] = old.brokers.get(broker_id)
    for key in chain(old.configs, new.configs):
        if old.configs.of(*key) != new.configs.of(*key):
            delta.configs_changed[key] = None
        yield RESOURCE_COST
    yield from access_difference(delta.access, new)
    delta.balance.differs(new.balance)
    yield from delta.client_quotas.finding(new.client_quotas)
    return delta
