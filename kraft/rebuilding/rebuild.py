"""The first metadata of a cluster that is rebuilt from its object store. No I/O.

The bucket has two sources: the newest export of the old cluster's metadata, and the manifests of the partitions, which
may be newer. Topics keep names, ids, partitions and settings. Partitions begin without leader and ISR: the first live
replica starts with the tier's data. Leader epochs begin above all that the bucket has, with a margin for those of which
nothing was tiered, so that no epoch is used twice. A tenant's partitions are placed on the brokers of its cell.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from common.errors import ProtocolError
from kraft.batches import MetadataRecord
from kraft.controller.placement import ReplicaPlacer, UsableBroker
from kraft.features import INITIAL_LEVELS, SUPPORTED_FEATURES
from kraft.image.cells import DEFAULT_CELL
from kraft.image.configs import CLUSTER_DEFAULT
from kraft.image.delta import ReplayError, replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.tenants import TenantImage, tenant_of
from kraft.rebuilding.access_rebuild import ACCESS_REBUILD_RULES, RebuiltAccess
from kraft.records import (
    NO_LEADER,
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    PartitionRecord,
    ProducerIdsRecord,
    ResourceType,
    TenantRecord,
    TopicRecord,
)
from kraft.topic_names import INTERNAL_TOPICS
from records.events import Event

EPOCH_MARGIN = 100
PRODUCER_ID_MARGIN = 1_000_000  # a thousand blocks: ids that may have been allocated after the last export
PRODUCER_ID_UNKNOWN = 1 << 40  # above any id that a cluster without an export can have allocated
REMOTE_STORAGE = "remote.storage.enable"
GENERATION = "tidelog.tier.generation"
KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}


class CannotRebuild(Exception):
    """The text has the reason, for the operator."""


@dataclass(frozen=True, slots=True)
class NamedBroker:
    """A broker of the new cluster. `cell` is empty if it was not given."""

    broker_id: int
    rack: str | None = None
    cell: str = DEFAULT_CELL


@dataclass(frozen=True, slots=True)
class TieredPartition:
    """A partition's newest manifest; `leader_epoch`: the highest in it. `is_empty`: the manifest is readable and has no
    records."""

    log_start_offset: int
    end_offset: int
    leader_epoch: int
    is_empty: bool = False


@dataclass(frozen=True, slots=True)
class TieredTopic:
    """A topic with objects in the bucket. `partitions` by index."""

    name: str
    topic_id: bytes
    partitions: Mapping[int, TieredPartition]


@dataclass(slots=True)
class RebuiltTopic:
    """A topic of the new cluster. `known`: whether the old cluster's export has it."""

    name: str
    topic_id: bytes
    known: bool
    configs: dict[str, str] = field(default_factory=dict)
    replicas: dict[int, tuple[int, ...]] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    partitions: dict[int, TieredPartition] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return 1 + max([*self.replicas, *self.partitions], default=-1)

    @property
    def is_tiered(self) -> bool:
        return self.configs.get(REMOTE_STORAGE, "").strip().lower() == "true"

    @property
    def has_left_tier(self) -> bool:
        """Whether tiering was disabled and the tier was emptied: then the manifests give the log starts."""
        was_disabled = not self.is_tiered and int(self.configs.get(GENERATION, "0")) > 0
        return was_disabled and all(found.is_empty for found in self.partitions.values())


@dataclass(slots=True)
class Rebuild:
    """`notes`: messages about what was missing or not kept."""

    image: MetadataImage
    topics: list[RebuiltTopic]
    notes: list[str]


