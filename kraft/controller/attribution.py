"""Writes the requesting client into the records of a decision, for the audit. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from common.decision import Decision
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.controller.driver import Decided
from kraft.fleet_records import BalanceOperationRecord, ClientQuotaRecord, RemoveClientQuotaRecord
from kraft.image.metadata import MetadataImage
from kraft.records import (
    AclRecord,
    ApiKeyRecord,
    BrokerRegistrationChangeRecord,
    CellRecord,
    ConfigRecord,
    FeatureLevelRecord,
    KeyRangeRecord,
    PartitionChangeRecord,
    PartitionRecord,
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
from records.audit_event import client_actor

R = TypeVar("R")

_SIGN_COST = 2
_ATTRIBUTED = (
    AclRecord
    | ApiKeyRecord
    | BalanceOperationRecord
    | BrokerRegistrationChangeRecord
    | CellRecord
    | ClientQuotaRecord
    | ConfigRecord
    | FeatureLevelRecord
    | KeyRangeRecord
    | PartitionChangeRecord
    | PartitionRecord
    | RemoveAclRecord
    | RemoveApiKeyRecord
    | RemoveClientQuotaRecord
    | RemoveScramCredentialRecord
    | RemoveTenantRecord
    | RemoveTopicRecord
    | ScramCredentialRecord
    | TenantRecord
    | TopicRecord
    | UnregisterBrokerRecord
)


def actor_of(principal: bytes, client_host: bytes) -> str:
    """The actor of a forwarded request."""
    return client_actor(principal.decode(errors="replace"), client_host.decode(errors="replace"))


def attributed(decide: Callable[[MetadataImage], Decided[R]], actor: str) -> Callable[[MetadataImage], Decided[R]]:
    """`decide`, with `actor` set in all records that have the field."""

    def decide_for(image: MetadataImage) -> Decided[R]:
        decision = decide(image)
        return _attributed(decision, actor) if isinstance(decision, Decision) else _attributing(decision, actor)

    return decide_for


def _attributing(work: Work[Decision[MetadataRecord, R]], actor: str) -> Work[Decision[MetadataRecord, R]]:
    decision = yield from work
    signed: list[MetadataRecord] = []
    for record in decision.records:
        signed.append(_signed(record, actor))
        yield _SIGN_COST
    return Decision(decision.reply, signed, decision.again)


def _attributed(decision: Decision[MetadataRecord, R], actor: str) -> Decision[MetadataRecord, R]:
    if not decision.records:
        return decision
    return Decision(decision.reply, [_signed(record, actor) for record in decision.records], decision.again)


def _signed(record: MetadataRecord, actor: str) -> MetadataRecord:
    return msgspec.structs.replace(record, actor=actor) if isinstance(record, _ATTRIBUTED) else record
