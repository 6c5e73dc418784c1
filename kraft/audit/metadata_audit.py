"""The metadata log as audit events: each record with the state before it. No I/O.

One event per record; its sequence is the record's offset. `MetadataAudit` reads batches in order. It takes the state
before a record from the image at its start and from what it has read since. Without that image (a new active controller
whose log begins above what was exported), `before` is left out until the partition has occurred once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kraft.audit.access_audit import ACCESS_RULES, AccessAudit
from kraft.audit.balance_audit import BALANCE_RULES
from kraft.audit.metadata_export import is_withheld
from kraft.audit.quota_audit import QUOTA_RULES, QuotaAudit
from kraft.batches import Batch, MetadataRecord
from kraft.image.brokers import BrokerImage
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.records import (
    BrokerRegistrationChangeRecord,
    Cause,
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    Health,
    KeyRangeRecord,
    LeaderChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    ResourceType,
    TopicRecord,
    UnregisterBrokerRecord,
)
from records.audit_event import AuditEvent, AuditKind, AuditSource

WITHHELD = "(withheld)"
_PARTITION_FIELDS = ("leader", "leader_epoch", "isr", "elr", "last_known_elr", "last_known_leader", "replicas",
                     "adding", "removing", "partition_epoch")  # fmt: skip
_BROKER_FIELDS = ("fenced", "in_controlled_shutdown", "lacks_room", "health")
Fields = dict[str, Any]
BrokerFields = tuple[bool, bool, bool, Health]


class MetadataAudit:
    """`next_offset`: base offset of the next batch. `base`: the image that ends before it, None if unknown."""

    def __init__(self, next_offset: int, base: MetadataImage | None) -> None:
        self.next_offset = next_offset
        self._base = base
        self._topics: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}  # of those topics, the newest of each name
        self._partitions: dict[bytes, dict[int, PartitionImage]] = {}  # by topic id
        self._configs: dict[tuple[ResourceType, str], dict[str, str | None]] = {}  # by resource
        self._features: dict[str, int] = {}
        self._brokers: dict[int, BrokerFields | None] = {}  # None: no longer registered
        self._access = AccessAudit(base)
        self._quotas = QuotaAudit(base)

    def of_access(self, record: MetadataRecord) -> Fields:
        """The event of a record of credentials, ACLs, tenants, keys or cells."""
        return ACCESS_RULES[type(record)](self._access, record)

    def of_balance(self, record: MetadataRecord) -> Fields:
        """The event of the balancer's operation or move."""
        return BALANCE_RULES[type(record)](record)

    def of_quotas(self, record: MetadataRecord) -> Fields:
        """The event of a client quota."""
        return QUOTA_RULES[type(record)](self._quotas, record)

    def events(self, batch: Batch) -> list[AuditEvent]:
        """The events of a batch that begins at `next_offset`."""
        header = batch.header
        found = []
        for offset, record in enumerate(batch.records, header.base_offset):
            fields = AUDIT_RULES[type(record)](self, record)
            if fields is None:
                continue
            fields.setdefault("actor", getattr(record, "actor", "") or f"controller-{header.leader_id}")
            found.append(
                AuditEvent(
                    wall_ms=header.timestamp_ms,
                    source=AuditSource.METADATA,
                    node=header.leader_id,
                    incarnation=str(header.epoch),
                    sequence=offset,
                    **fields,
                )
            )
        self.next_offset = batch.end_offset
        return found

    # what is known -----------------------------------------------------------------------------------------

    def _name_of(self, topic_id: bytes) -> str:
        name = self._topics.get(topic_id)
        if name is None and self._base is not None:
            topic = self._base.topics.get_by_id(topic_id)
            name = topic.name if topic is not None else None
        return name or ""

    def _partition(self, topic_id: bytes, index: int) -> PartitionImage | None:
        known = self._partitions.get(topic_id, {}).get(index)
        return known or (self._base.partition(topic_id, index) if self._base is not None else None)

    def _broker(self, broker_id: int) -> BrokerFields | None:
        if broker_id in self._brokers or self._base is None:
            return self._brokers.get(broker_id)
        broker: BrokerImage | None = self._base.brokers.get(broker_id)
        if broker is None:
            return None
        return broker.fenced, broker.in_controlled_shutdown, broker.lacks_room, broker.health

    def _place(self, topic_id: bytes, partition: int) -> Fields:
        return {"topic": self._name_of(topic_id), "topic_id": topic_id.hex(), "partition": partition}

    # rules -------------------------------------------------------------------------------------------------

    def _cluster(self, record: ClusterRecord) -> Fields:
        after = {"cluster_id": record.cluster_id, "incarnation": record.incarnation}
        return {"event": AuditKind.CLUSTER_FOUNDED, "after": after}

    def _feature(self, record: FeatureLevelRecord) -> Fields:
        known = self._features.get(record.name)
        if known is None and self._base is not None:
            known = self._base.features.get(record.name, 0)
        self._features[record.name] = record.level
        before = {} if known is None else {"level": known}
        after = {"name": record.name, "level": record.level}
        return {"event": AuditKind.FEATURE_CHANGED, "before": before, "after": after}

    def _nothing(self, record: MetadataRecord) -> None:
        return None

    def _controller(self, record: LeaderChangeRecord) -> Fields:
        return {
            "event": AuditKind.CONTROLLER_ELECTED,
            "cause": "elected by the quorum",
            "after": {"leader": record.leader_id, "epoch": record.epoch},
        }

    def _registered(self, record: RegisterBrokerRecord) -> Fields:
        is_new = self._base is not None and self._broker(record.broker_id) is None
        self._brokers[record.broker_id] = (
            record.fenced,
            record.in_controlled_shutdown,
            record.lacks_room,
            record.health,
        )
        stopped = "clean start" if record.clean_stop else "unclean shutdown"
        return {
            "event": AuditKind.BROKER_REGISTERED,
            "cause": "first start" if is_new else stopped,
            "actor": f"broker-{record.broker_id}",
            "after": {
                "broker_id": record.broker_id,
                "process": record.incarnation.hex(),
                "clean_stop": record.clean_stop,
                "fenced": record.fenced,
            },
        }

    def _broker_changed(self, record: BrokerRegistrationChangeRecord) -> Fields:
        known = self._broker(record.broker_id)
        before: Fields = {}
        after: Fields = {"broker_id": record.broker_id, "broker_epoch": record.broker_epoch}
        given = (record.fenced, record.in_controlled_shutdown, record.lacks_room, record.health)
        for name, old, new in zip(_BROKER_FIELDS, known or (None, None, None, None), given, strict=True):
            if new is not None:
                after[name] = new.state.name.lower() if isinstance(new, Health) else new
                if old is not None:
                    before[name] = old.state.name.lower() if isinstance(old, Health) else old
        if record.health is not None and record.health.evidence:
            after["evidence"] = record.health.evidence
        if known is not None:
            now: Any = tuple(old if new is None else new for old, new in zip(known, given, strict=True))
            self._brokers[record.broker_id] = now
        return {"event": AuditKind.BROKER_CHANGED, "cause": _cause(record), "before": before, "after": after}

    def _unregistered(self, record: UnregisterBrokerRecord) -> Fields:
        self._brokers[record.broker_id] = None
        return {"event": AuditKind.BROKER_UNREGISTERED, "before": {"broker_id": record.broker_id}}

    def _topic(self, record: TopicRecord) -> Fields:
        self._topics[record.topic_id] = record.name
        self._ids[record.name] = record.topic_id
        after: Fields = {"adopts_tier": True} if record.adopts_tier else {}
        if record.left_out:
            after["left_out"] = record.left_out
        return {
            "event": AuditKind.TOPIC_CREATED,
            "topic": record.name,
            "topic_id": record.topic_id.hex(),
            "after": after,
        }

    def _created(self, record: PartitionRecord) -> Fields:
        new = PartitionImage.of(record)
        self._partitions.setdefault(record.topic_id, {})[record.partition] = new
        fields = self._place(record.topic_id, record.partition)
        after = {name: getattr(new, name) for name in ("leader", "leader_epoch", "isr", "replicas")}
        return fields | {
            "event": AuditKind.PARTITION_CREATED,
            "cause": _cause(record),
            "leader_epoch": record.leader_epoch,
            "after": after,
        }

    def _changed(self, record: PartitionChangeRecord) -> Fields:
        old = self._partition(record.topic_id, record.partition)
        fields = self._place(record.topic_id, record.partition) | {"cause": _cause(record), "event": _kind_of(record)}
        if old is None:
            given = {name: getattr(record, name, None) for name in _PARTITION_FIELDS}
            return fields | {"after": {name: value for name, value in given.items() if value is not None}}
        new = old.changed(record)
        self._partitions.setdefault(record.topic_id, {})[record.partition] = new
        changed = [name for name in _PARTITION_FIELDS if getattr(old, name) != getattr(new, name)]
        by_leader = record.cause is Cause.ISR_CHANGE_BY_LEADER and not record.actor
        actor = {"actor": f"broker-{old.leader}"} if by_leader else {}
        return (
            fields
            | actor
            | {
                "leader_epoch": new.leader_epoch,
                "before": {name: getattr(old, name) for name in changed},
                "after": {name: getattr(new, name) for name in changed},
            }
        )

    def _removed(self, record: RemoveTopicRecord) -> Fields:
        name = record.name or self._name_of(record.topic_id)
        self._partitions.pop(record.topic_id, None)
        known = self._configs.setdefault((ResourceType.TOPIC, name), {})
        of_base = self._base.configs.topic(name) if self._base is not None else ()
        known.update(dict.fromkeys((*known, *of_base)))
        return {"event": AuditKind.TOPIC_DELETED, "topic": name, "topic_id": record.topic_id.hex()}

    def _key_range(self, record: KeyRangeRecord) -> Fields:
        after = {"cell": record.cell, "first": record.first, "count": record.count}
        topic = {"topic": self._name_of(record.topic_id), "topic_id": record.topic_id.hex()}
        return topic | {"event": AuditKind.KEY_RANGE_GIVEN, "after": after}

    def _config(self, record: ConfigRecord) -> Fields:
        key = (record.resource_type, record.resource_name)
        known = self._configs.setdefault(key, {})
        withheld = is_withheld(record)
        after: Fields = {
            "resource_type": record.resource_type.name.lower(),
            "resource_name": record.resource_name,
            "name": record.name,
            "value": WITHHELD if withheld and record.value is not None else record.value,
        }
        before: Fields = {}
        if record.name in known or self._base is not None:
            base = self._base.configs.of(*key).get(record.name) if self._base is not None else None
            old = known.get(record.name, base)
            before = {"value": WITHHELD if withheld and old is not None else old}
        known[record.name] = record.value
        fields: Fields = {"event": AuditKind.CONFIG_CHANGED, "before": before, "after": after}
        if record.resource_type is ResourceType.TOPIC:
            fields["topic"] = record.resource_name
            fields["topic_id"] = self._id_of(record.resource_name)
        return fields

    def _id_of(self, topic: str) -> str:
        topic_id = self._ids.get(topic)
        if topic_id is not None:
            return topic_id.hex()
        found = self._base.topics.get(topic) if self._base is not None else None
        return found.topic_id.hex() if found is not None else ""

    def _producer_ids(self, record: ProducerIdsRecord) -> Fields:
        after = {"next_producer_id": record.next_producer_id}
        return {"event": AuditKind.PRODUCER_IDS_GIVEN, "actor": f"broker-{record.broker_id}", "after": after}


