"""What the audit says of credentials, ACLs, tenants, keys and cells: what was before, what is after, and who asked."""

from __future__ import annotations

import typing
from typing import Any

import msgspec
import pytest

from kraft.audit.metadata_audit import MetadataAudit
from kraft.batches import Batch, BatchHeader, MetadataRecord
from kraft.controller.attribution import _ATTRIBUTED
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    ApiKeyRecord,
    CellRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    RemoveScramCredentialRecord,
    RemoveTenantRecord,
    ScramCredentialRecord,
    ScramMechanism,
    TenantRecord,
    TenantState,
)

ACL = AclRecord(b"i" * 16, AclResource.TOPIC, "t", AclPattern.LITERAL, "User:a", "*", AclOperation.READ,
                AclPermission.ALLOW, "User:root@10.0.0.1")  # fmt: skip
TENANT = TenantRecord("lkc-aaaaaa", "a", "east", 1)


def events(base: MetadataImage | None, *records: MetadataRecord) -> list[dict[str, Any]]:
    first = 0 if base is None else base.next_offset
    audit = MetadataAudit(first, base)
    found = audit.events(Batch(BatchHeader(3, 2, 1, first), list(records)))
    return [
        {"event": str(e.event), "before": e.before, "after": e.after, "actor": e.actor, "at": e.sequence} for e in found
    ]


def test_an_acl_is_told_whole_when_it_comes_and_when_it_goes() -> None:
    came, went = events(EMPTY_IMAGE, ACL, RemoveAclRecord(ACL.id))
    assert (came["event"], came["actor"]) == ("acl_created", "User:root@10.0.0.1")
    assert came["after"]["operation"] == "READ"
    assert (went["event"], went["actor"]) == ("acl_deleted", "controller-2")
    assert went["before"] == came["after"]
    (known,) = events(replayed(EMPTY_IMAGE, [ACL]), RemoveAclRecord(ACL.id))
    assert known["before"] == came["after"]
    (unknown,) = events(None, RemoveAclRecord(ACL.id))
    assert unknown["before"] == {"id": ACL.id.hex()}


def test_of_a_tenant_what_changed_is_told_and_nothing_else() -> None:
    moved = TenantRecord("lkc-aaaaaa", "a", "east", 1, epoch=1, state=TenantState.MOVING, target_cell="west")
    came, moving, gone = events(replayed(EMPTY_IMAGE, []), TENANT, moved, RemoveTenantRecord("lkc-aaaaaa"))
    assert came["before"] == {}
    assert came["after"]["cell"] == "east"
    assert moving["before"] == {"state": "ACTIVE", "target_cell": None}
    assert moving["after"] == {"id": "lkc-aaaaaa", "state": "MOVING", "target_cell": "west"}
    assert (gone["event"], gone["before"]) == ("tenant_deleted", {"id": "lkc-aaaaaa"})
    (again,) = events(replayed(EMPTY_IMAGE, [TENANT]), moved)
    assert again["before"] == moving["before"]


def test_keys_cells_and_credentials_are_told_by_name() -> None:
    told = events(
        EMPTY_IMAGE,
        ApiKeyRecord("TKA", "lkc-aaaaaa", "d", ("admin",), 1),
        RemoveApiKeyRecord("TKA"),
        CellRecord("east", is_open=True),
        CellRecord("east", is_open=False),
        ScramCredentialRecord("alice", ScramMechanism.SHA_256, b"1", b"2", b"3", 4096),
        RemoveScramCredentialRecord("alice", ScramMechanism.SHA_256),
    )
    assert [event["event"] for event in told] == [
        "api_key_changed",
        "api_key_revoked",
        "cell_changed",
        "cell_changed",
        "credential_changed",
        "credential_removed",
    ]
    assert told[3]["before"] == {"is_open": True}
    assert told[3]["after"] == {"name": "east", "is_open": False}
    assert told[4]["after"] == {"user": "alice", "mechanism": "SHA_256", "iterations": 4096}
    assert [event["at"] for event in told] == list(range(6))


@pytest.mark.parametrize("kind", typing.get_args(MetadataRecord), ids=lambda kind: kind.__name__)
def test_every_record_that_has_a_place_for_who_asked_names_them(kind: type[MetadataRecord]) -> None:
    names = [field.name for field in msgspec.structs.fields(kind)]
    assert issubclass(kind, _ATTRIBUTED) == ("actor" in names)
