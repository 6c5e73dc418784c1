"""Two tenants with equal names in one cluster: whatever one sends that is the other's, it gets the answer for what
never existed, and nothing in any byte of it is the other's. Over every API and version that tenants have.

The same run catches each kind of field that is taken for one that needs no rewriting.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from broker.apis import FIELD_CLASSES
from broker.tenancy.compiler import Compiler
from broker.tenancy.field_classes import ENTITIES, NAMES, FieldClass
from common.errors import ErrorCode
from tests.broker.tenant_lab import ALPHA, BETA, GAMMA, INSIDE_DIRECTORY, INSIDE_HOST, KEYS, OPERATOR, TenantLab, Wire
from tests.broker.tenant_requests import Place, lists_of_all, places, request, tenant_apis
from wire.apis import APIS, Api
from wire.codec import decode_response, encode_response
from wire.messages import (
    CreateAclsRequest,
    CreateTopicsRequest,
    DeleteGroupsRequest,
    FetchRequest,
    FindCoordinatorRequest,
    JoinGroupRequest,
    ListGroupsRequest,
    MetadataRequest,
    OffsetCommitRequest,
)

SHARED_TOPIC, SHARED_GROUP = "flights", "watchers"
SECRET_TOPIC, SECRET_GROUP = "secret-bees", "secret-hive"  # beta's alone
NO_TOPIC, NO_GROUP = "secret-wasp", "secret-nest"  # nobody's, and as long
NO_TENANT, NO_KEY = "lkc-zzzzzz", "TKZZZZZZZZZZZZZZ"
NO_ID = uuid.UUID(int=0x1234567890ABCDEF << 32)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_VOLATILE = (
    "producer_id",
    "last_timestamp",
    "log_append_time_ms",
    "base_offset",
    "partition_size",
    "epoch",
    "generation_id",
)
_NAMES = (FieldClass.TOPIC_NAME, FieldClass.GROUP_ID, FieldClass.COORDINATOR_KEY, FieldClass.CONFIG_RESOURCE)


@dataclass
class World:
    """What the requests are made of."""

    lab: TenantLab
    wires: dict[str, Wire]  # of alpha, which asks for what is beta's, and of gamma, which asks for its own
    topic_ids: dict[str, uuid.UUID] = field(default_factory=dict)  # by internal name
    member_id: str = ""  # beta's, in SECRET_GROUP
    session_id: int = 0  # of beta's fetch session

    @property
    def b(self) -> str:
        return self.lab.tenants[BETA]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    root: Path = tmp_path_factory.mktemp("tenants")
    async with TenantLab(root) as lab:
        alpha, beta, gamma = await lab.connect(ALPHA), await lab.connect(BETA), await lab.connect(GAMMA)
        made = World(lab, {ALPHA: alpha, GAMMA: gamma})
        for wire, topics, groups in (
            (alpha, (SHARED_TOPIC,), (SHARED_GROUP,)),
            (gamma, (SHARED_TOPIC,), (SHARED_GROUP,)),
            (beta, (SHARED_TOPIC, SECRET_TOPIC), (SHARED_GROUP, SECRET_GROUP)),
        ):
            await _furnish(wire, topics, groups)
        made.member_id = (await beta.call(_join(SECRET_GROUP), 3)).member_id
        made.session_id = (await beta.call(_fetch(0, 0), 12)).session_id
        operator = await lab.connect(OPERATOR)
        everything = await operator.call(MetadataRequest(topics=None, allow_auto_topic_creation=False), 12)
        made.topic_ids = {topic.name: topic.topic_id for topic in everything.topics}
        assert f"{made.b}_{SECRET_TOPIC}" in made.topic_ids and "__consumer_offsets" in made.topic_ids
        assert made.member_id and made.session_id
        yield made


async def _furnish(wire: Wire, topics: tuple[str, ...], groups: tuple[str, ...]) -> None:
    creatable = [
        CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=2, replication_factor=1, assignments=[], configs=[]
        )
        for name in topics
    ]  # fmt: skip
    made = await wire.call(CreateTopicsRequest(topics=creatable, timeout_ms=5_000, validate_only=False), 7)
    assert not any(topic.error_code for topic in made.topics), made
    for group in groups:
        for _ in range(500):
            found = await wire.call(FindCoordinatorRequest(key_type=0, coordinator_keys=[group]), 4)
            commit = OffsetCommitRequest.OffsetCommitRequestTopic
            partition = commit.OffsetCommitRequestPartition(
                partition_index=0, committed_offset=5, committed_leader_epoch=-1, committed_metadata=""
            )
            done = await wire.call(
                OffsetCommitRequest(
                    group_id=group,
                    generation_id_or_member_epoch=-1,
                    member_id="",
                    group_instance_id=None,
                    topics=[commit(name=topics[-1], partitions=[partition])],
                ),
                8,
            )
            if not found.coordinators[0].error_code and not done.topics[0].partitions[0].error_code:
                break
        else:
            raise AssertionError((found, done))
    creation = CreateAclsRequest.AclCreation(
        resource_type=2, resource_name=topics[-1], resource_pattern_type=3, principal="User:somebody", host="*",
        operation=3, permission_type=3,
    )  # fmt: skip
    wildcard = CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="*", resource_pattern_type=3, principal="User:*", host="*", operation=4,
        permission_type=3,
    )  # fmt: skip
    allowed = await wire.call(CreateAclsRequest(creations=[creation, wildcard]), 3)
    assert not any(result.error_code for result in allowed.results), allowed


def _join(group: str) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group, session_timeout_ms=300_000, rebalance_timeout_ms=300_000, member_id="",
        protocol_type="consumer", protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"")],
    )  # fmt: skip


def _fetch(session_id: int, session_epoch: int) -> FetchRequest:
    partition = FetchRequest.FetchTopic.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=1_000,
    )  # fmt: skip
    topics = [] if session_epoch else [FetchRequest.FetchTopic(topic=SHARED_TOPIC, partitions=[partition])]
    return FetchRequest(
        cluster_id=None, replica_id=-1, max_wait_ms=0, min_bytes=0, max_bytes=1_000, isolation_level=0,
        session_id=session_id, session_epoch=session_epoch, topics=topics, forgotten_topics_data=[], rack_id="",
    )  # fmt: skip


# what is sent ----------------------------------------------------------------------------------------------


def pairs(world: World, place: Place) -> Iterator[tuple[Any, Any]]:
    """(something of beta's or of the cluster's, its likeness that never existed)."""
    kind, b = place.field_class, world.b
    if kind in _NAMES or kind in (FieldClass.ACL_RESOURCE, FieldClass.FILTER, FieldClass.TRANSACTIONAL_ID):
        if kind is FieldClass.FILTER and "principal" in place.path:
            kind = FieldClass.PRINCIPAL
        else:
            yield SECRET_TOPIC, NO_TOPIC
            yield SECRET_GROUP, NO_GROUP
            yield f"{b}_{SECRET_TOPIC}", f"{NO_TENANT}_{NO_TOPIC}"
            yield f"{b}_{SECRET_GROUP}", f"{NO_TENANT}_{NO_GROUP}"
            yield "__consumer_offsets", "__consumer_offsats"
    if kind is FieldClass.PRINCIPAL:
        yield f"User:{KEYS[BETA]}", f"User:{NO_KEY}"
        yield f"User:{b}_{KEYS[BETA]}", f"User:{NO_TENANT}_{NO_KEY}"
    if kind is FieldClass.TOPIC_ID:
        yield world.topic_ids[f"{b}_{SECRET_TOPIC}"], NO_ID
        yield world.topic_ids[f"{b}_{SHARED_TOPIC}"], NO_ID
        yield world.topic_ids["__consumer_offsets"], NO_ID
    if kind is FieldClass.OPAQUE and place.path.endswith(("member_id", "group_instance_id")):
        yield world.member_id, world.member_id[:-4] + "zzzz"


def own(world: World, api: Api, place: Place) -> list[Any]:
    """Gamma's own, whose answers have much to say; what is asked for is there afterwards."""
    kind = place.field_class
    if api.name in ("DeleteTopics", "DeleteGroups"):
        return []
    if api.name == "DeleteAcls":
        return [SHARED_TOPIC] if place.path == "filters.resource_name_filter" else []
    if kind is FieldClass.TOPIC_ID:
        return [world.topic_ids[f"{world.lab.tenants[GAMMA]}_{SHARED_TOPIC}"]]
    if kind is FieldClass.PRINCIPAL:
        return ["User:somebody", "User:*"]
    if kind is FieldClass.ACL_RESOURCE:
        return [SHARED_TOPIC, "*", ""]
    if kind is FieldClass.FILTER:
        return [None]
    return [SHARED_TOPIC, SHARED_GROUP, "", ".", "x" * 245] if kind in _NAMES else []


