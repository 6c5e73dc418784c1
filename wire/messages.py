"""Every request and response class in one import place: the codec library's, and ours for what it lacks.

All are compiled from Apache Kafka's message schemas (ours lie in `wire/schemas`). Fields are snake_case, nested
structs are attributes of the class above them (`MetadataResponse.MetadataResponseTopic`). A field that a decoded
version lacks reads as the schema's default: never change such a list in place, it is shared.
"""

from __future__ import annotations

import uuid
from typing import Any

from kafka.protocol.admin.acl import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
)
from kafka.protocol.admin.client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kafka.protocol.admin.cluster import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from kafka.protocol.admin.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kafka.protocol.admin.groups import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
)
from kafka.protocol.admin.topics import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from kafka.protocol.admin.transactions import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.admin.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer.fetch import (
    FetchRequest,
    FetchResponse,
)
from kafka.protocol.consumer.group import (
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from kafka.protocol.consumer.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata.api_versions import (
    ApiVersionsRequest,
    ApiVersionsResponse,
)
from kafka.protocol.metadata.find_coordinator import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from kafka.protocol.metadata.metadata import (
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer.produce import (
    ProduceRequest,
    ProduceResponse,
)
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from common.identifiers import ZERO_UUID


class _OwnSchemas(type(ApiMessage)):  # type: ignore[misc]
    """Compiles a class from the JSON file of its name in `wire/schemas`."""

    def __new__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, attrs, load_json="wire.schemas", **options)


class AllocateProducerIdsRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class AllocateProducerIdsResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class AlterPartitionRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class AlterPartitionResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class BrokerHeartbeatRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class BrokerHeartbeatResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class BrokerRegistrationRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class BrokerRegistrationResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class EnvelopeRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class EnvelopeResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class FetchSnapshotRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class FetchSnapshotResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class TierStateRequest(ApiMessage, metaclass=_OwnSchemas):
    """Not Apache Kafka's: a batch of requests of `tiering.shard_protocol`, one per call."""


class TierStateResponse(ApiMessage, metaclass=_OwnSchemas):
    """In the order of the request's calls."""


class AppendAuditRequest(ApiMessage, metaclass=_OwnSchemas):
    """Not Apache Kafka's: events of one broker's journal, in order; none asks where the topic stands."""


class AppendAuditResponse(ApiMessage, metaclass=_OwnSchemas):
    """`last_sequence` is committed, and so is all before it; -1 for none."""


class DescribeTierRequest(ApiMessage, metaclass=_OwnSchemas):
    """Not Apache Kafka's, as the next one: for operators. Partition -1 asks for the broker as a whole."""


class DescribeTierResponse(ApiMessage, metaclass=_OwnSchemas):
    """`description` is JSON, of `tiering.description`."""


class RestoreTopicRequest(ApiMessage, metaclass=_OwnSchemas):
    """A topic of the given id is made of what the tier holds of that id; one leader epoch per partition."""


class RestoreTopicResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class CreateTenantRequest(ApiMessage, metaclass=_OwnSchemas):
    """Not Apache Kafka's, as all up to AlterCell: for operators. `cell` null lets the controller choose."""


class CreateTenantResponse(ApiMessage, metaclass=_OwnSchemas):
    """`tenant_id` and `cell` are empty after an error."""


class DescribeTenantsRequest(ApiMessage, metaclass=_OwnSchemas):
    """By id or name; null is all."""


class DescribeTenantsResponse(ApiMessage, metaclass=_OwnSchemas):
    """In order of names. `partitions_to_move` are those that are not wholly in the cell where the tenant is going."""


class AlterTenantRequest(ApiMessage, metaclass=_OwnSchemas):
    """`tenant` is an id or a name. A limit of -1 goes back to the default; null leaves the networks as they are."""


class AlterTenantResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class DeleteTenantRequest(ApiMessage, metaclass=_OwnSchemas):
    """Answered when nobody of the tenant may log in any more; what it has goes in steps after that."""


class DeleteTenantResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class MoveTenantRequest(ApiMessage, metaclass=_OwnSchemas):
    """`cell` null lets the controller choose. Answered when the move is committed, not when it has ended."""


class MoveTenantResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class CreateApiKeyRequest(ApiMessage, metaclass=_OwnSchemas):
    """`key_id` null makes a key; else the one of that id gets new verifiers. The secret itself stays with who asks."""


class CreateApiKeyResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class DeleteApiKeyRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class DeleteApiKeyResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class DescribeApiKeysRequest(ApiMessage, metaclass=_OwnSchemas):
    """Of one tenant, by id or name, or of all (null); `keys` narrows it to these."""


class DescribeApiKeysResponse(ApiMessage, metaclass=_OwnSchemas):
    """`mechanisms` for which the key has a verifier: none after a rebuild."""


class DescribeCellsRequest(ApiMessage, metaclass=_OwnSchemas):
    """Null is all."""


class DescribeCellsResponse(ApiMessage, metaclass=_OwnSchemas):
    """`full_reason` says why a cell takes no more tenants, null while it does."""


class AlterCellRequest(ApiMessage, metaclass=_OwnSchemas):
    """`open`: 1 or 0, -1 leaves it. A limit of -1 goes back to the default."""


class AlterCellResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class TenantGroupsClearedRequest(ApiMessage, metaclass=_OwnSchemas):
    """A broker tells the controller that it removed the groups of tenants from these partitions of their topic."""


class TenantGroupsClearedResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


class UnregisterBrokerRequest(ApiMessage, metaclass=_OwnSchemas):
    pass


class UnregisterBrokerResponse(ApiMessage, metaclass=_OwnSchemas):
    pass


def schema_uuid(raw: bytes) -> uuid.UUID:
    """The form in which messages take a 16-byte id."""
    return uuid.UUID(bytes=raw)


def raw_uuid(value: uuid.UUID | None) -> bytes:
    """The 16 bytes of an id in a decoded message, where None stands for the zero uuid."""
    return ZERO_UUID if value is None else value.bytes


__all__ = [
    "AddOffsetsToTxnRequest",
    "AddOffsetsToTxnResponse",
    "AddPartitionsToTxnRequest",
    "AddPartitionsToTxnResponse",
    "AllocateProducerIdsRequest",
    "AllocateProducerIdsResponse",
    "AlterCellRequest",
    "AlterCellResponse",
    "AlterClientQuotasRequest",
    "AlterClientQuotasResponse",
    "AlterConfigsRequest",
    "AlterConfigsResponse",
    "AlterPartitionReassignmentsRequest",
    "AlterPartitionReassignmentsResponse",
    "AlterPartitionRequest",
    "AlterPartitionResponse",
    "AlterReplicaLogDirsRequest",
    "AlterReplicaLogDirsResponse",
    "AlterTenantRequest",
    "AlterTenantResponse",
    "AlterUserScramCredentialsRequest",
    "AlterUserScramCredentialsResponse",
    "ApiVersionsRequest",
    "ApiVersionsResponse",
    "AppendAuditRequest",
    "AppendAuditResponse",
    "BrokerHeartbeatRequest",
    "BrokerHeartbeatResponse",
    "BrokerRegistrationRequest",
    "BrokerRegistrationResponse",
    "CreateAclsRequest",
    "CreateAclsResponse",
    "CreateApiKeyRequest",
    "CreateApiKeyResponse",
    "CreatePartitionsRequest",
    "CreatePartitionsResponse",
    "CreateTenantRequest",
    "CreateTenantResponse",
    "CreateTopicsRequest",
    "CreateTopicsResponse",
    "DeleteAclsRequest",
    "DeleteAclsResponse",
    "DeleteApiKeyRequest",
    "DeleteApiKeyResponse",
    "DeleteGroupsRequest",
    "DeleteGroupsResponse",
    "DeleteRecordsRequest",
    "DeleteRecordsResponse",
    "DeleteTenantRequest",
    "DeleteTenantResponse",
    "DeleteTopicsRequest",
    "DeleteTopicsResponse",
    "DescribeAclsRequest",
    "DescribeAclsResponse",
    "DescribeApiKeysRequest",
    "DescribeApiKeysResponse",
    "DescribeCellsRequest",
    "DescribeCellsResponse",
    "DescribeClientQuotasRequest",
    "DescribeClientQuotasResponse",
    "DescribeClusterRequest",
    "DescribeClusterResponse",
    "DescribeConfigsRequest",
    "DescribeConfigsResponse",
    "DescribeGroupsRequest",
    "DescribeGroupsResponse",
    "DescribeLogDirsRequest",
    "DescribeLogDirsResponse",
    "DescribeProducersRequest",
    "DescribeProducersResponse",
    "DescribeQuorumRequest",
    "DescribeQuorumResponse",
    "DescribeTenantsRequest",
    "DescribeTenantsResponse",
    "DescribeTierRequest",
    "DescribeTierResponse",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTransactionsRequest",
    "DescribeTransactionsResponse",
    "DescribeUserScramCredentialsRequest",
    "DescribeUserScramCredentialsResponse",
    "ElectLeadersRequest",
    "ElectLeadersResponse",
    "EndTxnRequest",
    "EndTxnResponse",
    "EnvelopeRequest",
    "EnvelopeResponse",
    "FetchRequest",
    "FetchResponse",
    "FetchSnapshotRequest",
    "FetchSnapshotResponse",
    "FindCoordinatorRequest",
    "FindCoordinatorResponse",
    "HeartbeatRequest",
    "HeartbeatResponse",
    "IncrementalAlterConfigsRequest",
    "IncrementalAlterConfigsResponse",
    "InitProducerIdRequest",
    "InitProducerIdResponse",
    "JoinGroupRequest",
    "JoinGroupResponse",
    "LeaveGroupRequest",
    "LeaveGroupResponse",
    "ListConfigResourcesRequest",
    "ListConfigResourcesResponse",
    "ListGroupsRequest",
    "ListGroupsResponse",
    "ListOffsetsRequest",
    "ListOffsetsResponse",
    "ListPartitionReassignmentsRequest",
    "ListPartitionReassignmentsResponse",
    "ListTransactionsRequest",
    "ListTransactionsResponse",
    "MetadataRequest",
    "MetadataResponse",
    "MoveTenantRequest",
    "MoveTenantResponse",
    "OffsetCommitRequest",
    "OffsetCommitResponse",
    "OffsetDeleteRequest",
    "OffsetDeleteResponse",
    "OffsetFetchRequest",
    "OffsetFetchResponse",
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "ProduceRequest",
    "ProduceResponse",
    "RestoreTopicRequest",
    "RestoreTopicResponse",
    "SaslAuthenticateRequest",
    "SaslAuthenticateResponse",
    "SaslHandshakeRequest",
    "SaslHandshakeResponse",
    "SyncGroupRequest",
    "SyncGroupResponse",
    "TenantGroupsClearedRequest",
    "TenantGroupsClearedResponse",
    "TierStateRequest",
    "TierStateResponse",
    "TxnOffsetCommitRequest",
    "TxnOffsetCommitResponse",
    "UnregisterBrokerRequest",
    "UnregisterBrokerResponse",
    "UpdateFeaturesRequest",
    "UpdateFeaturesResponse",
    "WriteTxnMarkersRequest",
    "WriteTxnMarkersResponse",
    "raw_uuid",
    "schema_uuid",
]
