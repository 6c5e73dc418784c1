"""CreateAcls and DeleteAcls: validation, limits and records. No I/O.

Error codes and the meaning of filters are Apache Kafka's (AclApis, AclControlManager). As there, creating an existing
binding succeeds without a record.
"""

from __future__ import annotations

import random
from enum import IntEnum
from typing import Any, TypeVar

import msgspec

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work, at_once
from kraft.batches import MetadataRecord
from kraft.controller.features import check_access_level
from kraft.controller.policy import ControllerPolicy, tenant_limit
from kraft.image.acl_filter import CHECKED_PER_STEP, AclFilter
from kraft.image.acls import CLUSTER_RESOURCE, AclImage, AclsImage
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import ACLS_MAX, cluster_resource
from kraft.records import AclOperation, AclPattern, AclPermission, AclResource, RemoveAclRecord
from wire.messages import CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse

ACLS_PER_REQUEST_MAX = 10_000
NAME_CHARACTERS_MAX = 1_000
ID_BYTES = 16

CREATION_COST, FILTER_COST, ROW_COST, FOUND_PER_UNIT = 15, 20, 5, 10
"""Units of `common.pacing`: per created ACL, per filter, per row of results; number of matched ACLs per unit."""

_Created = CreateAclsResponse.AclCreationResult
_Deleted = DeleteAclsResponse.DeleteAclsFilterResult


K = TypeVar("K", bound=IntEnum)


class AclDraft:
    """The ACLs of one decision: existing ones, and those that the decision adds."""

    def __init__(self, image: MetadataImage, policy: ControllerPolicy, rng: random.Random) -> None:
        self._image = image
        self._policy = policy
        self._random = rng
        self._bindings: dict[tuple[Any, ...], None] = {}  # bindings of the resources met so far, and added ones
        self._met: dict[tuple[int, int, str], None] = {}
        self._owned: dict[str, int] = {}
        self.records: list[MetadataRecord] = []

    def add(self, acl: AclImage) -> None:
        """Add `acl`, which has no id yet; nothing if the binding exists. Raises POLICY_VIOLATION at a limit."""
        at_once(self.meeting(acl))
        acls = self._image.acls
        if acl.binding in self._bindings:
            return
        if len(acls) + len(self.records) >= self._policy.access.acls_max:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, "No more ACLs can be made: the limit is reached.")
        owner = acl.owner
        if owner is not None:
            self._count(acls, owner)
        self._bindings[acl.binding] = None
        self.records.append(msgspec.structs.replace(acl.record(), id=self._new_id(acls)))

    def meeting(self, acl: AclImage) -> Work[None]:
        """Read a resource's existing bindings, once for all ACLs that are added to it."""
        resource = (acl.resource_type, acl.pattern_type, acl.resource_name)
        if resource in self._met:
            return
        present = self._image.acls.like(acl)
        for at in range(0, len(present), CHECKED_PER_STEP):
            for other in present[at : at + CHECKED_PER_STEP]:
                self._bindings[other.binding] = None
            yield CHECKED_PER_STEP
        self._met[resource] = None

    def _count(self, acls: AclsImage, owner: str) -> None:
        tenant = self._image.tenants.get(owner)
        if tenant is None:
            raise ProtocolError(ErrorCode.INVALID_REQUEST, "The ACL names a tenant that does not exist.")
        count = self._owned.get(owner, len(acls.by_tenant.get(owner, ()))) + 1
        most = tenant_limit(tenant, ACLS_MAX, self._policy)
        if count > most:
            raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"No more ACLs can be made: at most {most} are allowed.")
        self._owned[owner] = count

    def _new_id(self, acls: AclsImage) -> bytes:
        while True:
            acl_id = self._random.randbytes(ID_BYTES)
            if acls.get(acl_id) is None:
                return acl_id


