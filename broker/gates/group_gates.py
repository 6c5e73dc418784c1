"""Gates of APIs about groups and their offsets. A group that the client may not describe is treated as not listed."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from broker.gates.gating import (
    DELETE,
    DESCRIBE,
    GROUP,
    MESSAGES,
    NO_GROUP,
    NO_TOPIC,
    NO_TRANSACTION,
    READ,
    TOPIC,
    TRANSACTIONAL_ID,
    allowed_work,
    extended,
    split,
    then,
    then_work,
)
from broker.handlers.cluster import GROUP_KEY, MANY_KEYS_FROM, TRANSACTION_KEY
from broker.handlers.group_offsets import (
    MANY_GROUPS_FROM,
    TOP_LEVEL_ERROR_FROM,
    committed_row,
    deleted_row,
    fetched_row,
    old_failure,
)
from broker.handlers.groups import PROTOCOL_NULLABLE_FROM
from broker.requests.context import Handler, RequestContext
from broker.security.authorizer import GROUP_OPERATIONS, Access
from common.errors import ErrorCode
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
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncGroupRequest,
    SyncGroupResponse,
    changed,
)

_Coordinator = FindCoordinatorResponse.Coordinator
_FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup
_GroupTopics = _FetchedGroup.OffsetFetchResponseTopics


# offsets ---------------------------------------------------------------------------------------------------


def offset_commit(context: RequestContext, access: Access, request: OffsetCommitRequest, handler: Handler) -> Any:
    if not access.may(READ, GROUP, request.group_id):
        return OffsetCommitResponse(topics=[committed_row(topic, repeat(NO_GROUP)) for topic in request.topics])
    allowed, refused = split(request.topics, access, READ, TOPIC, _name)
    if not refused:
        return handler(context, request)
    rows = [committed_row(topic, repeat(NO_TOPIC)) for topic in refused]
    if not allowed:
        return OffsetCommitResponse(topics=rows)
    return then(handler(context, changed(request, topics=allowed)), lambda answer: extended(answer, "topics", rows))


def offset_fetch(context: RequestContext, access: Access, request: OffsetFetchRequest, handler: Handler) -> Any:
    if context.api_version >= MANY_GROUPS_FROM:
        return _fetch_groups(context, access, request, handler)
    if not access.may(DESCRIBE, GROUP, request.group_id):
        before = context.api_version < TOP_LEVEL_ERROR_FROM
        topics = old_failure(request.topics or [], NO_GROUP) if before else []
        return OffsetFetchResponse(topics=topics, error_code=NO_GROUP)
    everything = request.topics is None
    rows: list[OffsetFetchResponse.OffsetFetchResponseTopic] = []
    if request.topics is not None:
        allowed, refused = split(request.topics, access, DESCRIBE, TOPIC, _name)
        rows = old_failure(refused, NO_TOPIC)
        request = changed(request, topics=allowed) if refused else request

    def complete(answer: OffsetFetchResponse) -> Work[OffsetFetchResponse]:
        if everything:
            shown = yield from allowed_work(answer.topics, access, DESCRIBE, TOPIC, _name)
            answer = changed(answer, topics=shown)
        return extended(answer, "topics", [] if answer.error_code else rows)

    return then_work(context, handler(context, request), complete)


def _fetch_groups(context: RequestContext, access: Access, request: OffsetFetchRequest, handler: Handler) -> Any:
    described, refused = split(request.groups, access, DESCRIBE, GROUP, lambda group: group.group_id)
    unfetched = [_FetchedGroup(group_id=group.group_id, topics=[], error_code=NO_GROUP) for group in refused]
    everything: list[bool] = []
    rows: list[list[_GroupTopics]] = []
    groups: list[OffsetFetchRequest.OffsetFetchRequestGroup] = []
    for group in described:
        everything.append(group.topics is None)
        topics: list[OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics] = []
        if group.topics is not None:
            allowed, topics = split(group.topics, access, DESCRIBE, TOPIC, _name)
            group = changed(group, topics=allowed) if topics else group
        groups.append(group)
        rows.append([_unfetched(topic) for topic in topics])
    if not groups:
        return OffsetFetchResponse(groups=unfetched)

    def complete(answer: OffsetFetchResponse) -> Work[OffsetFetchResponse]:
        fetched: list[_FetchedGroup] = []
        for group, whole, more in zip(answer.groups, everything, rows, strict=True):
            if whole:
                shown = yield from allowed_work(group.topics, access, DESCRIBE, TOPIC, _name)
                group = changed(group, topics=shown)
            if not group.error_code:
                group.topics.extend(more)
            fetched.append(group)
        return changed(answer, groups=fetched + unfetched)

    return then_work(context, handler(context, changed(request, groups=groups)), complete)


def _name(topic: Any) -> str:
    return str(topic.name)


def _unfetched(topic: OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics) -> _GroupTopics:
    rows = [fetched_row(index, code=NO_TOPIC) for index in topic.partition_indexes]
    return _GroupTopics(name=topic.name, partitions=rows)


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


def offset_delete(context: RequestContext, access: Access, request: OffsetDeleteRequest, handler: Handler) -> Any:
    if not access.may(DELETE, GROUP, request.group_id):
        return OffsetDeleteResponse(error_code=NO_GROUP, topics=[])
    topics, refused = split(request.topics, access, READ, TOPIC, lambda topic: topic.name)
    rows = [deleted_row(topic, repeat(NO_TOPIC)) for topic in refused]
    if not topics and rows:
        return OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=rows)
    request = changed(request, topics=topics) if rows else request
    return then(
        handler(context, request), lambda answer: answer if answer.error_code else extended(answer, "topics", rows)
    )
