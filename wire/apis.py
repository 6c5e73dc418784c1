"""The declaration of every API: key, versions, listeners, or the reason why it is not served. One row each.

Dispatch, ApiVersions, the codecs and README's table of unserved APIs follow this table. Two more tables have a row for
each API, and name what this room must not import: `broker.apis` has handler, gate and tenants' fields,
`kraft.controller.decisions` the controller's decisions.

Versions are the stable ones of Apache Kafka 4.2.0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from struct import Struct
from typing import Any

from common.errors import ErrorCode
from wire import messages
from wire.listeners import ListenerKind
from wire.primitives import INT32
from wire.unserved import (
    CONSUMER_GROUPS,
    KAFKA_QUORUM,
    LOG_DIRS,
    SHARE_GROUPS,
    STREAMS_GROUPS,
    Unserved,
)

Listeners = frozenset[ListenerKind]

EVERYONE: Listeners = frozenset(ListenerKind)
CLIENTS: Listeners = frozenset({ListenerKind.OPERATOR, ListenerKind.TENANT})
NODES: Listeners = frozenset({ListenerKind.INTERNAL})
OPERATORS: Listeners = frozenset({ListenerKind.OPERATOR, ListenerKind.INTERNAL})

_UNSUPPORTED = Struct(">ihihhh")  # correlation, error, one range: key, min, max
_NEVER = 1 << 15


class ApiKey(IntEnum):
    """Every API of Apache Kafka 4.2 and of Tidelog: key, listeners that serve it, first and last version; or key and
    the unserved feature that it belongs to."""

    listeners: Listeners
    min_version: int
    max_version: int
    announced_min: int
    """The first version in ApiVersions; `min_version` except for Produce."""
    unserved: Unserved | None

    def __new__(
        cls, key: int, where: Listeners | Unserved, low: int = 0, high: int = -1, announced: int | None = None
    ) -> ApiKey:
        member = int.__new__(cls, key)
        member._value_ = key
        member.unserved = where if isinstance(where, Unserved) else None
        member.listeners = frozenset() if isinstance(where, Unserved) else where
        member.min_version, member.max_version = low, high
        member.announced_min = low if announced is None else announced
        return member

    @property
    def api_name(self) -> str:
        """Apache Kafka's spelling, such as CreateTopics."""
        return self.name.title().replace("_", "")

    PRODUCE = 0, EVERYONE, 3, 13, 0  # announced from 0: librdkafka takes a broker without Produce 0 for one without any
    FETCH = 1, EVERYONE, 4, 18  # its handler refuses a replica's fetch outside internal listeners
    LIST_OFFSETS = 2, EVERYONE, 1, 11
    METADATA = 3, EVERYONE, 0, 13
    OFFSET_COMMIT = 8, EVERYONE, 2, 10
    OFFSET_FETCH = 9, EVERYONE, 1, 10
    FIND_COORDINATOR = 10, EVERYONE, 0, 6
    JOIN_GROUP = 11, EVERYONE, 0, 9
    HEARTBEAT = 12, EVERYONE, 0, 4
    LEAVE_GROUP = 13, EVERYONE, 0, 5
    SYNC_GROUP = 14, EVERYONE, 0, 5
    DESCRIBE_GROUPS = 15, EVERYONE, 0, 6
    LIST_GROUPS = 16, EVERYONE, 0, 5
    SASL_HANDSHAKE = 17, CLIENTS, 0, 1
    API_VERSIONS = 18, EVERYONE, 0, 4
    CREATE_TOPICS = 19, EVERYONE, 2, 7
    DELETE_TOPICS = 20, EVERYONE, 1, 6
    DELETE_RECORDS = 21, EVERYONE, 0, 2
    INIT_PRODUCER_ID = 22, EVERYONE, 0, 5  # v6 (KIP-939) is unstable in Apache Kafka 4.2
    OFFSET_FOR_LEADER_EPOCH = 23, EVERYONE, 2, 4
    ADD_PARTITIONS_TO_TXN = 24, EVERYONE, 0, 5
    ADD_OFFSETS_TO_TXN = 25, EVERYONE, 0, 4
    END_TXN = 26, EVERYONE, 0, 5
    WRITE_TXN_MARKERS = 27, OPERATORS, 1, 2
    TXN_OFFSET_COMMIT = 28, EVERYONE, 0, 5
    DESCRIBE_ACLS = 29, EVERYONE, 1, 3
    CREATE_ACLS = 30, EVERYONE, 1, 3
    DELETE_ACLS = 31, EVERYONE, 1, 3
    DESCRIBE_CONFIGS = 32, EVERYONE, 1, 4
    ALTER_CONFIGS = 33, EVERYONE, 0, 2
    ALTER_REPLICA_LOG_DIRS = 34, OPERATORS, 1, 2
    DESCRIBE_LOG_DIRS = 35, EVERYONE, 1, 4  # v5 is newer than Apache Kafka 4.2
    SASL_AUTHENTICATE = 36, CLIENTS, 0, 2
    CREATE_PARTITIONS = 37, EVERYONE, 0, 3
    CREATE_DELEGATION_TOKEN = 38, EVERYONE, 1, 3
    RENEW_DELEGATION_TOKEN = 39, EVERYONE, 1, 2
    EXPIRE_DELEGATION_TOKEN = 40, EVERYONE, 1, 2
    DESCRIBE_DELEGATION_TOKEN = 41, EVERYONE, 1, 3
    DELETE_GROUPS = 42, EVERYONE, 0, 2
    ELECT_LEADERS = 43, OPERATORS, 0, 2
    INCREMENTAL_ALTER_CONFIGS = 44, EVERYONE, 0, 1
    ALTER_PARTITION_REASSIGNMENTS = 45, OPERATORS, 0, 1
    LIST_PARTITION_REASSIGNMENTS = 46, OPERATORS, 0, 0
    OFFSET_DELETE = 47, EVERYONE, 0, 0
    DESCRIBE_CLIENT_QUOTAS = 48, EVERYONE, 0, 1
    ALTER_CLIENT_QUOTAS = 49, EVERYONE, 0, 1
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50, OPERATORS, 0, 0
    ALTER_USER_SCRAM_CREDENTIALS = 51, OPERATORS, 0, 0
    VOTE = 52, KAFKA_QUORUM
    BEGIN_QUORUM_EPOCH = 53, KAFKA_QUORUM
    END_QUORUM_EPOCH = 54, KAFKA_QUORUM
    DESCRIBE_QUORUM = 55, OPERATORS, 0, 2
    ALTER_PARTITION = 56, NODES, 2, 3
    UPDATE_FEATURES = 57, OPERATORS, 0, 2
    ENVELOPE = 58, NODES, 0, 0
    FETCH_SNAPSHOT = 59, NODES, 0, 1
    DESCRIBE_CLUSTER = 60, EVERYONE, 0, 2
    DESCRIBE_PRODUCERS = 61, EVERYONE, 0, 0
    BROKER_REGISTRATION = 62, NODES, 0, 4
    BROKER_HEARTBEAT = 63, NODES, 0, 1
    UNREGISTER_BROKER = 64, OPERATORS, 0, 0
    DESCRIBE_TRANSACTIONS = 65, EVERYONE, 0, 0
    LIST_TRANSACTIONS = 66, EVERYONE, 0, 2
    ALLOCATE_PRODUCER_IDS = 67, NODES, 0, 0
    CONSUMER_GROUP_HEARTBEAT = 68, CONSUMER_GROUPS
    CONSUMER_GROUP_DESCRIBE = 69, CONSUMER_GROUPS
    CONTROLLER_REGISTRATION = 70, KAFKA_QUORUM
    GET_TELEMETRY_SUBSCRIPTIONS = 71, CLIENTS, 0, 0
    PUSH_TELEMETRY = 72, CLIENTS, 0, 0
    ASSIGN_REPLICAS_TO_DIRS = 73, LOG_DIRS
    LIST_CONFIG_RESOURCES = 74, EVERYONE, 0, 1
    DESCRIBE_TOPIC_PARTITIONS = 75, EVERYONE, 0, 0
    SHARE_GROUP_HEARTBEAT = 76, SHARE_GROUPS
    SHARE_GROUP_DESCRIBE = 77, SHARE_GROUPS
    SHARE_FETCH = 78, SHARE_GROUPS
    SHARE_ACKNOWLEDGE = 79, SHARE_GROUPS
    ADD_RAFT_VOTER = 80, KAFKA_QUORUM
    REMOVE_RAFT_VOTER = 81, KAFKA_QUORUM
    UPDATE_RAFT_VOTER = 82, KAFKA_QUORUM
    INITIALIZE_SHARE_GROUP_STATE = 83, SHARE_GROUPS
    READ_SHARE_GROUP_STATE = 84, SHARE_GROUPS
    WRITE_SHARE_GROUP_STATE = 85, SHARE_GROUPS
    DELETE_SHARE_GROUP_STATE = 86, SHARE_GROUPS
    READ_SHARE_GROUP_STATE_SUMMARY = 87, SHARE_GROUPS
    STREAMS_GROUP_HEARTBEAT = 88, STREAMS_GROUPS
    STREAMS_GROUP_DESCRIBE = 89, STREAMS_GROUPS
    DESCRIBE_SHARE_GROUP_OFFSETS = 90, SHARE_GROUPS
    ALTER_SHARE_GROUP_OFFSETS = 91, SHARE_GROUPS
    DELETE_SHARE_GROUP_OFFSETS = 92, SHARE_GROUPS
    TIER_STATE = 10000, NODES, 0, 0  # Tidelog's own keys from here on, far above Apache Kafka's
    DESCRIBE_TIER = 10001, OPERATORS, 0, 0
    RESTORE_TOPIC = 10002, OPERATORS, 0, 0
    APPEND_AUDIT = 10003, NODES, 0, 0
    CREATE_TENANT = 10004, OPERATORS, 0, 0
    DESCRIBE_TENANTS = 10005, OPERATORS, 0, 0
    ALTER_TENANT = 10006, OPERATORS, 0, 0
    DELETE_TENANT = 10007, OPERATORS, 0, 0
    MOVE_TENANT = 10008, OPERATORS, 0, 0
    CREATE_API_KEY = 10009, OPERATORS, 0, 0
    DELETE_API_KEY = 10010, OPERATORS, 0, 0
    DESCRIBE_API_KEYS = 10011, OPERATORS, 0, 0
    DESCRIBE_CELLS = 10012, OPERATORS, 0, 0
    ALTER_CELL = 10013, OPERATORS, 0, 0
    TENANT_GROUPS_CLEARED = 10014, NODES, 0, 0
    TENANT_KEYS_READY = 10015, NODES, 0, 0
    IMPORT_KEYS = 10016, NODES, 0, 0
    REPORT_USAGE = 10017, NODES, 0, 0
    DESCRIBE_USAGE = 10018, OPERATORS, 0, 0
    DESCRIBE_SHARES = 10019, OPERATORS, 0, 0
    ALTER_BROKER_HEALTH = 10021, OPERATORS, 0, 0
    DESCRIBE_BALANCE = 10022, OPERATORS, 0, 0
    PLAN_BALANCE = 10023, OPERATORS, 0, 0
    ALTER_BALANCE = 10024, OPERATORS, 0, 0
    LIST_BALANCE_MOVES = 10025, OPERATORS, 0, 0
    DESCRIBE_TRANSACTION_CLIENTS = 10026, OPERATORS, 0, 0