def _cause(record: PartitionRecord | PartitionChangeRecord | BrokerRegistrationChangeRecord) -> str:
    return record.cause.name.lower()


def _kind_of(record: PartitionChangeRecord) -> AuditKind:
    if record.leader is not None:
        return AuditKind.LEADER_ELECTED
    if record.replicas is not None or record.adding is not None or record.removing is not None:
        return AuditKind.REPLICAS_CHANGED
    return AuditKind.ISR_CHANGED


AUDIT_RULES: Mapping[type[MetadataRecord], Callable[[MetadataAudit, Any], Fields | None]] = {
    ClusterRecord: MetadataAudit._cluster,
    FeatureLevelRecord: MetadataAudit._feature,
    NoOpRecord: MetadataAudit._nothing,
    LeaderChangeRecord: MetadataAudit._controller,
    RegisterBrokerRecord: MetadataAudit._registered,
    BrokerRegistrationChangeRecord: MetadataAudit._broker_changed,
    UnregisterBrokerRecord: MetadataAudit._unregistered,
    TopicRecord: MetadataAudit._topic,
    PartitionRecord: MetadataAudit._created,
    PartitionChangeRecord: MetadataAudit._changed,
    RemoveTopicRecord: MetadataAudit._removed,
    ConfigRecord: MetadataAudit._config,
    ProducerIdsRecord: MetadataAudit._producer_ids,
    KeyRangeRecord: MetadataAudit._key_range,
    **dict.fromkeys(ACCESS_RULES, MetadataAudit.of_access),
    **dict.fromkeys(BALANCE_RULES, MetadataAudit.of_balance),
    **dict.fromkeys(QUOTA_RULES, MetadataAudit.of_quotas),
}
