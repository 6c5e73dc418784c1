"""Images of credentials, ACLs, tenants, keys and cells: indexes agree with what they index, snapshots give all back,
deltas name what changed, and no verifier is shown."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from common.pacing import at_once
from kraft.batches import Batch, BatchHeader, MetadataRecord, decode_batch, encode_batch
from kraft.image.acls import WILDCARD, AclImage, AclsImage
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.sharded_map import ShardedMap
from kraft.image.snapshot import decode_snapshot, encode_snapshot, snapshot_records
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
from tests.common.kept_memory import kept_bytes

NAMES = ["a", "ab", "abc", "b", "*", "lkc-aaaaaa_a", "lkc-aaaaaa_", "lkc-bbbbbb_a", "kafka-cluster"]
SECRETS = (b"the-salt", b"the-stored-key", b"the-server-key")


def acl_records() -> st.SearchStrategy[AclRecord]:
    return st.builds(
        AclRecord,
        st.integers(0, 20).map(lambda number: bytes([number] * 16)),
        st.sampled_from(list(AclResource)),
        st.sampled_from(NAMES),
        st.sampled_from(list(AclPattern)),
        st.sampled_from(["User:a", "User:*", "User:lkc-aaaaaa_TKA", "User:lkc-bbbbbb_TKB"]),
        st.just(WILDCARD),
        st.sampled_from([AclOperation.READ, AclOperation.ALL]),
        st.sampled_from(list(AclPermission)),
    )


def records() -> st.SearchStrategy[MetadataRecord]:
    numbers, mechanisms = st.integers(0, 5), st.sampled_from(list(ScramMechanism))
    users = st.sampled_from(["alice", "bob", "TKA"])
    ids = numbers.map(lambda number: f"lkc-{number:06}")
    keys = numbers.map(lambda number: f"TK{number:014}")
    tenants = ids.flatmap(
        lambda tenant: st.builds(
            TenantRecord,
            st.just(tenant),
            st.just(f"name-{tenant}"),
            st.sampled_from(["east", "west"]),
            st.just(7),
            st.dictionaries(st.just("partitions.max"), st.integers(0, 9)),
            st.just(("10.0.0.0/8",)),
            st.just(()),
            numbers,
            st.sampled_from(list(TenantState)),
            st.sampled_from([None, "west"]),
        )
    )
    return st.one_of(
        acl_records(),
        st.builds(RemoveAclRecord, numbers.map(lambda number: bytes([number] * 16))),
        st.builds(ScramCredentialRecord, users, mechanisms, *map(st.just, SECRETS), st.just(4096)),
        st.builds(RemoveScramCredentialRecord, users, mechanisms),
        tenants,
        st.builds(RemoveTenantRecord, ids),
        st.builds(ApiKeyRecord, keys, ids, st.just("d"), st.just(("admin",)), st.just(8)),
        st.builds(RemoveApiKeyRecord, keys),
        st.builds(CellRecord, st.sampled_from(["east", "west"]), st.booleans(), st.just({"tenants.max": 2})),
    )


def contents(image: MetadataImage) -> tuple[dict[Any, Any], ...]:
    """All that access is about, without the order in which it came."""
    return (
        {name: dict(found) for name, found in image.scram.items()},
        {acl.id: acl for acl in image.acls},
        dict(image.tenants),
        dict(image.keys),
        dict(image.cells),
    )


def matching(acls: AclsImage, resource: AclResource, name: str) -> set[bytes]:
    """By looking at every ACL."""

    def speaks(acl: AclImage) -> bool:
        if acl.pattern_type is AclPattern.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)

    return {acl.id for acl in acls if acl.resource_type is resource and speaks(acl)}


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(records(), max_size=8), max_size=8))
def test_indexes_agree_with_what_they_index_after_any_changes(batches: list[list[MetadataRecord]]) -> None:
    image = EMPTY_IMAGE
    for batch in batches:
        image = replayed(image, batch)
    for resource in AclResource:
        for name in (*NAMES, "abcd", "lkc-aaaaaa_abc", ""):
            found = [acl.id for acl in image.acls.matching(resource, name)]
            assert len(found) == len(set(found))
            assert set(found) == matching(image.acls, resource, name)
    for acl in image.acls:
        same = image.acls.find(acl)
        assert same is not None
        assert same.binding == acl.binding
    for owner in ("lkc-aaaaaa", "lkc-bbbbbb"):
        assert {acl.id for acl in image.acls.of_tenant(owner)} == {a.id for a in image.acls if a.owner == owner}
    for tenant_id, tenant in image.tenants.items():
        assert image.tenants.by_name(tenant.name) is tenant
        assert set(image.keys.of_tenant(tenant_id)) == {k.id for k in image.keys.values() if k.tenant == tenant_id}
    assert set(image.tenants.moving) == {t.id for t in image.tenants.values() if t.state is TenantState.MOVING}
    assert not any(not found for found in image.scram.values())


@settings(max_examples=100, deadline=None)
@given(st.lists(records(), max_size=20), st.lists(records(), max_size=20))
def test_a_delta_names_what_changed_and_a_snapshot_gives_all_back(
    before: list[MetadataRecord], after: list[MetadataRecord]
) -> None:
    old = replayed(EMPTY_IMAGE, before)
    delta = MetadataDelta(old)
    delta.replay_all(after)
    new = delta.image()
    restored = decode_snapshot(encode_snapshot(new))
    assert contents(restored) == contents(new)
    jumped = at_once(differing(old, restored))
    for of in (delta.access, jumped.access):
        changed: tuple[dict[Any, Any], ...] = (
            of.scram.changed,
            of.acls.changed,
            of.tenants.changed,
            of.keys.changed,
            of.cells.changed,
        )
        for named, was, now in zip(changed, contents(old), contents(new), strict=True):
            really = {key for key in (*was, *now) if was.get(key) != now.get(key)}
            assert really <= set(named)  # what was changed back may be named too
            assert all(named[key] == was.get(key) for key in named)
    assert set(jumped.access.acls.changed) == {
        key for key in (*contents(old)[1], *contents(new)[1]) if contents(old)[1].get(key) != contents(new)[1].get(key)
    }


@settings(max_examples=100, deadline=None)
@given(st.lists(st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.integers()), max_size=9), max_size=9))
def test_a_sharded_map_is_a_mapping_whose_past_does_not_change(changes: list[dict[str, int | None]]) -> None:
    expected: dict[str, int] = {}
    present: ShardedMap[str, int] = ShardedMap()
    past = []
    for change in changes:
        past.append((present, dict(expected)))
        present = present.changed(change)
        expected = {k: v for k, v in {**expected, **change}.items() if v is not None}
    past.append((present, expected))
    for found, known in past:
        assert dict(found) == known
        assert len(found) == len(known)
        assert all(key in found for key in known)
        assert "absent-key" not in found


def test_one_change_copies_a_small_part_of_many_acls() -> None:
    rng = random.Random(1)
    acls = AclsImage().changed(
        {
            (acl_id := rng.randbytes(16)): AclImage(
                acl_id,
                AclResource.TOPIC,
                f"topic-{number}",
                AclPattern.LITERAL,
                "User:a",
                WILDCARD,
                AclOperation.READ,
                AclPermission.ALLOW,
            )
            for number in range(5_000)
        }
    )
    gone = next(iter(acls))
    after, copied = kept_bytes(lambda: acls.changed({gone.id: None}))
    assert copied < 7_000, "one shard: a whole row takes 15,000 more"
    assert len(after) == len(acls) - 1
    assert acls.get(gone.id) is gone


def test_no_verifier_is_in_the_text_of_a_record_or_an_image() -> None:
    record = ScramCredentialRecord("alice", ScramMechanism.SHA_256, *SECRETS, 4096)
    image = replayed(EMPTY_IMAGE, [record])
    batch = Batch(BatchHeader(1, 1, 1, 0), [record])
    for shown in (repr(record), str(record), repr(batch), repr(image), repr(dict(image.scram["alice"]))):
        for secret in SECRETS:
            assert secret.decode() not in shown
    assert "alice" in repr(record)


def test_every_record_survives_its_bytes() -> None:
    image = replayed(
        EMPTY_IMAGE,
        [
            ScramCredentialRecord("alice", ScramMechanism.SHA_512, *SECRETS, 8192, actor="x"),
            TenantRecord("lkc-aaaaaa", "a", "east", 1, {"keys.max": 1}, ("::/0",), (), 3, TenantState.MOVING, "west"),
            ApiKeyRecord("TKA", "lkc-aaaaaa", "d", ("read:a",), 5),
            CellRecord("east", False, {"tenants.max": 1}),
        ],
    )
    kept = list(snapshot_records(image))
    batch = Batch(BatchHeader(1, 1, 1, 0), kept)
    assert decode_batch(encode_batch(batch)) == batch