@dataclass(frozen=True, slots=True)
class Api:
    """A served API with its messages. `kinds`: the listeners that serve it. From version `flexible_from` on, strings
    and arrays are compact and tagged fields exist."""

    key: ApiKey
    name: str
    min_version: int
    max_version: int
    announced_min: int
    flexible_from: int
    kinds: Listeners
    request: Any
    response: Any


@dataclass(frozen=True, slots=True)
class Features:
    """Feature levels for ApiVersions: `finalized` at `epoch` (-1: not known yet), `supported` as (min, max)."""

    epoch: int
    finalized: Mapping[str, int]
    supported: Mapping[str, tuple[int, int]]


def _api(key: ApiKey) -> Api:
    name, low, high = key.api_name, key.min_version, key.max_version
    request, response = getattr(messages, name + "Request"), getattr(messages, name + "Response")
    flexible = next((version for version in range(low, high + 1) if request.flexible_version_q(version)), _NEVER)
    return Api(key, name, low, high, key.announced_min, flexible, key.listeners, request, response)


APIS: Mapping[int, Api] = {int(key): _api(key) for key in sorted(ApiKey) if key.unserved is None}


def served(kind: ListenerKind, api_key: int, version: int) -> Api | None:
    """The API if listeners of `kind` serve this version; on None the connection is closed."""
    api = APIS.get(api_key)
    if api is None or kind not in api.kinds or not api.min_version <= version <= api.max_version:
        return None
    return api


def api_versions(
    kind: ListenerKind, version: int, features: Features, throttle_ms: int = 0
) -> messages.ApiVersionsResponse:
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
    api = APIS[ApiKey.API_VERSIONS]
    body = _UNSUPPORTED.pack(correlation, ErrorCode.UNSUPPORTED_VERSION, 1, api.key, api.announced_min, api.max_version)
    return INT32.pack(len(body)) + body