class Rebuilder:
    """Collects events and manifests, then creates the image. Call each method once, in order."""

    def __init__(self, cluster_id: str, incarnation: int) -> None:
        self._cluster_id = cluster_id
        self._incarnation = incarnation
        self._has_events = False
        self._topics: dict[bytes, RebuiltTopic] = {}
        self._features = dict(INITIAL_LEVELS)
        self._configs: list[tuple[str, str, str]] = []  # resource name of a topic, name, value
        self._cluster_configs: dict[str, str] = {}
        self._client_metrics: list[tuple[str, str, str]] = []  # subscription, name, value
        self._next_producer_id = 0
        self.access = RebuiltAccess()
        self.brokers: list[NamedBroker] = []
        """The old cluster's brokers."""
        self.notes: list[str] = []

    def take_events(self, events: Sequence[Event]) -> None:
        """Read the newest export of the metadata. Raises CannotRebuild."""
        self._has_events = True
        unknown: dict[str, int] = {}
        for event in events:
            rule = REBUILD_RULES.get(str(event.get("event")))
            if rule is None:
                unknown[str(event.get("event"))] = unknown.get(str(event.get("event")), 0) + 1
                continue
            try:
                rule(self, event)
            except (KeyError, ValueError, TypeError) as error:
                raise CannotRebuild(f"the export of the metadata has an event that cannot be read: {event}") from error
        for name, count in unknown.items():
            self.notes.append(f"{count} events {name!r} of the metadata are not known to this version")
        by_name = {topic.name: topic for topic in self._topics.values()}
        for resource, name, value in self._configs:
            if resource in by_name:
                by_name[resource].configs[name] = value

    def take_tier(self, tiered: Iterable[TieredTopic], deleted: Iterable[bytes] = ()) -> None:
        """Add topics with manifests in the bucket, and ids of topics whose manifests say that they were deleted, which
        an export may have missed."""
        for topic_id in deleted:
            self._topics.pop(topic_id, None)
        names = {topic.name: topic.topic_id for topic in self._topics.values()}
        for found in tiered:
            topic = self._topics.get(found.topic_id)
            if topic is None and found.name in names:
                self.notes.append(
                    f"{found.name} ({found.topic_id.hex()}) is passed over: a later topic has its name, and `tidelog "
                    "tier restore` can make it a topic of another name"
                )
                continue
            if topic is None:
                topic = self._topics[found.topic_id] = RebuiltTopic(found.name, found.topic_id, known=False)
                names[found.name] = found.topic_id
                topic.configs.update(KEEP_ALL)
                self.notes.append(
                    f"{found.name}: no export of the metadata names it, so its settings are not there; it is kept "
                    "without bounds of time and size until you set them"
                )
            topic.partitions.update(found.partitions)
            if topic.has_left_tier:
                continue
            if topic.known and not topic.is_tiered:
                self.notes.append(f"{found.name}: it is tiered again, for the object store holds some of its records")
            topic.configs[REMOTE_STORAGE] = "true"

    def build(self, brokers: Sequence[NamedBroker], replication_factor: int, rng: random.Random) -> Rebuild:
        """Raises CannotRebuild. `replication_factor`: for topics without an export."""
        if not brokers:
            raise CannotRebuild("no broker is named that could hold the replicas")
        if not self._has_events:
            self.notes.append("no export of the metadata was there: all settings are this version's defaults")
        topics = [topic for topic in self._topics.values() if topic.name not in INTERNAL_TOPICS]
        rooms = _Rooms(brokers, self.access.records, rng)
        records: list[MetadataRecord] = [ClusterRecord(self._cluster_id, self._incarnation)]
        records += [FeatureLevelRecord(name, level) for name, level in self._features.items()]
        fewer = 0
        for topic in topics:
            records.append(
                TopicRecord(topic.name, topic.topic_id, adopts_tier=topic.is_tiered or bool(topic.partitions))
            )
            records += [ConfigRecord(ResourceType.TOPIC, topic.name, *item) for item in topic.configs.items()]
            wanted = max(map(len, topic.replicas.values()), default=replication_factor) or replication_factor
            room = rooms.of(topic.name)
            factor = min(wanted, len(room.ids))
            fewer += factor < wanted
            records += [self._partition(topic, index, room, factor) for index in range(topic.count)]
        if fewer:
            self.notes.append(f"{fewer} topics have fewer replicas than before: there are {len(brokers)} brokers")
        self.notes += rooms.notes()
        records += [ConfigRecord(ResourceType.BROKER, CLUSTER_DEFAULT, *item) for item in self._cluster_configs.items()]
        records += [ConfigRecord(ResourceType.CLIENT_METRICS, *item) for item in self._client_metrics]
        records += self.access.records
        self.notes += self.access.notes()
        margin = PRODUCER_ID_MARGIN if self._has_events else PRODUCER_ID_UNKNOWN
        records.append(ProducerIdsRecord(-1, -1, self._next_producer_id + margin))
        try:
            return Rebuild(replayed(EMPTY_IMAGE, records), topics, self.notes)
        except ReplayError as error:
            raise CannotRebuild(f"the export of the metadata contradicts itself: {error}") from error

    def _partition(self, topic: RebuiltTopic, index: int, room: _Room, factor: int) -> PartitionRecord:
        replicas = topic.replicas.get(index, ())
        if not replicas or any(replica not in room.ids for replica in replicas):
            try:
                (replicas,) = room.placer.place(1, factor)
            except ProtocolError as error:
                raise CannotRebuild(error.message) from error
        seen = topic.partitions.get(index)
        epoch = max(topic.epochs.get(index, 0), seen.leader_epoch if seen is not None else 0)
        return PartitionRecord(topic.topic_id, index, replicas, (), NO_LEADER, epoch + EPOCH_MARGIN)

    # one rule for each event -------------------------------------------------------------------------------

    def _cluster(self, event: Event) -> None:
        if event["cluster_id"] != self._cluster_id:
            raise CannotRebuild(f"the export of the metadata is of cluster {event['cluster_id']}")

    def _feature(self, event: Event) -> None:
        name, level = str(event["name"]), int(event["level"])
        low, high = SUPPORTED_FEATURES.get(name, (0, 0))
        if level > high:
            raise CannotRebuild(f"the cluster had {name} {level}, and this version knows no more than {high}")
        self._features[name] = max(level, low)

    def _broker(self, event: Event) -> None:
        cell = str(event.get("cell") or DEFAULT_CELL)
        self.brokers.append(NamedBroker(int(event["broker_id"]), event.get("rack"), cell))

    def _topic(self, event: Event) -> None:
        topic_id = bytes.fromhex(event["topic_id"])
        self._topics[topic_id] = RebuiltTopic(str(event["name"]), topic_id, known=True)

    def _partition_event(self, event: Event) -> None:
        topic, index = self._topics[bytes.fromhex(event["topic_id"])], int(event["partition"])
        topic.replicas[index] = tuple(int(replica) for replica in event["replicas"])
        topic.epochs[index] = int(event["leader_epoch"])

    def _config(self, event: Event) -> None:
        kind, resource, name = event["resource_type"], str(event["resource_name"]), str(event["name"])
        if event.get("withheld"):
            self.notes.append(f"{name} of {kind} {resource!r} is not there: it is secret, set it again")
        elif kind == "topic":
            self._configs.append((resource, name, str(event["value"])))
        elif kind == "client_metrics":
            self._client_metrics.append((resource, name, str(event["value"])))
        elif resource == CLUSTER_DEFAULT:
            self._cluster_configs[name] = str(event["value"])
        else:
            self.notes.append(f"{name}={event['value']} of {kind} {resource!r} is not taken over: brokers are new ones")

    def _producer_ids(self, event: Event) -> None:
        self._next_producer_id = max(self._next_producer_id, int(event["next_producer_id"]))

    def _access_event(self, event: Event) -> None:
        ACCESS_REBUILD_RULES[str(event["event"])](self.access, event)


