"""A recorded cluster, to plan for it elsewhere and later: brokers with what they report, and topics. No I/O.

The record is one JSON object a line, in any order, so that it can be read, cut and changed with everyday tools: a load
doubled, a broker added. Names of fields that reports have are those of `tidelog usage record`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from common.pacing import Work
from kraft.balancer.model import ClusterModel, ModelBroker, ModelPartition, Standing
from kraft.balancer.move import Limits, Move, Plan, Replicas
from kraft.balancer.observed import BrokerReport, ObservedModel, RateRow
from kraft.balancer.planner import planning
from kraft.image.partition_index import PartitionKey

VERSION = 1
ALL_OTHERS = ""
"""The topic of what a broker adds up for topics that it does not name."""
TOPICS_AT_ONCE = 20

NodeId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=-1, le=2**63 - 1)]
Rate = Annotated[float, Meta(ge=0, le=2**63)]


class UnusableRecord(Exception):
    """A line of the record makes no sense; the text says which one and why."""


class RecordedStanding(StrEnum):
    """See `Standing`."""

    LIVE = "live"
    CLOSED = "closed"
    APART = "apart"
    LEAVING = "leaving"


class PartitionRate(Struct, frozen=True):
    topic: str
    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    in_rate: Rate | None
    out_rate: Rate | None


class TopicRate(Struct, frozen=True):
    topic: str
    in_rate: Rate | None
    out_rate: Rate | None


class RecordedHead(Struct, tag="cluster", tag_field="record", frozen=True):
    """`known`: every live broker had reported what it does."""

    version: int = VERSION
    time_ms: int = 0
    known: bool = True


class RecordedBroker(Struct, tag="broker", tag_field="record", frozen=True):
    """See `ModelBroker` and `BrokerReport`. A load or size that is null or negative is unknown."""

    broker: NodeId
    cell: str = "default"
    rack: str | None = None
    standing: RecordedStanding = RecordedStanding.LIVE
    load: Annotated[float, Meta(ge=0, le=1)] | None = None
    disk_used_bytes: Bytes = -1
    disk_size_bytes: Bytes = -1
    bandwidth: Rate = 0.0
    replicas_max: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    partitions: list[PartitionRate] = field(default_factory=list)
    topics: list[TopicRate] = field(default_factory=list)


class RecordedPartition(Struct, frozen=True):
    """`local_bytes`: of each replica; null where it is unknown."""

    partition: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    replicas: Annotated[tuple[NodeId, ...], Meta(min_length=1)]
    leader: Annotated[int, Meta(ge=-1, le=2**31 - 1)]
    in_sync: tuple[NodeId, ...]
    local_bytes: tuple[Rate | None, ...] = ()
    cell: str | None = None
    stays: bool = False


class RecordedTopic(Struct, tag="topic", tag_field="record", frozen=True):
    """`id`: 32 hexadecimal digits; plans depend on the order of ids."""

    topic: Annotated[str, Meta(min_length=1)]
    id: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    partitions: list[RecordedPartition]


Line = RecordedHead | RecordedBroker | RecordedTopic


class RecordedCluster(Struct, frozen=True):
    head: RecordedHead
    brokers: Mapping[int, RecordedBroker]
    topics: Mapping[str, RecordedTopic]


class PlannedChange(Struct, frozen=True):
    """A move with the names and replicas that operators know."""

    topic: str
    move: Move
    before: Replicas
    after: Replicas


def encoded(line: Line) -> str:
    return msgspec.json.encode(line).decode()


def read(lines: Iterable[str | bytes]) -> RecordedCluster:
    """Raises UnusableRecord."""
    decoder = msgspec.json.Decoder(RecordedHead | RecordedBroker | RecordedTopic)
    head: RecordedHead | None = None
    brokers: dict[int, RecordedBroker] = {}
    topics: dict[str, RecordedTopic] = {}
    for number, text in enumerate(lines, 1):
        if not text.strip():
            continue
        try:
            line = decoder.decode(text)
            if isinstance(line, RecordedHead):
                head = _checked_head(line, head)
            elif isinstance(line, RecordedBroker):
                _add(brokers, line.broker, line, f"broker {line.broker}")
            else:
                _check_topic(line)
                _add(topics, line.topic, line, f"topic {line.topic}")
        except (msgspec.MsgspecError, UnicodeError, UnusableRecord) as error:
            raise UnusableRecord(f"line {number}: {error}") from None
    if head is None or not brokers:
        raise UnusableRecord("it has no line of the cluster, or none of a broker")
    if len({topic.id for topic in topics.values()}) < len(topics):
        raise UnusableRecord("two topics have the same id")
    return RecordedCluster(head, brokers, topics)


def _checked_head(line: RecordedHead, before: RecordedHead | None) -> RecordedHead:
    if before is not None:
        raise UnusableRecord("a second line of the cluster")
    if line.version != VERSION:
        raise UnusableRecord(f"version {line.version} is not known, only {VERSION}")
    return line


def _add(found: dict[Any, Any], key: object, line: Line, what: str) -> None:
    if key in found:
        raise UnusableRecord(f"{what} is there twice")
    found[key] = line


def _check_topic(topic: RecordedTopic) -> None:
    numbers = set()
    for row in topic.partitions:
        what = f"{topic.topic}-{row.partition}"
        if row.partition in numbers:
            raise UnusableRecord(f"{what} is there twice")
        numbers.add(row.partition)
        if len(set(row.replicas)) < len(row.replicas):
            raise UnusableRecord(f"{what} has two replicas on one broker")
        if row.local_bytes and len(row.local_bytes) != len(row.replicas):
            raise UnusableRecord(f"{what} has {len(row.replicas)} replicas and {len(row.local_bytes)} sizes")


# planning ---------------------------------------------------------------------------------------------------


def modelling(cluster: RecordedCluster) -> Work[ClusterModel]:
    """The model that the controller would have made."""
    observed = ObservedModel([_broker(one) for one in cluster.brokers.values()])
    ids = {name: bytes.fromhex(topic.id) for name, topic in cluster.topics.items()} | {ALL_OTHERS: bytes(16)}
    for broker in cluster.brokers.values():
        yield from observed.take(broker.broker, _report(broker, ids))
    ordered = sorted(cluster.topics.values(), key=lambda topic: topic.id)
    for count, topic in enumerate(ordered, 1):
        numbers = [
            observed.builder.add(_partition(row, ids[topic.topic]))
            for row in sorted(topic.partitions, key=lambda row: row.partition)
        ]
        yield from observed.divide(ids[topic.topic], numbers)
        if count % TOPICS_AT_ONCE == 0:
            yield TOPICS_AT_ONCE
    return (yield from observed.end())


def _broker(broker: RecordedBroker) -> ModelBroker:
    return ModelBroker(
        broker.broker,
        broker.cell,
        broker.rack,
        Standing[broker.standing.name],
        disk_size=max(broker.disk_size_bytes, 0),
        disk_used=max(broker.disk_used_bytes, 0),
        in_capacity=broker.bandwidth,
        out_capacity=broker.bandwidth,
        replicas_max=broker.replicas_max,
        load=broker.load,
    )


def _report(broker: RecordedBroker, ids: Mapping[str, bytes]) -> BrokerReport:
    partitions: list[RateRow] = [
        (ids[row.topic], row.partition, row.in_rate or 0.0, row.out_rate or 0.0)
        for row in broker.partitions
        if row.topic in ids
    ]
    topics: list[RateRow] = [
        (ids[row.topic], -1, row.in_rate or 0.0, row.out_rate or 0.0) for row in broker.topics if row.topic in ids
    ]
    return BrokerReport(partitions, topics)


def _partition(row: RecordedPartition, topic_id: bytes) -> ModelPartition:
    sizes = row.local_bytes or (None,) * len(row.replicas)
    return ModelPartition(
        topic_id,
        row.partition,
        row.replicas,
        row.leader if row.leader in row.replicas or row.leader < 0 else row.replicas[0],
        row.in_sync,
        local_bytes=tuple([-1.0 if size is None else size for size in sizes]),
        cell=row.cell,
        stays=row.stays,
    )


def planned(cluster: RecordedCluster, limits: Limits) -> Work[tuple[Plan, list[PlannedChange]]]:
    """The plan, and its moves in terms of operators."""
    model = yield from modelling(cluster)
    plan = yield from planning(model, limits)
    names = {bytes.fromhex(topic.id): name for name, topic in cluster.topics.items()}
    replicas: dict[PartitionKey, Replicas] = {
        (bytes.fromhex(topic.id), row.partition): row.replicas
        for topic in cluster.topics.values()
        for row in topic.partitions
    }
    changes = []
    for move in plan.moves:
        before = replicas[move.key]
        after = move.applied_to(before)
        if after is not None:
            replicas[move.key] = after
            changes.append(PlannedChange(names[move.topic_id], move, before, after))
    return plan, changes
