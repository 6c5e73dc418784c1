"""Classic groups: JoinGroup 0-9, Heartbeat 0-4, LeaveGroup 0-5, SyncGroup 0-5, DescribeGroups 0-6, ListGroups 0-5,
DeleteGroups 0-2.

Behaviour: JoinGroup and SyncGroup are answered when the rebalance allows; everything else at once, or when the
coordinator's write is committed.
Versions: JoinGroup before 1 has no rebalance timeout, from 4 on requests a member id first, from 9 on may skip the
assignment; LeaveGroup before 3 names one member; DescribeGroups from 6 on reports that a group does not exist.
"""

from __future__ import annotations

from collections.abc import Collection

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.values import (
    GroupDescription,
    GroupState,
    GroupType,
    JoinReply,
    JoinRequest,
    ListedGroup,
    MemberHeartbeat,
    MemberIdentity,
    SyncReply,
    SyncRequest,
)
from broker.requests.context import RequestContext
from broker.security.authorizer import GROUP_OPERATIONS
from broker.tenancy.scope import prefix_of
from common.errors import ErrorCode, ProtocolError, error_message
from common.pacing import Work
from wire.messages import (
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)

MEMBER_ID_FIRST_FROM = 4
PROTOCOL_NULLABLE_FROM = 7
SKIP_ASSIGNMENT_FROM = 9
SYNC_PROTOCOL_FROM = 5
LEAVE_MANY_FROM = 3
NOT_FOUND_FROM = 6
PROTOCOLS_MAX = 500  # per member; clients list one to five assignors
ROW_COST = 4  # units of `common.pacing`
FILTER_COST = 1
FILTER_LENGTH_MAX = max(map(len, (*GroupState, *GroupType)))


