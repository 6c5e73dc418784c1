"""Gates of APIs about groups. A group that the client may not describe is treated as not listed."""

from __future__ import annotations

from typing import Any

from broker.gates.gating import (
    DELETE,
    DESCRIBE,
    GROUP,
    MESSAGES,
    NO_GROUP,
    NO_TRANSACTION,
    TRANSACTIONAL_ID,
    allowed_work,
    extended,
    split,
    then,
    then_work,
)
from broker.handlers.cluster import GROUP_KEY, MANY_KEYS_FROM, TRANSACTION_KEY
from broker.handlers.groups import PROTOCOL_NULLABLE_FROM
from broker.requests.context import Handler, RequestContext
from broker.security.authorizer import GROUP_OPERATIONS, Access
from common.pacing import Work
from wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    changed,
)

_Coordinator = FindCoordinatorResponse.Coordinator


# members ---------------------------------------------------------------------------------------------------


def unjoined(context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=NO_GROUP,
        generation_id=-1,
        protocol_type=None,
        protocol_name="" if context.api_version < PROTOCOL_NULLABLE_FROM else None,
        leader="",
        member_id="",
        members=[],
    )


def unsynced(context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=NO_GROUP, assignment=b"")


# administration --------------------------------------------------------------------------------------------


def find_coordinator(context: RequestContext, access: Access, request: FindCoordinatorRequest, handler: Handler) -> Any:
    resource = {GROUP_KEY: GROUP, TRANSACTION_KEY: TRANSACTIONAL_ID}.get(request.key_type)
    if resource is None:
        return handler(context, request)
    code = NO_GROUP if resource == GROUP else NO_TRANSACTION
    if context.api_version < MANY_KEYS_FROM:
        if access.may(DESCRIBE, resource, request.key):
            return handler(context, request)
        return FindCoordinatorResponse(error_code=code, error_message=MESSAGES[code], node_id=-1, host="", port=-1)
    keys, refused = split(request.coordinator_keys, access, DESCRIBE, resource, str)
    rows = [
        _Coordinator(key=key, node_id=-1, host="", port=-1, error_code=code, error_message=MESSAGES[code])
        for key in refused
    ]
    if not keys and rows:
        return FindCoordinatorResponse(coordinators=rows)
    request = changed(request, coordinator_keys=keys) if rows else request
    return then(handler(context, request), lambda answer: extended(answer, "coordinators", rows))


def describe_groups(context: RequestContext, access: Access, request: DescribeGroupsRequest, handler: Handler) -> Any:
    groups, refused = split(request.groups, access, DESCRIBE, GROUP, str)
    rows = [
        DescribeGroupsResponse.DescribedGroup(
            error_code=NO_GROUP,
            error_message=MESSAGES[NO_GROUP],
            group_id=group,
            group_state="",
            protocol_type="",
            protocol_data="",
            members=[],
        )
        for group in refused
    ]

    def with_operations(group: DescribeGroupsResponse.DescribedGroup) -> DescribeGroupsResponse.DescribedGroup:
        if group.error_code:
            return group
        operations = access.operations(GROUP_OPERATIONS, GROUP, group.group_id)
        return changed(group, authorized_operations=operations)

    def complete(answer: DescribeGroupsResponse) -> DescribeGroupsResponse:
        if request.include_authorized_operations:
            answer = changed(answer, groups=[with_operations(group) for group in answer.groups])
        return extended(answer, "groups", rows)

    if not groups and rows:
        return DescribeGroupsResponse(groups=rows)
    return then(handler(context, changed(request, groups=groups) if rows else request), complete)


def list_groups(context: RequestContext, access: Access, request: ListGroupsRequest, handler: Handler) -> Any:
    if access.may_cluster(DESCRIBE):
        return handler(context, request)

    def complete(answer: ListGroupsResponse) -> Work[ListGroupsResponse]:
        groups = yield from allowed_work(answer.groups, access, DESCRIBE, GROUP, lambda group: group.group_id)
        return changed(answer, groups=groups)

    return then_work(context, handler(context, request), complete)


def delete_groups(context: RequestContext, access: Access, request: DeleteGroupsRequest, handler: Handler) -> Any:
    groups, refused = split(dict.fromkeys(request.groups_names), access, DELETE, GROUP, str)
    rows = [DeleteGroupsResponse.DeletableGroupResult(group_id=group, error_code=NO_GROUP) for group in refused]
    if not groups and rows:
        return DeleteGroupsResponse(results=rows)
    return then(
        handler(context, changed(request, groups_names=groups)), lambda answer: extended(answer, "results", rows)
    )
