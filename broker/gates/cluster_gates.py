"""Gates of APIs about the cluster: settings, log directories, ACLs, users, tokens, elections, reassignments, Tidelog's
own APIs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from broker.gates.gating import (
    ALTER_CONFIGS,
    CREATE_TOKENS,
    DESCRIBE_CONFIGS,
    GROUP,
    MESSAGES,
    NO_CLUSTER,
    NO_GROUP,
    NO_TOPIC,
    TOPIC,
    USER,
    extended,
    then,
)
from broker.gates.topic_gates import cluster_operations
from broker.handlers.delegation_tokens import no_token, owner_of
from broker.handlers.elections import WHOLE_ERROR_FROM, for_each_partition
from broker.handlers.log_dirs import none_altered
from broker.requests.context import Handler, RequestContext
from broker.requests.failures import altered_config
from broker.security.authorizer import Access
from broker.security.session import ANONYMOUS
from broker.tenancy.scope import prefix_of
from common.errors import ErrorCode
from common.pacing import Work
from kraft.records import ResourceType
from wire.apis import APIS
from wire.messages import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    CreateDelegationTokenRequest,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    changed,
)

GROUP_CONFIG = 32  # Kafka's ConfigResource.Type
_WORDS = MESSAGES[NO_CLUSTER]


def describe_cluster(context: RequestContext, access: Access, request: DescribeClusterRequest, handler: Handler) -> Any:
    def complete(response: DescribeClusterResponse) -> DescribeClusterResponse:
        if request.include_cluster_authorized_operations and not response.error_code:
            return changed(response, authorized_operations=cluster_operations(access))
        return response

    return then(handler(context, request), complete)


# tokens ----------------------------------------------------------------------------------------------------


def create_delegation_token(
    context: RequestContext, access: Access, request: CreateDelegationTokenRequest, handler: Handler
) -> Any:
    """A token for another owner needs a right to that user. Who has not logged in hears of that first."""
    owner = owner_of(context, request)
    if context.principal in (ANONYMOUS, owner) or access.may(CREATE_TOKENS, USER, _user(owner, context.tenant)):
        return handler(context, request)
    return no_token(context, request, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED)


def _user(principal: str, tenant: str | None) -> str:
    """The principal's name as a resource. A tenant's resources begin with its prefix, its principals' names too."""
    if tenant is None:
        return principal
    kind, _, name = principal.partition(":")
    prefix = prefix_of(tenant)
    return f"{prefix}{kind}:{name.removeprefix(prefix)}"


# settings --------------------------------------------------------------------------------------------------


class _Resource(Protocol):
    """A resource that has settings."""

    resource_type: int
    resource_name: str


_OfResource = TypeVar("_OfResource", bound=_Resource)


def _config_refusal(access: Access, operation: int, resource: _Resource) -> ErrorCode | None:
    if resource.resource_type == ResourceType.TOPIC:
        return None if access.may(operation, TOPIC, resource.resource_name) else NO_TOPIC
    if resource.resource_type == GROUP_CONFIG:
        return None if access.may(operation, GROUP, resource.resource_name) else NO_GROUP
    return None if access.may_cluster(operation) else NO_CLUSTER


def _split_resources(
    access: Access, operation: int, resources: Sequence[_OfResource]
) -> tuple[list[_OfResource], list[tuple[_OfResource, ErrorCode]]]:
    """The allowed resources, and (resource, error code) of the others."""
    codes = [(resource, _config_refusal(access, operation, resource)) for resource in resources]
    return [one for one, code in codes if code is None], [(one, code) for one, code in codes if code is not None]


def describe_configs(context: RequestContext, access: Access, request: DescribeConfigsRequest, handler: Handler) -> Any:
    allowed, refused = _split_resources(access, DESCRIBE_CONFIGS, request.resources)
    rows = [
        DescribeConfigsResponse.DescribeConfigsResult(
            error_code=code,
            error_message=MESSAGES[code],
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=[],
        )
        for resource, code in refused
    ]
    if not allowed and rows:
        return DescribeConfigsResponse(results=rows)
    request = changed(request, resources=allowed) if rows else request
    return then(handler(context, request), lambda answer: extended(answer, "results", rows))


def alter_configs(
    context: RequestContext,
    access: Access,
    request: AlterConfigsRequest | IncrementalAlterConfigsRequest,
    handler: Handler,
) -> Any:
    response = APIS[context.api_key].response
    resources: Sequence[Any] = request.resources
    allowed, others = _split_resources(access, ALTER_CONFIGS, resources)
    rows: list[Any] = [
        altered_config(response, resource, {"error_code": code, "error_message": MESSAGES[code]})
        for resource, code in others
    ]
    if not allowed and rows:
        return response(responses=rows)
    request = changed(request, resources=allowed) if rows else request
    return then(handler(context, request), lambda answer: extended(answer, "responses", rows))


# responses without the right, where their shape is special ------------------------------------------------


def not_elected(context: RequestContext, request: ElectLeadersRequest) -> ElectLeadersResponse:
    return for_each_partition(
        request, NO_CLUSTER, ErrorCode.NONE if context.api_version < WHOLE_ERROR_FROM else NO_CLUSTER
    )


def not_reassigned(
    context: RequestContext, request: AlterPartitionReassignmentsRequest
) -> AlterPartitionReassignmentsResponse:
    topic_row = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    row = topic_row.ReassignablePartitionResponse
    return AlterPartitionReassignmentsResponse(
        error_code=NO_CLUSTER,
        error_message=_WORDS,
        responses=[
            topic_row(
                name=topic.name,
                partitions=[
                    row(partition_index=one.partition_index, error_code=NO_CLUSTER, error_message=_WORDS)
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ],
    )


def log_dirs_kept(context: RequestContext, request: AlterReplicaLogDirsRequest) -> Work[AlterReplicaLogDirsResponse]:
    return none_altered(request, NO_CLUSTER)


def users_not_described(
    context: RequestContext, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """A row without a name for each requested user."""
    row = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return DescribeUserScramCredentialsResponse(
        error_code=NO_CLUSTER,
        error_message=_WORDS,
        results=[
            row(user="", error_code=NO_CLUSTER, error_message=_WORDS, credential_infos=[]) for _ in request.users or ()
        ],
    )
