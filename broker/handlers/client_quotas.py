"""Quotas of clients: DescribeClientQuotas 0-1, AlterClientQuotas 0-1.

Behaviour: descriptions come from this broker's image; changes are sent to the controller in an Envelope. Filters,
checks and messages are Apache Kafka's (ClientQuotasImage). A tenant sees and sets quotas of its own clients: its
entities have its id as one more name, which is added here and left out of what it is shown. Operators name a tenant by
the type `tenant`; without it they see their own quotas alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from broker.requests.context import RequestContext
from broker.requests.failures import failing
from broker.requests.forwarding import Forwarder
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.client_quotas import CLIENT_ID, IP, OPERATORS, TENANT, USER, ClientQuota, entity_of
from kraft.image.metadata import MetadataImage
from wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    changed,
)

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""How a filter matches a name: it is given, it is the default's, it is any."""
LOOKED_AT_ONCE, LOOK_COST, ROW_COST = 100, 1, 5  # entities, and units of `common.pacing`

_Row = DescribeClientQuotasResponse.EntryData


class ClientQuotaHandlers:
    """One method per API."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def describe_client_quotas(
        self, context: RequestContext, request: DescribeClientQuotasRequest
    ) -> DescribeClientQuotasResponse | Work[DescribeClientQuotasResponse]:
        try:
            wanted = QuotaFilter(request, context.tenant)
        except ProtocolError as error:
            return DescribeClientQuotasResponse(
                error_code=error.code, error_message=error.message or None, entries=None
            )  # fmt: skip
        return _describe(self._forwarder.image, wanted)

    async def alter_client_quotas(
        self, context: RequestContext, request: AlterClientQuotasRequest
    ) -> AlterClientQuotasResponse:
        tenant = context.tenant
        if tenant is None:
            return await self._forwarder.serve(context, request)
        entries = request.entries
        if await context.paced(_names_tenant(entries)):
            unhandled = ProtocolError(ErrorCode.INVALID_REQUEST, f"Unhandled client quota entity type: {TENANT}")
            refusal: AlterClientQuotasResponse = await context.paced(failing(request, unhandled))
            return refusal
        of_tenant = AlterClientQuotasRequest.EntryData.EntityData(entity_type=TENANT, entity_name=tenant)
        inward = [changed(entry, entity=[of_tenant, *entry.entity]) for entry in entries]
        answer = await self._forwarder.serve(context, changed(request, entries=inward))
        return changed(answer, entries=await context.paced(_without_tenant(answer.entries)))


class QuotaFilter:
    """What a request asks for. Raises INVALID_REQUEST and UNSUPPORTED_VERSION."""

    def __init__(self, request: DescribeClientQuotasRequest, tenant: str | None) -> None:
        self.tenant = OPERATORS if tenant is None else tenant
        self.shows_tenant = False
        self._exact: dict[str, str | None] = {}
        self._any: dict[str, None] = {}
        self._is_strict = request.strict
        for component in request.components:
            self._take(component, is_operator=tenant is None)
        named = {*self._exact, *self._any}
        if IP in named and named & {USER, CLIENT_ID}:
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST,
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component.",
            )
        self._exact = dict(entity_of(self._exact))

    def _take(self, component: DescribeClientQuotasRequest.ComponentData, *, is_operator: bool) -> None:
        kind, how, name = component.entity_type, component.match_type, component.match
        if not kind:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "Invalid empty entity type.")
        if kind in self._exact or kind in self._any or (kind == TENANT and self.shows_tenant):
            raise ProtocolError(
                ErrorCode.INVALID_REQUEST, f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind == TENANT and is_operator and how == EXACT and name:
            self.tenant, self.shows_tenant = name, True
            return
        if kind not in (IP, USER, CLIENT_ID):
            raise ProtocolError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        if how not in _MATCHES:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Unknown match type {how}")
        if (name is None) == (how == EXACT):
            wrong = "but set match string to null." if how == EXACT else "but also specified a match string."
            raise ProtocolError(ErrorCode.INVALID_REQUEST, f"Request specified {_MATCHES[how]}, {wrong}")
        if how == SPECIFIED:
            self._any[kind] = None
        else:
            self._exact[kind] = name

    def matches(self, quota: ClientQuota) -> bool:
        names = dict(quota.entity)
        names.pop(TENANT, None)
        if self._is_strict and len(names) != len(self._exact) + len(self._any):
            return False
        return all(kind in names and names[kind] == name for kind, name in self._exact.items()) and all(
            kind in names for kind in self._any
        )


_MATCHES: Mapping[int, str] = {
    EXACT: "MATCH_TYPE_EXACT",
    DEFAULT: "MATCH_TYPE_DEFAULT",
    SPECIFIED: "MATCH_TYPE_SPECIFIED",
}


def _describe(image: MetadataImage, wanted: QuotaFilter) -> Work[DescribeClientQuotasResponse]:
    rows: list[_Row] = []
    for number, key in enumerate(image.client_quotas.of_tenant(wanted.tenant), 1):
        quota = image.client_quotas[key]
        if wanted.matches(quota):
            rows.append(_row(quota, shows_tenant=wanted.shows_tenant))
            yield ROW_COST
        if number % LOOKED_AT_ONCE == 0:
            yield LOOKED_AT_ONCE * LOOK_COST
    return DescribeClientQuotasResponse(error_code=0, error_message=None, entries=rows)


def _row(quota: ClientQuota, *, shows_tenant: bool) -> _Row:
    return _Row(
        entity=[
            _Row.EntityData(entity_type=kind, entity_name=name)
            for kind, name in quota.entity
            if shows_tenant or kind != TENANT
        ],
        values=[_Row.ValueData(key=key, value=value) for key, value in sorted(quota.values.items())],
    )


def _names_tenant(entries: Iterable[AlterClientQuotasRequest.EntryData]) -> Work[bool]:
    for entry in entries:
        for one in entry.entity:
            if one.entity_type == TENANT:
                return True
            yield LOOK_COST
        yield LOOK_COST
    return False


def _without_tenant(
    entries: Iterable[AlterClientQuotasResponse.EntryData],
) -> Work[list[AlterClientQuotasResponse.EntryData]]:
    shown = []
    for entry in entries:
        entity = []
        for one in entry.entity:
            if one.entity_type != TENANT:
                entity.append(one)
            yield LOOK_COST
        shown.append(changed(entry, entity=entity))
        yield LOOK_COST
    return shown
