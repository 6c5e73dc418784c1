"""Records that change the health of a broker, and what follows for its partitions. Pure.

A broker that is not healthy gives its leaderships to healthy ones; a slow one also leaves the ISRs that can commit
without it. Its partitions follow in pieces, the first in the commit of the broker's own record, as where brokers leave
(`kraft.controller.broker_removal`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice

from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.elections import LOOK_COST, Targets, changes_where_brokers_are_unfit
from kraft.controller.policy import ControllerPolicy
from kraft.features import FLEET_LEVEL, TIDELOG_VERSION
from kraft.image.brokers import BrokerImage
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey
from kraft.records import BrokerRegistrationChangeRecord, Health

FIRST_PARTITIONS = 50
"""Change in the commit of the broker's own record; the others follow at once (`kraft.controller.piecework`)."""


def allows_health(image: MetadataImage) -> bool:
    """Whether all nodes support brokers' health in the metadata."""
    return image.features.get(TIDELOG_VERSION, 0) >= FLEET_LEVEL


def concerned_by(image: MetadataImage, broker: BrokerImage) -> Iterator[PartitionKey]:
    """The partitions that a broker without room or health has to hand over, first those that it leads."""
    index = image.topics.index
    led = index.led_by(broker.broker_id)
    return chain(led, index.in_sync_with(broker.broker_id)) if broker.should_leave_isr else iter(led)


def health_records(
    image: MetadataImage, broker: BrokerImage, policy: ControllerPolicy, health: Health, actor: str = ""
) -> list[MetadataRecord]:
    """The broker's new health, and the first of what it hands over."""
    records: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(broker.broker_id, broker.epoch, cause=health.cause, health=health, actor=actor)
    ]
    after = replayed(image, records)
    changed = after.brokers[broker.broker_id]
    if changed.is_active and not changed.is_fit:
        keys = dict.fromkeys(islice(concerned_by(after, changed), FIRST_PARTITIONS))
        records += changes_where_brokers_are_unfit(after, policy, keys)
    return records


def endangered(image: MetadataImage, policy: ControllerPolicy, broker_id: int) -> Work[str]:
    """A partition that could not commit without this broker although it has enough replicas, because others are out of
    sync; "" if there is none."""
    index = image.topics.index
    targets = Targets(image, policy)
    for topic_id, number in index.short.within(index.in_sync_with(broker_id)):
        yield LOOK_COST
        topic = image.topics.by_id[topic_id]
        partition = topic.partitions[number]
        others = sum(r != broker_id and r in targets.standing.active for r in partition.isr)
        if others < min(targets.min_isr(topic), partition.settled_replica_count):
            return f"{topic.name}-{number}"
    return ""


def held_up(image: MetadataImage, broker: BrokerImage) -> Work[int]:
    """How many partitions with other replicas still wait for a broker that should have handed them over."""
    found = 0
    for topic_id, number in concerned_by(image, broker):
        yield LOOK_COST
        found += image.topics.by_id[topic_id].partitions[number].settled_replica_count > 1
    return found
