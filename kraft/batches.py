"""Batches of metadata records, which the quorum orders and every node applies atomically.

A batch is one msgpack array `[header, records]`; header and records are arrays too. A record of an unknown type makes
the whole batch undecodable: `decode_batch` returns None, on every node alike.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from kraft.fleet_records import (
    BalanceMoveRecord,
    BalanceOperationRecord,
    ClientQuotaRecord,
    RemoveClientQuotaRecord,
)
from kraft.records import (
    AclRecord,
    ApiKeyRecord,
    BrokerRegistrationChangeRecord,
    CellRecord,
    ClusterRecord,
    ConfigRecord,
    FeatureLevelRecord,
    KeyRangeRecord,
    LeaderChangeRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    RemoveScramCredentialRecord,
    RemoveTenantRecord,
    RemoveTopicRecord,
    ScramCredentialRecord,
    TenantRecord,
    TopicRecord,
    UnregisterBrokerRecord,
)

BATCH_BYTES_MAX = 4 * 1024 * 1024
"""The largest batch that may be proposed."""


class BatchKind(IntEnum):
    """A batch's meaning to the state machine, apart from its records."""

    RECORDS = 0
    LEADER_CHANGE = 1


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
    | ClientQuotaRecord
    | RemoveClientQuotaRecord
    | BalanceOperationRecord
    | BalanceMoveRecord
)


class BatchHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The writer of a batch, and its position.

    `epoch`: controller epoch (the Raft term); `sequence`: number of the batch in that epoch; `base_offset`: offset of
    the first record; a batch is applied only if the log ends there. `metadata_version`: finalised level at the
    decision; `timestamp_ms`: wall time for the audit.
    """

    epoch: int
    leader_id: int
    sequence: int
    base_offset: int
    kind: BatchKind = BatchKind.RECORDS
    metadata_version: int = 0
    timestamp_ms: int = 0


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Records that are applied atomically. The batch's end is `header.base_offset + len(records)`."""

    header: BatchHeader
    records: list[MetadataRecord]

    @property
    def end_offset(self) -> int:
        return self.header.base_offset + len(self.records)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Batch)


def encode_batch(batch: Batch) -> bytes:
    """The form of a batch in the quorum, the metadata log and the observers."""
    return _encoder.encode(batch)


def decode_batch(data: bytes | bytearray | memoryview) -> Batch | None:
    """None if the bytes are not a batch of this version, or an empty one; never raises."""
    try:
        batch = _decoder.decode(data)
    except (msgspec.DecodeError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    return batch if batch.records else None
