"""Metadata records, each with a number of its own.

A record is one msgpack array that begins with its type number. Evolution: fields are only ever appended, with a
default, and used only if `metadata.version` allows it, or `tidelog.version` for records that Apache Kafka does not
have. An older reader skips unknown fields at a record's end.

Random values and times (ids, timestamps) are in the records: replay only applies them.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from common.identifiers import ZERO_UUID

METADATA_TOPIC = "__cluster_metadata"
NO_LEADER = -1

PIECE_RECORDS_MAX = 1_000
PIECE_BYTES_MAX = 64 * 1024
"""Limits of the pieces into which a decision over many partitions is divided. Each piece is its own batch, so that
encoding, committing, replaying and serving it takes milliseconds. A piece exceeds the byte limit by at most its last
record."""


class Cause(IntEnum):
    """Why a partition or a broker changed; the metadata log is the audit of such changes."""

    UNSPECIFIED = 0
    TOPIC_CREATED = 1
    PARTITIONS_ADDED = 2
    ISR_CHANGE_BY_LEADER = 3
    BROKER_FENCED = 4
    BROKER_UNFENCED = 5
    CONTROLLED_SHUTDOWN = 6
    UNCLEAN_STOP = 7
    BROKER_UNREGISTERED = 8
    PREFERRED_LEADER = 9
    ELECTED_FROM_ISR = 10
    ELECTED_FROM_ELR = 11
    ELECTED_LAST_KNOWN_LEADER = 12
    UNCLEAN_ELECTION = 13
    MIN_ISR_CHANGED = 14
    REASSIGNMENT_STARTED = 15
    REASSIGNMENT_COMPLETED = 16
    REASSIGNMENT_CANCELLED = 17
    SESSION_EXPIRED = 18
    CONNECTION_LOST = 19
    REGISTERED = 20
    BROKER_REQUEST = 21
    REQUESTED_ELECTION = 22
    FIRST_LEADER = 23
    NO_ROOM = 24
    ROOM_IS_BACK = 25
    NO_CLIENT_TRAFFIC = 26
    SLOWER_THAN_PEERS = 27
    STORAGE_STUCK = 28
    HEALTH_CHANGED_BY_OPERATOR = 29
    BALANCE_MOVE = 30
    BROKER_FILLING = 31
    BROKER_DRAINING = 32
    BALANCE_CANCELLED = 33
    HEALTH_IS_BACK = 40


class RecordBase(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common shape of all records: immutable, compact arrays on disk.

    `actor`, in records that have it: the client that requested the change (`principal@address`), for the audit; "" for
    the controller's own changes, and in snapshots.
    """


class ClusterRecord(RecordBase, tag=1, frozen=True, array_like=True, gc=False):
    """Written once, by the first active controller. `cluster_id`: Kafka's text form of a uuid. `incarnation`: how often
    the cluster was rebuilt from its object store, starting at 1."""

    cluster_id: str
    incarnation: int = 1


class FeatureLevelRecord(RecordBase, tag=2, frozen=True, array_like=True, gc=False):
    """`level` 0 removes the feature."""

    name: str
    level: int
    actor: str = ""


class NoOpRecord(RecordBase, tag=3, frozen=True, array_like=True, gc=False):
    """A barrier: a node that has applied it has applied everything before."""


class LeaderChangeRecord(RecordBase, tag=4, frozen=True, array_like=True, gc=False):
    """The only record of a LEADER_CHANGE batch: from its offset on, `leader_id` is the controller of `epoch`."""

    leader_id: int
    epoch: int


class Endpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The address of a broker on one listener. `security_protocol`: Kafka's number (0 is PLAINTEXT)."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class HealthState(IntEnum):
    """The controller's treatment of a broker. DEMOTED: it leads nothing that another broker can lead, and stays in
    ISRs. SLOW: it also leaves the ISRs that can commit without it, and goes on replicating. STORAGE: it fenced itself
    because its disk did not answer."""

    HEALTHY = 0
    DEMOTED = 1
    SLOW = 2
    STORAGE = 3


