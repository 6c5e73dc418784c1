"""What each string, uuid and blob in the messages of tenants' APIs is; the one table of it.

Fields with an `entityType` in their schema classify themselves. All others stand below, by message and path; one that
is in neither place, or a line here that fits no field, ends the start of a broker (`compiler.py`) and a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto


class FieldClass(Enum):
    """What happens to a field on its way in and out."""

    TOPIC_NAME = auto()  # in: the tenant's prefix before it; out: without it, and gone where it has another one
    GROUP_ID = auto()  # likewise
    TRANSACTIONAL_ID = auto()  # likewise
    COORDINATOR_KEY = auto()  # likewise: a group or transactional id, as the key type beside it says
    TOPIC_ID = auto()  # in: another tenant's becomes one that no topic has; out: back to what the client sent
    CONFIG_RESOURCE = auto()  # as a name, where the type beside it is a topic or a group
    ACL_RESOURCE = auto()  # as a name, and the wildcard is the prefix alone, with the pattern type PREFIXED
    PRINCIPAL = auto()  # the prefix goes behind the type: User:<prefix>key
    HOST = auto()  # out: the broker's name below the proxies' domain, and their port beside it
    CLUSTER_ID = auto()  # out: the tenant's id
    LOG_DIRECTORY = auto()  # out: one path for all
    TEXT = auto()  # out: without the prefix, or the error code's own sentence where another tenant's could be in it
    FILTER = auto()  # not touched: the handler compares it with what the tenant sees (`tenant_acls.py`)
    OPAQUE = auto()  # a client's own bytes, which no broker ever gives to another tenant
    COMMON = auto()  # the same for everybody: settings, features, states, racks


T, ID, KEY, RES = FieldClass.TEXT, FieldClass.TOPIC_ID, FieldClass.COORDINATOR_KEY, FieldClass.CONFIG_RESOURCE
ACL, WHO, HOST, FILTER = FieldClass.ACL_RESOURCE, FieldClass.PRINCIPAL, FieldClass.HOST, FieldClass.FILTER
OWN, ALL = FieldClass.OPAQUE, FieldClass.COMMON

ENTITIES: Mapping[str, FieldClass | None] = {
    "topicName": FieldClass.TOPIC_NAME,
    "groupId": FieldClass.GROUP_ID,
    "transactionalId": FieldClass.TRANSACTIONAL_ID,
    "brokerId": None,  # numbers: lists of brokers hold only those that concern the tenant
    "producerId": None,
}
"""By `entityType`; None is left as it is."""

FIELD_CLASSES: Mapping[str, Mapping[str, FieldClass]] = {
    "ProduceRequest": {"topic_data.topic_id": ID, "topic_data.partition_data.records": OWN},
    "ProduceResponse": {
        "responses.topic_id": ID,
        "responses.partition_responses.record_errors.batch_index_error_message": T,
        "responses.partition_responses.error_message": T,
        "node_endpoints.host": HOST,
        "node_endpoints.rack": ALL,
    },
    "FetchRequest": {
        "cluster_id": OWN,
        "topics.topic_id": ID,
        "topics.partitions.replica_directory_id": OWN,
        "forgotten_topics_data.topic_id": ID,
        "rack_id": OWN,
    },
    "FetchResponse": {
        "responses.topic_id": ID,
        "responses.partitions.records": OWN,
        "node_endpoints.host": HOST,
        "node_endpoints.rack": ALL,
    },
    "MetadataRequest": {"topics.topic_id": ID},
    "MetadataResponse": {
        "brokers.host": HOST,
        "brokers.rack": ALL,
        "cluster_id": FieldClass.CLUSTER_ID,
        "topics.topic_id": ID,
    },
    "OffsetCommitRequest": {
        "member_id": OWN,
        "group_instance_id": OWN,
        "topics.partitions.committed_metadata": OWN,
    },
    "OffsetFetchRequest": {"groups.member_id": OWN},
    "OffsetFetchResponse": {
        "topics.partitions.metadata": OWN,
        "groups.topics.partitions.metadata": OWN,
    },
    "FindCoordinatorRequest": {"key": KEY, "coordinator_keys": KEY},
    "FindCoordinatorResponse": {
        "error_message": T,
        "host": HOST,
        "coordinators.key": KEY,
        "coordinators.host": HOST,
        "coordinators.error_message": T,
    },
    "JoinGroupRequest": {
        "member_id": OWN,
        "group_instance_id": OWN,
        "protocol_type": OWN,
        "protocols.name": OWN,
        "protocols.metadata": OWN,
        "reason": OWN,
    },
    "JoinGroupResponse": {
        "protocol_type": OWN,
        "protocol_name": OWN,
        "leader": OWN,
        "member_id": OWN,
        "members.member_id": OWN,
        "members.group_instance_id": OWN,
        "members.metadata": OWN,
    },
    "HeartbeatRequest": {"member_id": OWN, "group_instance_id": OWN},
    "LeaveGroupRequest": {
        "member_id": OWN,
        "members.member_id": OWN,
        "members.group_instance_id": OWN,
        "members.reason": OWN,
    },
    "LeaveGroupResponse": {"members.member_id": OWN, "members.group_instance_id": OWN},
    "SyncGroupRequest": {
        "member_id": OWN,
        "group_instance_id": OWN,
        "protocol_type": OWN,
        "protocol_name": OWN,
        "assignments.member_id": OWN,
        "assignments.assignment": OWN,
    },
    "SyncGroupResponse": {"protocol_type": OWN, "protocol_name": OWN, "assignment": OWN},
    "DescribeGroupsResponse": {
        "groups.error_message": T,
        "groups.group_state": ALL,
        "groups.protocol_type": OWN,
        "groups.protocol_data": OWN,
        "groups.members.member_id": OWN,
        "groups.members.group_instance_id": OWN,
        "groups.members.client_id": OWN,
        "groups.members.client_host": OWN,
        "groups.members.member_metadata": OWN,
        "groups.members.member_assignment": OWN,
    },
    "ListGroupsRequest": {"states_filter": OWN, "types_filter": OWN},
    "ListGroupsResponse": {"groups.protocol_type": OWN, "groups.group_state": ALL, "groups.group_type": ALL},
    "ApiVersionsRequest": {"client_software_name": OWN, "client_software_version": OWN},
    "ApiVersionsResponse": {"supported_features.name": ALL, "finalized_features.name": ALL},
    "CreateTopicsRequest": {"topics.configs.name": OWN, "topics.configs.value": OWN},
    "CreateTopicsResponse": {
        "topics.topic_id": ID,
        "topics.error_message": T,
        "topics.configs.name": ALL,
        "topics.configs.value": ALL,
    },
    "DeleteTopicsRequest": {"topics.topic_id": ID},
    "DeleteTopicsResponse": {"responses.topic_id": ID, "responses.error_message": T},
    "DescribeAclsRequest": {"resource_name_filter": FILTER, "principal_filter": FILTER, "host_filter": FILTER},
    "DescribeAclsResponse": {
        "error_message": T,
        "resources.resource_name": ACL,
        "resources.acls.principal": WHO,
        "resources.acls.host": OWN,
    },
    "CreateAclsRequest": {"creations.resource_name": ACL, "creations.principal": WHO, "creations.host": OWN},
    "CreateAclsResponse": {"results.error_message": T},
    "DeleteAclsRequest": {
        "filters.resource_name_filter": FILTER,
        "filters.principal_filter": FILTER,
        "filters.host_filter": FILTER,
    },
    "DeleteAclsResponse": {
        "filter_results.error_message": T,
        "filter_results.matching_acls.error_message": T,
        "filter_results.matching_acls.resource_name": ACL,
        "filter_results.matching_acls.principal": WHO,
        "filter_results.matching_acls.host": OWN,
    },
    "DescribeConfigsRequest": {"resources.resource_name": RES, "resources.configuration_keys": OWN},
    "DescribeConfigsResponse": {
        "results.error_message": T,
        "results.resource_name": RES,
        "results.configs.name": ALL,
        "results.configs.value": ALL,
        "results.configs.synonyms.name": ALL,
        "results.configs.synonyms.value": ALL,
        "results.configs.documentation": ALL,
    },
    "AlterConfigsRequest": {
        "resources.resource_name": RES,
        "resources.configs.name": OWN,
        "resources.configs.value": OWN,
    },
    "AlterConfigsResponse": {"responses.error_message": T, "responses.resource_name": RES},
    "DescribeLogDirsResponse": {"results.log_dir": FieldClass.LOG_DIRECTORY},
    "CreatePartitionsResponse": {"results.error_message": T},
    "IncrementalAlterConfigsRequest": {
        "resources.resource_name": RES,
        "resources.configs.name": OWN,
        "resources.configs.value": OWN,
    },
    "IncrementalAlterConfigsResponse": {"responses.error_message": T, "responses.resource_name": RES},
    "DescribeClusterResponse": {
        "error_message": T,
        "cluster_id": FieldClass.CLUSTER_ID,
        "brokers.host": HOST,
        "brokers.rack": ALL,
    },
    "DescribeProducersResponse": {"topics.partitions.error_message": T},
    "SaslHandshakeRequest": {"mechanism": OWN},
    "SaslHandshakeResponse": {"mechanisms": ALL},
    "SaslAuthenticateRequest": {"auth_bytes": OWN},
    "SaslAuthenticateResponse": {"error_message": T, "auth_bytes": OWN},
    "DescribeTopicPartitionsResponse": {"topics.topic_id": ID},
}