def _with(place: Place, version: int, api: Api, value: Any) -> Any:
    values: dict[str, Any] = {place.path: value}
    leaf = api.request._struct
    for name in place.path.split("."):
        leaf = leaf.fields[name]
    if leaf.is_array():
        values[place.path] = [value]
    if place.field_class is FieldClass.TOPIC_ID and place.path == "topics.topic_id" and api.name in ("Metadata",):
        values["topics.name"] = None
    if place.field_class is FieldClass.TOPIC_ID and api.name == "DeleteTopics":
        values["topics.name"] = None
    if place.field_class is FieldClass.TOPIC_NAME and api.name in ("Metadata", "DeleteTopics"):
        values["topics.topic_id"] = None
    if place.path.endswith(("member_id", "group_instance_id")):
        values.setdefault("group_id", SECRET_GROUP)
    return request(api, version, values)


# what is compared ------------------------------------------------------------------------------------------


def shown(api: Api, version: int, payload: bytes | None, sent: Any, instead: Any) -> Any:
    """An answer without what it echoes, and without what no two answers have in common."""
    if payload is None:
        return "closed"
    message = decode_response(api.key, version, payload)[1].to_dict()

    def walk(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {key: walk(one, key) for key, one in value.items() if key not in _VOLATILE}
        if isinstance(value, list):
            return [walk(one) for one in value]
        text = str(value).replace(str(sent), str(instead)) if sent is not None else str(value)
        is_exact = isinstance(sent, uuid.UUID) or (name == "topic_id" and api.name != "CreateTopics")
        return text if is_exact else _UUID.sub("<uuid>", text)

    return walk(message)


def leaks(world: World, tenant: str, payload: bytes | None, sent: Any) -> list[str]:
    """What in these bytes the tenant has not sent and must not know."""
    if payload is None:
        return []
    echo = sent.bytes if isinstance(sent, uuid.UUID) else str(sent).encode() if sent else b""
    rest = payload.replace(echo, b"") if echo else payload
    forbidden = {
        "beta's id": world.b.encode(),
        "beta's topic": SECRET_TOPIC.encode(),
        "beta's group": SECRET_GROUP.encode(),
        "beta's key": KEYS[BETA].encode(),
        "beta's member": world.member_id.encode(),
        "an inside host": INSIDE_HOST.encode(),
        "an inside directory": INSIDE_DIRECTORY.encode(),
        "an internal topic": b"__consumer_offsets",
        "the cluster's id": (world.lab.broker.observer.image.cluster_id or "").encode(),
    } | {
        f"the id of {name}": topic_id.bytes for name, topic_id in world.topic_ids.items() if not name.startswith(tenant)
    }
    found = [what for what, data in forbidden.items() if data in rest]
    prefixes = re.finditer(rb"lkc-[a-z0-9]{6}(.?)", rest)
    found += [f"{one[0]!r}" for one in prefixes if not one[0].startswith(tenant.encode()) or one[1] == b"_"]
    return found


async def violations(world: World, apis: list[Api], *, all_versions: bool) -> list[str]:
    """Everything that alpha and gamma can tell from the answers; each with the request that told it."""
    found: list[str] = []
    alpha, gamma = world.lab.tenants[ALPHA], world.lab.tenants[GAMMA]

    async def ask(api: Api, version: int, message: Any, who: str = ALPHA) -> bytes | None:
        payload = await world.wires[who].exchange(message, version)
        if payload is None:
            world.wires[who] = await world.lab.connect(who)
        return payload

    for api in apis:
        for place in places(api):
            versions = place.versions if all_versions else (place.versions[-1],)
            for version in versions:
                for theirs, nobodys in pairs(world, place):
                    one = await ask(api, version, _with(place, version, api, theirs))
                    other = await ask(api, version, _with(place, version, api, nobodys))
                    what = f"{api.name} {version} {place.path} {theirs}"
                    found += [f"{what}: {leak}" for leak in leaks(world, alpha, one, theirs)]
                    first, second = (
                        shown(api, version, one, theirs, "<echo>"),
                        shown(api, version, other, nobodys, "<echo>"),
                    )
                    if first != second:
                        found.append(f"{what}: {first} is not {second}")
                for value in own(world, api, place):
                    payload = await ask(api, version, _with(place, version, api, value), GAMMA)
                    found += [
                        f"{api.name} {version} {place.path}={value!r}: {leak}"
                        for leak in leaks(world, gamma, payload, "")
                    ]
        if api.name in ("OffsetCommit", "JoinGroup"):
            await _without_groups(world.wires[ALPHA])
        for version, path, value in lists_of_all(api):
            if all_versions or version == api.max_version:
                payload = await ask(api, version, request(api, version, {path: value}), GAMMA)
                found += [f"{api.name} {version} {path}={value}: {leak}" for leak in leaks(world, gamma, payload, "")]
    return found


async def _without_groups(wire: Wire) -> None:
    """What alpha made by asking is gone, for its members come and go in their own time."""
    for _ in range(2_000):
        listed = await wire.call(ListGroupsRequest(states_filter=[]), 4)
        made = [group.group_id for group in listed.groups if group.group_id != SHARED_GROUP]
        if not made:
            return
        await wire.call(DeleteGroupsRequest(groups_names=made), 2)
    raise AssertionError(made)


@pytest_asyncio.fixture(loop_scope="module", params=[True, False], ids=["with rights", "with all rights"])
async def strangers(world: World, request: pytest.FixtureRequest) -> World:
    """Rights alone would keep tenants apart in many places, and so do names alone, in all of them."""
    return await _with_rights(world, request.param)


@pytest_asyncio.fixture(loop_scope="module")
async def names_alone(world: World) -> World:
    return await _with_rights(world, False)


async def _with_rights(world: World, rights: bool) -> World:
    world.lab.rights = rights
    world.wires = {who: await world.lab.connect(who) for who in (ALPHA, GAMMA)}
    return world


@pytest.mark.parametrize("name", [api.name for api in tenant_apis()])
@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_anothers_never_existed(strangers: World, name: str) -> None:
    api = next(api for api in APIS.values() if api.name == name)
    assert await violations(strangers, [api], all_versions=True) == []


@pytest.mark.asyncio(loop_scope="module")
async def test_anothers_fetch_session_never_existed(world: World) -> None:
    for epoch in (1, -1):
        answers = [await world.wires[ALPHA].call(_fetch(number, epoch), 12) for number in (world.session_id, 77)]
        assert str(answers[0]) == str(answers[1])
    assert world.session_id in world.lab.broker.data_plane.sessions  # nor has it been ended


# leaks on purpose ------------------------------------------------------------------------------------------

_UNSEEN = (
    FieldClass.TRANSACTIONAL_ID,  # refused before anybody looks at it: see test_tenancy_names
    FieldClass.COORDINATOR_KEY,  # says which broker to go to, and here is one: likewise
    FieldClass.FILTER,
    FieldClass.OPAQUE,
    FieldClass.COMMON,
)


@pytest.mark.parametrize("kind", [kind for kind in FieldClass if kind not in _UNSEEN], ids=lambda kind: kind.name)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_kind_that_is_not_rewritten_is_noticed(names_alone: World, kind: FieldClass) -> None:
    world = names_alone
    harmless = [api for api in tenant_apis() if "Delete" not in api.name]  # else the next leak finds nothing of beta's
    assert await violations(world, harmless, all_versions=False) == []
    classes = {
        message: {path: FieldClass.OPAQUE if found is kind else found for path, found in fields.items()}
        for message, fields in FIELD_CLASSES.items()
    }
    entities = {name: FieldClass.OPAQUE if found is kind else found for name, found in ENTITIES.items()}
    names = {name: FieldClass.OPAQUE if found is kind else found for name, found in NAMES.items()}
    restore = world.lab.compile_with(Compiler(classes, entities, names))
    try:
        assert await violations(world, harmless, all_versions=False)
    finally:
        restore()


@pytest.mark.parametrize("api", ["Produce", "Fetch"])
@pytest.mark.asyncio(loop_scope="module")
async def test_a_hot_path_without_a_prefix_is_noticed(names_alone: World, api: str) -> None:
    for wire in names_alone.wires.values():
        session = await names_alone.lab.session(wire)
        session.belong_to(session.principal, None, None)
        assert not session.topic_prefix
    row = next(row for row in APIS.values() if row.name == api)
    assert await violations(names_alone, [row], all_versions=True)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_id_that_is_told_apart_is_noticed(names_alone: World) -> None:
    """By nothing but the error that is answered in its place."""

    class Telling(Wire):
        async def exchange(self, message: Any, version: int) -> bytes | None:
            payload = await super().exchange(message, version)
            if payload is None or version < 13:
                return payload
            answer = decode_response(message.API_KEY, version, payload)[1]
            for topic in answer.responses:
                if topic.topic_id in names_alone.topic_ids.values():
                    for row in topic.partitions:
                        row.error_code = row.error_code and ErrorCode.NOT_LEADER_OR_FOLLOWER
            return encode_response(message.API_KEY, version, int.from_bytes(payload[:4], "big"), answer)[4:]

    names_alone.wires = {who: await names_alone.lab.connect(who, Telling) for who in (ALPHA, GAMMA)}
    fetch = next(row for row in APIS.values() if row.name == "Fetch")
    assert await violations(names_alone, [fetch], all_versions=True)
