"""The one table of served APIs: key, versions, who may use them. ApiVersions is computed from it.

Ranges are those that Apache Kafka 4.1.1 offers unless it is told to offer unstable ones. Every schema that exists here
stands either in this table or in `wire.refusals`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any

from common.errors import ErrorCode
from wire import messages
from wire.listeners import ListenerKind
from wire.primitives import INT32

API_VERSIONS = 18
PRODUCE_ANNOUNCED_MIN = 0  # librdkafka takes a broker without Produce 0 for one without any

_EVERYONE = frozenset(ListenerKind)
_CLIENTS = frozenset({ListenerKind.OPERATOR, ListenerKind.TENANT})
_NODES = frozenset({ListenerKind.INTERNAL})
_OPERATORS = frozenset({ListenerKind.OPERATOR, ListenerKind.INTERNAL})
_UNSUPPORTED = Struct(">ihihhh")  # correlation, error, one range: key, min, max
_NEVER = 1 << 15


@dataclass(frozen=True, slots=True)
class Api:
    """`announced_min` differs from `min_version` for Produce alone. `kinds` are the listeners that serve it.

    From version `flexible_from` on, strings and arrays are compact and tagged fields exist.
    """

    key: int
    name: str
    min_version: int
    max_version: int
    announced_min: int
    flexible_from: int
    kinds: frozenset[ListenerKind]
    request: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Features:
    """Feature levels for ApiVersions: `finalized` at `epoch` (-1: not known yet), `supported` as (min, max)."""

    epoch: int
    finalized: Mapping[str, int]
    supported: Mapping[str, tuple[int, int]]


def _api(name: str, low: int, high: int, kinds: frozenset[ListenerKind], announced: int | None = None) -> Api:
    request, response = getattr(messages, name + "Request"), getattr(messages, name + "Response")
    flexible = next((version for version in range(low, high + 1) if request.flexible_version_q(version)), _NEVER)
    low_announced = low if announced is None else announced
    return Api(request.API_KEY, name, low, high, low_announced, flexible, kinds, request, response)


_TABLE = (
    _api("Produce", 3, 13, _EVERYONE, announced=PRODUCE_ANNOUNCED_MIN),
    _api("Fetch", 4, 18, _EVERYONE),  # a replica's fetch is refused outside internal listeners by its handler
    _api("ListOffsets", 1, 10, _EVERYONE),  # v11 (KIP-1023) is newer than Apache Kafka 4.1
    _api("Metadata", 0, 13, _EVERYONE),
    _api("OffsetCommit", 2, 9, _EVERYONE),  # v10, also of OffsetFetch, is unstable in Apache Kafka 4.1
    _api("OffsetFetch", 1, 9, _EVERYONE),
    _api("FindCoordinator", 0, 6, _EVERYONE),
    _api("JoinGroup", 0, 9, _EVERYONE),
    _api("Heartbeat", 0, 4, _EVERYONE),
    _api("LeaveGroup", 0, 5, _EVERYONE),
    _api("SyncGroup", 0, 5, _EVERYONE),
    _api("DescribeGroups", 0, 6, _EVERYONE),
    _api("ListGroups", 0, 5, _EVERYONE),
    _api("SaslHandshake", 0, 1, _CLIENTS),
    _api("ApiVersions", 0, 4, _EVERYONE),
    _api("CreateTopics", 2, 7, _EVERYONE),
    _api("DeleteTopics", 1, 6, _EVERYONE),
    _api("DeleteRecords", 0, 2, _EVERYONE),
    _api("InitProducerId", 0, 5, _EVERYONE),  # v6 (KIP-939) is unstable in Apache Kafka 4.1
    _api("OffsetForLeaderEpoch", 2, 4, _EVERYONE),
    _api("DescribeConfigs", 1, 4, _EVERYONE),
    _api("AlterConfigs", 0, 2, _EVERYONE),
    _api("DescribeLogDirs", 1, 4, _EVERYONE),  # v5 is newer than Apache Kafka 4.1
    _api("SaslAuthenticate", 0, 2, _CLIENTS),
    _api("CreatePartitions", 0, 3, _EVERYONE),
    _api("DeleteGroups", 0, 2, _EVERYONE),
    _api("ElectLeaders", 0, 2, _OPERATORS),
    _api("IncrementalAlterConfigs", 0, 1, _EVERYONE),
    _api("AlterPartitionReassignments", 0, 1, _OPERATORS),
    _api("ListPartitionReassignments", 0, 0, _OPERATORS),
    _api("OffsetDelete", 0, 0, _EVERYONE),
    _api("DescribeAcls", 1, 3, _EVERYONE),
    _api("CreateAcls", 1, 3, _EVERYONE),
    _api("DeleteAcls", 1, 3, _EVERYONE),
    _api("DescribeUserScramCredentials", 0, 0, _OPERATORS),
    _api("AlterUserScramCredentials", 0, 0, _OPERATORS),
    _api("DescribeCluster", 0, 2, _EVERYONE),
    _api("DescribeProducers", 0, 0, _EVERYONE),
    _api("DescribeTopicPartitions", 0, 0, _EVERYONE),
    _api("DescribeQuorum", 0, 2, _NODES),
    _api("AlterPartition", 2, 3, _NODES),
    _api("UpdateFeatures", 0, 2, _OPERATORS),
    _api("Envelope", 0, 0, _NODES),
    _api("FetchSnapshot", 0, 1, _NODES),
    _api("BrokerRegistration", 0, 4, _NODES),
    _api("BrokerHeartbeat", 0, 1, _NODES),
    _api("UnregisterBroker", 0, 0, _OPERATORS),
    _api("AllocateProducerIds", 0, 0, _NODES),
    _api("TierState", 0, 0, _NODES),  # our own, as the next ones: their keys are far above Apache Kafka's
    _api("AppendAudit", 0, 0, _NODES),
    _api("DescribeTier", 0, 0, _OPERATORS),
    _api("RestoreTopic", 0, 0, _OPERATORS),
    _api("CreateTenant", 0, 0, _OPERATORS),
    _api("DescribeTenants", 0, 0, _OPERATORS),
    _api("AlterTenant", 0, 0, _OPERATORS),
    _api("DeleteTenant", 0, 0, _OPERATORS),
    _api("MoveTenant", 0, 0, _OPERATORS),
    _api("CreateApiKey", 0, 0, _OPERATORS),
    _api("DeleteApiKey", 0, 0, _OPERATORS),
    _api("DescribeApiKeys", 0, 0, _OPERATORS),
    _api("DescribeCells", 0, 0, _OPERATORS),
    _api("AlterCell", 0, 0, _OPERATORS),
    _api("TenantGroupsCleared", 0, 0, _NODES),
    _api("TenantKeysReady", 0, 0, _NODES),
    _api("ImportKeys", 0, 0, _NODES),
)

APIS: Mapping[int, Api] = {api.key: api for api in sorted(_TABLE, key=lambda api: api.key)}


def served(kind: ListenerKind, api_key: int, version: int) -> Api | None:
    """The API if listeners of `kind` serve it in this version, else None: close the connection."""
    api = APIS.get(api_key)
    if api is None or kind not in api.kinds or not api.min_version <= version <= api.max_version:
        return None
    return api


def api_versions(kind: ListenerKind, version: int, features: Features, throttle_ms: int = 0) -> Any:
    """ApiVersionsResponse for a listener of `kind`; `version` is the request's (a served one)."""
    response = messages.ApiVersionsResponse
    supported = sorted(features.supported.items())
    if version < 4:  # clients before v4 reject a feature whose lowest level is 0 (KIP-1022)
        supported = [(name, levels) for name, levels in supported if levels[0] > 0]
    known = features.epoch >= 0
    finalized = sorted(features.finalized.items()) if known else []
    return response(
        error_code=ErrorCode.NONE,
        api_keys=[
            response.ApiVersion(api_key=api.key, min_version=api.announced_min, max_version=api.max_version)
            for api in APIS.values()
            if kind in api.kinds
        ],
        throttle_time_ms=throttle_ms,
        supported_features=[
            response.SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in supported
        ],
        finalized_features_epoch=features.epoch if known else -1,
        finalized_features=[
            response.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in finalized
        ],
    )


def api_versions_unsupported(correlation: int) -> bytes:
    """The whole frame for an ApiVersions request of an unknown version: v0 form with the one range that helps."""
    api = APIS[API_VERSIONS]
    body = _UNSUPPORTED.pack(correlation, ErrorCode.UNSUPPORTED_VERSION, 1, api.key, api.announced_min, api.max_version)
    return INT32.pack(len(body)) + body
