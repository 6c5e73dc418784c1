"""Metadata records, and the batches of them that the quorum orders.

A batch is one msgpack array `[header, records]`; header and records are arrays themselves, and a record's first
element is its type number. Evolution: fields are only ever appended, with a default, and are used once
`metadata.version` allows it, or `tidelog.version` for what Apache Kafka has not. An older reader skips what it does not
know at a record's end; a type that it does not know makes the whole batch undecodable, which `decode_batch` reports as
None, on every node alike.

What is random or comes from a clock (ids, times) is in the records: replay only folds them.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

METADATA_TOPIC = "__cluster_metadata"
NO_LEADER = -1

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""The largest batch that may be proposed."""

PIECE_RECORDS_MAX = 1_000
PIECE_BYTES_MAX = 64 * 1024
"""What a decision over many partitions is cut into: each piece is a batch of its own, so that to encode, commit, replay
and serve one takes milliseconds. A piece passes the limit in bytes by at most its last record."""


class BatchKind(IntEnum):
    """What a batch is to the state machine, before its records are looked at."""

    RECORDS = 0
    LEADER_CHANGE = 1


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


class _Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common shape of all records: immutable, compact arrays on disk.

    `actor`, where a record has it, is who asked for the change (`principal@address`), for the audit; "" for what the
    controller does by itself, and in snapshots.
    """


class ClusterRecord(_Record, tag=1, frozen=True, array_like=True, gc=False):
    """Written once, by the first active controller. `cluster_id` is Kafka's text form of a uuid. `incarnation` counts
    how often the cluster of that id was rebuilt from its object store, from 1."""

    cluster_id: str
    incarnation: int = 1


class FeatureLevelRecord(_Record, tag=2, frozen=True, array_like=True, gc=False):
    """`level` 0 removes the feature."""

    name: str
    level: int
    actor: str = ""


class NoOpRecord(_Record, tag=3, frozen=True, array_like=True, gc=False):
    """A barrier: a node that has applied it has applied everything before."""


class LeaderChangeRecord(_Record, tag=4, frozen=True, array_like=True, gc=False):
    """The only record of a LEADER_CHANGE batch: from its offset on `leader_id` is the controller of `epoch`."""

    leader_id: int
    epoch: int


class Endpoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where clients of one listener find a broker. `security_protocol` is Kafka's number (0 is PLAINTEXT)."""

    name: str
    host: str
    port: int
    security_protocol: int = 0


class RegisterBrokerRecord(_Record, tag=5, frozen=True, array_like=True):
    """A broker process (`incarnation`, 16 bytes) came up. Its broker epoch is this record's offset.

    `features` maps a feature's name to the (lowest, highest) level that the broker supports. `broker_epoch` is given
    in snapshots only, where the record stands elsewhere.
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


class BrokerRegistrationChangeRecord(_Record, tag=6, frozen=True, array_like=True, gc=False):
    """`fenced`, `in_controlled_shutdown` and `lacks_room`: None leaves the value as it is. `lost_data`: the broker may
    lack what it had acknowledged."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    cause: Cause = Cause.UNSPECIFIED
    lacks_room: bool | None = None
    lost_data: bool = False


class UnregisterBrokerRecord(_Record, tag=7, frozen=True, array_like=True, gc=False):
    broker_id: int
    broker_epoch: int
    actor: str = ""


class TopicRecord(_Record, tag=8, frozen=True, array_like=True, gc=False):
    """`adopts_tier`: the topic was restored or rebuilt under the id that its objects in the tier have, and its first
    leaders begin with what the bucket holds of it. `left_out` says what of its records was not restored, for the audit
    alone."""

    name: str
    topic_id: bytes
    adopts_tier: bool = False
    actor: str = ""
    left_out: str = ""


class PartitionRecord(_Record, tag=9, frozen=True, array_like=True, gc=False):
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


class PartitionChangeRecord(_Record, tag=10, frozen=True, array_like=True, gc=False):
    """What changed in one partition; None leaves the value as it is. Each such record raises the partition epoch.

    A `leader` that is not None, even the present one, raises the leader epoch.
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


class RemoveTopicRecord(_Record, tag=11, frozen=True, array_like=True, gc=False):
    """The topic, its partitions and its configs go. `name` is for the audit."""

    topic_id: bytes
    name: str = ""
    actor: str = ""


class ResourceType(IntEnum):
    """Kafka's numbers for the resources of configs."""

    TOPIC = 2
    BROKER = 4


class ConfigRecord(_Record, tag=12, frozen=True, array_like=True, gc=False):
    """`value` None removes the override. A BROKER resource named "" is the default of the whole cluster."""

    resource_type: ResourceType
    resource_name: str
    name: str
    value: str | None
    actor: str = ""


class ProducerIdsRecord(_Record, tag=13, frozen=True, array_like=True, gc=False):
    """All producer ids below `next_producer_id` are given away; the block went to this broker."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class ScramMechanism(IntEnum):
    """Kafka's numbers (KIP-554)."""

    SHA_256 = 1
    SHA_512 = 2


class AclResource(IntEnum):
    """Kafka's ResourceType of ACLs; its ANY (1) stands in filters alone."""

    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(IntEnum):
    """Kafka's PatternType; its ANY (1) and MATCH (2) stand in filters alone."""

    LITERAL = 3
    PREFIXED = 4


