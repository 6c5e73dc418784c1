"""Access control lists: DescribeAcls 1-3, CreateAcls 1-3, DeleteAcls 1-3.

Behaviour: descriptions come from this broker's image, changes are the controller's to decide and travel to it in an
Envelope. Filters mean what they mean to Apache Kafka; the error codes are its own.
Versions: 2 and 3 differ in encoding and in the resource type USER alone.
"""

from __future__ import annotations

from typing import Any

from broker.forwarding import Forwarder
from broker.request import RequestContext
from common.errors import ProtocolError
from kraft.acl_filter import AclFilter
from kraft.image.acls import AclImage
from wire.messages import CreateAclsResponse, DeleteAclsResponse, DescribeAclsResponse

CREATE_VERSION = 3
DELETE_VERSION = 3

_Resource = DescribeAclsResponse.DescribeAclsResource


class AclHandlers:
    """One method per API."""

    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def describe_acls(self, context: RequestContext, request: Any) -> Any:
        wanted = AclFilter(
            request.resource_type_filter,
            request.resource_name_filter,
            request.pattern_type_filter,
            request.principal_filter,
            request.host_filter,
            request.operation,
            request.permission_type,
        )
        try:
            wanted.check()
        except ProtocolError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=error.message or None, resources=[])
        by_resource: dict[tuple[int, str, int], list[AclImage]] = {}
        for acl in wanted.find(self._forwarder.image.acls):
            key = (acl.resource_type, acl.resource_name, acl.pattern_type)
            by_resource.setdefault(key, []).append(acl)
        return DescribeAclsResponse(
            error_code=0, error_message=None, resources=[_resource(acls) for acls in by_resource.values()]
        )

    async def create_acls(self, context: RequestContext, request: Any) -> Any:
        try:
            return await self._forwarder.forward(context, request, CREATE_VERSION)
        except ProtocolError as error:
            result = CreateAclsResponse.AclCreationResult(error_code=error.code, error_message=error.message or None)
            return CreateAclsResponse(results=[result for _ in request.creations])

    async def delete_acls(self, context: RequestContext, request: Any) -> Any:
        try:
            return await self._forwarder.forward(context, request, DELETE_VERSION)
        except ProtocolError as error:
            result = DeleteAclsResponse.DeleteAclsFilterResult(
                error_code=error.code, error_message=error.message or None, matching_acls=[]
            )
            return DeleteAclsResponse(filter_results=[result for _ in request.filters])


def _resource(acls: list[AclImage]) -> Any:
    first = acls[0]
    return _Resource(
        resource_type=int(first.resource_type),
        resource_name=first.resource_name,
        pattern_type=int(first.pattern_type),
        acls=[
            _Resource.AclDescription(
                principal=acl.principal,
                host=acl.host,
                operation=int(acl.operation),
                permission_type=int(acl.permission),
            )
            for acl in acls
        ],
    )
