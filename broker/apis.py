"""Every API that a broker answers, one row each: handler, gate, and what tenants may see of it.

Key, versions and listeners are in `wire.apis`. The controller decides rows with `Forwarder.serve`
(`kraft.controller.decisions`). Dispatch, gates, portions and the rewriting of tenants' names follow this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import getmembers, isfunction
from typing import Any

from msgspec import Struct, field

from broker.gates import cluster_gates, group_gates, offset_gates, record_gates, topic_gates, transaction_gates
from broker.gates.gating import (
    ALTER,
    ALTER_CONFIGS,
    CLUSTER_ACTION,
    DELETE,
    DESCRIBE,
    DESCRIBE_CONFIGS,
    READ,
    ClusterRight,
    by_group,
    by_topic,
    free,
)
from broker.gates.offset_gates import OffsetGates
from broker.gates.topic_gates import TopicDeletion
from broker.handlers.acls import AclHandlers
from broker.handlers.client_quotas import ClientQuotaHandlers
from broker.handlers.cluster import ClusterHandlers
from broker.handlers.configs import ConfigHandlers
from broker.handlers.delegation_tokens import DelegationTokens
from broker.handlers.elections import ElectLeaders
from broker.handlers.fetch import FetchHandler
from broker.handlers.group_offsets import GroupOffsetHandlers
from broker.handlers.groups import GroupHandlers
from broker.handlers.internal import AppendAudit, ImportKeys, TierStateHandler
from broker.handlers.list_offsets import ListOffsets
from broker.handlers.log_dirs import AlterReplicaLogDirs, DescribeLogDirs
from broker.handlers.log_offsets import DeleteRecords, OffsetForLeaderEpoch
from broker.handlers.metadata import MetadataHandler
from broker.handlers.produce import ProduceHandler
from broker.handlers.producers import DescribeProducers
from broker.handlers.quorum import DescribeQuorum
from broker.handlers.sasl import SaslHandlers
from broker.handlers.scram import ScramHandlers
from broker.handlers.telemetry import TelemetryHandlers
from broker.handlers.tenants import TenantHandlers
from broker.handlers.tier_description import TierDescriptions
from broker.handlers.topics import TopicHandlers
from broker.handlers.transaction_markers import WriteTxnMarkers
from broker.handlers.transaction_offsets import TransactionOffsets
from broker.handlers.transactions import TransactionHandlers
from broker.requests.context import UNCUT_ELEMENTS_MAX, Route
from broker.requests.forwarding import Forwarder
from broker.requests.portions import Listing, by_name, by_name_or_id, by_resource, by_resource_and_keys, by_value, cut
from broker.tenancy.compiled_names import CompiledNames
from broker.tenancy.compiler import Compiler
from broker.tenancy.field_classes import (
    ACL,
    ALL,
    CLUSTER_ID,
    FILTER,
    HOST,
    KEY,
    LOG_DIRECTORY,
    NAMED,
    OWN,
    RES,
    TEXT,
    WHO,
    FieldClass,
)
from wire.apis import ApiKey

Paths = Mapping[FieldClass, str]
"""By class, the fields of a message that neither schema nor name classifies (`broker.tenancy.field_classes`): dotted
paths separated by spaces. An API that tenants do not have needs none."""


FORWARDED_MAX = 1_000  # elements of a list in a request that is copied to the controller in one go


class Row(Struct, frozen=True):
    """One API. `handler`, and `gate` if it is a method, are those of a class, which `routes` binds to its instance."""

    key: ApiKey
    handler: Callable[..., Any]
    gate: Callable[..., Any] | None
    """None for Produce and Fetch: the dispatcher calls their handlers with the frame, and they check rights
    themselves."""
    cuts: Sequence[Listing] = ()
    """How its long requests are cut into portions."""
    paced: bool = False
    """Its handler does the work of a long list in slices itself, so the list need not be cut."""
    elements_max: int = UNCUT_ELEMENTS_MAX
    """In a list that is not cut. A request with longer ones is rejected."""
    request: Paths = field(default_factory=dict)
    response: Paths = field(default_factory=dict)


# fmt: off
ROWS = (
    Row(ApiKey.PRODUCE, ProduceHandler.handle, None,
        request={OWN: "topic_data.partition_data.records"},
        response={HOST: "node_endpoints.host",
                  TEXT: "responses.partition_responses.record_errors.batch_index_error_message"}),
    Row(ApiKey.FETCH, FetchHandler.handle, None,
        request={OWN: "cluster_id topics.partitions.replica_directory_id rack_id"},
        response={OWN: "responses.partitions.records", HOST: "node_endpoints.host"}),
    Row(ApiKey.LIST_OFFSETS, ListOffsets.handle, by_topic(DESCRIBE, record_gates.unlisted),
        cuts=[cut("topics.partitions", most=25)]),
    Row(ApiKey.METADATA, MetadataHandler.metadata, topic_gates.metadata, paced=True,
        response={HOST: "brokers.host", CLUSTER_ID: "cluster_id"}),
    Row(ApiKey.OFFSET_COMMIT, GroupOffsetHandlers.offset_commit, OffsetGates.offset_commit,
        cuts=[cut("topics.partitions")], request={OWN: "topics.partitions.committed_metadata"}),
    Row(ApiKey.OFFSET_FETCH, GroupOffsetHandlers.offset_fetch, OffsetGates.offset_fetch,
        cuts=[cut("topics.partition_indexes", "topics.partitions", until=7),
              cut("groups.topics.partition_indexes", "groups.topics.partitions", since=8)],
        response={OWN: "topics.partitions.metadata groups.topics.partitions.metadata"}),
    Row(ApiKey.FIND_COORDINATOR, ClusterHandlers.find_coordinator, group_gates.find_coordinator,
        cuts=[cut("coordinator_keys", "coordinators", most=25, kind=by_value, since=4)],
        request={KEY: "key coordinator_keys"}, response={HOST: "host coordinators.host", KEY: "coordinators.key"}),
    Row(ApiKey.JOIN_GROUP, GroupHandlers.join_group, by_group(READ, group_gates.unjoined),
        request={OWN: "protocol_type protocols.name protocols.metadata reason"},
        response={OWN: "protocol_type protocol_name leader members.metadata"}),
    Row(ApiKey.HEARTBEAT, GroupHandlers.heartbeat, by_group(READ)),
    Row(ApiKey.LEAVE_GROUP, GroupHandlers.leave_group, by_group(READ),
        cuts=[cut("members", since=3)], request={OWN: "members.reason"}),
    Row(ApiKey.SYNC_GROUP, GroupHandlers.sync_group, by_group(READ, group_gates.unsynced),
        request={OWN: "protocol_type protocol_name assignments.assignment"},
        response={OWN: "protocol_type protocol_name assignment"}),
    Row(ApiKey.DESCRIBE_GROUPS, GroupHandlers.describe_groups, group_gates.describe_groups,
        cuts=[cut("groups", most=5, kind=by_value)],
        response={ALL: "groups.group_state",
                  OWN: "groups.protocol_type groups.protocol_data groups.members.client_id groups.members.client_host "
                       "groups.members.member_metadata groups.members.member_assignment"}),
    Row(ApiKey.LIST_GROUPS, GroupHandlers.list_groups, group_gates.list_groups,
        request={OWN: "states_filter types_filter"},
        response={OWN: "groups.protocol_type", ALL: "groups.group_state groups.group_type"}),
    Row(ApiKey.SASL_HANDSHAKE, SaslHandlers.handshake, free,
        request={OWN: "mechanism"}, response={ALL: "mechanisms"}),
    Row(ApiKey.API_VERSIONS, ClusterHandlers.api_versions, free,
        request={OWN: "client_software_name client_software_version"},
        response={ALL: "supported_features.name finalized_features.name"}),
    Row(ApiKey.CREATE_TOPICS, Forwarder.serve, topic_gates.create_topics,
        cuts=[cut("topics", most=25, kind=by_name, repeats=2)],
        request={OWN: "topics.configs.name topics.configs.value"},
        response={ALL: "topics.configs.name topics.configs.value"}),
    Row(ApiKey.DELETE_TOPICS, TopicHandlers.delete_topics, TopicDeletion.delete_topics,
        cuts=[cut("topic_names", "responses", kind=by_value, repeats=2, until=5),
              cut("topics", "responses", kind=by_name_or_id, repeats=2, since=6)]),
    Row(ApiKey.DELETE_RECORDS, DeleteRecords.handle, by_topic(DELETE, record_gates.undeleted),
        cuts=[cut("topics.partitions")]),
    Row(ApiKey.INIT_PRODUCER_ID, TransactionHandlers.init_producer_id, record_gates.init_producer_id),
    Row(ApiKey.OFFSET_FOR_LEADER_EPOCH, OffsetForLeaderEpoch.handle, record_gates.offset_for_leader_epoch,
        cuts=[cut("topics.partitions")]),
    Row(ApiKey.ADD_PARTITIONS_TO_TXN, TransactionHandlers.add_partitions, transaction_gates.add_partitions, paced=True),
    Row(ApiKey.ADD_OFFSETS_TO_TXN, TransactionHandlers.add_offsets, transaction_gates.add_offsets),
    Row(ApiKey.END_TXN, TransactionHandlers.end_txn, transaction_gates.end_txn),
    Row(ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkers.handle, transaction_gates.write_txn_markers, paced=True),
    Row(ApiKey.TXN_OFFSET_COMMIT, TransactionOffsets.txn_offset_commit, transaction_gates.txn_offset_commit,
        cuts=[cut("topics.partitions")], request={OWN: "topics.partitions.committed_metadata"}),
    Row(ApiKey.DESCRIBE_ACLS, AclHandlers.describe_acls, ClusterRight(DESCRIBE),
        request={FILTER: "resource_name_filter principal_filter host_filter"},
        response={ACL: "resources.resource_name", WHO: "resources.acls.principal", OWN: "resources.acls.host"}),
    Row(ApiKey.CREATE_ACLS, AclHandlers.create_acls, ClusterRight(ALTER),
        cuts=[cut("creations", "results")],
        request={ACL: "creations.resource_name", WHO: "creations.principal", OWN: "creations.host"}),
    Row(ApiKey.DELETE_ACLS, AclHandlers.delete_acls, ClusterRight(ALTER),
        cuts=[cut("filters", "filter_results", most=1)],
        request={FILTER: "filters.resource_name_filter filters.principal_filter filters.host_filter"},
        response={ACL: "filter_results.matching_acls.resource_name", WHO: "filter_results.matching_acls.principal",
                  OWN: "filter_results.matching_acls.host"}),
    Row(ApiKey.DESCRIBE_CONFIGS, ConfigHandlers.describe_configs, cluster_gates.describe_configs,
        cuts=[cut("resources", "results", most=1, kind=by_resource_and_keys)],
        request={RES: "resources.resource_name", OWN: "resources.configuration_keys"},
        response={RES: "results.resource_name",
                  ALL: "results.configs.name results.configs.value results.configs.synonyms.name "
                       "results.configs.synonyms.value results.configs.documentation"}),
    Row(ApiKey.ALTER_CONFIGS, ConfigHandlers.alter_configs, cluster_gates.alter_configs,
        cuts=[cut("resources", "responses", most=20, kind=by_resource, repeats=2)],
        request={RES: "resources.resource_name", OWN: "resources.configs.name resources.configs.value"},
        response={RES: "responses.resource_name"}),
    Row(ApiKey.ALTER_REPLICA_LOG_DIRS, AlterReplicaLogDirs.handle, ClusterRight(ALTER, cluster_gates.log_dirs_kept)),
    Row(ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirs.handle, ClusterRight(DESCRIBE),
        cuts=[cut("topics.partitions", "results.topics.partitions", around=1)],
        response={LOG_DIRECTORY: "results.log_dir"}),
    Row(ApiKey.SASL_AUTHENTICATE, SaslHandlers.authenticate, free,
        request={OWN: "auth_bytes"}, response={OWN: "auth_bytes"}),
    Row(ApiKey.CREATE_PARTITIONS, Forwarder.serve,
        by_topic(ALTER, topic_gates.partitions_not_created, answers="results"),
        cuts=[cut("topics", "results", most=25, kind=by_name, repeats=2)]),
    Row(ApiKey.CREATE_DELEGATION_TOKEN, DelegationTokens.create, cluster_gates.create_delegation_token,
        request={ALL: "owner_principal_type renewers.principal_type",
                 NAMED: "owner_principal_name renewers.principal_name"},
        response={ALL: "principal_type token_requester_principal_type", OWN: "token_id hmac",
                  NAMED: "principal_name token_requester_principal_name"}),
    Row(ApiKey.RENEW_DELEGATION_TOKEN, DelegationTokens.renew, free, request={OWN: "hmac"}),
    Row(ApiKey.EXPIRE_DELEGATION_TOKEN, DelegationTokens.expire, free, request={OWN: "hmac"}),
    Row(ApiKey.DESCRIBE_DELEGATION_TOKEN, DelegationTokens.describe, free,
        request={ALL: "owners.principal_type", NAMED: "owners.principal_name"},
        response={ALL: "tokens.principal_type tokens.token_requester_principal_type tokens.renewers.principal_type",
                  OWN: "tokens.token_id tokens.hmac",
                  NAMED: "tokens.principal_name tokens.token_requester_principal_name "
                         "tokens.renewers.principal_name"}),
    Row(ApiKey.DELETE_GROUPS, GroupHandlers.delete_groups, group_gates.delete_groups,
        cuts=[cut("groups_names", "results", kind=by_value)]),
    Row(ApiKey.ELECT_LEADERS, ElectLeaders.handle, ClusterRight(ALTER, cluster_gates.not_elected),
        cuts=[cut("topic_partitions.partitions", "replica_election_results.partition_result")]),
    Row(ApiKey.INCREMENTAL_ALTER_CONFIGS, ConfigHandlers.incremental_alter_configs, cluster_gates.alter_configs,
        cuts=[cut("resources", "responses", most=20, kind=by_resource, repeats=2)],
        request={RES: "resources.resource_name", OWN: "resources.configs.name resources.configs.value"},
        response={RES: "responses.resource_name"}),
    Row(ApiKey.ALTER_PARTITION_REASSIGNMENTS, Forwarder.serve,
        ClusterRight(ALTER, cluster_gates.not_reassigned), cuts=[cut("topics.partitions", "responses.partitions")]),
    Row(ApiKey.LIST_PARTITION_REASSIGNMENTS, Forwarder.serve, ClusterRight(DESCRIBE),
        cuts=[cut("topics.partition_indexes", "topics.partitions")]),
    Row(ApiKey.OFFSET_DELETE, GroupOffsetHandlers.offset_delete, offset_gates.offset_delete,
        cuts=[cut("topics.partitions")]),
    Row(ApiKey.DESCRIBE_CLIENT_QUOTAS, ClientQuotaHandlers.describe_client_quotas, ClusterRight(DESCRIBE_CONFIGS),
        request={ALL: "components.entity_type", OWN: "components.match"},
        response={ALL: "entries.entity.entity_type entries.values.key", OWN: "entries.entity.entity_name"}),
    Row(ApiKey.ALTER_CLIENT_QUOTAS, ClientQuotaHandlers.alter_client_quotas, ClusterRight(ALTER_CONFIGS),
        elements_max=FORWARDED_MAX,
        request={ALL: "entries.entity.entity_type entries.ops.key", OWN: "entries.entity.entity_name"},
        response={ALL: "entries.entity.entity_type", OWN: "entries.entity.entity_name"}),
    Row(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, ScramHandlers.describe_user_scram_credentials,
        ClusterRight(DESCRIBE, cluster_gates.users_not_described),
        cuts=[cut("users", "results", kind=by_name, repeats=2)]),
    Row(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.DESCRIBE_QUORUM, DescribeQuorum.handle, ClusterRight(DESCRIBE), paced=True),
    Row(ApiKey.UPDATE_FEATURES, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.DESCRIBE_CLUSTER, ClusterHandlers.describe_cluster, cluster_gates.describe_cluster,
        response={CLUSTER_ID: "cluster_id", HOST: "brokers.host"}),
    Row(ApiKey.DESCRIBE_PRODUCERS, DescribeProducers.handle, by_topic(READ, record_gates.no_producers),
        cuts=[cut("topics.partition_indexes", "topics.partitions", most=10)]),
    Row(ApiKey.UNREGISTER_BROKER, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.DESCRIBE_TRANSACTIONS, TransactionHandlers.describe_transactions,
        transaction_gates.describe_transactions,
        cuts=[cut("transactional_ids", "transaction_states", most=5, kind=by_value)],
        response={ALL: "transaction_states.transaction_state"}),
    Row(ApiKey.LIST_TRANSACTIONS, TransactionHandlers.list_transactions, transaction_gates.list_transactions,
        request={OWN: "state_filters", FILTER: "transactional_id_pattern"},
        response={OWN: "unknown_state_filters", ALL: "transaction_states.transaction_state"}),
    Row(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, TelemetryHandlers.get_telemetry_subscriptions, free,
        request={OWN: "client_instance_id"}, response={OWN: "client_instance_id", ALL: "requested_metrics"}),
    Row(ApiKey.PUSH_TELEMETRY, TelemetryHandlers.push_telemetry, free,
        request={OWN: "client_instance_id metrics"}),
    Row(ApiKey.LIST_CONFIG_RESOURCES, ConfigHandlers.list_config_resources, ClusterRight(DESCRIBE_CONFIGS),
        response={RES: "config_resources.resource_name"}),
    Row(ApiKey.DESCRIBE_TOPIC_PARTITIONS, TopicHandlers.describe_topic_partitions,
        topic_gates.describe_topic_partitions, paced=True),
    Row(ApiKey.TIER_STATE, TierStateHandler.handle, ClusterRight(CLUSTER_ACTION)),
    Row(ApiKey.DESCRIBE_TIER, TierDescriptions.describe_tier, ClusterRight(DESCRIBE)),
    Row(ApiKey.RESTORE_TOPIC, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.APPEND_AUDIT, AppendAudit.handle, ClusterRight(CLUSTER_ACTION)),
    Row(ApiKey.CREATE_TENANT, Forwarder.serve, ClusterRight(ALTER), elements_max=FORWARDED_MAX),
    Row(ApiKey.DESCRIBE_TENANTS, TenantHandlers.describe_tenants, ClusterRight(DESCRIBE)),
    Row(ApiKey.ALTER_TENANT, Forwarder.serve, ClusterRight(ALTER), elements_max=FORWARDED_MAX),
    Row(ApiKey.DELETE_TENANT, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.MOVE_TENANT, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.CREATE_API_KEY, Forwarder.serve, ClusterRight(ALTER), elements_max=FORWARDED_MAX),
    Row(ApiKey.DELETE_API_KEY, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.DESCRIBE_API_KEYS, TenantHandlers.describe_api_keys, ClusterRight(DESCRIBE)),
    Row(ApiKey.DESCRIBE_CELLS, Forwarder.serve, ClusterRight(DESCRIBE)),
    Row(ApiKey.ALTER_CELL, Forwarder.serve, ClusterRight(ALTER), elements_max=FORWARDED_MAX),
    Row(ApiKey.IMPORT_KEYS, ImportKeys.handle, ClusterRight(CLUSTER_ACTION)),
    Row(ApiKey.DESCRIBE_USAGE, Forwarder.serve, ClusterRight(DESCRIBE), elements_max=FORWARDED_MAX),
    Row(ApiKey.DESCRIBE_SHARES, Forwarder.serve, ClusterRight(DESCRIBE)),
    Row(ApiKey.ALTER_BROKER_HEALTH, Forwarder.serve, ClusterRight(ALTER)),
    Row(ApiKey.DESCRIBE_BALANCE, Forwarder.serve, ClusterRight(DESCRIBE)),
    Row(ApiKey.PLAN_BALANCE, Forwarder.serve, ClusterRight(DESCRIBE), elements_max=FORWARDED_MAX),
    Row(ApiKey.ALTER_BALANCE, Forwarder.serve, ClusterRight(ALTER), elements_max=FORWARDED_MAX),
    Row(ApiKey.LIST_BALANCE_MOVES, Forwarder.serve, ClusterRight(DESCRIBE)),
    Row(ApiKey.DESCRIBE_TRANSACTION_CLIENTS, TransactionHandlers.describe_clients, ClusterRight(DESCRIBE),
        cuts=[cut("transactional_ids", "clients")]),
)
# fmt: on


FIELD_CLASSES: Mapping[str, Mapping[str, FieldClass]] = {
    row.key.api_name + kind: {path: found for found, paths in of.items() for path in paths.split()}
    for row in ROWS
    for kind, of in (("Request", row.request), ("Response", row.response))
}

COMPILED_NAMES = CompiledNames(Compiler(FIELD_CLASSES))
"""Made with the import, because it would hold the event loop of a node that starts for 20 ms."""

"""The classes of the rows' fields by message and path."""


def routes(families: Iterable[object]) -> dict[int, Route]:
    """The routes of the APIs whose handlers are methods of `families`, by key; without Produce and Fetch."""
    bound: dict[Callable[..., Any], Callable[..., Any]] = {
        method: getattr(family, name) for family in families for name, method in getmembers(type(family), isfunction)
    }
    return {
        int(row.key): Route(bound[row.handler], bound.get(row.gate, row.gate), row.cuts, row.paced, row.elements_max)
        for row in ROWS
        if row.gate is not None and row.handler in bound
    }
