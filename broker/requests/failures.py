"""Responses to requests that fail as a whole, because the client has no right or no controller decides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from common.errors import ProtocolError
from common.pacing import Work
from wire.apis import APIS, ApiKey
from wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterUserScramCredentialsRequest,
    Message,
)

ROW_COST = 4  # units of `common.pacing`
Why = dict[str, Any]
"""The fields error_code and error_message."""


def failing(request: Message, error: ProtocolError) -> Work[Any]:
    """The response with `error` for everything requested, and with its message if the response has a field for one."""
    why, response = why_of(error), APIS[request.API_KEY].response
    made = _WITH_ROWS.get(request.API_KEY)
    if made is None:
        fields = {name: value for name, value in why.items() if name in response._struct.fields}
        return response(**fields, **_WITHOUT_ROWS.get(request.API_KEY, {}))
    rows: list[Any] = []
    for element in made.elements(request):
        row = made.row(response, element, why)
        if made.named is not None:
            yield from made.named(row, element)
        rows.append(row)
        yield ROW_COST
    return response(**{made.field: rows})


def why_of(error: ProtocolError) -> Why:
    return {"error_code": error.code, "error_message": error.message or None}


def altered_config(answers: Any, resource: Any, why: Why) -> Any:
    """One row of AlterConfigs or IncrementalAlterConfigs; `answers` is the class of the response."""
    return answers.AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name, **why
    )


class _Rows(NamedTuple):
    """`field`: the response's list of rows; `row` makes one of the response's class, an element and the error. `named`
    fills a row with what its element names, which may be long."""

    field: str
    elements: Callable[[Any], Iterable[Any]]
    row: Callable[[Any, Any, Why], Any]
    named: Callable[[Any, Any], Work[None]] | None = None


def _users(request: AlterUserScramCredentialsRequest) -> Iterable[str]:
    return dict.fromkeys([one.name for one in request.deletions] + [one.name for one in request.upsertions])


def _entities(row: AlterClientQuotasResponse.EntryData, entry: AlterClientQuotasRequest.EntryData) -> Work[None]:
    for one in entry.entity:
        row.entity.append(row.EntityData(entity_type=one.entity_type, entity_name=one.entity_name))
        yield ROW_COST


_WITHOUT_ROWS: Mapping[int, dict[str, Any]] = {ApiKey.DESCRIBE_CLIENT_QUOTAS: {"entries": None}}
_WITH_ROWS: Mapping[int, _Rows] = {
    ApiKey.CREATE_TOPICS: _Rows(
        "topics",
        lambda request: request.topics,
        lambda answers, one, why: answers.CreatableTopicResult(name=one.name, configs=[], **why),
    ),
    ApiKey.DELETE_TOPICS: _Rows(
        "responses",
        lambda request: request.topics,
        lambda answers, one, why: answers.DeletableTopicResult(name=one.name, topic_id=one.topic_id, **why),
    ),
    ApiKey.CREATE_PARTITIONS: _Rows(
        "results",
        lambda request: request.topics,
        lambda answers, one, why: answers.CreatePartitionsTopicResult(name=one.name, **why),
    ),
    ApiKey.CREATE_ACLS: _Rows(
        "results", lambda request: request.creations, lambda answers, _, why: answers.AclCreationResult(**why)
    ),
    ApiKey.DELETE_ACLS: _Rows(
        "filter_results",
        lambda request: request.filters,
        lambda answers, _, why: answers.DeleteAclsFilterResult(matching_acls=[], **why),
    ),
    ApiKey.ALTER_CONFIGS: _Rows("responses", lambda request: request.resources, altered_config),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Rows("responses", lambda request: request.resources, altered_config),
    ApiKey.ALTER_CLIENT_QUOTAS: _Rows(
        "entries",
        lambda request: request.entries,
        lambda answers, _, why: answers.EntryData(entity=[], **why),
        _entities,
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _Rows(
        "results",
        _users,
        lambda answers, user, why: answers.AlterUserScramCredentialsResult(user=user, **why),
    ),
}
"""The APIs whose responses are not just an error: most have no field for one of the whole request, so each row carries
it."""
