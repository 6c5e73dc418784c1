"""Replay: applies records to an image, and records what they changed.

A delta collects any number of records, also of several batches, and creates the next image, which shares unchanged
parts with the one before. So the cost depends only on the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from common.invariants import check
from common.pacing import Work, at_once
from kraft.batches import Batch, MetadataRecord
from kraft.fleet_records import (
    BalanceMoveRecord,
    BalanceOperationRecord,
    ClientQuotaRecord,
    RemoveClientQuotaRecord,
)
from kraft.image.access_delta import AccessDelta, Changes
from kraft.image.acls import AclImage
from kraft.image.balance import BalanceDelta
from kraft.image.brokers import BrokerImage
from kraft.image.cells import CellImage
from kraft.image.client_quotas import ClientQuota, key_of
from kraft.image.configs import ConfigsImage, ResourceKey
from kraft.image.credentials import ApiKeyImage, ScramCredential
from kraft.image.metadata import MetadataImage
from kraft.image.partition_index import IndexEdit
from kraft.image.partition_table import partitions_changed
from kraft.image.partitions import PartitionImage
from kraft.image.tenants import TenantImage
from kraft.image.topics import KeyRange, TopicImage, TopicsImage, names_changed
from kraft.records import (
    AclRecord,
    ApiKeyRecord,
    BrokerRegistrationChangeRecord,
    CellRecord,
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    KeyRangeRecord,
    LeaderChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    RemoveScramCredentialRecord,
    RemoveTenantRecord,
    RemoveTopicRecord,
    ResourceType,
    ScramCredentialRecord,
    TenantRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

STRETCH = 50  # records replayed per slice
RECORDS_PER_IMAGE = 200  # records that need not be atomic
REPLAY_COST, TOPIC_COST = 3, 2  # of a record, and of a changed topic in the next image; units of `common.pacing`


class ReplayError(ValueError):
    """A record does not fit the image: every node rejects the whole batch alike."""


class MetadataDelta:
    """Changes relative to `base`. Not usable after a ReplayError.

    With `result` the new image is already known (see `kraft.image.difference`) and nothing is replayed.
    """

    def __init__(self, base: MetadataImage, result: MetadataImage | None = None) -> None:
        self.base = base
        self._result = result
        self.topics_created: dict[bytes, TopicImage] = {}
        """By topic id, with the partitions at creation only; the image has the current ones."""
        self.topics_deleted: dict[bytes, TopicImage] = {}
        """By topic id, as they were in `base`."""
        self.partitions_changed: dict[tuple[bytes, int], PartitionImage | None] = {}
        """(topic id, index) → the partition in `base`, None for a new one. Not the partitions of deleted topics."""
        self.ranges_changed: dict[bytes, None] = {}
        """Ids of internal topics in which a cell got a range."""
        self.brokers_changed: dict[int, BrokerImage | None] = {}
        """Broker id → the broker in `base`, None for a new one."""
        self.configs_changed: dict[ResourceKey, None] = {}
        self.features_changed = result is not None and result.features != base.features
        self.access = AccessDelta(base)
        """Changes of credentials, ACLs, tenants, keys and cells."""
        self.balance = BalanceDelta(base.balance)
        self.client_quotas = Changes(base.client_quotas)
        """By `key_of` the entity."""
        self._offset = base.offset
        self._epoch = base.epoch
        self._leader_id = base.leader_id
        self._sequence = base.sequence
        self._cluster_id = base.cluster_id
        self._next_producer_id = base.next_producer_id
        self._incarnation = base.incarnation
        self._names_created: dict[str, None] = {}
        self._partitions: dict[bytes, dict[int, PartitionImage]] = {}  # changed partitions only
        self._topics_met: dict[bytes, TopicImage] = {}  # topics of the records so far, before changes
        self._ranges: dict[bytes, tuple[KeyRange, ...]] = {}
        self._brokers: dict[int, BrokerImage] | None = None
        self._configs: dict[ResourceKey, dict[str, str]] = {}
        self._features: dict[str, int] | None = None

    def replay_batch(self, batch: Batch) -> None:
        """Replay a committed, accepted batch; its offsets begin where this delta ends."""
        header = batch.header
        self._epoch, self._leader_id, self._sequence = header.epoch, header.leader_id, header.sequence
        self.replay_all(batch.records)

    def replaying(self, batch: Batch) -> Work[None]:
        """As `replay_batch`, as work; until it ends, the delta must not be used otherwise."""
        header, records = batch.header, batch.records
        self._epoch, self._leader_id, self._sequence = header.epoch, header.leader_id, header.sequence
        for at in range(0, len(records), STRETCH):
            some = records[at : at + STRETCH]
            self.replay_all(some)
            yield len(some) * REPLAY_COST

    def replay_all(self, records: Iterable[MetadataRecord]) -> None:
        for record in records:
            self.replay(record)

    def replay(self, record: MetadataRecord) -> None:
        """Apply one record at the next offset. Raises ReplayError if it does not fit."""
        check(self._result is None, "a delta accepts no records after its image was created")
        self._offset += 1
        _REPLAY[type(record)](self, record)

    @property
    def is_empty(self) -> bool:
        """Whether only offset and epoch changed."""
        return not (
            self.partitions_changed
            or self.ranges_changed
            or self.topics_created
            or self.topics_deleted
            or self.brokers_changed
            or self.configs_changed
            or self.features_changed
            or not self.access.is_empty
            or not self.balance.is_empty
            or self.client_quotas.changed
        )

    def image(self) -> MetadataImage:
        """The image after all replayed records; nothing can be replayed after it."""
        return self._result if self._result is not None else at_once(self.imaging())

    def imaging(self) -> Work[MetadataImage]:
        """As `image`, as work."""
        if self._result is not None:
            return self._result
        base, access, quotas = self.base, self.access, self.client_quotas.now
        topics = yield from self._topics_imaging()
        configs = self._configs_image()
        yield len(self.configs_changed)
        scram = access.scram_image()
        yield len(access.scram.changed)
        acls = yield from access.acls_imaging()
        self._result = MetadataImage(
            self._offset,
            self._epoch,
            self._leader_id,
            self._sequence,
            self._cluster_id,
            topics,
            base.brokers if self._brokers is None else self._brokers,
            configs,
            base.features if self._features is None else self._features,
            self._next_producer_id,
            self._incarnation,
            scram,
            acls,
            access.tenants_image(),
            access.keys_image(),
            access.cells_image(),
            self.balance.image(),
            base.client_quotas.changed(quotas) if quotas else base.client_quotas,
        )
        return self._result

    def _topics_imaging(self) -> Work[TopicsImage]:
        base = self.base.topics
        if not (self.topics_created or self.topics_deleted or self._partitions or self._ranges):
            return base
        index = IndexEdit(base.index)
        count = base.partition_count
        changed: dict[bytes, TopicImage | None] = {}
        for topic_id, topic in self.topics_deleted.items():
            changed[topic_id] = None
            count -= len(topic.partitions)
            yield TOPIC_COST + index.remove(topic_id, topic.partitions)
        changed.update(self.topics_created)
        for topic_id, partitions in self._partitions.items():
            topic = self._topic(topic_id)
            after = partitions_changed(topic.partitions, partitions)
            count += len(after) - len(topic.partitions)
            changed[topic_id] = TopicImage(topic.name, topic_id, after, topic.adopts_tier, topic.ranges)
            yield TOPIC_COST + len(partitions) // 4
            yield from index.changing(topic_id, topic.partitions, partitions)
        for topic_id, ranges in self._ranges.items():
            changed[topic_id] = replace(changed.get(topic_id) or self._topic(topic_id), ranges=ranges)
        ids: dict[str, bytes | None] = {topic.name: None for topic in self.topics_deleted.values()}
        ids.update({topic.name: topic_id for topic_id, topic in self.topics_created.items()})
        names = names_changed(base.names_by_tenant, self.topics_deleted.values(), self.topics_created.values())
        by_name = base.ids.changed(ids) if ids else base.ids
        yield TOPIC_COST * len(ids)
        by_id = base.by_id.changed(changed)
        yield TOPIC_COST * len(changed)
        edited = yield from index.done()
        return TopicsImage(by_id, by_name, names, edited, count)

    def _configs_image(self) -> ConfigsImage:
        if not self.configs_changed:
            return self.base.configs
        changed = {key: self._configs.get(key) or None for key in self.configs_changed}
        return self.base.configs.changed(changed)

    def _topic(self, topic_id: bytes) -> TopicImage:
        topic = self._topics_met.get(topic_id)
        if topic is not None:
            return topic
        topic = self.topics_created.get(topic_id)
        if topic is None and topic_id not in self.topics_deleted:
            topic = self.base.topics.by_id.get(topic_id)
        if topic is None:
            raise ReplayError("a record names a topic that does not exist")
        self._topics_met[topic_id] = topic
        return topic

    def _partition(self, topic_id: bytes, index: int) -> PartitionImage | None:
        changed = self._partitions.get(topic_id)
        partition = changed.get(index) if changed is not None else None
        return self._topic(topic_id).partitions.get(index) if partition is None else partition

    def _mutable_brokers(self) -> dict[int, BrokerImage]:
        if self._brokers is None:
            self._brokers = dict(self.base.brokers)
        return self._brokers

    def _name_taken(self, name: str) -> bool:
        existing = self.base.topics.get(name)
        if existing is not None and existing.topic_id not in self.topics_deleted:
            return True
        return name in self._names_created

    def _replay_cluster(self, record: ClusterRecord) -> None:
        if self._cluster_id not in (None, record.cluster_id):
            raise ReplayError("the cluster already has an id")
        self._cluster_id, self._incarnation = record.cluster_id, record.incarnation

    def _replay_feature(self, record: FeatureLevelRecord) -> None:
        if self._features is None:
            self._features = dict(self.base.features)
        if record.level > 0:
            self._features[record.name] = record.level
        else:
            self._features.pop(record.name, None)
        self.features_changed = True

    def _replay_no_op(self, record: NoOpRecord) -> None:
        """A barrier; changes only the offset."""

    def _replay_leader_change(self, record: LeaderChangeRecord) -> None:
        self._epoch, self._leader_id = record.epoch, record.leader_id

    def _replay_register_broker(self, record: RegisterBrokerRecord) -> None:
        before = self._brokers_now().get(record.broker_id)
        self._put_broker(
            BrokerImage(
                record.broker_id,
                self._offset if record.broker_epoch < 0 else record.broker_epoch,
                record.incarnation,
                {endpoint.name: endpoint for endpoint in record.endpoints},
                record.rack,
                record.fenced,
                record.in_controlled_shutdown,
                record.log_dirs,
                record.features,
                record.cell,
                record.lacks_room,
                # a second start after the loss does not restore what was lost
                not record.clean_stop or (before is not None and before.is_unclean),
                record.health,
                record.start_id,
            )
        )

    def _brokers_now(self) -> Mapping[int, BrokerImage]:
        return self.base.brokers if self._brokers is None else self._brokers

    def _put_broker(self, broker: BrokerImage) -> None:
        self.brokers_changed.setdefault(broker.broker_id, self.base.brokers.get(broker.broker_id))
        self._mutable_brokers()[broker.broker_id] = broker

    def _replay_registration_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._broker_of(record.broker_id, record.broker_epoch)
        self._put_broker(
            replace(
                broker,
                fenced=broker.fenced if record.fenced is None else record.fenced,
                in_controlled_shutdown=broker.in_controlled_shutdown
                if record.in_controlled_shutdown is None
                else record.in_controlled_shutdown,
                lacks_room=broker.lacks_room if record.lacks_room is None else record.lacks_room,
                is_unclean=record.lost_data or (broker.is_unclean and record.fenced is not False),
                health=broker.health if record.health is None else record.health,
            )
        )

    def _broker_of(self, broker_id: int, broker_epoch: int) -> BrokerImage:
        broker = self._brokers_now().get(broker_id)
        if broker is None or broker.epoch != broker_epoch:
            raise ReplayError("a record names a registration that is not the present one")
        return broker

    def _replay_unregister(self, record: UnregisterBrokerRecord) -> None:
        self._broker_of(record.broker_id, record.broker_epoch)
        self.brokers_changed.setdefault(record.broker_id, self.base.brokers.get(record.broker_id))
        del self._mutable_brokers()[record.broker_id]

    def _replay_topic(self, record: TopicRecord) -> None:
        if self._name_taken(record.name) or record.topic_id in self.base.topics.by_id:
            raise ReplayError("a topic of that name or id exists")
        if record.topic_id in self.topics_created:
            raise ReplayError("a topic of that id exists")
        self.topics_created[record.topic_id] = TopicImage(record.name, record.topic_id, adopts_tier=record.adopts_tier)
        self._names_created[record.name] = None

    def _replay_partition(self, record: PartitionRecord) -> None:
        if self._partition(record.topic_id, record.partition) is not None:
            raise ReplayError("the partition exists")
        self._partitions.setdefault(record.topic_id, {})[record.partition] = PartitionImage.of(record)
        self.partitions_changed[record.topic_id, record.partition] = None

    def _replay_partition_change(self, record: PartitionChangeRecord) -> None:
        old = self._partition(record.topic_id, record.partition)
        if old is None:
            raise ReplayError("a record names a partition that does not exist")
        self._partitions.setdefault(record.topic_id, {})[record.partition] = old.changed(record)
        key = (record.topic_id, record.partition)
        if key not in self.partitions_changed:
            self.partitions_changed[key] = old

    def _replay_key_range(self, record: KeyRangeRecord) -> None:
        topic_id = record.topic_id
        ranges = self._ranges.get(topic_id, self._topic(topic_id).ranges)
        if record.count < 1 or record.first != (ranges[-1].end if ranges else 0):
            raise ReplayError("a range does not begin where the one before it ends")
        if any(held.cell == record.cell for held in ranges):
            raise ReplayError("the cell has a range")
        self._ranges[topic_id] = (*ranges, KeyRange(record.cell, record.first, record.count))
        self.ranges_changed[topic_id] = None

    def _replay_remove_topic(self, record: RemoveTopicRecord) -> None:
        topic_id = record.topic_id
        topic = self._topic(topic_id)
        self._topics_met.pop(topic_id, None)
        for partition in self._partitions.pop(topic_id, ()):
            self.partitions_changed.pop((topic_id, partition), None)
        self._ranges.pop(topic_id, None)
        self.ranges_changed.pop(topic_id, None)
        if topic_id in self.topics_created:
            del self.topics_created[topic_id]
            del self._names_created[topic.name]
        else:
            self.topics_deleted[topic_id] = topic
        key = (ResourceType.TOPIC, topic.name)
        if self._overrides(key):
            self._configs[key] = {}
            self.configs_changed[key] = None

    def _overrides(self, key: ResourceKey) -> dict[str, str]:
        overrides = self._configs.get(key)
        if overrides is None:
            overrides = self._configs[key] = dict(self.base.configs.by_resource.get(key, {}))
        return overrides

    def _replay_config(self, record: ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        overrides = self._overrides(key)
        if record.value is None:
            overrides.pop(record.name, None)
        else:
            overrides[record.name] = record.value
        self.configs_changed[key] = None

    def _replay_producer_ids(self, record: ProducerIdsRecord) -> None:
        if record.next_producer_id < self._next_producer_id:
            raise ReplayError("producer ids would be allocated twice")
        self._next_producer_id = record.next_producer_id


_REPLAY: dict[type[MetadataRecord], Callable[[MetadataDelta, Any], None]] = {
    ClusterRecord: MetadataDelta._replay_cluster,
    FeatureLevelRecord: MetadataDelta._replay_feature,
    NoOpRecord: MetadataDelta._replay_no_op,
    LeaderChangeRecord: MetadataDelta._replay_leader_change,
    RegisterBrokerRecord: MetadataDelta._replay_register_broker,
    BrokerRegistrationChangeRecord: MetadataDelta._replay_registration_change,
    UnregisterBrokerRecord: MetadataDelta._replay_unregister,
    TopicRecord: MetadataDelta._replay_topic,
    PartitionRecord: MetadataDelta._replay_partition,
    PartitionChangeRecord: MetadataDelta._replay_partition_change,
    RemoveTopicRecord: MetadataDelta._replay_remove_topic,
    ConfigRecord: MetadataDelta._replay_config,
    ProducerIdsRecord: MetadataDelta._replay_producer_ids,
    ScramCredentialRecord: lambda delta, record: delta.access.put_scram(
        record.name, record.mechanism, ScramCredential.of(record)
    ),
    RemoveScramCredentialRecord: lambda delta, record: delta.access.put_scram(record.name, record.mechanism, None),
    AclRecord: lambda delta, record: delta.access.acls.put(record.id, AclImage.of(record)),
    RemoveAclRecord: lambda delta, record: delta.access.acls.put(record.id, None),
    TenantRecord: lambda delta, record: delta.access.tenants.put(record.id, TenantImage.of(record)),
    RemoveTenantRecord: lambda delta, record: delta.access.tenants.put(record.id, None),
    ApiKeyRecord: lambda delta, record: delta.access.keys.put(record.id, ApiKeyImage.of(record)),
    RemoveApiKeyRecord: lambda delta, record: delta.access.keys.put(record.id, None),
    CellRecord: lambda delta, record: delta.access.cells.put(record.name, CellImage.of(record)),
    KeyRangeRecord: MetadataDelta._replay_key_range,
    BalanceOperationRecord: lambda delta, record: delta.balance.put_operation(record),
    BalanceMoveRecord: lambda delta, record: delta.balance.put_move(record),
    ClientQuotaRecord: lambda delta, record: delta.client_quotas.put(
        key_of(record.entity), ClientQuota(record.entity, record.values)
    ),
    RemoveClientQuotaRecord: lambda delta, record: delta.client_quotas.put(key_of(record.entity), None),
}


def replayed(image: MetadataImage, records: Iterable[MetadataRecord]) -> MetadataImage:
    """`image` after `records`. Raises ReplayError."""
    delta = MetadataDelta(image)
    delta.replay_all(records)
    return delta.image()


def replaying_all(image: MetadataImage, records: Sequence[MetadataRecord]) -> Work[MetadataImage]:
    """As `replayed`, as work."""
    for at in range(0, len(records), RECORDS_PER_IMAGE):
        delta = MetadataDelta(image)
        some = records[at : at + RECORDS_PER_IMAGE]
        delta.replay_all(some)
        yield len(some) * REPLAY_COST
        image = yield from delta.imaging()
    return image
