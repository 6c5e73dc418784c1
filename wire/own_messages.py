"""The messages that the codec library lacks: Apache Kafka's between nodes, and our own. Import `wire.messages`."""

from __future__ import annotations

from typing import Any

from kafka.protocol.api_message import ApiMessage


class OwnSchemas(type(ApiMessage)):  # type: ignore[misc]
    """Compiles a class from the JSON file of its name in `wire/schemas`."""

    def __new__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, Any], **options: Any) -> Any:
        return super().__new__(cls, name, bases, attrs, load_json="wire.schemas", **options)


class AllocateProducerIdsRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class AllocateProducerIdsResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class AlterPartitionRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class AlterPartitionResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class BrokerHeartbeatRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class BrokerHeartbeatResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class BrokerRegistrationRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class BrokerRegistrationResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class EnvelopeRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class EnvelopeResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class FetchSnapshotRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class FetchSnapshotResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class TierStateRequest(ApiMessage, metaclass=OwnSchemas):
    """Not Apache Kafka's: a batch of requests of `tiering.shard_protocol`, one per call."""


class TierStateResponse(ApiMessage, metaclass=OwnSchemas):
    """In the order of the request's calls."""


class AppendAuditRequest(ApiMessage, metaclass=OwnSchemas):
    """Not Apache Kafka's: events of one broker's journal, in order; none asks where the topic stands."""


class AppendAuditResponse(ApiMessage, metaclass=OwnSchemas):
    """`last_sequence` is committed, and so is all before it; -1 for none."""


class DescribeTierRequest(ApiMessage, metaclass=OwnSchemas):
    """Not Apache Kafka's, as the next one: for operators. Partition -1 asks for the broker as a whole."""


class DescribeTierResponse(ApiMessage, metaclass=OwnSchemas):
    """`description` is JSON, of `tiering.description`."""


class RestoreTopicRequest(ApiMessage, metaclass=OwnSchemas):
    """A topic of the given id is made of what the tier holds of that id; one leader epoch per partition."""


class RestoreTopicResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class CreateTenantRequest(ApiMessage, metaclass=OwnSchemas):
    """Not Apache Kafka's, as all up to AlterCell: for operators. `cell` null lets the controller choose."""


class CreateTenantResponse(ApiMessage, metaclass=OwnSchemas):
    """`tenant_id` and `cell` are empty after an error."""


class DescribeTenantsRequest(ApiMessage, metaclass=OwnSchemas):
    """By id or name; null is all."""


class DescribeTenantsResponse(ApiMessage, metaclass=OwnSchemas):
    """In order of names. `partitions_to_move` are those that are not wholly in the cell where the tenant is going."""


class AlterTenantRequest(ApiMessage, metaclass=OwnSchemas):
    """`tenant` is an id or a name. A limit of -1 goes back to the default; null leaves the networks as they are."""


class AlterTenantResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class DeleteTenantRequest(ApiMessage, metaclass=OwnSchemas):
    """Answered when nobody of the tenant may log in any more; what it has goes in steps after that."""


class DeleteTenantResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class MoveTenantRequest(ApiMessage, metaclass=OwnSchemas):
    """`cell` null lets the controller choose. Answered when the move is committed, not when it has ended."""


class MoveTenantResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class CreateApiKeyRequest(ApiMessage, metaclass=OwnSchemas):
    """`key_id` null makes a key; else the one of that id gets new verifiers. The secret itself stays with who asks."""


class CreateApiKeyResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class DeleteApiKeyRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class DeleteApiKeyResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class DescribeApiKeysRequest(ApiMessage, metaclass=OwnSchemas):
    """Of one tenant, by id or name, or of all (null); `keys` narrows it to these."""


class DescribeApiKeysResponse(ApiMessage, metaclass=OwnSchemas):
    """`mechanisms` for which the key has a verifier: none after a rebuild."""


class DescribeCellsRequest(ApiMessage, metaclass=OwnSchemas):
    """Null is all."""


class DescribeCellsResponse(ApiMessage, metaclass=OwnSchemas):
    """`full_reason` says why a cell takes no more tenants, null while it does."""


class AlterCellRequest(ApiMessage, metaclass=OwnSchemas):
    """`open`: 1 or 0, -1 leaves it. A limit of -1 goes back to the default."""


class AlterCellResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class TenantGroupsClearedRequest(ApiMessage, metaclass=OwnSchemas):
    """A broker tells the controller that it removed the groups of tenants from these partitions of their topic."""


class TenantGroupsClearedResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class UnregisterBrokerRequest(ApiMessage, metaclass=OwnSchemas):
    pass


class UnregisterBrokerResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class TenantKeysReadyRequest(ApiMessage, metaclass=OwnSchemas):
    """A broker tells the controller what it has done for tenants whose keys move, in partitions that it leads. `phase`
    is a KeysPhase: in CLEARING, none of their keys is there; in COPYING, all have been handed over."""


class TenantKeysReadyResponse(ApiMessage, metaclass=OwnSchemas):
    pass


class ImportKeysRequest(ApiMessage, metaclass=OwnSchemas):
    """Records of a tenant's groups, from the broker that kept them to the one that is to keep them."""


class ImportKeysResponse(ApiMessage, metaclass=OwnSchemas):
    pass