def create_acls(
    image: MetadataImage, request: CreateAclsRequest, policy: ControllerPolicy, rng: random.Random
) -> Work[Decision[MetadataRecord, CreateAclsResponse]]:
    """CreateAcls (30): each succeeds or fails on its own."""
    draft = AclDraft(image, policy, rng)
    results = []
    try:
        check_access_level(image)
        _check_size(len(request.creations))
    except ProtocolError as error:
        return Decision(CreateAclsResponse(results=[_created(error)] * len(request.creations)))
    for creation in request.creations:
        yield CREATION_COST
        try:
            acl = _checked(creation)
            yield from draft.meeting(acl)
            draft.add(acl)
            results.append(_created(None))
        except ProtocolError as error:
            results.append(_created(error))
    return Decision(CreateAclsResponse(results=results), draft.records)


def delete_acls(image: MetadataImage, request: DeleteAclsRequest) -> Work[Decision[MetadataRecord, DeleteAclsResponse]]:
    """DeleteAcls (31): each filter returns what it matched; an ACL that two filters match is removed once."""
    removed: dict[bytes, None] = {}
    rows: dict[bytes, _Deleted.DeleteAclsMatchingAcl] = {}
    results = []
    for wanted in request.filters:
        yield FILTER_COST
        acl_filter = AclFilter(
            wanted.resource_type_filter,
            wanted.resource_name_filter,
            wanted.pattern_type_filter,
            wanted.principal_filter,
            wanted.host_filter,
            wanted.operation,
            wanted.permission_type,
        )
        try:
            acl_filter.check()
            found = yield from acl_filter.find_work(image.acls)
            fresh = [acl for acl in found if acl.id not in removed]
            _check_size(len(removed) + len(fresh))
        except ProtocolError as error:
            results.append(_Deleted(error_code=int(error.code), error_message=error.message, matching_acls=[]))
            continue
        for acl in fresh:
            removed[acl.id] = None
            rows[acl.id] = _matched(acl)
            yield ROW_COST
        results.append(_Deleted(error_code=0, error_message=None, matching_acls=[rows[acl.id] for acl in found]))
        yield len(found) // FOUND_PER_UNIT
    return Decision(DeleteAclsResponse(filter_results=results), [RemoveAclRecord(acl_id) for acl_id in removed])


def _check_size(count: int) -> None:
    if count > ACLS_PER_REQUEST_MAX:
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"More than {ACLS_PER_REQUEST_MAX} ACLs in one request.")


def _known(kind: type[K], name: str, number: int) -> K:
    try:
        return kind(number)
    except ValueError:
        raise _invalid(f"Invalid {name} {number}") from None


def _checked(creation: CreateAclsRequest.AclCreation) -> AclImage:
    """Raises INVALID_REQUEST, as Apache Kafka does, unless the binding is valid."""
    resource_type = _known(AclResource, "resourceType", creation.resource_type)
    pattern_type = _known(AclPattern, "patternType", creation.resource_pattern_type)
    operation = _known(AclOperation, "operation", creation.operation)
    permission = _known(AclPermission, "permissionType", creation.permission_type)
    name, principal = creation.resource_name, creation.principal
    acl = AclImage(b"", resource_type, name, pattern_type, principal, creation.host, operation, permission)
    if not name:
        raise _invalid("The resource name should not be empty.")
    if resource_type is AclResource.CLUSTER and name != CLUSTER_RESOURCE:
        owner = acl.owner
        if owner is None or name != cluster_resource(owner):
            raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_RESOURCE}.")
    if ":" not in principal:
        raise _invalid("The principal has no colon, which separates its type from its name.")
    if max(len(name), len(principal), len(creation.host)) > NAME_CHARACTERS_MAX:
        raise _invalid(f"A name is longer than {NAME_CHARACTERS_MAX} characters.")
    if not creation.host:
        raise _invalid("The host should not be empty.")
    return acl


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def _created(error: ProtocolError | None) -> _Created:
    if error is None:
        return _Created(error_code=0, error_message=None)
    return _Created(error_code=int(error.code), error_message=error.message)


def _matched(acl: AclImage) -> _Deleted.DeleteAclsMatchingAcl:
    return _Deleted.DeleteAclsMatchingAcl(
        error_code=0,
        error_message=None,
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )
