"""The balancer's model from the committed metadata and what brokers report. No I/O.

Brokers name their busiest partitions, and add up the others by topic. Such a rest is divided evenly among the
partitions of the topic that a broker leads and does not name; so is, among all that are left, what a broker adds up
for topics that it has no room to name. Likewise brokers name their largest replicas and add up the bytes of the others,
of which each has an even part. Of a broker that has reported no sizes yet, that is a part of what its disk holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from common.identifiers import ZERO_UUID
from common.pacing import Work
from kraft.balancer.model import ClusterModel, LoadWeights, ModelBroker, ModelBuilder, ModelPartition
from kraft.image.cells import cell_of
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import PartitionKey
from kraft.image.partitions import PartitionImage
from kraft.image.tenants import tenant_of
from kraft.image.topics import TopicImage
from kraft.records import TenantState
from kraft.topic_names import CLIENT_KEY_TOPICS

AT_ONCE, PARTITION_COST, TOPIC_COST, ROW_COST = 50, 12, 6, 3  # rows between two yields; units of `common.pacing`

RateRow = tuple[bytes, int, float, float]
"""Topic id, partition (-1: the others of the topic, whose zero id stands for all), bytes in and out a second."""


class BrokerReport(Struct, frozen=True):
    """What one broker reports. `partitions`: the busiest; `topics`: the rest of each topic. `local_bytes`: of replicas
    whose size it names, `others_bytes`: of all others; None if it does not say."""

    partitions: Sequence[RateRow] = ()
    topics: Sequence[RateRow] = ()
    local_bytes: Mapping[PartitionKey, float] = field(default_factory=dict)
    others_bytes: float | None = None


class ObservedModel:
    """A model in the making: add what brokers report, then topics in the order of their ids, then end it."""

    def __init__(self, brokers: Sequence[ModelBroker], weights: LoadWeights | None = None) -> None:
        self.builder = ModelBuilder(brokers, weights)
        self._named: dict[PartitionKey, tuple[float, float]] = {}
        self._rests: dict[bytes, dict[int, tuple[float, float]]] = {}  # by topic and broker
        self._unnamed: list[int] = []  # partitions of topics that no report names
        self._others: dict[int, float] = {}  # bytes of replicas whose sizes are not named, by broker

    def take(self, broker_id: int, report: BrokerReport) -> Work[None]:
        if report.others_bytes is not None:
            self._others[broker_id] = report.others_bytes
        for number, (topic_id, partition, rate_in, rate_out) in enumerate(report.partitions, 1):
            before = self._named.get((topic_id, partition), (0.0, 0.0))  # its leadership may have moved meanwhile
            self._named[topic_id, partition] = (before[0] + rate_in, before[1] + rate_out)
            if number % AT_ONCE == 0:
                yield AT_ONCE * ROW_COST
        for number, (topic_id, _, rate_in, rate_out) in enumerate(report.topics, 1):
            self._rests.setdefault(topic_id, {})[broker_id] = (rate_in, rate_out)
            if number % AT_ONCE == 0:
                yield AT_ONCE * ROW_COST

    def divide(self, topic_id: bytes, numbers: list[int]) -> Work[None]:
        """Set the rates of a topic's partitions, which have been added to the builder."""
        builder = self.builder
        rests = self._rests.get(topic_id)
        without = []
        for count, number in enumerate(numbers, 1):
            found = self._named.get((topic_id, builder.model.index[number]))
            if found is None:
                without.append(number)
            else:
                builder.set_rates(number, *found)
            if count % AT_ONCE == 0:
                yield AT_ONCE * ROW_COST
        if rests:
            yield from _divide(builder, without, rests)
            divided = _slots(builder, rests)
            without = [number for number in without if builder.model.leader[number] not in divided]
        self._unnamed += without
        yield len(without)

    def end(self) -> Work[ClusterModel]:
        everything = self._rests.get(ZERO_UUID, {})
        if everything:
            yield from _divide(self.builder, self._unnamed, everything)
        yield from _estimate_sizes(self.builder.model, self._others)
        return self.builder.model


def building(
    image: MetadataImage,
    brokers: Sequence[ModelBroker],
    reports: Mapping[int, BrokerReport],
    weights: LoadWeights | None = None,
) -> Work[ClusterModel]:
    """The model. Brokers that do not report use nothing, so do not plan before all have."""
    observed = ObservedModel(brokers, weights)
    for broker_id, report in reports.items():
        yield from observed.take(broker_id, report)
    sizes = {broker_id: report.local_bytes for broker_id, report in reports.items()}
    for topic in (yield from _by_id(image)):
        numbers = yield from _add_topic(observed.builder, image, topic, sizes)
        yield from observed.divide(topic.topic_id, numbers)
    return (yield from observed.end())