class _Room:
    """Brokers that may hold a topic."""

    def __init__(self, brokers: Sequence[NamedBroker], rng: random.Random) -> None:
        self.ids = {broker.broker_id: None for broker in brokers}
        self.placer = ReplicaPlacer([UsableBroker(b.broker_id, b.rack, fenced=False) for b in brokers], rng)


class _Rooms:
    """By topic: the brokers of the cell where its tenant lives or moves to, all brokers for an operator's."""

    def __init__(self, brokers: Sequence[NamedBroker], records: Iterable[MetadataRecord], rng: random.Random) -> None:
        self._brokers, self._random = brokers, rng
        self._homes = {one.id: TenantImage.of(one).home for one in records if isinstance(one, TenantRecord)}
        self._all = _Room(brokers, rng)
        self._by_cell: dict[str, _Room] = {}
        self._without_brokers: dict[str, int] = {}

    def of(self, topic: str) -> _Room:
        home = self._homes.get(tenant_of(topic) or "")
        if home is None:
            return self._all
        if home not in self._by_cell:
            there = [broker for broker in self._brokers if broker.cell == home]
            self._by_cell[home] = _Room(there, self._random) if there else self._all
        if self._by_cell[home] is self._all:
            self._without_brokers[home] = self._without_brokers.get(home, 0) + 1
        return self._by_cell[home]

    def notes(self) -> list[str]:
        """Sentences for the operator."""
        return [
            f"cell {cell} has no broker: {count} topics of its tenants are on brokers of others, until brokers join it "
            "(`tidelog.cell`) or `tidelog tenants move` gives the tenants another"
            for cell, count in self._without_brokers.items()
        ]


REBUILD_RULES: Mapping[str, Callable[[Rebuilder, Event], None]] = {
    "cluster": Rebuilder._cluster,
    "feature": Rebuilder._feature,
    "broker": Rebuilder._broker,
    "topic": Rebuilder._topic,
    "partition": Rebuilder._partition_event,
    "config": Rebuilder._config,
    "producer_ids": Rebuilder._producer_ids,
    **dict.fromkeys(ACCESS_REBUILD_RULES, Rebuilder._access_event),
}