class AclOperation(IntEnum):
    """Kafka's numbers; its ANY (1) stands in filters alone."""

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
    """Kafka's AclPermissionType; its ANY (1) stands in filters alone."""

    DENY = 2
    ALLOW = 3


class ScramCredentialRecord(_Record, tag=14, frozen=True, array_like=True, gc=False):
    """A verifier of RFC 5802 for the user `name`, which is a key's id for an API key; a later one replaces it.

    The password itself is never here. `repr` shows no part of the verifier.
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


class RemoveScramCredentialRecord(_Record, tag=15, frozen=True, array_like=True, gc=False):
    name: str
    mechanism: ScramMechanism
    actor: str = ""


class AclRecord(_Record, tag=16, frozen=True, array_like=True, gc=False):
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


class RemoveAclRecord(_Record, tag=17, frozen=True, array_like=True, gc=False):
    id: bytes
    actor: str = ""


class TenantState(IntEnum):
    """What is being done with a tenant. In MOVING its partitions go to `target_cell`, and new ones are made there;
    in DELETING no client may log in, and all that it has goes."""

    ACTIVE = 0
    MOVING = 1
    DELETING = 2


class KeysPhase(IntEnum):
    """How far a tenant's groups are on their way into the range of another cell. In CLEARING they are served where they
    are, and the range where they go is rid of what it may hold of them; in COPYING no broker serves them, while each
    partition's leader hands them over."""

    SETTLED = 0
    CLEARING = 1
    COPYING = 2


class TenantRecord(_Record, tag=18, frozen=True, array_like=True):
    """A whole tenant; a later record of the same `id` replaces it. The names of its resources begin with `<id>_`.

    `limits` by name (`kraft.image.tenants` has them); what it does not name is the default of the settings.
    Networks are CIDR text; an empty `allow_networks` allows all. `epoch` rises with each record of the tenant.
    `keys_cell` is the cell in whose range of the groups' topic its groups are kept; None stands for the first range.
    `keys_target` is the cell to which they go, None in SETTLED, and `keys_epoch` counts the times that they set out.
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


class RemoveTenantRecord(_Record, tag=19, frozen=True, array_like=True, gc=False):
    """The tenant and nothing else: what it had went before."""

    id: str
    actor: str = ""


class ApiKeyRecord(_Record, tag=20, frozen=True, array_like=True, gc=False):
    """An API key of a tenant; a later record of the same `id` replaces it. Its verifiers are SCRAM credentials of
    the user `id`, its `roles` (`admin`, `read:<prefix>`, `write:<prefix>`) were made into ACLs with it."""

    id: str
    tenant: str
    description: str
    roles: tuple[str, ...]
    created_ms: int
    actor: str = ""


class RemoveApiKeyRecord(_Record, tag=21, frozen=True, array_like=True, gc=False):
    """The key alone: its verifiers and ACLs have records of their own in the same batch."""

    id: str
    actor: str = ""


class CellRecord(_Record, tag=22, frozen=True, array_like=True):
    """What an operator says of a cell; which brokers are in it they say themselves (`tidelog.cell`).

    A cell that is not `is_open` takes no new tenants. `limits` by name (`kraft.image.cells` has them).
    """

    name: str
    is_open: bool = True
    limits: dict[str, int] = {}
    actor: str = ""


class KeyRangeRecord(_Record, tag=23, frozen=True, array_like=True, gc=False):
    """From now on a cell keeps its tenants' keys in `count` partitions of an internal topic, from `first` on, which is
    where the range before it ends. The first range keeps the operators' keys as well. No range ever changes."""

    topic_id: bytes
    cell: str
    first: int
    count: int
    actor: str = ""


MetadataRecord = (
    ClusterRecord
    | FeatureLevelRecord
    | NoOpRecord
    | LeaderChangeRecord
    | RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | RemoveTopicRecord
    | ConfigRecord
    | ProducerIdsRecord
    | ScramCredentialRecord
    | RemoveScramCredentialRecord
    | AclRecord
    | RemoveAclRecord
    | TenantRecord
    | RemoveTenantRecord
    | ApiKeyRecord
    | RemoveApiKeyRecord
    | CellRecord
    | KeyRangeRecord
)


class BatchHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Who wrote a batch, and where it belongs.

    `epoch` is the controller epoch (the Raft term), `sequence` counts the batches of that epoch, `base_offset` is the
    offset of the first record: a batch that finds another end of the log is not applied. `metadata_version` is the
    finalised level under which the records were decided, `timestamp_ms` wall time for the audit.
    """

    epoch: int
    leader_id: int
    sequence: int
    base_offset: int
    kind: BatchKind = BatchKind.RECORDS
    metadata_version: int = 0
    timestamp_ms: int = 0


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Records that become true together. The batch's end is `header.base_offset + len(records)`."""

    header: BatchHeader
    records: list[MetadataRecord]

    @property
    def end_offset(self) -> int:
        return self.header.base_offset + len(self.records)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def encode_batch(batch: Batch) -> bytes:
    """The form in which the quorum, the metadata log and the observers keep a batch."""
    return _encoder.encode(batch)


def decode_batch(data: bytes | bytearray | memoryview) -> Batch | None:
    """None for bytes that are no batch of this version's; never raises. An empty batch is none either."""
    try:
        batch = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    return batch if batch.records else None
