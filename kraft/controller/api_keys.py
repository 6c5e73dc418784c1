"""API keys: created with verifiers and the ACLs of their roles, renewed, revoked. No I/O.

The client that requests a key generates and shows its secret, which never reaches the controller.

Roles are ACLs of the key's principal: `admin` may do everything with the tenant's resources; `read:PREFIX` may read
topics, and commit in groups, with this prefix; `write:PREFIX` may write to such topics, also in transactions whose ids
have the prefix. `read` and `write` without a prefix apply to all names.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from kraft.batches import MetadataRecord
from kraft.controller.acls import AclDraft
from kraft.controller.features import check_access_level
from kraft.controller.policy import ControllerPolicy, tenant_limit
from kraft.controller.scram_credentials import API_KEY_ID, SECRET_BYTES_MAX, check_iterations, mechanism_of
from kraft.image.acls import WILDCARD, AclImage
from kraft.image.credentials import ApiKeyImage
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import KEYS_MAX, TenantImage, cluster_resource
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclResource,
    ApiKeyRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
    ScramMechanism,
    TenantState,
)
from kraft.topic_names import can_begin_name
from wire.messages import CreateApiKeyRequest, CreateApiKeyResponse, DeleteApiKeyRequest, DeleteApiKeyResponse

ADMIN, READ, WRITE = "admin", "read", "write"
ROLES_MAX = 20
DESCRIPTION_CHARACTERS_MAX = 200
PREFIX_CHARACTERS_MAX = 200
SALT_BYTES_MIN = 8
ID_CHARACTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
ID_LENGTH = 14
_DIGEST_BYTES = {ScramMechanism.SHA_256: 32, ScramMechanism.SHA_512: 64}
_BY_ROLE = {
    READ: (
        (AclResource.TOPIC, AclOperation.READ),
        (AclResource.GROUP, AclOperation.READ),
    ),
    WRITE: (
        (AclResource.TOPIC, AclOperation.WRITE),
        (AclResource.TRANSACTIONAL_ID, AclOperation.WRITE),
    ),
    ADMIN: (
        (AclResource.TOPIC, AclOperation.ALL),
        (AclResource.GROUP, AclOperation.ALL),
        (AclResource.TRANSACTIONAL_ID, AclOperation.ALL),
    ),
}


def decide_create_api_key(
    image: MetadataImage, request: CreateApiKeyRequest, policy: ControllerPolicy, rng: random.Random, now_ms: int
) -> Decision[MetadataRecord, CreateApiKeyResponse]:
    """CreateApiKey (10009): a new key, or new verifiers for an existing one."""
    try:
        check_access_level(image)
        tenant = image.tenants.get(request.tenant) or image.tenants.by_name(request.tenant)
        if tenant is None or tenant.state is TenantState.DELETING:
            raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, f"There is no tenant {request.tenant}.")
        if request.key_id is None:
            key, records = _new_key(image, tenant, request, policy, rng, now_ms)
        else:
            key, records = _owned_key(image, tenant, request.key_id), []
        records += _verifiers(key.id, request.verifiers)
    except ProtocolError as error:
        return Decision(CreateApiKeyResponse(error_code=int(error.code), error_message=error.message))
    reply = CreateApiKeyResponse(error_code=0, error_message=None, key_id=key.id, tenant_id=tenant.id)
    return Decision(reply, records)


def decide_delete_api_key(
    image: MetadataImage, request: DeleteApiKeyRequest
) -> Decision[MetadataRecord, DeleteApiKeyResponse]:
    """DeleteApiKey (10010)."""
    key = image.keys.get(request.key_id)
    if key is None:
        message = f"There is no key {request.key_id}."
        return Decision(DeleteApiKeyResponse(error_code=int(ErrorCode.RESOURCE_NOT_FOUND), error_message=message))
    return Decision(
        DeleteApiKeyResponse(error_code=0, error_message=None),
        revocation(image, key, acls_by_principal(image, key.tenant).get(key.principal, ())),
    )


def revocation(image: MetadataImage, key: ApiKeyImage, acls: Iterable[AclImage]) -> list[MetadataRecord]:
    """Records that remove the key, its verifiers, and `acls`, the ACLs of its principal."""
    records: list[MetadataRecord] = [RemoveApiKeyRecord(key.id)]
    records += [RemoveScramCredentialRecord(key.id, mechanism) for mechanism in image.scram.get(key.id, {})]
    records += [RemoveAclRecord(acl.id) for acl in acls]
    return records


def acls_by_principal(image: MetadataImage, tenant_id: str) -> dict[str, list[AclImage]]:
    """All ACLs of a tenant, by principal."""
    found: dict[str, list[AclImage]] = {}
    for acl in image.acls.of_tenant(tenant_id):
        found.setdefault(acl.principal, []).append(acl)
    return found


def parse_role(role: str) -> tuple[str, str]:
    """Kind and prefix of a role, "" for all names. Raises INVALID_REQUEST for an unknown role, and for a prefix that no
    topic name can have."""
    kind, colon, prefix = role.partition(":")
    if kind not in _BY_ROLE or (kind == ADMIN and colon):
        raise _invalid(f"{role!r} is no role; there are {ADMIN}, {READ}:PREFIX and {WRITE}:PREFIX.")
    if colon and not prefix:
        raise _invalid(f"{role!r} has no prefix; the role for all names is {kind}, without a colon.")
    if len(prefix) > PREFIX_CHARACTERS_MAX:
        raise _invalid(f"The prefix of a role has at most {PREFIX_CHARACTERS_MAX} characters, not {len(prefix)}.")
    if prefix and not can_begin_name(prefix):
        raise _invalid(
            f"{role!r}: no topic's name can begin with {prefix!r}, for names have ASCII letters, digits, '.', '_' "
            f"and '-'; the role for all names is {kind}, without a colon."
        )
    return kind, prefix


def role_acls(tenant: TenantImage, principal: str, role: str) -> list[AclImage]:
    """ACLs without ids. Raises INVALID_REQUEST for an unknown role."""
    kind, prefix = parse_role(role)
    grants = [
        _grant(principal, resource, tenant.prefix + prefix, AclPattern.PREFIXED, operation)
        for resource, operation in _BY_ROLE[kind]
    ]
    if kind == ADMIN:
        name = cluster_resource(tenant.id)
        grants.append(_grant(principal, AclResource.CLUSTER, name, AclPattern.LITERAL, AclOperation.ALL))
    return grants


def _grant(principal: str, resource: AclResource, name: str, pattern: AclPattern, operation: AclOperation) -> AclImage:
    return AclImage(b"", resource, name, pattern, principal, WILDCARD, operation, AclPermission.ALLOW)


def _new_key(
    image: MetadataImage,
    tenant: TenantImage,
    request: CreateApiKeyRequest,
    policy: ControllerPolicy,
    rng: random.Random,
    now_ms: int,
) -> tuple[ApiKeyImage, list[MetadataRecord]]:
    most = tenant_limit(tenant, KEYS_MAX, policy)
    if len(image.keys.of_tenant(tenant.id)) >= most:
        raise ProtocolError(ErrorCode.POLICY_VIOLATION, f"Tenant {tenant.name} has {most} keys, which is its limit.")
    roles = tuple(dict.fromkeys(request.roles))
    if len(roles) > ROLES_MAX:
        raise _invalid(f"A key has at most {ROLES_MAX} roles.")
    if len(request.description) > DESCRIPTION_CHARACTERS_MAX:
        raise _invalid(f"A description has at most {DESCRIPTION_CHARACTERS_MAX} characters.")
    key_id = _new_id(image, rng)
    key = ApiKeyImage(key_id, tenant.id, request.description, roles, now_ms)
    draft = AclDraft(image, policy, rng)
    for role in roles:
        for acl in role_acls(tenant, key.principal, role):
            draft.add(acl)
    records: list[MetadataRecord] = [ApiKeyRecord(key_id, tenant.id, request.description, roles, now_ms)]
    return key, records + draft.records


def _owned_key(image: MetadataImage, tenant: TenantImage, key_id: str) -> ApiKeyImage:
    key = image.keys.get(key_id)
    if key is None or key.tenant != tenant.id:
        raise ProtocolError(ErrorCode.RESOURCE_NOT_FOUND, f"Tenant {tenant.name} has no key {key_id}.")
    return key


def _verifiers(key_id: str, given: list[CreateApiKeyRequest.ApiKeyVerifier]) -> list[MetadataRecord]:
    """One for each mechanism, so that every client can log in. Raises UNACCEPTABLE_CREDENTIAL."""
    records: dict[ScramMechanism, MetadataRecord] = {}
    for verifier in given:
        mechanism = mechanism_of(verifier.mechanism)
        check_iterations(verifier.iterations)
        salt, stored, server = (
            bytes(part or b"") for part in (verifier.salt, verifier.stored_key, verifier.server_key)
        )
        if not SALT_BYTES_MIN <= len(salt) <= SECRET_BYTES_MAX:
            raise _unacceptable(f"A salt has {SALT_BYTES_MIN} to {SECRET_BYTES_MAX} bytes.")
        if {len(stored), len(server)} != {_DIGEST_BYTES[mechanism]}:
            raise _unacceptable(
                f"Stored key and server key have {_DIGEST_BYTES[mechanism]} bytes for {mechanism.name}."
            )
        records[mechanism] = ScramCredentialRecord(key_id, mechanism, salt, stored, server, verifier.iterations)
    if len(records) != len(ScramMechanism) or len(given) != len(records):
        raise _unacceptable("A key needs one verifier for each SCRAM mechanism.")
    return list(records.values())


def _new_id(image: MetadataImage, rng: random.Random) -> str:
    while True:
        key_id = "TK" + "".join(rng.choice(ID_CHARACTERS) for _ in range(ID_LENGTH))
        if API_KEY_ID.fullmatch(key_id) and key_id not in image.keys and key_id not in image.scram:
            return key_id


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_REQUEST, message)


def _unacceptable(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.UNACCEPTABLE_CREDENTIAL, message)
