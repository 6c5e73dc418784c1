"""The requests: for each API at least one that asks for something there, something absent and something hidden.

Nothing is changed by a request that is allowed, but by the few whose changes are undone.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from records.builder import build_batch
from records.record import Record
from wire import messages
from wire.apis import APIS

THERE, DOOMED, HIDDEN, ABSENT = "t-there", "t-doomed", "hidden", "t-absent"
GROUP, NO_GROUP, HIDDEN_GROUP = "g-there", "g-absent", "hidden-group"
TRANSACTION = "x-there"
NO_ID = uuid.UUID(int=0x1234567890ABCDEF << 32)
NAMED = (THERE, ABSENT, HIDDEN)
COMMITTED = 5

Build = Callable[["Ids", int], Any]


@dataclass
class Ids:
    """What a question has to know of the world. `serial` makes an absent topic's name anew."""

    topics: dict[str, uuid.UUID]
    serial: int = 0

    def of(self, name: str) -> uuid.UUID:
        return self.topics.get(name, NO_ID)


@dataclass(frozen=True)
class Question:
    api: str
    label: str
    build: Build
    versions: range
    alone: bool = False  # no two of it are asked at once: it makes a topic, or has to do with one transaction
    undo: bool = False  # it may delete a topic; alone too

    @property
    def key(self) -> int:
        return next(key for key, api in APIS.items() if api.name == self.api)


def _nested(owner: Any, path: str) -> Any:
    for name in path.split("."):
        owner = getattr(owner, name)
    return owner


def message(name: str, **fields: Any) -> Any:
    """A request whose lists of mappings become the schema's structs."""
    made = getattr(messages, f"{name}Request")
    return made(**{field: _value(made, made._struct.fields[field], value) for field, value in fields.items()})


def _value(owner: Any, field: Any, value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        made = getattr(owner, field.type_str.removeprefix("[]"))
        return [made(**{name: _value(made, field.fields[name], one) for name, one in row.items()}) for row in value]
    return value


def by_name_or_id(ids: Ids, by_id: bool, field: str, name: str) -> dict[str, Any]:
    return {"topic_id": ids.of(name)} if by_id else {field: name}


# records ---------------------------------------------------------------------------------------------------


def produce(ids: Ids, version: int, *, transactional: bool = False) -> Any:
    records = [Record(0, 1_700_000_000_000, b"key", b"value")]
    batch = (
        build_batch(records, transactional=True, producer_id=5, producer_epoch=0, base_sequence=0)
        if transactional
        else build_batch(records)
    )
    topics = [
        by_name_or_id(ids, version >= 13, "name", name) | {"partition_data": [{"index": 0, "records": bytes(batch)}]}
        for name in NAMED
    ]
    transaction = TRANSACTION if transactional else None
    return message("Produce", transactional_id=transaction, acks=-1, timeout_ms=5_000, topic_data=topics)


def fetch(ids: Ids, version: int) -> Any:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
        "partition_max_bytes": 1 << 16,
    }  # fmt: skip
    topics = [by_name_or_id(ids, version >= 13, "topic", name) | {"partitions": [partition]} for name in NAMED]
    return message("Fetch", replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, isolation_level=0,
                   session_id=0, session_epoch=-1, topics=topics, forgotten_topics_data=[], rack_id="")  # fmt: skip


def list_offsets(ids: Ids, version: int) -> Any:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    topics = [{"name": name, "partitions": [partition]} for name in NAMED]
    return message("ListOffsets", replica_id=-1, isolation_level=0, topics=topics, timeout_ms=5_000)


def delete_records(ids: Ids, version: int) -> Any:
    topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in NAMED]
    return message("DeleteRecords", topics=topics, timeout_ms=5_000)


def leader_epochs(ids: Ids, version: int) -> Any:
    partition = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topics = [{"topic": name, "partitions": [partition]} for name in NAMED]
    return message("OffsetForLeaderEpoch", replica_id=-1, topics=topics)


def init_producer_id(ids: Ids, version: int, *, transaction: str | None) -> Any:
    return message("InitProducerId", transactional_id=transaction, transaction_timeout_ms=1_000, producer_id=-1,
                   producer_epoch=-1)  # fmt: skip


def describe_producers(ids: Ids, version: int) -> Any:
    return message("DescribeProducers", topics=[{"name": name, "partition_indexes": [0]} for name in NAMED])


# topics ----------------------------------------------------------------------------------------------------


def metadata(ids: Ids, version: int, *, topics: list[dict[str, Any]] | None, creates: bool = False) -> Any:
    return message(
        "Metadata", topics=[] if topics is None and version == 0 else topics, allow_auto_topic_creation=creates,
        include_cluster_authorized_operations=True, include_topic_authorized_operations=True,
    )  # fmt: skip


def metadata_named(ids: Ids, version: int, *, creates: bool) -> Any:
    ids.serial += 1
    absent = f"{ABSENT}-{ids.serial}" if creates else ABSENT
    return metadata(ids, version, topics=[{"name": name} for name in (THERE, absent, HIDDEN)], creates=creates)


def metadata_by_id(ids: Ids, version: int) -> Any:
    return metadata(ids, version, topics=[{"topic_id": ids.of(name), "name": None} for name in NAMED])


def create_topics(ids: Ids, version: int) -> Any:
    row = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    topics = [row | {"name": name} for name in NAMED]
    return message("CreateTopics", topics=topics, timeout_ms=5_000, validate_only=True)


def delete_topics(ids: Ids, version: int, *, by_id: bool = False) -> Any:
    names = (DOOMED, ABSENT, HIDDEN)
    if version < 6:
        return message("DeleteTopics", topic_names=list(names), timeout_ms=5_000)
    topics = [{"name": None, "topic_id": ids.of(name)} if by_id else {"name": name} for name in names]
    return message("DeleteTopics", topics=topics, timeout_ms=5_000)


def create_partitions(ids: Ids, version: int) -> Any:
    topics = [{"name": name, "count": 5, "assignments": None} for name in NAMED]
    return message("CreatePartitions", topics=topics, timeout_ms=5_000, validate_only=True)


def describe_topic_partitions(ids: Ids, version: int, *, names: tuple[str, ...]) -> Any:
    return message("DescribeTopicPartitions", topics=[{"name": name} for name in names],
                   response_partition_limit=2_000, cursor=None)  # fmt: skip


# groups ----------------------------------------------------------------------------------------------------


def offset_commit(ids: Ids, version: int, *, group: str = GROUP) -> Any:
    partition = {
        "partition_index": 0, "committed_offset": COMMITTED, "committed_leader_epoch": -1, "committed_metadata": "",
    }  # fmt: skip
    topics = [{"name": name, "partitions": [partition]} for name in NAMED]
    return message("OffsetCommit", group_id=group, generation_id_or_member_epoch=-1, member_id="",
                   group_instance_id=None, retention_time_ms=-1, topics=topics)  # fmt: skip


def offset_fetch(ids: Ids, version: int, *, everything: bool) -> Any:
    topics = None if everything else [{"name": name, "partition_indexes": [0]} for name in NAMED]
    if version < 8:
        return message("OffsetFetch", group_id=GROUP, topics=topics, require_stable=False)
    groups = [{"group_id": group, "member_id": None, "member_epoch": -1, "topics": topics}
              for group in (GROUP, NO_GROUP, HIDDEN_GROUP)]  # fmt: skip
    return message("OffsetFetch", groups=groups, require_stable=False)


def find_coordinator(ids: Ids, version: int, *, kind: int, keys: tuple[str, ...]) -> Any:
    return message("FindCoordinator", key=keys[0], key_type=kind, coordinator_keys=list(keys))


def join_group(ids: Ids, version: int, *, group: str) -> Any:
    return message("JoinGroup", group_id=group, session_timeout_ms=1, rebalance_timeout_ms=1, member_id="m",
                   group_instance_id=None, protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
                   reason=None)  # fmt: skip


def heartbeat(ids: Ids, version: int, *, group: str) -> Any:
    return message("Heartbeat", group_id=group, generation_id=1, member_id="m", group_instance_id=None)


def leave_group(ids: Ids, version: int, *, group: str) -> Any:
    return message("LeaveGroup", group_id=group, member_id="m", members=[{"member_id": "m", "group_instance_id": None}])


def sync_group(ids: Ids, version: int, *, group: str) -> Any:
    return message("SyncGroup", group_id=group, generation_id=1, member_id="m", group_instance_id=None,
                   protocol_type="consumer", protocol_name="range", assignments=[])  # fmt: skip


def describe_groups(ids: Ids, version: int) -> Any:
    return message("DescribeGroups", groups=[GROUP, NO_GROUP, HIDDEN_GROUP], include_authorized_operations=True)


def list_groups(ids: Ids, version: int) -> Any:
    return message("ListGroups", states_filter=[], types_filter=[])


def delete_groups(ids: Ids, version: int) -> Any:
    return message("DeleteGroups", groups_names=[NO_GROUP, HIDDEN_GROUP])


def offset_delete(ids: Ids, version: int) -> Any:
    topics = [{"name": name, "partitions": [{"partition_index": 1}]} for name in NAMED]
    return message("OffsetDelete", group_id=GROUP, topics=topics)


# the cluster -----------------------------------------------------------------------------------------------


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
        setting = "follower.replication.throttled.rate" if kind == BROKER_RESOURCE else "retention.ms"
        configs = [{"name": setting, "value": "1000"} | operation]
        rows.append({"resource_type": kind, "resource_name": name, "configs": configs})
    return message(api, resources=rows, validate_only=True)


def describe_log_dirs(ids: Ids, version: int) -> Any:
    return message("DescribeLogDirs", topics=[{"topic": THERE, "partitions": [0]}])


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


Ask = Callable[..., None]


