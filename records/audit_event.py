"""One event of the audit: a change of consistency metadata, with cause and initiator, recorded before it takes effect.

Brokers' own acts, the metadata log and the tier's state share this form, in the internal topic `__audit` (JSON) and in
the object store (`tiering.exports.audit_reading`). An event is a durable intention. After a crash an event may have no
act, and an act may have two events, but no act lacks one. Kinds, causes and fields are only ever added; docs/audit.md
lists them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

EVENT_BYTES_MAX = 64 << 10  # encoded; the fields are bounded, so that no event comes near
ACTOR_CHARACTERS_MAX = 200


class AuditSource(StrEnum):
    """Where an event was recorded first."""

    BROKER = "broker"  # a broker's journal, then `__audit`
    METADATA = "metadata"  # the metadata log
    TIER = "tier"  # `__tier_state`


class AuditKind(StrEnum):
    """What changed."""

    # of one replica, reported by its broker
    LOG_START_MOVED = "log_start_moved"
    LOG_TRUNCATED = "log_truncated"
    LOG_STARTED_OVER = "log_started_over"
    SEGMENTS_DELETED = "segments_deleted"
    LOG_DELETED = "log_deleted"
    LOG_SET_ASIDE = "log_set_aside"
    UNCLEAN_START = "unclean_start"
    EVENTS_LOST = "events_lost"
    # of what tenants may use of one broker, reported by it
    PRESSURE_BEGAN = "pressure_began"
    PRESSURE_ENDED = "pressure_ended"
    SHARES_BEGAN = "shares_began"
    SHARES_ENDED = "shares_ended"
    # of the cluster, from the metadata log
    CLUSTER_FOUNDED = "cluster_founded"
    CONTROLLER_ELECTED = "controller_elected"
    FEATURE_CHANGED = "feature_changed"
    BROKER_REGISTERED = "broker_registered"
    BROKER_CHANGED = "broker_changed"
    BROKER_UNREGISTERED = "broker_unregistered"
    TOPIC_CREATED = "topic_created"
    TOPIC_DELETED = "topic_deleted"
    PARTITION_CREATED = "partition_created"
    LEADER_ELECTED = "leader_elected"
    ISR_CHANGED = "isr_changed"
    REPLICAS_CHANGED = "replicas_changed"
    CONFIG_CHANGED = "config_changed"
    PRODUCER_IDS_GIVEN = "producer_ids_given"
    CREDENTIAL_CHANGED = "credential_changed"
    CREDENTIAL_REMOVED = "credential_removed"
    ACL_CREATED = "acl_created"
    ACL_DELETED = "acl_deleted"
    TENANT_CHANGED = "tenant_changed"
    TENANT_DELETED = "tenant_deleted"
    API_KEY_CHANGED = "api_key_changed"
    API_KEY_REVOKED = "api_key_revoked"
    CELL_CHANGED = "cell_changed"
    KEY_RANGE_GIVEN = "key_range_given"
    CLIENT_QUOTA_CHANGED = "client_quota_changed"
    CLIENT_QUOTA_REMOVED = "client_quota_removed"
    BALANCE_OPERATION_CHANGED = "balance_operation_changed"
    BALANCE_MOVE_CHANGED = "balance_move_changed"
    # of the tier, from its state
    TIER_PARTITION_CHANGED = "tier_partition_changed"
    TIER_PARTITION_DELETED = "tier_partition_deleted"
    TIER_SEGMENT_CHANGED = "tier_segment_changed"
    TIER_SEGMENTS_SWAPPED = "tier_segments_swapped"


class AuditEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`before` and `after` hold the changed values under names that docs/audit.md gives for each kind, or are empty.

    `wall_ms` is the writer's clock. `node` is the broker or controller that wrote it. `incarnation` names its journal,
    the term of a metadata batch or the leader epoch of `__tier_state`; `sequence` counts within it (in logs it is the
    offset). (source, node, incarnation, sequence) identifies the event. `actor` is the initiator: `principal@address`
    of a client, `broker-<id>`, `controller-<id>`, or "" where only `cause` is known. `topic_id` is hexadecimal,
    `partition` is -1 without a partition, offsets are -1 where unknown.
    """

    event: str
    wall_ms: int
    source: str
    node: int
    incarnation: str
    sequence: int
    cause: str = ""
    actor: str = ""
    topic: str = ""
    topic_id: str = ""
    partition: int = -1
    leader_epoch: int = -1
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}

    @property
    def identity(self) -> tuple[str, int, str, int]:
        """Equal for copies of one event."""
        return (self.source, self.node, self.incarnation, self.sequence)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(AuditEvent)


def client_actor(principal: str, host: str) -> str:
    """`principal@address`, or the principal alone for a broker's own request; cut, as clients choose its length."""
    return (f"{principal}@{host}" if host else principal)[:ACTOR_CHARACTERS_MAX]


def encode_audit_event(event: AuditEvent) -> bytes:
    """One line of JSON without a newline."""
    return _encoder.encode(event)


def decode_audit_event(data: bytes | memoryview) -> AuditEvent:
    """Skips unknown fields. Raises ValueError for bytes that are no event."""
    return _decoder.decode(data)


def from_fields(fields: dict[str, Any]) -> AuditEvent:
    """An event from the fields of an export. Raises ValueError."""
    return msgspec.convert(fields, AuditEvent)


def to_fields(event: AuditEvent) -> dict[str, Any]:
    """The fields for an export, without those at their default."""
    fields: dict[str, Any] = msgspec.to_builtins(event)
    return fields
