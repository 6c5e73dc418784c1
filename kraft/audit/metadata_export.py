"""The cluster's metadata as events for its object store: one rule per record type.

An export has the records that rebuild the current image from nothing, so each type either has an event or a reason why
it never occurs in a snapshot. The values of secret settings and of unknown ones are withheld, and so are password
verifiers. `kraft.rebuilding.rebuild` defines what a rebuilt cluster does with each event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any, NamedTuple

from kraft.batches import MetadataRecord
from kraft.fleet_records import (
    BalanceMoveRecord,
    BalanceOperationRecord,
    ClientQuotaRecord,
    RemoveClientQuotaRecord,
)
from kraft.image.configs import CATALOGUES
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
    ScramCredentialRecord,
    TenantRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)
from records.events import Event


def fields_of(record: MetadataRecord, *left_out: str) -> Event:
    """All fields but the actor, which is the audit's, and those `left_out`: enums by name, ids as hex."""
    names = (name for name in record.__struct_fields__ if name != "actor" and name not in left_out)
    return {name: _plain(getattr(record, name)) for name in names}


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, bytes):
        return value.hex()
    return list(value) if isinstance(value, tuple) else value


class ExportRule(NamedTuple):
    """`event`: the event's name; `fields` creates the rest of it. Or `reason`: why there is none.

    A new field of a record that has no function here is exported as it is.
    """

    event: str = ""
    fields: Callable[[Any], Event] = fields_of
    reason: str = ""


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
    """Whether the value must not leave the cluster."""
    setting = CATALOGUES[record.resource_type].get(record.name)
    return setting is None or setting.sensitive


def _producer_ids(record: ProducerIdsRecord) -> Event:
    return {"next_producer_id": record.next_producer_id}


def _scram(record: ScramCredentialRecord) -> Event:
    """Only that the credential exists: with a verifier, readers of the bucket could guess passwords offline."""
    return {"name": record.name, "mechanism": record.mechanism.name, "withheld": True}


def _client_quota(record: ClientQuotaRecord) -> Event:
    return {"entity": dict(record.entity), "values": record.values}


_FOLDED = "a snapshot holds its result"

EXPORT_RULES: Mapping[type[MetadataRecord], ExportRule] = {
    ClusterRecord: ExportRule("cluster"),
    FeatureLevelRecord: ExportRule("feature"),
    NoOpRecord: ExportRule(reason="it has no content"),
    LeaderChangeRecord: ExportRule(reason="the quorum's leader concerns only this quorum"),
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
    AclRecord: ExportRule("acl"),
    RemoveAclRecord: ExportRule(reason=_FOLDED),
    TenantRecord: ExportRule("tenant"),
    RemoveTenantRecord: ExportRule(reason=_FOLDED),
    ApiKeyRecord: ExportRule("api_key"),
    RemoveApiKeyRecord: ExportRule(reason=_FOLDED),
    CellRecord: ExportRule("cell"),
    KeyRangeRecord: ExportRule("key_range"),
    BalanceOperationRecord: ExportRule("balance_operation"),
    BalanceMoveRecord: ExportRule("balance_move"),
    ClientQuotaRecord: ExportRule("client_quota", _client_quota),
    RemoveClientQuotaRecord: ExportRule(reason=_FOLDED),
}


def metadata_events(image: MetadataImage) -> Iterator[Event]:
    """The whole image, one event for each record of its snapshot."""
    for record in snapshot_records(image):
        rule = EXPORT_RULES[type(record)]
        yield {"event": rule.event, **rule.fields(record)}
