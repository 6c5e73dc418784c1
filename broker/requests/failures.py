"""Responses to requests that fail as a whole, because the client has no right or no controller decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common.errors import ProtocolError
from wire.apis import APIS, ApiKey
from wire.messages import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterConfigsRequest,
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    CreateAclsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteAclsResponse,
    DeleteTopicsResponse,
    DescribeClientQuotasResponse,
    IncrementalAlterConfigsRequest,
    Message,
)

Why = dict[str, Any]
"""The fields error_code and error_message."""


def failed(request: Message, error: ProtocolError) -> Any:
    """The response with `error` for everything requested, and with its message if the response has a field for one."""
    why = why_of(error)
    rows = _WITH_ROWS.get(request.API_KEY)
    if rows is not None:
        return rows(request, why)
    response = APIS[request.API_KEY].response
    return response(**{name: value for name, value in why.items() if name in response._struct.fields})


def why_of(error: ProtocolError) -> Why:
    return {"error_code": error.code, "error_message": error.message or None}


def _altered_configs(request: AlterConfigsRequest | IncrementalAlterConfigsRequest, why: Why) -> Any:
    response = APIS[request.API_KEY].response
    return response(responses=[altered_config(response, resource, why) for resource in request.resources])


def altered_config(answers: Any, resource: Any, why: Why) -> Any:
    """One row of AlterConfigs or IncrementalAlterConfigs; `answers` is the class of the response."""
    return answers.AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name, **why
    )


def _altered_users(request: AlterUserScramCredentialsRequest, why: Why) -> AlterUserScramCredentialsResponse:
    users = dict.fromkeys([one.name for one in request.deletions] + [one.name for one in request.upsertions])
    row = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
    return AlterUserScramCredentialsResponse(results=[row(user=user, **why) for user in users])


def _altered_quotas(request: AlterClientQuotasRequest, why: Why) -> AlterClientQuotasResponse:
    row = AlterClientQuotasResponse.EntryData

    def named(entry: AlterClientQuotasRequest.EntryData) -> list[AlterClientQuotasResponse.EntryData.EntityData]:
        return [row.EntityData(entity_type=one.entity_type, entity_name=one.entity_name) for one in entry.entity]

    return AlterClientQuotasResponse(entries=[row(entity=named(entry), **why) for entry in request.entries])


_WITH_ROWS: Mapping[int, Callable[[Any, Why], Message]] = {
    ApiKey.CREATE_TOPICS: lambda request, why: CreateTopicsResponse(
        topics=[CreateTopicsResponse.CreatableTopicResult(name=one.name, configs=[], **why) for one in request.topics]
    ),
    ApiKey.DELETE_TOPICS: lambda request, why: DeleteTopicsResponse(
        responses=[
            DeleteTopicsResponse.DeletableTopicResult(name=one.name, topic_id=one.topic_id, **why)
            for one in request.topics
        ]
    ),
    ApiKey.CREATE_PARTITIONS: lambda request, why: CreatePartitionsResponse(
        results=[CreatePartitionsResponse.CreatePartitionsTopicResult(name=one.name, **why) for one in request.topics]
    ),
    ApiKey.CREATE_ACLS: lambda request, why: CreateAclsResponse(
        results=[CreateAclsResponse.AclCreationResult(**why) for _ in request.creations]
    ),
    ApiKey.DELETE_ACLS: lambda request, why: DeleteAclsResponse(
        filter_results=[DeleteAclsResponse.DeleteAclsFilterResult(matching_acls=[], **why) for _ in request.filters]
    ),
    ApiKey.ALTER_CONFIGS: _altered_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _altered_configs,
    ApiKey.ALTER_CLIENT_QUOTAS: _altered_quotas,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: lambda request, why: DescribeClientQuotasResponse(entries=None, **why),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _altered_users,
}
"""The APIs whose responses are not just an error: most have no field for one of the whole request, so each row carries
it."""