def _by_id(image: MetadataImage) -> Work[list[TopicImage]]:
    """All topics in the order of their ids."""
    buckets: dict[int, list[TopicImage]] = {first: [] for first in range(256)}
    for number, topic in enumerate(image.topics, 1):
        buckets[topic.topic_id[0]].append(topic)
        if number % AT_ONCE == 0:
            yield AT_ONCE
    ordered: list[TopicImage] = []
    for bucket in buckets.values():
        ordered += sorted(bucket, key=lambda topic: topic.topic_id)
        yield len(bucket)
    return ordered


def _add_topic(
    builder: ModelBuilder, image: MetadataImage, topic: TopicImage, sizes: Mapping[int, Mapping[PartitionKey, float]]
) -> Work[list[int]]:
    """Add a topic's partitions without rates, and return their numbers."""
    owner = tenant_of(topic.name)
    tenant = image.tenants.get(owner) if owner is not None else None
    cell = tenant.home if tenant is not None else None
    # the tenant's own move, or its deletion, takes care of them
    stays = tenant is not None and tenant.state is not TenantState.ACTIVE
    is_keyed = topic.name in CLIENT_KEY_TOPICS
    numbers = []
    for partition in topic.partitions.values():
        if is_keyed:
            held = topic.range_with(partition.partition)
            cell = None if held is None else held.cell
            stays = held is not None and _is_elsewhere(image, partition, held.cell)
        key = topic.topic_id, partition.partition
        replicas = _settled_replicas(partition)
        numbers.append(
            builder.add(
                ModelPartition(
                    topic.topic_id,
                    partition.partition,
                    replicas,
                    partition.leader if partition.leader in replicas or not partition.has_leader else replicas[0],
                    partition.isr,
                    local_bytes=tuple([sizes.get(replica, {}).get(key, -1.0) for replica in replicas]),
                    cell=cell,
                    stays=stays or not _is_settled(image, partition),
                )
            )
        )
        if len(numbers) % AT_ONCE == 0:
            yield AT_ONCE * PARTITION_COST
    yield TOPIC_COST + len(numbers) % AT_ONCE * PARTITION_COST
    return numbers


def _settled_replicas(partition: PartitionImage) -> tuple[int, ...]:
    """Those at the end of a reassignment that runs: what it has copied already must not be planned again."""
    if not partition.removing:
        return partition.replicas
    return tuple(replica for replica in partition.replicas if replica not in partition.removing)


def _is_elsewhere(image: MetadataImage, partition: PartitionImage, cell: str) -> bool:
    """Whether a replica of a cell's range is outside of the cell: then the duties of cells move it."""
    brokers = (image.brokers.get(replica) for replica in partition.replicas)
    return any(broker is not None and cell_of(broker) != cell for broker in brokers)


def _is_settled(image: MetadataImage, partition: PartitionImage) -> bool:
    """Whether it may be moved: it has a leader, it is not being reassigned, and all its replicas on active brokers are
    in sync."""
    if not partition.has_leader or partition.is_reassigning:
        return False
    isr = partition.isr
    return len(isr) == len(partition.replicas) or all(
        replica in isr or not image.is_active(replica) for replica in partition.replicas
    )


def _slots(builder: ModelBuilder, rests: Mapping[int, tuple[float, float]]) -> set[int]:
    slots = builder.model.slots
    return {slots[broker_id] for broker_id in rests if broker_id in slots}


def _divide(builder: ModelBuilder, numbers: list[int], rests: Mapping[int, tuple[float, float]]) -> Work[None]:
    """Divide each broker's rest evenly among those of the partitions that it leads."""
    model = builder.model
    counts = [0] * len(model.brokers)
    for count, number in enumerate(numbers, 1):
        counts[model.leader[number]] += 1
        if count % AT_ONCE == 0:
            yield AT_ONCE // 4
    for count, number in enumerate(numbers, 1):
        slot = model.leader[number]
        rest = rests.get(model.brokers[slot].broker_id)
        if rest is not None and slot >= 0:
            builder.set_rates(number, rest[0] / counts[slot], rest[1] / counts[slot])
        if count % AT_ONCE == 0:
            yield AT_ONCE * ROW_COST


def _estimate_sizes(model: ClusterModel, others: Mapping[int, float]) -> Work[None]:
    """Replace unknown sizes, which are negative. `others`: of brokers that report what these are together."""
    known = [0.0] * len(model.brokers)
    unknown = [0] * len(model.brokers)
    for replica, size in enumerate(model.size):
        if size < 0:
            unknown[model.holder[replica]] += 1
        else:
            known[model.holder[replica]] += size
        if replica % AT_ONCE == 0:
            yield AT_ONCE
    even = [
        others.get(broker.broker_id, max(broker.disk_used - known[slot], 0.0)) / unknown[slot] if unknown[slot] else 0.0
        for slot, broker in enumerate(model.brokers)
    ]
    for replica, size in enumerate(model.size):
        if size < 0:
            model.size[replica] = even[model.holder[replica]]
        if replica % AT_ONCE == 0:
            yield AT_ONCE
