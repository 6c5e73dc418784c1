"""The balancer's model of the cluster, from the image and from what brokers have reported. No I/O.

A broker reports the rates of the partitions that it leads: of the busiest each, of the others by topic, and of all that
it has no room to name together. What is not named one by one is divided evenly.
"""

from __future__ import annotations

from common.identifiers import ZERO_UUID
from common.pacing import Work
from kraft.balancer.model import ClusterModel, ModelBroker, ModelBuilder, ModelPartition, Standing
from kraft.controller.balance_moves import target_of
from kraft.controller.policy import ControllerPolicy, cell_limit, is_cordoned
from kraft.controller.reported_usage import ReportedUsage
from kraft.image.brokers import BrokerImage
from kraft.image.cells import BANDWIDTH_PER_BROKER, REPLICAS_PER_BROKER_MAX, CellImage, cell_of
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey
from kraft.image.partitions import PartitionImage
from kraft.image.topics import TopicImage

AT_ONCE, PARTITION_COST = 100, 6  # partitions between two yields, and units of `common.pacing` of each
Rate = tuple[float, float]
NO_RATE: Rate = (0.0, 0.0)


def modelling(image: MetadataImage, policy: ControllerPolicy, usage: ReportedUsage, now_s: float) -> Work[ClusterModel]:
    """The cluster as it will be when the moves that run have ended; these partitions stay."""
    rates, others = yield from _rates(image, usage, now_s)
    builder = ModelBuilder([_broker(image, policy, usage, broker, now_s) for broker in image.brokers.values()])
    count = 0
    ids: list[bytes] = []
    for topic_id in image.topics.by_id:
        ids.append(topic_id)
        if len(ids) % AT_ONCE == 0:
            yield AT_ONCE
    for topic_id in sorted(ids):
        topic = image.topics.by_id[topic_id]
        cell = _cell_of_tenant(image, topic)
        for index, partition in topic.partitions.items():
            in_rate, out_rate = rates.get((topic_id, index)) or others.get(partition.leader, NO_RATE)
            builder.add(_partition(topic, partition, cell, in_rate, out_rate))
            count += 1
            if count % AT_ONCE == 0:
                yield AT_ONCE * PARTITION_COST
        yield 1
    return builder.model


def _partition(
    topic: TopicImage, partition: PartitionImage, cell: str | None, in_rate: float, out_rate: float
) -> ModelPartition:
    held = topic.range_with(partition.partition)
    replicas = target_of(partition)
    return ModelPartition(
        topic.topic_id,
        partition.partition,
        replicas,
        partition.leader if partition.leader in replicas else replicas[0],
        partition.isr,
        in_rate,
        out_rate,
        cell=cell if held is None else held.cell,
        stays=partition.is_reassigning,
    )


def _cell_of_tenant(image: MetadataImage, topic: TopicImage) -> str | None:
    tenant = image.tenants.owner(topic.name)
    return None if tenant is None else tenant.home


def _broker(
    image: MetadataImage, policy: ControllerPolicy, usage: ReportedUsage, broker: BrokerImage, now_s: float
) -> ModelBroker:
    name = cell_of(broker)
    cell = image.cells.get(name) or CellImage(name)
    bandwidth = float(cell_limit(cell, BANDWIDTH_PER_BROKER, policy))
    use = usage.of_broker(broker.broker_id, now_s)
    head = None if use is None else use.head
    return ModelBroker(
        broker.broker_id,
        name,
        broker.rack,
        _standing(image, broker),
        disk_size=max(head.disk_size_bytes, 0) if head is not None else 0,
        disk_used=max(head.disk_used_bytes, 0) if head is not None else 0,
        in_capacity=bandwidth,
        out_capacity=bandwidth,
        replicas_max=cell_limit(cell, REPLICAS_PER_BROKER_MAX, policy),
        load=usage.load_of(broker.broker_id, now_s),
    )


def _standing(image: MetadataImage, broker: BrokerImage) -> Standing:
    if not broker.is_active or not broker.is_healthy:
        return Standing.APART
    return Standing.CLOSED if broker.lacks_room or is_cordoned(image, broker.broker_id) else Standing.LIVE


def _rates(
    image: MetadataImage, usage: ReportedUsage, now_s: float
) -> Work[tuple[dict[PartitionKey, Rate], dict[int, Rate]]]:
    """Clients' bytes a second by partition, and by leader for each partition that has no rate of its own."""
    rates: dict[PartitionKey, Rate] = {}
    others: dict[int, Rate] = {}
    for broker_id in image.brokers:
        use = usage.of_broker(broker_id, now_s)
        if use is None:
            continue
        led = image.topics.index.led_by(broker_id)
        named = 0
        for one in use.partitions:
            if (one.topic_id, one.partition) in led:  # otherwise another broker leads it by now
                rates[one.topic_id, one.partition] = (one.rate_in, one.rate_out)
                named += 1
        yield len(use.partitions)
        rest = NO_RATE
        for one in use.topics:
            if one.topic_id == ZERO_UUID:
                rest = (one.rate_in, one.rate_out)
                continue
            keys = [key for key in led.of_topic(one.topic_id) if key not in rates]
            named += len(keys)
            rates.update(dict.fromkeys(keys, (one.rate_in / max(len(keys), 1), one.rate_out / max(len(keys), 1))))
            yield 1 + len(keys)
        left = len(led) - named
        if left > 0:
            others[broker_id] = (rest[0] / left, rest[1] / left)
    return rates, others
