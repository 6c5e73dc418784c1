"""The cluster's metadata as events for its object store: one rule for every type of record there is.

An export is made of the records that build the present image from nothing, so a type either has an event or says why
it never stands in a snapshot. The value of a setting that is secret, or that this version does not know, is withheld,
and so are the verifiers of passwords.
`kraft.rebuilding.rebuild` has the other half: what becomes of each event in a rebuilt cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from common.node_settings.catalogue import NODE_SETTINGS
from common.topic_settings import TOPIC_SETTINGS
from kraft.image.acls import AclImage
from kraft.image.metadata import MetadataImage
from kraft.image.snapshot import snapshot_records
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
    MetadataRecord,
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
from records.events import Event


class ExportRule(NamedTuple):
    """`event` is the event's name and `fields` makes the rest of it; or `reason` says why there is none."""

    event: str = ""
    fields: Callable[[Any], Event] = dict
    reason: str = ""


def _cluster(record: ClusterRecord) -> Event:
    return {"cluster_id": record.cluster_id, "incarnation": record.incarnation}


def _feature(record: FeatureLevelRecord) -> Event:
    return {"name": record.name, "level": record.level}


def _broker(record: RegisterBrokerRecord) -> Event:
    endpoints = [{"name": e.name, "host": e.host, "port": e.port} for e in record.endpoints]
    return {"broker_id": record.broker_id, "rack": record.rack, "cell": record.cell, "endpoints": endpoints}


def _topic(record: TopicRecord) -> Event:
    return {"name": record.name, "topic_id": record.topic_id.hex()}


def _partition(record: PartitionRecord) -> Event:
    return {
        "topic_id": record.topic_id.hex(),
        "partition": record.partition,
        "replicas": [replica for replica in record.replicas if replica not in record.adding],
        "leader_epoch": record.leader_epoch,
    }


def _config(record: ConfigRecord) -> Event:
    resource = {"resource_type": record.resource_type.name.lower(), "resource_name": record.resource_name}
    if is_withheld(record):
        return resource | {"name": record.name, "value": None, "withheld": True}
    return resource | {"name": record.name, "value": record.value}


def is_withheld(record: ConfigRecord) -> bool:
    """Whether its value must not leave the cluster."""
    setting = (TOPIC_SETTINGS if record.resource_type is ResourceType.TOPIC else NODE_SETTINGS).get(record.name)
    return setting is None or setting.sensitive


def _producer_ids(record: ProducerIdsRecord) -> Event:
    return {"next_producer_id": record.next_producer_id}


def _scram(record: ScramCredentialRecord) -> Event:
    """Only the credential's existence: with a verifier, readers of the bucket could try passwords offline."""
    return {"name": record.name, "mechanism": record.mechanism.name, "withheld": True}


def _acl(record: AclRecord) -> Event:
    return AclImage.of(record).fields()


def _tenant(record: TenantRecord) -> Event:
    return {
        "id": record.id,
        "name": record.name,
        "cell": record.cell,
        "created_ms": record.created_ms,
        "limits": record.limits,
        "allow_networks": list(record.allow_networks),
        "deny_networks": list(record.deny_networks),
        "epoch": record.epoch,
        "state": record.state.name,
        "target_cell": record.target_cell,
        "keys_cell": record.keys_cell,
        "keys_target": record.keys_target,
        "keys_phase": record.keys_phase.name,
        "keys_epoch": record.keys_epoch,
    }


def _api_key(record: ApiKeyRecord) -> Event:
    return {
        "id": record.id,
        "tenant": record.tenant,
        "description": record.description,
        "roles": list(record.roles),
        "created_ms": record.created_ms,
    }


def _cell(record: CellRecord) -> Event:
    return {"name": record.name, "is_open": record.is_open, "limits": record.limits}


def _key_range(record: KeyRangeRecord) -> Event:
    return {"topic_id": record.topic_id.hex(), "cell": record.cell, "first": record.first, "count": record.count}


_FOLDED = "a snapshot holds its result"

EXPORT_RULES: Mapping[type[MetadataRecord], ExportRule] = {
    ClusterRecord: ExportRule("cluster", _cluster),
    FeatureLevelRecord: ExportRule("feature", _feature),
    NoOpRecord: ExportRule(reason="it says nothing"),
    LeaderChangeRecord: ExportRule(reason="who leads the quorum is of this quorum alone"),
    RegisterBrokerRecord: ExportRule("broker", _broker),
    BrokerRegistrationChangeRecord: ExportRule(reason=_FOLDED),
    UnregisterBrokerRecord: ExportRule(reason=_FOLDED),
    TopicRecord: ExportRule("topic", _topic),
    PartitionRecord: ExportRule("partition", _partition),
    PartitionChangeRecord: ExportRule(reason=_FOLDED),
    RemoveTopicRecord: ExportRule(reason=_FOLDED),
    ConfigRecord: ExportRule("config", _config),
    ProducerIdsRecord: ExportRule("producer_ids", _producer_ids),
    ScramCredentialRecord: ExportRule("scram", _scram),
    RemoveScramCredentialRecord: ExportRule(reason=_FOLDED),
    AclRecord: ExportRule("acl", _acl),
    RemoveAclRecord: ExportRule(reason=_FOLDED),
    TenantRecord: ExportRule("tenant", _tenant),
    RemoveTenantRecord: ExportRule(reason=_FOLDED),
    ApiKeyRecord: ExportRule("api_key", _api_key),
    RemoveApiKeyRecord: ExportRule(reason=_FOLDED),
    CellRecord: ExportRule("cell", _cell),
    KeyRangeRecord: ExportRule("key_range", _key_range),
}


def metadata_events(image: MetadataImage) -> Iterator[Event]:
    """The whole image, one event for each record of its snapshot."""
    for record in snapshot_records(image):
        rule = EXPORT_RULES[type(record)]
        yield {"event": rule.event, **rule.fields(record)}
