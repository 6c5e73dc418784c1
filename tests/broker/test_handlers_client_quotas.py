"""DescribeClientQuotas filters as Apache Kafka does; a tenant sees and sets its own quotas alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.handlers.client_quotas import DEFAULT, EXACT, SPECIFIED, ClientQuotaHandlers
from broker.requests.context import RequestContext
from broker.requests.forwarding import Forwarder
from broker.security.session import ClientSession
from common.errors import ErrorCode
from common.pacing import at_once
from kraft.controller.client_quotas import alter_client_quotas
from kraft.features import FLEET_LEVEL, TIDELOG_VERSION
from kraft.fleet_records import ClientQuotaRecord
from kraft.image.client_quotas import CLIENT_ID, IP, TENANT, USER, entity_of
from kraft.image.delta import replayed
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import FeatureLevelRecord
from wire.apis import ApiKey
from wire.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest

TENANT_A, TENANT_B = "lkc-aaaaaa", "lkc-bbbbbb"
Component = DescribeClientQuotasRequest.ComponentData
Names = dict[str, str | None]

OF_OPERATORS: list[Names] = [
    {USER: "alice"},
    {USER: "alice", CLIENT_ID: "c"},
    {USER: None, CLIENT_ID: "c"},
    {USER: None},
    {CLIENT_ID: "c"},
    {IP: "10.0.0.1"},
    {IP: None},
]
OF_TENANTS: list[Names] = [{TENANT: TENANT_A, USER: "alice"}, {TENANT: TENANT_B, USER: None}]


class Forwarded:
    """Decides at once, on an image of its own."""

    def __init__(self) -> None:
        self.image: MetadataImage = replayed(
            EMPTY_IMAGE,
            [FeatureLevelRecord(TIDELOG_VERSION, FLEET_LEVEL)]
            + [
                ClientQuotaRecord(entity_of(names), {"producer_byte_rate": float(number + 1)})
                for number, names in enumerate(OF_OPERATORS + OF_TENANTS)
            ],
        )

    async def serve(self, context: RequestContext, request: Any) -> Any:
        decision = at_once(alter_client_quotas(self.image, request))
        self.image = replayed(self.image, decision.records)
        return decision.reply


@pytest.fixture
def forwarded() -> Forwarded:
    return Forwarded()


@pytest.fixture
def handlers(forwarded: Forwarded) -> ClientQuotaHandlers:
    return ClientQuotaHandlers(cast(Forwarder, forwarded))


def context(tenant: str | None = None) -> RequestContext:
    session = ClientSession("CLIENTS", False, "10.0.0.1", SimpleNamespace(), tenant=tenant)
    return RequestContext(session, int(ApiKey.DESCRIBE_CLIENT_QUOTAS), 1, 1, "c")


def described(
    handlers: ClientQuotaHandlers, *components: tuple[str, int, str | None], strict: bool = False,
    tenant: str | None = None,
) -> Any:  # fmt: skip
    asked = [Component(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    found = handlers.describe_client_quotas(
        context(tenant), DescribeClientQuotasRequest(components=asked, strict=strict)
    )  # fmt: skip
    return found if hasattr(found, "error_code") else at_once(found)


def names(answer: Any) -> list[Names]:
    assert answer.error_code == 0, answer
    return [{one.entity_type: one.entity_name for one in row.entity} for row in answer.entries]


def sort(found: list[Names]) -> list[str]:
    return sorted(map(str, found))


@pytest.mark.parametrize(("components", "strict", "expected"), [
    ([], False, range(7)),
    ([], True, []),
    ([(USER, SPECIFIED, None)], False, [0, 1, 2, 3]),
    ([(USER, SPECIFIED, None)], True, [0, 3]),
    ([(USER, EXACT, "alice")], False, [0, 1]),
    ([(USER, EXACT, "alice")], True, [0]),
    ([(USER, DEFAULT, None)], False, [2, 3]),
    ([(USER, SPECIFIED, None), (CLIENT_ID, EXACT, "c")], True, [1, 2]),
    ([(CLIENT_ID, EXACT, "c")], False, [1, 2, 4]),
    ([(IP, SPECIFIED, None)], False, [5, 6]),
    ([(IP, EXACT, "::ffff:10.0.0.1")], True, [5]),
    ([(USER, EXACT, "nobody")], False, []),
])  # fmt: skip
def test_a_filter_finds_what_kafkas_finds(
    handlers: ClientQuotaHandlers, components: Any, strict: bool, expected: list[int]
) -> None:
    found = names(described(handlers, *components, strict=strict))
    assert sort(found) == sort([OF_OPERATORS[number] for number in expected])


@pytest.mark.parametrize(("components", "code", "message"), [
    ([("", EXACT, "x")], ErrorCode.INVALID_REQUEST, "Invalid empty entity type."),
    ([(USER, EXACT, "x"), (USER, DEFAULT, None)], ErrorCode.INVALID_REQUEST,
     "Entity type user cannot appear more than once in the filter."),
    ([("group", EXACT, "x")], ErrorCode.UNSUPPORTED_VERSION, "Unsupported entity type group"),
    ([(USER, EXACT, None)], ErrorCode.INVALID_REQUEST,
     "Request specified MATCH_TYPE_EXACT, but set match string to null."),
    ([(USER, DEFAULT, "x")], ErrorCode.INVALID_REQUEST,
     "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
    ([(USER, SPECIFIED, "x")], ErrorCode.INVALID_REQUEST,
     "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string."),
    ([(USER, 9, "x")], ErrorCode.INVALID_REQUEST, "Unknown match type 9"),
    ([(USER, EXACT, "x"), (IP, SPECIFIED, None)], ErrorCode.INVALID_REQUEST,
     "Invalid entity filter component combination. IP filter component should not be used with user or clientId "
     "filter component."),
])  # fmt: skip
def test_a_wrong_filter_is_refused_in_kafkas_words(
    handlers: ClientQuotaHandlers, components: Any, code: ErrorCode, message: str
) -> None:
    answer = described(handlers, *components)
    assert (answer.error_code, answer.error_message, answer.entries) == (code, message, None)


def test_a_tenant_sees_its_own_quotas_alone(handlers: ClientQuotaHandlers) -> None:
    assert names(described(handlers, tenant=TENANT_A)) == [{USER: "alice"}]
    assert names(described(handlers, (USER, DEFAULT, None), tenant=TENANT_B)) == [{USER: None}]
    assert described(handlers, (TENANT, EXACT, TENANT_B), tenant=TENANT_A).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert names(described(handlers, (TENANT, EXACT, TENANT_A))) == [{TENANT: TENANT_A, USER: "alice"}]


async def test_a_tenant_sets_quotas_in_its_own_name(handlers: ClientQuotaHandlers, forwarded: Forwarded) -> None:
    entry = AlterClientQuotasRequest.EntryData

    def asked(**given: str | None) -> AlterClientQuotasRequest:
        entity = [
            entry.EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in given.items()
        ]
        quota = entry.OpData(key="consumer_byte_rate", value=9.0, remove=False)
        return AlterClientQuotasRequest(entries=[entry(entity=entity, ops=[quota])], validate_only=False)

    answer = await handlers.alter_client_quotas(context(TENANT_A), asked(user=None, client_id="x"))
    (row,) = answer.entries
    assert row.error_code == 0
    assert {one.entity_type: one.entity_name for one in row.entity} == {USER: None, CLIENT_ID: "x"}
    set_for: Names = {TENANT: TENANT_A, USER: None, CLIENT_ID: "x"}
    assert forwarded.image.client_quotas.of(set_for) == {"consumer_byte_rate": 9.0}
    assert len(names(described(handlers, tenant=TENANT_A))) == 2
    assert len(names(described(handlers, tenant=TENANT_B))) == 1
    (row,) = (await handlers.alter_client_quotas(context(TENANT_A), asked(tenant=TENANT_B, user=None))).entries
    assert (row.error_code, row.error_message) == (
        ErrorCode.INVALID_REQUEST, "Unhandled client quota entity type: tenant",
    )  # fmt: skip
    (row,) = (await handlers.alter_client_quotas(context(TENANT_A), asked(ip=None))).entries
    assert row.error_code == ErrorCode.INVALID_REQUEST
    (row,) = (await handlers.alter_client_quotas(context(), asked(user="bob"))).entries
    assert forwarded.image.client_quotas.of({USER: "bob"}) == {"consumer_byte_rate": 9.0}
