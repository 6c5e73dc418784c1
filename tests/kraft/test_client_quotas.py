"""AlterClientQuotas as Apache Kafka decides it; quotas in the image, in snapshots, jumps, exports and the audit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import ErrorCode
from common.pacing import at_once
from kraft.audit.metadata_audit import MetadataAudit
from kraft.audit.metadata_export import metadata_events
from kraft.batches import Batch, BatchHeader, MetadataRecord, decode_batch, encode_batch
from kraft.controller.attribution import attributed
from kraft.controller.client_quotas import TENANT_ENTITIES_MAX, alter_client_quotas
from kraft.controller.tenant_deletion import deletion_step
from kraft.features import FLEET_LEVEL, TIDELOG_VERSION
from kraft.fleet_records import ClientQuotaRecord, RemoveClientQuotaRecord
from kraft.image.client_quotas import (
    CLIENT_ID,
    IP,
    MUTATION_RATE,
    OPERATORS,
    PRODUCER_BYTE_RATE,
    TENANT,
    TYPES,
    USER,
    ClientQuotasImage,
    entity_of,
    key_of,
)
from kraft.image.delta import MetadataDelta, replayed
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.snapshot import decode_snapshot, encode_snapshot
from kraft.rebuilding.rebuild import NamedBroker, Rebuilder
from kraft.records import FeatureLevelRecord, TenantRecord, TenantState
from wire.messages import AlterClientQuotasRequest

Entry = AlterClientQuotasRequest.EntryData
Names = Mapping[str, str | None]

LEVEL = replayed(EMPTY_IMAGE, [FeatureLevelRecord(TIDELOG_VERSION, FLEET_LEVEL)])
NONE, INVALID = int(ErrorCode.NONE), int(ErrorCode.INVALID_REQUEST)
TENANT_A, TENANT_B = "lkc-aaaaaa", "lkc-bbbbbb"


def entry(names: Names, **quotas: float | None) -> Entry:
    return Entry(
        entity=[Entry.EntityData(entity_type=kind, entity_name=name) for kind, name in names.items()],
        ops=[Entry.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()],
    )


Row = tuple[int, str | None]


def altered(image: MetadataImage, *entries: Entry, validate_only: bool = False) -> tuple[MetadataImage, list[Row]]:
    request = AlterClientQuotasRequest(entries=list(entries), validate_only=validate_only)
    decision = at_once(alter_client_quotas(image, request))
    return replayed(image, decision.records), [(row.error_code, row.error_message) for row in decision.reply.entries]


def refusal(names: Names, **quotas: float | None) -> Row:
    image, (row,) = altered(LEVEL, entry(names, **quotas))
    assert image.client_quotas.of(names) == {}
    return row


def test_quotas_are_set_changed_and_removed_by_key() -> None:
    alice = {USER: "alice"}
    image, rows = altered(LEVEL, entry(alice, producer_byte_rate=1024.0, request_percentage=12.5))
    assert rows == [(NONE, None)]
    assert image.client_quotas.of(alice) == {"producer_byte_rate": 1024.0, "request_percentage": 12.5}
    image, _ = altered(image, entry(alice, producer_byte_rate=None, consumer_byte_rate=2048.0))
    assert image.client_quotas.of(alice) == {"consumer_byte_rate": 2048.0, "request_percentage": 12.5}
    image, _ = altered(image, entry(alice, consumer_byte_rate=None, request_percentage=None))
    assert len(image.client_quotas) == 0 and image.client_quotas.of_tenant(OPERATORS) == ()


def test_what_changes_nothing_writes_nothing_and_a_check_alone_neither() -> None:
    image, _ = altered(LEVEL, entry({USER: None}, producer_byte_rate=5.0))
    for one in (entry({USER: None}, producer_byte_rate=5.0), entry({USER: "x"}, producer_byte_rate=None)):
        request = AlterClientQuotasRequest(entries=[one], validate_only=False)
        assert at_once(alter_client_quotas(image, request)).records == []
    same, rows = altered(image, entry({USER: "y"}, producer_byte_rate=7.0), validate_only=True)
    assert same is not None and rows == [(NONE, None)] and same.client_quotas.of({USER: "y"}) == {}


@pytest.mark.parametrize(("names", "quotas", "message"), [
    ({USER: "u"}, {"no_such": 1.0}, "Invalid configuration key no_such"),
    ({USER: "u"}, {"connection_creation_rate": 1.0}, "Invalid configuration key connection_creation_rate"),
    ({IP: "10.0.0.1"}, {"producer_byte_rate": 1.0}, "Invalid configuration key producer_byte_rate"),
    ({USER: "u"}, {"producer_byte_rate": 0.0}, "Quota producer_byte_rate must be greater than 0"),
    ({USER: "u"}, {"producer_byte_rate": -1.0}, "Quota producer_byte_rate must be greater than 0"),
    ({USER: "u"}, {"request_percentage": float("nan")}, "Quota request_percentage must be greater than 0"),
    ({USER: "u"}, {"request_percentage": float("inf")}, "Quota request_percentage must be finite"),
    ({USER: "u"}, {"producer_byte_rate": 1e19}, "Proposed value for producer_byte_rate is too large for a LONG."),
    ({USER: "u"}, {"consumer_byte_rate": 1.5}, "consumer_byte_rate cannot be a fractional value."),
    ({IP: "10.0.0.1"}, {"connection_creation_rate": 3e9},
     "Proposed value for connection_creation_rate is too large for an INT."),
    ({IP: "10.0.0.1", USER: "u"}, {"connection_creation_rate": 1.0},
     "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId"),
    ({IP: "no address"}, {"connection_creation_rate": 1.0}, "no address is not a valid IP or resolvable host."),
    ({USER: ""}, {"producer_byte_rate": 1.0}, "Empty user not supported"),
    ({"group": "g"}, {"producer_byte_rate": 1.0}, "Unhandled client quota entity type: group"),
    ({}, {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
    ({TENANT: TENANT_A}, {"producer_byte_rate": 1.0}, "Invalid empty client quota entity"),
    ({TENANT: None, USER: "u"}, {"producer_byte_rate": 1.0}, "A tenant has no default."),
    ({TENANT: TENANT_A, IP: None}, {"connection_creation_rate": 1.0},
     "Quotas of addresses are set by the operators."),
    ({USER: "u" * 1001}, {"producer_byte_rate": 1.0}, "The name of a user may have 1000 characters."),
])  # fmt: skip
def test_what_kafka_refuses_is_refused(names: Names, quotas: dict[str, float], message: str) -> None:
    assert refusal(names, **quotas) == (INVALID, message)


def test_a_key_or_an_entity_twice_is_refused() -> None:
    twice = entry({USER: "u"}, producer_byte_rate=1.0)
    twice.ops.append(Entry.OpData(key="producer_byte_rate", value=2.0, remove=False))
    image, rows = altered(LEVEL, twice, entry({USER: "v"}, producer_byte_rate=1.0), entry({USER: "v"}))
    entity = "ClientQuotaEntity(entries={user=%s})"
    assert rows[0] == (
        INVALID,
        f"Duplicate quota key producer_byte_rate not updating quota for this entity {entity % 'u'}",
    )
    assert rows[1:] == [(NONE, None), (INVALID, f"Ignoring duplicate entity {entity % 'v'}")]
    assert image.client_quotas.of({USER: "v"}) == {"producer_byte_rate": 1.0}


def test_values_up_to_kafkas_largest_and_down_to_a_byte_are_kept() -> None:
    for value in (1.0, float(1 << 53), float(1 << 62), float((1 << 63) - 1)):
        image, rows = altered(LEVEL, entry({CLIENT_ID: None}, producer_byte_rate=value))
        assert rows == [(NONE, None)] and image.client_quotas.of({CLIENT_ID: None}) == {"producer_byte_rate": value}
        assert decode_snapshot(encode_snapshot(image)).client_quotas == image.client_quotas


def test_an_address_is_known_by_its_shortest_form() -> None:
    image, _ = altered(LEVEL, entry({IP: "::ffff:10.0.0.1"}, connection_creation_rate=3.0))
    image, _ = altered(image, entry({IP: "2001:DB8:0::1"}, connection_creation_rate=4.0))
    image, _ = altered(image, entry({IP: None}, connection_creation_rate=5.0))
    rates = [image.client_quotas.connection_rate(one) for one in ("10.0.0.1", "2001:db8::1", "10.0.0.2")]
    assert rates == [3.0, 4.0, 5.0]


def test_an_older_level_refuses() -> None:
    old = replayed(EMPTY_IMAGE, [FeatureLevelRecord(TIDELOG_VERSION, FLEET_LEVEL - 1)])
    _, (row,) = altered(old, entry({USER: "u"}, producer_byte_rate=1.0))
    assert row[0] == ErrorCode.UNSUPPORTED_VERSION


def test_the_number_of_entities_of_a_tenant_is_bounded() -> None:
    def of_a(number: int, rate: float | None) -> Entry:
        return entry({TENANT: TENANT_A, USER: f"u{number}"}, producer_byte_rate=rate)

    image, rows = altered(LEVEL, *(of_a(number, 1.0) for number in range(TENANT_ENTITIES_MAX - 1)))
    assert {code for code, _ in rows} == {NONE}
    of_b = entry({TENANT: TENANT_B, USER: "u"}, producer_byte_rate=1.0)
    image, rows = altered(image, of_a(10_000, 1.0), of_a(10_001, 1.0), of_a(0, 2.0), of_b)
    assert [code for code, _ in rows] == [NONE, ErrorCode.POLICY_VIOLATION, NONE, NONE]
    assert len(image.client_quotas.of_tenant(TENANT_A)) == TENANT_ENTITIES_MAX
    image, rows = altered(image, of_a(0, None), of_a(10_001, 1.0))
    assert [code for code, _ in rows] == [NONE, NONE], "a removal makes room"


# precedence ----------------------------------------------------------------------------------------------------

LEVELS: list[dict[str, str | None]] = [
    {USER: "u", CLIENT_ID: "c"},
    {USER: "u", CLIENT_ID: None},
    {USER: "u"},
    {USER: None, CLIENT_ID: "c"},
    {USER: None, CLIENT_ID: None},
    {USER: None},
    {CLIENT_ID: "c"},
    {CLIENT_ID: None},
]
SHARED = [("u", "c"), ("u", "c"), ("u", None), ("u", "c"), ("u", "c"), ("u", None), (None, "c"), (None, "c")]


@given(st.sets(st.integers(0, 7)), st.sets(st.integers(0, 7)))
def test_the_most_specific_of_kafkas_eight_levels_counts_for_each_quota_alone(mine: set[int], other: set[int]) -> None:
    records: list[MetadataRecord] = []
    for number, names in enumerate(LEVELS):
        values = {PRODUCER_BYTE_RATE: float(number + 1)} if number in mine else {}
        values |= {MUTATION_RATE: float(number + 100)} if number in other else {}
        if values:
            records.append(ClientQuotaRecord(entity_of(names), values))
    quotas = replayed(EMPTY_IMAGE, records).client_quotas
    for levels, quota, base in ((mine, PRODUCER_BYTE_RATE, 1), (other, MUTATION_RATE, 100)):
        found = quotas.level(OPERATORS, "u", "c", quota)
        if not levels:
            assert found is None
        else:
            first = min(levels)
            assert found == (first + base, SHARED[first])
    assert quotas.level(TENANT_A, "u", "c", PRODUCER_BYTE_RATE) is None, "operators' quotas are not the tenant's"


def test_a_tenants_quotas_are_apart() -> None:
    image, _ = altered(
        LEVEL,
        entry({TENANT: TENANT_A, USER: None}, producer_byte_rate=1.0),
        entry({USER: "u"}, producer_byte_rate=2.0),
    )
    quotas = image.client_quotas
    assert quotas.level(TENANT_A, "u", "c", PRODUCER_BYTE_RATE) == (1.0, ("u", None))
    assert quotas.level(TENANT_B, "u", "c", PRODUCER_BYTE_RATE) is None
    assert quotas.level(OPERATORS, "u", "c", PRODUCER_BYTE_RATE) == (2.0, ("u", None))


# the image -----------------------------------------------------------------------------------------------------

names = st.none() | st.sampled_from(["a", "b", "<default>", "a/b", "%", "\0", "ü"])
entities = st.dictionaries(st.sampled_from([USER, CLIENT_ID]), names, min_size=1).flatmap(
    lambda one: st.sampled_from([one, one | {TENANT: TENANT_A}, one | {TENANT: TENANT_B}])
) | st.fixed_dictionaries({IP: st.sampled_from([None, "10.0.0.1", "::1"])})
quota_values = st.dictionaries(st.sampled_from(["producer_byte_rate", "x"]), st.floats(1, 1e18), min_size=1)
changes = st.one_of(
    st.builds(lambda one, values: ClientQuotaRecord(entity_of(one), values), entities, quota_values),
    st.builds(lambda one: RemoveClientQuotaRecord(entity_of(one)), entities),
)


@given(st.lists(changes, max_size=20), st.lists(changes, max_size=6))
def test_replay_snapshot_and_difference_agree(first: list[MetadataRecord], then: list[MetadataRecord]) -> None:
    old = replayed(EMPTY_IMAGE, first)
    new = replayed(old, then)
    one_by_one = old
    for record in then:
        one_by_one = replayed(one_by_one, [record])
    assert dict(one_by_one.client_quotas) == dict(new.client_quotas)
    for image in (old, new):
        again = decode_snapshot(encode_snapshot(image)).client_quotas
        assert dict(again) == dict(image.client_quotas)
        check_index(image.client_quotas)
    delta = at_once(differing(old, new))
    different = {
        key
        for key in {*old.client_quotas, *new.client_quotas}
        if old.client_quotas.get(key) != new.client_quotas.get(key)
    }
    assert set(delta.client_quotas.changed) == different
    assert delta.is_empty == (not different)


def check_index(quotas: ClientQuotasImage) -> None:
    listed = [key for tenant in (OPERATORS, TENANT_A, TENANT_B) for key in quotas.of_tenant(tenant)]
    assert sorted(listed) == sorted(quotas)
    assert all(key_of(quotas[key].entity) == key for key in listed)


@given(st.lists(entities, min_size=2, max_size=2))
def test_different_entities_have_different_keys(both: list[dict[str, str | None]]) -> None:
    one, other = map(entity_of, both)
    assert (key_of(one) == key_of(other)) == (one == other)
    assert [kind for kind, _ in one] == [kind for kind in TYPES if kind in both[0]]


def test_a_delta_is_not_empty() -> None:
    delta = MetadataDelta(EMPTY_IMAGE)
    delta.replay(ClientQuotaRecord(entity_of({USER: "u"}), {"producer_byte_rate": 1.0}))
    assert not delta.is_empty and delta.client_quotas.changed == {"users/u": None}


def test_a_deleted_tenants_quotas_go_with_it() -> None:
    image = replayed(LEVEL, [TenantRecord(TENANT_A, "a", "east", 1, state=TenantState.DELETING)])
    image, _ = altered(
        image,
        *(entry({TENANT: TENANT_A, USER: f"u{number}"}, producer_byte_rate=1.0) for number in range(3)),
        entry({USER: "u"}, producer_byte_rate=1.0),
    )
    step = deletion_step(image, image.tenants[TENANT_A], groups_are_gone=True)
    image = replayed(image, step)
    assert list(image.client_quotas) == ["users/u"]


def test_an_export_is_rebuilt_with_its_quotas() -> None:
    image, _ = altered(
        LEVEL,
        entry({USER: "alice", CLIENT_ID: None}, producer_byte_rate=1024.0),
        entry({TENANT: TENANT_A, USER: "k"}, request_percentage=0.5),
        entry({IP: None}, connection_creation_rate=7.0),
    )
    rebuilder = Rebuilder("AAAAAAAAAAAAAAAAAAAAAQ", 2)
    rebuilder.take_events(msgspec.json.decode(msgspec.json.encode(list(metadata_events(image)))))
    new = rebuilder.build([NamedBroker(0)], 1, random.Random(1)).image
    assert dict(new.client_quotas) == dict(image.client_quotas)


def test_the_audit_tells_who_changed_which_quota_from_what() -> None:
    image, _ = altered(LEVEL, entry({USER: "alice"}, producer_byte_rate=1024.0, request_percentage=3.0))
    request = AlterClientQuotasRequest(
        entries=[entry({USER: "alice"}, producer_byte_rate=2048.0, request_percentage=None)], validate_only=False
    )
    decide = attributed(lambda base: at_once(alter_client_quotas(base, request)), "User:admin@10.0.0.1")
    decision: Any = decide(image)
    records = [*decision.records, RemoveClientQuotaRecord(entity_of({USER: "alice"}))]
    batch = decode_batch(encode_batch(Batch(BatchHeader(1, 1_000, 1, image.next_offset), records)))
    assert batch is not None
    changed, removed = (
        msgspec.to_builtins(event) for event in MetadataAudit(image.next_offset, image).events(batch)
    )  # fmt: skip
    assert (changed["event"], changed["actor"]) == ("client_quota_changed", "User:admin@10.0.0.1")
    assert changed["before"] == {"producer_byte_rate": 1024.0, "request_percentage": 3.0}
    assert changed["after"] == {"entity": "users/alice", "producer_byte_rate": 2048.0, "request_percentage": None}
    assert removed["before"] == {"entity": "users/alice", "producer_byte_rate": 2048.0}