class Health(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A broker's state, why and since when (wall time) it is in it, and what was seen, for operators."""

    state: HealthState = HealthState.HEALTHY
    cause: Cause = Cause.UNSPECIFIED
    since_ms: int = 0
    evidence: str = ""


HEALTHY = Health()


class RegisterBrokerRecord(RecordBase, tag=5, frozen=True, array_like=True):
    """A broker process (`incarnation`, 16 bytes) registered. Its broker epoch is this record's offset.

    `features`: (lowest, highest) supported level by name. `broker_epoch`: set only in snapshots, where the record has
    another offset. `start_id`: what the next process of the broker can show if it has lost nothing since, though this
    one did not live to learn its epoch; a zero uuid if it has none.
    """

    broker_id: int
    incarnation: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[bytes, ...] = ()
    features: dict[str, tuple[int, int]] = {}
    clean_stop: bool = True
    cell: str | None = None
    broker_epoch: int = -1
    lacks_room: bool = False
    health: Health = HEALTHY
    start_id: bytes = ZERO_UUID


class BrokerRegistrationChangeRecord(RecordBase, tag=6, frozen=True, array_like=True, gc=False):
    """`fenced`, `in_controlled_shutdown`, `lacks_room` and `health`: None leaves the value unchanged. `lost_data`: the
    broker may lack acknowledged records."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    cause: Cause = Cause.UNSPECIFIED
    lacks_room: bool | None = None
    lost_data: bool = False
    health: Health | None = None
    actor: str = ""


class UnregisterBrokerRecord(RecordBase, tag=7, frozen=True, array_like=True, gc=False):
    broker_id: int
    broker_epoch: int
    actor: str = ""


class TopicRecord(RecordBase, tag=8, frozen=True, array_like=True, gc=False):
    """`adopts_tier`: the topic was restored or rebuilt under the id of its objects in the tier, and its first leaders
    start with the bucket's data. `left_out`: what of its records was not restored, only for the audit."""

    name: str
    topic_id: bytes
    adopts_tier: bool = False
    actor: str = ""
    left_out: str = ""


class PartitionRecord(RecordBase, tag=9, frozen=True, array_like=True, gc=False):
    """A whole partition: at creation, and in snapshots."""

    topic_id: bytes
    partition: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    last_known_leader: int = NO_LEADER
    cause: Cause = Cause.UNSPECIFIED
    actor: str = ""


class PartitionChangeRecord(RecordBase, tag=10, frozen=True, array_like=True, gc=False):
    """Changes of one partition; None leaves a value unchanged. Each such record increments the partition epoch.

    A `leader` other than None, even the current one, increments the leader epoch.
    """

    topic_id: bytes
    partition: int
    isr: tuple[int, ...] | None = None
    leader: int | None = None
    replicas: tuple[int, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    last_known_elr: tuple[int, ...] | None = None
    last_known_leader: int | None = None
    cause: Cause = Cause.UNSPECIFIED
    actor: str = ""


class RemoveTopicRecord(RecordBase, tag=11, frozen=True, array_like=True, gc=False):
    """Removes the topic, its partitions and its configs. `name` is for the audit."""

    topic_id: bytes
    name: str = ""
    actor: str = ""


class ResourceType(IntEnum):
    """Kafka's numbers for the resources of configs."""

    TOPIC = 2
    BROKER = 4
    CLIENT_METRICS = 16  # from TELEMETRY_LEVEL on (`kraft.features`)


class ConfigRecord(RecordBase, tag=12, frozen=True, array_like=True, gc=False):
    """`value` None removes the override. A BROKER resource named "" is the cluster's default."""

    resource_type: ResourceType
    resource_name: str
    name: str
    value: str | None
    actor: str = ""


class ProducerIdsRecord(RecordBase, tag=13, frozen=True, array_like=True, gc=False):
    """All producer ids below `next_producer_id` are allocated; the last block belongs to this broker."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class ScramMechanism(IntEnum):
    """Kafka's numbers (KIP-554)."""

    SHA_256 = 1
    SHA_512 = 2


class AclResource(IntEnum):
    """Kafka's ResourceType of ACLs; its ANY (1) occurs only in filters."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """Kafka's PatternType; its ANY (1) and MATCH (2) occur only in filters."""

    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's numbers; its ANY (1) occurs only in filters."""

    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(IntEnum):
    """Kafka's AclPermissionType; its ANY (1) occurs only in filters."""

    DENY = 2
    ALLOW = 3


class ScramCredentialRecord(RecordBase, tag=14, frozen=True, array_like=True, gc=False):
    """A verifier (RFC 5802) for the user `name`, which for an API key is the key's id; a later record replaces it.

    It never has the password. `repr` shows no part of the verifier.
    """

    name: str
    mechanism: ScramMechanism
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int
    actor: str = ""

    def __repr__(self) -> str:
        return f"ScramCredentialRecord({self.name!r}, {self.mechanism.name}, iterations={self.iterations})"


class RemoveScramCredentialRecord(RecordBase, tag=15, frozen=True, array_like=True, gc=False):
    name: str
    mechanism: ScramMechanism
    actor: str = ""


class AclRecord(RecordBase, tag=16, frozen=True, array_like=True, gc=False):
    """One ACL binding under a random `id` of 16 bytes. `principal` is `Type:name`, `host` an address or `*`."""

    id: bytes
    resource_type: AclResource
    resource_name: str
    pattern_type: AclPattern
    principal: str
    host: str
    operation: AclOperation
    permission: AclPermission
    actor: str = ""


class RemoveAclRecord(RecordBase, tag=17, frozen=True, array_like=True, gc=False):
    id: bytes
    actor: str = ""


class TenantState(IntEnum):
    """The state of a tenant. MOVING: its partitions move to `target_cell`, and new ones are created there. DELETING: no
    client may log in, and everything of it is being removed."""

    ACTIVE = 0
    MOVING = 1
    DELETING = 2


class KeysPhase(IntEnum):
    """Progress of the move of a tenant's keys to another cell's ranges: its transactional ids first (IDS_…), then its
    groups. (IDS_)CLEARING: the old range serves them, and leftovers in the new range are removed. DRAINING: no
    transaction begins to send offsets to a group, until none has any. HOLDING: no transaction begins, until none has
    offsets of a group. (IDS_)COPYING: no broker serves them, while each partition's leader hands them over."""

    SETTLED = 0
    CLEARING = 1
    COPYING = 2
    IDS_CLEARING = 3
    IDS_COPYING = 4
    DRAINING = 5
    HOLDING = 6


class TenantRecord(RecordBase, tag=18, frozen=True, array_like=True):
    """A complete tenant; a later record with the same `id` replaces it. The names of its resources begin with `<id>_`.

    `limits` by name (see `kraft.image.tenants`); missing ones have the settings' defaults. Networks are CIDR text; an
    empty `allow_networks` allows all. `epoch` grows with each record of the tenant. `keys_cell`: the cell whose range
    of `__consumer_offsets` holds its groups, `ids_cell`: whose range of `__transaction_state` holds its transactional
    ids; None stands for the first range. `keys_target`: the cell to which one of the two moves, None in SETTLED.
    `keys_epoch`: number of such moves.
    """

    id: str
    name: str
    cell: str
    created_ms: int
    limits: dict[str, int] = {}
    allow_networks: tuple[str, ...] = ()
    deny_networks: tuple[str, ...] = ()
    epoch: int = 0
    state: TenantState = TenantState.ACTIVE
    target_cell: str | None = None
    actor: str = ""
    keys_cell: str | None = None
    keys_target: str | None = None
    keys_phase: KeysPhase = KeysPhase.SETTLED
    keys_epoch: int = 0
    ids_cell: str | None = None


class RemoveTenantRecord(RecordBase, tag=19, frozen=True, array_like=True, gc=False):
    """Removes only the tenant: its resources were removed before."""

    id: str
    actor: str = ""


class ApiKeyRecord(RecordBase, tag=20, frozen=True, array_like=True, gc=False):
    """An API key of a tenant; a later record with the same `id` replaces it. Its verifiers are SCRAM credentials of the
    user `id`; its `roles` (`admin`, `read:<prefix>`, `write:<prefix>`) were translated into ACLs when it was
    created."""

    id: str
    tenant: str
    description: str
    roles: tuple[str, ...]
    created_ms: int
    actor: str = ""


class RemoveApiKeyRecord(RecordBase, tag=21, frozen=True, array_like=True, gc=False):
    """Removes only the key: its verifiers and ACLs have their own records in the same batch."""

    id: str
    actor: str = ""


class CellRecord(RecordBase, tag=22, frozen=True, array_like=True):
    """An operator's settings of a cell; brokers name their cell themselves (`tidelog.cell`).

    A cell that is not `is_open` accepts no new tenants. `limits` by name (see `kraft.image.cells`).
    """

    name: str
    is_open: bool = True
    limits: dict[str, int] = {}
    actor: str = ""


class KeyRangeRecord(RecordBase, tag=23, frozen=True, array_like=True, gc=False):
    """A cell holds its tenants' keys in `count` partitions of an internal topic from `first` on, which is where the
    range before it ends. The first range also holds the operators' keys. A range never changes."""

    topic_id: bytes
    cell: str
    first: int
    count: int
    actor: str = ""