class GroupHandlers:
    """One method per API."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        self._coordinator = coordinator

    # members -----------------------------------------------------------------------------------------------

    async def join_group(self, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
        version = context.api_version
        reply = await self._join(context, request)
        protocol = reply.protocol
        if protocol is None and version < PROTOCOL_NULLABLE_FROM:
            protocol = ""
        return JoinGroupResponse(
            error_code=reply.error,
            generation_id=reply.generation,
            protocol_type=reply.protocol_type,
            protocol_name=protocol,
            leader=reply.leader,
            skip_assignment=reply.skip_assignment,
            member_id=reply.member_id,
            members=[
                JoinGroupResponse.JoinGroupResponseMember(
                    member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
                )
                for member in reply.members
            ],
        )

    async def _join(self, context: RequestContext, request: JoinGroupRequest) -> JoinReply:
        version = context.api_version
        if len(request.protocols) > PROTOCOLS_MAX:
            return JoinReply(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, request.member_id)
        rebalance_timeout_ms = request.rebalance_timeout_ms if version >= 1 else request.session_timeout_ms
        join = JoinRequest(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            context.client_id or "",
            f"/{context.client_host}",
            request.session_timeout_ms,
            max(rebalance_timeout_ms, 0),
            request.protocol_type,
            tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            knows_member_ids=version >= MEMBER_ID_FIRST_FROM,
            skips_assignment=version >= SKIP_ASSIGNMENT_FROM,
        )
        try:
            return await self._coordinator.join(join)
        except ProtocolError as error:
            return JoinReply(error.code, request.member_id)

    async def sync_group(self, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse:
        named = context.api_version >= SYNC_PROTOCOL_FROM
        if named and (request.protocol_type is None or request.protocol_name is None):
            return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL, assignment=b"")
        sync = SyncRequest(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type if named else None,
            request.protocol_name if named else None,
            request.assignments,
        )
        try:
            reply = await self._coordinator.sync(sync)
        except ProtocolError as error:
            reply = SyncReply(error.code)
        return SyncGroupResponse(
            error_code=reply.error,
            protocol_type=reply.protocol_type,
            protocol_name=reply.protocol,
            assignment=reply.assignment,
        )

    async def heartbeat(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        heartbeat = MemberHeartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        try:
            code = await self._coordinator.heartbeat(heartbeat)
        except ProtocolError as error:
            code = error.code
        return HeartbeatResponse(error_code=code)

    async def leave_group(self, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        if context.api_version < LEAVE_MANY_FROM:
            leaving: tuple[MemberIdentity, ...] = (MemberIdentity(request.member_id, None),)
        else:
            leaving = tuple(MemberIdentity(member.member_id, member.group_instance_id) for member in request.members)
        try:
            codes = await self._coordinator.leave(request.group_id, leaving)
        except ProtocolError as error:
            if error.code is not ErrorCode.UNKNOWN_MEMBER_ID:
                return LeaveGroupResponse(error_code=error.code, members=[])
            codes = (ErrorCode.UNKNOWN_MEMBER_ID,) * len(leaving)  # the group does not exist
        if context.api_version < LEAVE_MANY_FROM:
            return LeaveGroupResponse(error_code=codes[0], members=[])
        return LeaveGroupResponse(
            error_code=ErrorCode.NONE,
            members=[
                LeaveGroupResponse.MemberResponse(
                    member_id=member.member_id, group_instance_id=member.instance_id, error_code=code
                )
                for member, code in zip(leaving, codes, strict=True)
            ],
        )

    # administration ----------------------------------------------------------------------------------------

    async def describe_groups(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        operations = GROUP_OPERATIONS if request.include_authorized_operations else None
        described = []
        for group_id in request.groups:
            try:
                group = await self._coordinator.describe(group_id)
            except ProtocolError as error:
                described.append(_undescribed(group_id, "", error.code, None))
                continue
            if group.state is GroupState.DEAD and context.api_version >= NOT_FOUND_FROM:
                message = error_message(f"Group {group_id} not found.")
                code = ErrorCode.GROUP_ID_NOT_FOUND
                described.append(_undescribed(group_id, group.state, code, message))
            else:
                described.append(await context.paced(_described(group, operations)))
        return DescribeGroupsResponse(groups=described)

    async def list_groups(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        """Filters are case-insensitive; an empty filter matches everything."""
        states = await context.paced(_filtered(request.states_filter, GroupState))
        types = await context.paced(_filtered(request.types_filter, GroupType))
        try:
            prefix = "" if context.tenant is None else prefix_of(context.tenant)
            groups = await self._coordinator.list_groups(prefix)
        except ProtocolError as error:
            return ListGroupsResponse(error_code=error.code, groups=[])
        return ListGroupsResponse(error_code=ErrorCode.NONE, groups=await context.paced(_listed(groups, states, types)))

    async def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        results = []
        for group_id in dict.fromkeys(request.groups_names):
            try:
                code = await self._coordinator.delete_group(group_id)
            except ProtocolError as error:
                code = error.code
            results.append(DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code))
        return DeleteGroupsResponse(results=results)


def _filtered(names: Collection[str] | None, known: type[GroupState] | type[GroupType]) -> Work[set[str]]:
    """Those of `known` that a filter names. No group has another state or type, so other names are not kept."""
    if not names:
        return {*known}
    asked: set[str] = set()
    members = {one.lower(): one for one in known}
    for name in names:
        yield FILTER_COST
        if len(name) <= FILTER_LENGTH_MAX and (one := members.get(name.lower())) is not None:
            asked.add(one)
    return asked


def _listed(groups: list[ListedGroup], states: set[str], types: set[str]) -> Work[list[ListGroupsResponse.ListedGroup]]:
    rows: list[ListGroupsResponse.ListedGroup] = []
    for group in groups:
        yield ROW_COST
        if group.state in states and group.type in types:
            rows.append(
                ListGroupsResponse.ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type,
                    group_state=str(group.state),
                    group_type=str(group.type),
                )
            )
    return rows


def _described(
    group: GroupDescription, operations: tuple[int, ...] | None
) -> Work[DescribeGroupsResponse.DescribedGroup]:
    member_class = DescribeGroupsResponse.DescribedGroup.DescribedGroupMember
    members: list[DescribeGroupsResponse.DescribedGroup.DescribedGroupMember] = []
    for member in group.members:
        members.append(
            member_class(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
        )
        yield ROW_COST
    return DescribeGroupsResponse.DescribedGroup(
        error_code=ErrorCode.NONE,
        error_message=None,
        group_id=group.group_id,
        group_state=str(group.state),
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=members,
        authorized_operations=operations,
    )


def _undescribed(
    group_id: str, state: str, code: ErrorCode, message: str | None
) -> DescribeGroupsResponse.DescribedGroup:
    return DescribeGroupsResponse.DescribedGroup(
        error_code=code,
        error_message=message,
        group_id=group_id,
        group_state=str(state),
        protocol_type="",
        protocol_data="",
        members=[],
        authorized_operations=None,
    )
