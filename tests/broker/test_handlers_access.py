"""ACLs, users, tenants, keys and cells as a broker answers for them: from its image, or from the controller; never with
a verifier, and in every version the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.coordination.tenant_cleanup import CleanupConfig, TenantCleanup
from broker.handlers.acls import AclHandlers
from broker.handlers.scram import ScramHandlers
from broker.handlers.tenants import TenantHandlers
from common.errors import ErrorCode
from common.lifecycle import duty
from kraft.controller.api_keys import decide_create_api_key
from kraft.controller.cells import decide_describe_cells
from kraft.controller.tenants import decide_create_tenant
from kraft.image.delta import MetadataDelta
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    ApiKeyRecord,
    FeatureLevelRecord,
    RegisterBrokerRecord,
    ScramCredentialRecord,
    ScramMechanism,
    TenantRecord,
    TenantState,
    TopicRecord,
)
from kraft.topic_names import GROUP_TOPIC
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire, versions_of
from tests.kraft.decisions import (
    decide_alter_user_scram_credentials,
    decide_create_acls,
    decide_delete_acls,
    decide_update_features,
)
from wire.codec import decode_request, encode_response
from wire.messages import (
    CreateAclsRequest,
    CreateApiKeyRequest,
    CreateTenantRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeApiKeysRequest,
    DescribeCellsRequest,
    DescribeTenantsRequest,
    DescribeUserScramCredentialsRequest,
    EnvelopeResponse,
    UpdateFeaturesRequest,
    raw_uuid,
)

pytestmark = pytest.mark.virtual_time

SECRETS = (b"salt-of-it", b"stored-key", b"server-key")


class AccessWorld(BrokerWorld):
    """Decides about access too."""

    def __init__(self) -> None:
        super().__init__()
        self.replay(FeatureLevelRecord("tidelog.version", 1))
        for broker in self.image.brokers.values():
            endpoints = tuple(broker.endpoints.values())
            features = {"tidelog.version": (0, 1)}
            self.replay(
                RegisterBrokerRecord(
                    broker.broker_id, broker.incarnation, endpoints, broker.rack, fenced=False, features=features
                )
            )
        self.told: list[Any] = []

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        if self.failure is not None:
            raise self.failure
        if repeatable:  # not an envelope
            self.told.append(request)
            return None
        header, inner = decode_request(request.request_data)
        decisions: dict[int, Any] = {
            30: lambda: decide_create_acls(self.image, inner, self.policy, self.rng),
            31: lambda: decide_delete_acls(self.image, inner),
            51: lambda: decide_alter_user_scram_credentials(self.image, inner, self.policy),
            57: lambda: decide_update_features(self.image, inner),
            10004: lambda: decide_create_tenant(self.image, inner, self.policy, self.rng, 5),
            10009: lambda: decide_create_api_key(self.image, inner, self.policy, self.rng, 5),
            10012: lambda: decide_describe_cells(self.image, inner, self.policy),
        }
        decision = decisions[header.api_key]()
        self.replay(*decision.records)
        framed = encode_response(header.api_key, header.version, header.correlation, decision.reply)
        return EnvelopeResponse(error_code=0, response_data=framed[4:], committed_offset=self.image.offset)


async def asked(handler: Any, api: str, request: Any, version: int = 0) -> Any:
    """The answer as a client has it, after a way there and back over the wire."""
    ctx = context(api, version)
    answer = handler(ctx, over_the_wire(version, request))
    return reply_over_the_wire(ctx, answer if not hasattr(answer, "__await__") else await answer)


ANYTHING: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


@pytest.mark.parametrize("version", versions_of("CreateAcls"))
async def test_acls_are_made_found_and_deleted(version: int) -> None:
    world = AccessWorld()
    handlers = AclHandlers(world.forwarder, authorizes=True)
    fields: dict[str, Any] = {
        "resource_type": 2, "resource_pattern_type": 3, "principal": "User:a", "host": "*", "permission_type": 3,
    }  # fmt: skip
    creations = [
        CreateAclsRequest.AclCreation(resource_name=name, operation=operation, **fields)
        for name, operation in (("t", 3), ("t", 4), ("u", 3), ("", 3))
    ]
    made = await asked(handlers.create_acls, "CreateAcls", CreateAclsRequest(creations=creations), version)
    assert [row.error_code for row in made.results] == [0, 0, 0, ErrorCode.INVALID_REQUEST]
    found = await asked(handlers.describe_acls, "DescribeAcls", DescribeAclsRequest(**ANYTHING), version)
    assert {r.resource_name: [acl.operation for acl in r.acls] for r in found.resources} == {"t": [3, 4], "u": [3]}
    wrong = await asked(
        handlers.describe_acls, "DescribeAcls", DescribeAclsRequest(**{**ANYTHING, "operation": 77}), version
    )
    assert (wrong.error_code, wrong.resources) == (ErrorCode.INVALID_REQUEST, [])
    filters = [DeleteAclsRequest.DeleteAclsFilter(**{**ANYTHING, "resource_name_filter": "t"})]
    gone = await asked(handlers.delete_acls, "DeleteAcls", DeleteAclsRequest(filters=filters), version)
    assert [acl.operation for acl in gone.filter_results[0].matching_acls] == [3, 4]
    assert len(world.image.acls) == 1
    world.failure = ControllerUnavailable("away")
    made = await asked(handlers.create_acls, "CreateAcls", CreateAclsRequest(creations=creations), version)
    assert [row.error_code for row in made.results] == [ErrorCode.NOT_CONTROLLER] * 4
    gone = await asked(handlers.delete_acls, "DeleteAcls", DeleteAclsRequest(filters=filters), version)
    assert [row.error_code for row in gone.filter_results] == [ErrorCode.NOT_CONTROLLER]


@pytest.mark.parametrize("version", versions_of("CreateAcls"))
async def test_without_an_authorizer_operators_have_no_acls_and_tenants_have(version: int) -> None:
    world = AccessWorld()
    handlers = AclHandlers(world.forwarder, authorizes=False)
    creation = CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", host="*", operation=3,
        permission_type=3,
    )  # fmt: skip
    two = CreateAclsRequest(creations=[creation, creation])
    made = await asked(handlers.create_acls, "CreateAcls", two, version)
    one = DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**ANYTHING)])
    gone = await asked(handlers.delete_acls, "DeleteAcls", one, version)
    found = await asked(handlers.describe_acls, "DescribeAcls", DescribeAclsRequest(**ANYTHING), version)
    rows = [*made.results, *gone.filter_results, found]
    assert [row.error_code for row in rows] == [ErrorCode.SECURITY_DISABLED] * 4
    assert {row.error_message for row in rows} == {"No Authorizer is configured."}
    assert not len(world.image.acls) and not world.forwarded
    asking = context("DescribeAcls", version)
    asking.session.tenant = "lkc-aaaaaa"
    work = handlers.describe_acls(asking, over_the_wire(version, DescribeAclsRequest(**ANYTHING)))
    assert not reply_over_the_wire(asking, work).error_code


async def test_users_are_described_without_verifiers_and_without_keys() -> None:
    world = AccessWorld()
    world.replay(
        ScramCredentialRecord("alice", ScramMechanism.SHA_512, *SECRETS, 8192),
        ScramCredentialRecord("alice", ScramMechanism.SHA_256, *SECRETS, 4096),
        TenantRecord("lkc-aaaaaa", "a", "default", 1),
        ApiKeyRecord("TKA", "lkc-aaaaaa", "", ("admin",), 1),
        ScramCredentialRecord("TKA", ScramMechanism.SHA_256, *SECRETS, 4096),
    )
    handlers = ScramHandlers(world.forwarder)
    user = DescribeUserScramCredentialsRequest.UserName

    async def described(*names: str) -> Any:
        users = [user(name=name) for name in names] or None
        request = DescribeUserScramCredentialsRequest(users=users)
        return await asked(handlers.describe_user_scram_credentials, "DescribeUserScramCredentials", request)

    everybody = await described()
    assert [row.user for row in everybody.results] == ["alice"]
    assert [(i.mechanism, i.iterations) for i in everybody.results[0].credential_infos] == [(1, 4096), (2, 8192)]
    some = await described("alice", "bob", "bob", "TKA", "carol")
    assert [(row.user, row.error_code) for row in some.results] == [
        ("alice", 0),
        ("bob", ErrorCode.DUPLICATE_RESOURCE),
        ("TKA", ErrorCode.RESOURCE_NOT_FOUND),
        ("carol", ErrorCode.RESOURCE_NOT_FOUND),
    ]
    keys = await asked(TenantHandlers(world.forwarder).describe_api_keys, "DescribeApiKeys", DescribeApiKeysRequest())
    assert [(k.id, k.tenant_name, k.mechanisms) for k in keys.keys] == [("TKA", "a", ["SHA_256"])]
    for secret in SECRETS:
        assert all(secret.decode() not in str(answer) for answer in (everybody, some, keys))


async def test_tenants_are_described_with_what_they_have() -> None:
    world = AccessWorld()
    handlers = TenantHandlers(world.forwarder)
    for name in ("b", "a"):
        made = await asked(
            world.forwarder.serve, "CreateTenant", CreateTenantRequest(tenant_name=name, deny_networks=["10.0.0.1"])
        )
        assert (made.error_code, made.cell) == (0, "default")
    verifiers = [
        CreateApiKeyRequest.ApiKeyVerifier(
            mechanism=m, iterations=4096, salt=b"s" * 8, stored_key=b"k" * size, server_key=b"v" * size
        )
        for m, size in ((1, 32), (2, 64))
    ]
    request = CreateApiKeyRequest(tenant="a", description="", roles=["read:x"], verifiers=verifiers)
    key = await asked(world.forwarder.serve, "CreateApiKey", request)
    assert key.error_code == 0
    found = await asked(handlers.describe_tenants, "DescribeTenants", DescribeTenantsRequest())
    rows = [(row.name, row.state, row.keys, row.acls, row.deny_networks) for row in found.tenants]
    assert rows == [("a", "active", 1, 2, ["10.0.0.1/32"]), ("b", "active", 0, 0, ["10.0.0.1/32"])]
    twice = DescribeTenantsRequest(tenants=["b", found.tenants[1].id])
    assert [row.name for row in (await asked(handlers.describe_tenants, "DescribeTenants", twice)).tenants] == ["b"]
    unknown = DescribeTenantsRequest(tenants=["nobody"])
    answer = await asked(handlers.describe_tenants, "DescribeTenants", unknown)
    assert (answer.error_code, answer.tenants) == (ErrorCode.RESOURCE_NOT_FOUND, [])
    for wrong in ({"tenant": "nobody"}, {"tenant": "b", "keys": [key.key_id]}):
        answer = await asked(handlers.describe_api_keys, "DescribeApiKeys", DescribeApiKeysRequest(**wrong))
        assert answer.error_code == ErrorCode.RESOURCE_NOT_FOUND
    world.failure = ControllerUnavailable("away")
    answer = await asked(world.forwarder.serve, "CreateTenant", CreateTenantRequest(tenant_name="c"))
    assert answer.error_code == ErrorCode.NOT_CONTROLLER


async def test_cells_are_the_controllers_to_describe() -> None:
    world = AccessWorld()
    found = await asked(world.forwarder.serve, "DescribeCells", DescribeCellsRequest())
    assert [(cell.name, [b.broker_id for b in cell.brokers]) for cell in found.cells] == [("default", [0, 1, 2])]
    world.failure = ControllerUnavailable("away")
    found = await asked(world.forwarder.serve, "DescribeCells", DescribeCellsRequest())
    assert (found.error_code, found.cells) == (ErrorCode.NOT_CONTROLLER, [])


@pytest.mark.parametrize("version", versions_of("UpdateFeatures"))
async def test_an_operator_raises_a_feature(version: int) -> None:
    world = AccessWorld()
    world.replay(FeatureLevelRecord("tidelog.version", 0))
    for name in ("tidelog.version", "nonsense"):
        update = UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=1)
        request = UpdateFeaturesRequest(timeout_ms=1_000, feature_updates=[update])
        answer = await asked(world.forwarder.serve, "UpdateFeatures", request, version)
        expected = ErrorCode.NONE if name == "tidelog.version" else ErrorCode.INVALID_UPDATE_VERSION
        assert answer.error_code == expected
        assert [row.error_code for row in answer.results] == ([expected] if version < 2 else [])


class RecordedGroups:
    """Partition 0 has no groups left after two rounds, partition 1 refuses."""

    def __init__(self) -> None:
        self.left = [2, 1, 0, 0, 0, 0]

    topic = GROUP_TOPIC

    def hosted(self) -> list[int]:
        return [0]

    async def remove_keys(self, index: int, prefixes: tuple[str, ...], most: int) -> int:
        assert prefixes == ("lkc-aaaaaa_",)
        return self.left.pop(0)


async def test_the_controller_is_told_of_a_deleted_tenants_groups_when_they_are_gone() -> None:
    world = AccessWorld()
    groups = RecordedGroups()
    world.replay(TopicRecord(GROUP_TOPIC, b"g" * 16))
    cleanup = TenantCleanup([groups], lambda: world.image, world, lambda: (0, 7), CleanupConfig(round_s=0.0))
    for state in (TenantState.ACTIVE, TenantState.DELETING):
        delta = MetadataDelta(world.image)
        delta.replay(TenantRecord("lkc-aaaaaa", "a", "default", 1, state=state))
        world.image = delta.image()
        cleanup.metadata_changed(delta, world.image)
        running = {task.get_name() for task in asyncio.all_tasks()}
        assert (duty("tenant-cleanup") in running) == (state is TenantState.DELETING)
    async with asyncio.timeout(5):
        while not world.told:  # noqa: ASYNC110  nothing tells of it
            await asyncio.sleep(0)
    await cleanup.stop()
    told = world.told[0]
    assert (told.broker_id, told.broker_epoch, told.tenants, told.partitions) == (0, 7, ["lkc-aaaaaa"], [0])
    assert raw_uuid(told.topic_id) == b"g" * 16
    assert len(groups.left) <= 3, "not before a round found none"


async def test_an_acl_of_a_tenant_is_known_by_its_names() -> None:
    world = AccessWorld()
    record = AclRecord(
        b"i" * 16, AclResource.TOPIC, "lkc-aaaaaa_t", AclPattern.LITERAL, "User:x", "*", AclOperation.READ,
        AclPermission.ALLOW,
    )  # fmt: skip
    world.replay(record)
    assert [acl.id for acl in world.image.acls.of_tenant("lkc-aaaaaa")] == [record.id]
