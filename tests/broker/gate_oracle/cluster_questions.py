"""The questions about the cluster itself: its rights, settings, quotas, brokers, users and tokens."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.broker.gate_oracle.things import GROUP, NAMED, OWNER, THERE, Ids, message

Ask = Callable[..., None]


def api_versions(ids: Ids, version: int) -> Any:
    return message("ApiVersions", client_software_name="oracle", client_software_version="1")


def describe_acls(ids: Ids, version: int) -> Any:
    return message("DescribeAcls", resource_type_filter=1, resource_name_filter=None, pattern_type_filter=1,
                   principal_filter="User:nobody", host_filter=None, operation=1, permission_type=1)  # fmt: skip


def create_acls(ids: Ids, version: int) -> Any:
    row = {"resource_type": 2, "resource_name": "unrelated", "resource_pattern_type": 3,
           "principal": "User:unrelated", "host": "*", "operation": 3, "permission_type": 3}  # fmt: skip
    return message("CreateAcls", creations=[row, row | {"operation": 4}])


def delete_acls(ids: Ids, version: int) -> Any:
    row = {"resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
           "principal_filter": "User:nobody", "host_filter": None, "operation": 1, "permission_type": 1}  # fmt: skip
    return message("DeleteAcls", filters=[row, row | {"operation": 4}])


TOPIC_RESOURCE, BROKER_RESOURCE, METRICS_RESOURCE, GROUP_RESOURCE = 2, 4, 16, 32
_SETTINGS = {BROKER_RESOURCE: "follower.replication.throttled.rate", METRICS_RESOURCE: "interval.ms"}
SUBSCRIPTIONS = [(METRICS_RESOURCE, "m-absent"), (METRICS_RESOURCE, "")]
RESOURCES = [*((TOPIC_RESOURCE, name) for name in NAMED), (BROKER_RESOURCE, "0")]


def describe_configs(ids: Ids, version: int, *, resources: list[tuple[int, str]]) -> Any:
    rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": []} for kind, name in resources]
    return message("DescribeConfigs", resources=rows, include_synonyms=False, include_documentation=False)


def list_config_resources(ids: Ids, version: int, types: tuple[int, ...]) -> Any:
    return message("ListConfigResources", resource_types=list(types))


def alter_configs(ids: Ids, version: int, *, api: str, resources: list[tuple[int, str]]) -> Any:
    operation = {"config_operation": 0} if api == "IncrementalAlterConfigs" else {}
    rows = []
    for kind, name in resources:
        setting = _SETTINGS.get(kind, "retention.ms")
        configs = [{"name": setting, "value": "1000"} | operation]
        rows.append({"resource_type": kind, "resource_name": name, "configs": configs})
    return message(api, resources=rows, validate_only=True)


def get_subscriptions(ids: Ids, version: int) -> Any:
    return message("GetTelemetrySubscriptions", client_instance_id=None)


def push_telemetry(ids: Ids, version: int, *, instance: uuid.UUID | None = None) -> Any:
    """By a client that no broker has heard of, or by one without a valid id."""
    return message("PushTelemetry", client_instance_id=instance or uuid.uuid4(), subscription_id=1, terminating=False,
                   compression_type=0, metrics=b"")  # fmt: skip


def describe_log_dirs(ids: Ids, version: int) -> Any:
    return message("DescribeLogDirs", topics=[{"topic": THERE, "partitions": [0]}])


def alter_log_dirs(ids: Ids, version: int) -> Any:
    """A directory that no broker has."""
    topics = [{"name": name, "partitions": [0]} for name in NAMED]
    return message("AlterReplicaLogDirs", dirs=[{"path": "/no-such-directory", "topics": topics}])


def create_token(ids: Ids, version: int, *, owner: str, renewer: str) -> Any:
    return message("CreateDelegationToken", owner_principal_type="User" if owner else "", owner_principal_name=owner,
                   renewers=[{"principal_type": renewer, "principal_name": "r"}], max_lifetime_ms=-1)  # fmt: skip


def renew_token(ids: Ids, version: int) -> Any:
    return message("RenewDelegationToken", hmac=b"none", renew_period_ms=-1)


def expire_token(ids: Ids, version: int) -> Any:
    return message("ExpireDelegationToken", hmac=b"none", expiry_time_period_ms=-1)


def describe_tokens(ids: Ids, version: int) -> Any:
    return message("DescribeDelegationToken", owners=None)


def describe_quorum(ids: Ids, version: int, *, topic: str) -> Any:
    return message("DescribeQuorum", topics=[{"topic_name": topic, "partitions": [{"partition_index": 0}]}])


def elect_leaders(ids: Ids, version: int) -> Any:
    return message("ElectLeaders", election_type=0, topic_partitions=[{"topic": THERE, "partitions": [0]}],
                   timeout_ms=5_000)  # fmt: skip


def alter_reassignments(ids: Ids, version: int) -> Any:
    topics = [{"name": THERE, "partitions": [{"partition_index": 0, "replicas": None}]}]
    return message("AlterPartitionReassignments", timeout_ms=5_000, topics=topics)


def list_reassignments(ids: Ids, version: int) -> Any:
    return message("ListPartitionReassignments", timeout_ms=5_000, topics=None)


def describe_users(ids: Ids, version: int) -> Any:
    return message("DescribeUserScramCredentials", users=[{"name": "nobody"}])


def alter_users(ids: Ids, version: int) -> Any:
    return message("AlterUserScramCredentials", deletions=[{"name": "nobody", "mechanism": 1}], upsertions=[])


def describe_quotas(ids: Ids, version: int) -> Any:
    return message("DescribeClientQuotas", components=[{"entity_type": "user", "match_type": 2, "match": None}],
                   strict=False)  # fmt: skip


def _quota(names: Mapping[str, str | None], *quotas: tuple[str, float]) -> dict[str, Any]:
    entity = [{"entity_type": kind, "entity_name": name} for kind, name in names.items()]
    return {"entity": entity, "ops": [{"key": key, "value": value, "remove": False} for key, value in quotas]}


def alter_quotas(ids: Ids, version: int) -> Any:
    """Nothing is altered. An entity each of what is right, and of what is wrong."""
    entries = [
        _quota({"user": "nobody"}, ("producer_byte_rate", 1.0), ("request_percentage", 0.5)),
        _quota({"user": None, "client-id": None}, ("consumer_byte_rate", 0.0)),
        _quota({"client-id": "c1"}, ("no_such_quota", 1.0)),
        _quota({"client-id": "c2"}, ("connection_creation_rate", 1.0)),
        _quota({"client-id": "c3"}, ("producer_byte_rate", 1.5)),
        _quota({"client-id": "c4"}, ("producer_byte_rate", 1e30)),
        _quota({"ip": "10.0.0.1"}, ("connection_creation_rate", 1e10)),
        _quota({"ip": "10.0.0.2"}, ("producer_byte_rate", 1.0)),
        _quota({"ip": "10.0.0.3", "user": "nobody"}, ("connection_creation_rate", 1.0)),
        _quota({"user": ""}, ("producer_byte_rate", 1.0)),
        _quota({"group": "g"}, ("producer_byte_rate", 1.0)),
        _quota({}, ("producer_byte_rate", 1.0)),
        _quota({"user": "twice"}, ("producer_byte_rate", 1.0), ("producer_byte_rate", 2.0)),
    ]
    return message("AlterClientQuotas", entries=entries, validate_only=True)


def update_features(ids: Ids, version: int) -> Any:
    update = {"feature": "no.such.feature", "max_version_level": 1, "allow_downgrade": False, "upgrade_type": 1}
    return message("UpdateFeatures", timeout_ms=5_000, feature_updates=[update], validate_only=True)


def describe_cluster(ids: Ids, version: int) -> Any:
    return message("DescribeCluster", include_cluster_authorized_operations=True, endpoint_type=1,
                   include_fenced_brokers=False)  # fmt: skip


def unregister_broker(ids: Ids, version: int) -> Any:
    return message("UnregisterBroker", broker_id=99)


def about_the_cluster(ask: Ask) -> None:
    ask("DescribeAcls", "any", describe_acls)
    ask("CreateAcls", "two", create_acls)
    ask("DeleteAcls", "two", delete_acls)
    ask("DescribeConfigs", "named", partial(describe_configs, resources=RESOURCES))
    ask("DescribeConfigs", "group", partial(describe_configs, resources=[(GROUP_RESOURCE, GROUP)]))
    ask("DescribeConfigs", "client metrics", partial(describe_configs, resources=SUBSCRIPTIONS))
    for api in ("AlterConfigs", "IncrementalAlterConfigs"):
        ask(api, "client metrics", partial(alter_configs, api=api, resources=SUBSCRIPTIONS))
        ask(api, "named", partial(alter_configs, api=api, resources=RESOURCES))
        ask(api, "group", partial(alter_configs, api=api, resources=[(GROUP_RESOURCE, GROUP)]))
    ask("AlterReplicaLogDirs", "elsewhere", alter_log_dirs)
    ask("DescribeLogDirs", "named", describe_log_dirs)
    ask("CreateDelegationToken", "own", partial(create_token, owner="", renewer="User"))
    ask("CreateDelegationToken", "wrong renewer", partial(create_token, owner="", renewer="Group"))
    ask("CreateDelegationToken", "another owner", partial(create_token, owner=OWNER, renewer="User"))
    ask("CreateDelegationToken", "another owner, wrong renewer", partial(create_token, owner=OWNER, renewer="Group"))
    ask("RenewDelegationToken", "unknown", renew_token)
    ask("ExpireDelegationToken", "unknown", expire_token)
    ask("DescribeDelegationToken", "all", describe_tokens)
    ask("DescribeQuorum", "metadata", partial(describe_quorum, topic="__cluster_metadata"))
    ask("DescribeQuorum", "another", partial(describe_quorum, topic=THERE))
    ask("ElectLeaders", "one", elect_leaders)
    ask("AlterPartitionReassignments", "cancel", alter_reassignments)
    ask("ListPartitionReassignments", "all", list_reassignments)
    ask("DescribeUserScramCredentials", "one", describe_users)
    ask("AlterUserScramCredentials", "one", alter_users)
    ask("DescribeClientQuotas", "users", describe_quotas)
    ask("AlterClientQuotas", "validated", alter_quotas)
    ask("UpdateFeatures", "unknown", update_features)
    ask("DescribeCluster", "brokers", describe_cluster)
    ask("UnregisterBroker", "unknown", unregister_broker)
    ask("GetTelemetrySubscriptions", "first", get_subscriptions)
    ask("PushTelemetry", "unknown", push_telemetry)
    ask("PushTelemetry", "invalid", partial(push_telemetry, instance=uuid.UUID(int=1)))
    ask("ListConfigResources", "metrics", partial(list_config_resources, types=(METRICS_RESOURCE,)))
    ask(
        "ListConfigResources",
        "topics, brokers",
        partial(list_config_resources, types=(TOPIC_RESOURCE, BROKER_RESOURCE)),
        low=1,
    )
    ask("ListConfigResources", "unknown", partial(list_config_resources, types=(99,)), low=1)
