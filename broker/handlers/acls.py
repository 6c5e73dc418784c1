"""Access control lists: DescribeAcls 1-3, CreateAcls 1-3, DeleteAcls 1-3.

Behaviour: descriptions come from this broker's image; changes are sent to the controller in an Envelope. Filters and
error codes are Apache Kafka's. Without an authorizer, operators get SECURITY_DISABLED; tenants' ACLs always apply.
Versions: 2 and 3 differ only in encoding and in the resource type USER.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TypeVar

from broker.requests.context import RequestContext
from broker.requests.failures import failing
from broker.requests.forwarding import Forwarder
from broker.tenancy.tenant_acls import find_acls
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.acl_filter import AclFilter
from kraft.image.acls import AclImage
from wire.messages import (
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    Request,
)

R = TypeVar("R")

ROW_COST = 3  # units of `common.pacing`

_Resource = DescribeAclsResponse.DescribeAclsResource
_Deleted = DeleteAclsResponse.DeleteAclsFilterResult


class AclHandlers:
    """One method per API. `authorizes`: ACLs are enforced on operators' listeners (authorizer.class.name)."""

    def __init__(self, forwarder: Forwarder, authorizes: bool) -> None:
        self._forwarder = forwarder
        self._authorizes = authorizes

    def _check_enabled(self, context: RequestContext) -> None:
        if not self._authorizes and context.tenant is None:
            raise ProtocolError(ErrorCode.SECURITY_DISABLED, "No Authorizer is configured.")

    def describe_acls(
        self, context: RequestContext, request: DescribeAclsRequest
    ) -> DescribeAclsResponse | Work[DescribeAclsResponse]:
        wanted = _filter(request)
        try:
            self._check_enabled(context)
            wanted.check()
        except ProtocolError as error:
            return DescribeAclsResponse(error_code=error.code, error_message=error.message or None, resources=[])
        return self._describe(context, wanted)

    def _describe(self, context: RequestContext, wanted: AclFilter) -> Work[DescribeAclsResponse]:
        acls, tenant = self._forwarder.image.acls, context.tenant
        by_resource: dict[tuple[int, str, int], list[AclImage]] = {}
        for acl in (yield from wanted.find_work(acls)) if tenant is None else find_acls(wanted, tenant, acls):
            key = (acl.resource_type, acl.resource_name, acl.pattern_type)
            by_resource.setdefault(key, []).append(acl)
            yield ROW_COST
        resources: list[_Resource] = []
        for of_resource in by_resource.values():
            resources.append(_resource(of_resource))
            yield ROW_COST * len(of_resource)
        return DescribeAclsResponse(error_code=0, error_message=None, resources=resources)

    async def create_acls(self, context: RequestContext, request: CreateAclsRequest) -> CreateAclsResponse:
        return await self._change(context, request)

    async def delete_acls(self, context: RequestContext, request: DeleteAclsRequest) -> DeleteAclsResponse:
        if context.tenant is not None:
            return await self._delete_of_tenant(context, context.tenant, request)
        return await self._change(context, request)

    async def _change(self, context: RequestContext, request: Request[R]) -> R:
        try:
            self._check_enabled(context)
        except ProtocolError as error:
            response: R = await context.paced(failing(request, error))
            return response
        return await self._forwarder.serve(context, request)

    async def _delete_of_tenant(
        self, context: RequestContext, tenant: str, request: DeleteAclsRequest
    ) -> DeleteAclsResponse:
        """This broker resolves the tenant's filters; the controller gets one exact filter per matching ACL."""
        acls = self._forwarder.image.acls
        meant: list[list[AclImage] | ProtocolError] = []
        doomed: dict[bytes, AclImage] = {}
        for one in request.filters:
            wanted = _filter(one)
            try:
                wanted.check()
                found = find_acls(wanted, tenant, acls)
                meant.append(found)
                doomed.update((acl.id, acl) for acl in found)
            except ProtocolError as error:
                meant.append(error)
        removed: dict[bytes, _Deleted] = {}
        if doomed:
            exact = DeleteAclsRequest(filters=[_exactly(acl) for acl in doomed.values()])
            try:
                response = await self._forwarder.forward(context, exact)
            except ProtocolError as error:
                meant = [error if isinstance(one, list) and one else one for one in meant]
            else:
                removed = dict(zip(doomed, response.filter_results, strict=True))
        return DeleteAclsResponse(filter_results=[_deleted(one, removed) for one in meant])


def _filter(given: DescribeAclsRequest | DeleteAclsRequest.DeleteAclsFilter) -> AclFilter:
    """The filter of a DescribeAcls request, or one filter of a DeleteAcls request."""
    return AclFilter(
        given.resource_type_filter,
        given.resource_name_filter,
        given.pattern_type_filter,
        given.principal_filter,
        given.host_filter,
        given.operation,
        given.permission_type,
    )


def _exactly(acl: AclImage) -> DeleteAclsRequest.DeleteAclsFilter:
    return DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=int(acl.resource_type),
        resource_name_filter=acl.resource_name,
        pattern_type_filter=int(acl.pattern_type),
        principal_filter=acl.principal,
        host_filter=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _deleted(meant: list[AclImage] | ProtocolError, removed: Mapping[bytes, _Deleted]) -> _Deleted:
    """One filter's result, from the results of its matching ACLs. Results are copied, because two filters may match one
    ACL."""
    if isinstance(meant, ProtocolError):
        return _Deleted(error_code=meant.code, error_message=meant.message or None, matching_acls=[])
    results = [removed[acl.id] for acl in meant]
    failed = next((result for result in results if result.error_code), None)
    if failed is not None:
        return _Deleted(error_code=failed.error_code, error_message=failed.error_message, matching_acls=[])
    return _Deleted(
        error_code=0, error_message=None, matching_acls=[copy(acl) for one in results for acl in one.matching_acls]
    )


def _resource(acls: list[AclImage]) -> _Resource:
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