def _about_records(ask: Ask) -> None:
    ask("Produce", "named", produce)
    ask("Produce", "transactional", partial(produce, transactional=True))
    ask("Fetch", "named", fetch)
    ask("ListOffsets", "named", list_offsets)
    ask("Metadata", "all", partial(metadata, topics=None))
    ask("Metadata", "named", partial(metadata_named, creates=False), low=4)
    ask("Metadata", "creating", partial(metadata_named, creates=True), alone=True)
    ask("Metadata", "by id", metadata_by_id, low=12)
    ask("OffsetCommit", "named", offset_commit)
    ask("OffsetCommit", "hidden group", partial(offset_commit, group=HIDDEN_GROUP))
    ask("OffsetFetch", "named", partial(offset_fetch, everything=False))
    ask("OffsetFetch", "all", partial(offset_fetch, everything=True), low=2)
    ask("FindCoordinator", "group", partial(find_coordinator, kind=0, keys=(GROUP, HIDDEN_GROUP)))
    ask("FindCoordinator", "hidden group", partial(find_coordinator, kind=0, keys=(HIDDEN_GROUP,)))
    ask("FindCoordinator", "transaction", partial(find_coordinator, kind=1, keys=(TRANSACTION, "hidden")), low=1)


def _about_groups_and_topics(ask: Ask) -> None:
    for api, build in (
        ("JoinGroup", join_group),
        ("Heartbeat", heartbeat),
        ("LeaveGroup", leave_group),
        ("SyncGroup", sync_group),
    ):
        ask(api, "there", partial(build, group=GROUP))
        ask(api, "absent", partial(build, group=NO_GROUP))
        ask(api, "hidden", partial(build, group=HIDDEN_GROUP))
    ask("DescribeGroups", "named", describe_groups)
    ask("ListGroups", "all", list_groups)
    ask("ApiVersions", "all", api_versions)
    ask("CreateTopics", "named", create_topics)
    ask("DeleteTopics", "named", delete_topics, undo=True)
    ask("DeleteTopics", "by id", partial(delete_topics, by_id=True), low=6, undo=True)
    ask("DeleteRecords", "named", delete_records)
    ask("InitProducerId", "idempotent", partial(init_producer_id, transaction=None))
    ask("InitProducerId", "transactional", partial(init_producer_id, transaction=TRANSACTION), alone=True)
    ask("OffsetForLeaderEpoch", "named", leader_epochs)


def _about_the_cluster(ask: Ask) -> None:
    ask("DescribeAcls", "any", describe_acls)
    ask("CreateAcls", "two", create_acls)
    ask("DeleteAcls", "two", delete_acls)
    ask("DescribeConfigs", "named", partial(describe_configs, resources=RESOURCES))
    ask("DescribeConfigs", "group", partial(describe_configs, resources=[(GROUP_RESOURCE, GROUP)]))
    for api in ("AlterConfigs", "IncrementalAlterConfigs"):
        ask(api, "named", partial(alter_configs, api=api, resources=RESOURCES))
        ask(api, "group", partial(alter_configs, api=api, resources=[(GROUP_RESOURCE, GROUP)]))
    ask("DescribeLogDirs", "named", describe_log_dirs)
    ask("CreatePartitions", "named", create_partitions)
    ask("DeleteGroups", "named", delete_groups)
    ask("ElectLeaders", "one", elect_leaders)
    ask("AlterPartitionReassignments", "cancel", alter_reassignments)
    ask("ListPartitionReassignments", "all", list_reassignments)
    ask("OffsetDelete", "named", offset_delete)
    ask("DescribeUserScramCredentials", "one", describe_users)
    ask("AlterUserScramCredentials", "one", alter_users)
    ask("DescribeClientQuotas", "users", describe_quotas)
    ask("AlterClientQuotas", "validated", alter_quotas)
    ask("UpdateFeatures", "unknown", update_features)
    ask("DescribeCluster", "brokers", describe_cluster)
    ask("DescribeProducers", "named", describe_producers)
    ask("UnregisterBroker", "unknown", unregister_broker)
    ask("ListConfigResources", "metrics", partial(list_config_resources, types=(METRICS_RESOURCE,)))
    ask(
        "ListConfigResources",
        "topics, brokers",
        partial(list_config_resources, types=(TOPIC_RESOURCE, BROKER_RESOURCE)),
        low=1,
    )
    ask("ListConfigResources", "unknown", partial(list_config_resources, types=(99,)), low=1)
    ask("DescribeTopicPartitions", "all", partial(describe_topic_partitions, names=()))
    ask("DescribeTopicPartitions", "named", partial(describe_topic_partitions, names=NAMED))


def _all() -> list[Question]:
    found: list[Question] = []

    def ask(api: str, label: str, build: Build, low: int = 0, **more: Any) -> None:
        row = next(row for row in APIS.values() if row.name == api)
        versions = range(max(low, row.min_version), row.max_version + 1)
        found.append(Question(api, label, build, versions, **more))

    _about_records(ask)
    _about_groups_and_topics(ask)
    _about_the_cluster(ask)
    return found


QUESTIONS = _all()
