"""Connections of keys: rights of their own, at most as many as the tenant may have, gone when the key is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.security.config import SecurityConfig
from broker.security.moved_tenants import LEFT_ALONE_S
from broker.security.plane import FrameHandlers, Security
from broker.security.session import ANONYMOUS, ClientSession
from common.machine import machine_random
from kraft.batches import MetadataRecord
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    ApiKeyRecord,
    BrokerRegistrationChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    RemoveTenantRecord,
    RemoveTopicRecord,
    ScramMechanism,
    TenantRecord,
    TenantState,
    TopicRecord,
)
from tests.broker.test_security_sasl import verifier
from tests.common.call_count import counted_calls
from tests.virtual_time import LoopClock
from wire.identity import PeerIdentity
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol
from wire.traffic import Traffic

pytestmark = pytest.mark.virtual_time

OWN = 0  # the broker
TENANT, KEY, PASSWORD, ACL = "lkc-aaaaaa", "TKAAAAAAAAAAAAAA", "secret of the key", b"a" * 16
READ, TOPIC = int(AclOperation.READ), int(AclResource.TOPIC)
READS = AclRecord(
    ACL, AclResource.TOPIC, f"{TENANT}_", AclPattern.PREFIXED, f"User:{TENANT}_{KEY}", "*", AclOperation.READ,
    AclPermission.ALLOW,
)  # fmt: skip


class Connection:
    """Of a client that reached a tenants' listener under a tenant's name."""

    def __init__(self, server_name: str) -> None:
        self.listener = ListenerConfig("TENANT", ("h", 1), None, ListenerKind.TENANT, SecurityProtocol.SASL_SSL)
        self.identity = PeerIdentity(SecurityProtocol.SASL_SSL, ("10.0.0.1", 1), server_name=server_name)
        self.peer = ("10.0.0.1", 1)
        self.frame_bytes_max = 1 << 30
        self.handler: Any = None
        self.is_closed = False

    def count_in(self, traffic: Traffic) -> None:
        self.traffic = traffic

    def tell_of_frames(self, served: Any) -> None:
        self.served = served

    def hand_to(self, handler: Any, frame_bytes_max: int) -> None:
        self.handler, self.frame_bytes_max = handler, frame_bytes_max

    def close_after_flush(self) -> None:
        self.is_closed = True

    def close(self, reason: str | None = None) -> None:
        self.is_closed = True


def _ignored(*_: object) -> None:
    """A frame."""


class World:
    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        ports: Any = SimpleNamespace(clock=LoopClock(), random=machine_random())
        config = SecurityConfig(tenant_domain="example.org", tenant_connections_max=2)
        self.security = Security(config, ports, lambda: self.image, b"secret", 1 << 20, broker_id=OWN)
        self.change(
            TenantRecord(TENANT, "one", "default", 0),
            ApiKeyRecord(KEY, TENANT, "", (), 0),
            verifier(KEY, PASSWORD, ScramMechanism.SHA_256),
            READS,
        )

    def change(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.image()
        self.security.metadata_changed(delta, self.image)

    def come(self, server_name: str = f"{TENANT}.example.org") -> tuple[Connection, ClientSession, Any]:
        connection = Connection(server_name)
        session = ClientSession("TENANT", False, "10.0.0.1", connection)
        made: Any = connection
        self.security.greet(made, session, FrameHandlers(_ignored, _ignored))
        return connection, session, session.login

    async def log_in(self, server_name: str = f"{TENANT}.example.org") -> tuple[Connection, ClientSession, str]:
        """The last is the cause of a refusal."""
        connection, session, login = self.come(server_name)
        before = dict(self.security.failures.counts)
        login.handshake(1, "PLAIN")
        await login.authenticate(f"\0{KEY}\0{PASSWORD}".encode())
        causes = [cause for cause, count in self.security.failures.counts.items() if count > before.get(cause, 0)]
        return connection, session, ", ".join(causes)


async def test_a_key_has_the_rights_of_its_acls_while_they_are_there() -> None:
    world = World()
    _, session, refusal = await world.log_in()
    access = session.access
    assert refusal == "" and access is not None
    assert (session.principal, session.tenant) == (f"User:{TENANT}_{KEY}", TENANT)
    assert access.may(READ, TOPIC, f"{TENANT}_t") and not access.may(READ, TOPIC, "t")
    world.change(RemoveAclRecord(ACL))
    assert not access.may(READ, TOPIC, f"{TENANT}_t")


async def test_what_a_connection_uses_counts_for_its_tenant_from_the_login_on() -> None:
    world = World()
    connection, session, _ = world.come()
    book = world.security.usage
    assert session.usage is not book.of(TENANT) and (book.of(TENANT).attempts, book.of(TENANT).connections) == (1, 0)
    connection, session, refusal = await world.log_in()
    assert not refusal and session.usage is book.of(TENANT) and connection.traffic is session.usage
    assert (session.usage.attempts, session.usage.connections) == (2, 1)
    session.grant(book.of(TENANT))  # again, as after a further login
    session.closed()
    assert (session.usage.opened, session.usage.connections) == (1, 0)
    world.come("lkc-zzzzzz.example.org")
    world.come("elsewhere")
    assert len(book) == 1, "names that are no tenant's are not counted: there could be any number of them"
    world.change(RemoveTenantRecord(TENANT))
    assert len(book) == 0 and book.forgotten.attempts == 2


@pytest.mark.parametrize(
    "record",
    [RemoveApiKeyRecord(KEY), TenantRecord(TENANT, "one", "default", 0, state=TenantState.DELETING)],
    ids=["key revoked", "tenant deleted"],
)
async def test_connections_of_a_key_that_is_gone_close_at_once(record: MetadataRecord) -> None:
    world = World()
    connection, session, _ = await world.log_in()
    stranger, _, _ = world.come()
    other = asyncio.create_task(world.log_in())
    await asyncio.sleep(0)  # its password is being checked
    world.change(record)
    assert connection.is_closed and not stranger.is_closed
    session.closed()
    assert (await other)[2] == "key revoked, revoked meanwhile", "the first one, and the second"
    assert (await world.log_in())[2] == "invalid credentials"


async def test_many_tenants_that_go_at_once_cost_one_look_at_the_connections() -> None:
    world, tenants = World(), [f"lkc-{number:06d}" for number in range(200)]
    world.change(*(TenantRecord(one, one, "default", 0) for one in tenants))
    world.change(*(ApiKeyRecord(f"key-{one}", one, "", (), 0) for one in tenants))
    connections = []
    for one in tenants:
        connection, _, login = world.come()
        assert world.security.enter(login, f"key-{one}", "", one) == ""
        login.user = f"key-{one}"
        connections.append(connection)
    with counted_calls() as count:
        world.change(*(TenantRecord(one, one, "default", 0, state=TenantState.DELETING) for one in tenants))
    assert all(connection.is_closed for connection in connections)
    assert count.calls < len(tenants) ** 2


async def test_a_broker_that_is_fenced_costs_no_look_at_each_tenant() -> None:
    world, tenants = World(), [f"lkc-{number:06d}" for number in range(600)]
    world.change(
        RegisterBrokerRecord(OWN, bytes(16), (), None, cell="east"),
        RegisterBrokerRecord(1, bytes(16), (), None, cell="east", broker_epoch=5),
        *(TenantRecord(one, one, "east", 0) for one in tenants),
    )
    for one in tenants:
        _, _, login = world.come()
        assert world.security.enter(login, f"key-{one}", "", one) == ""
    with counted_calls() as count:
        world.change(BrokerRegistrationChangeRecord(1, 5, fenced=True))
    assert count.calls < len(tenants)


async def test_a_tenant_that_goes_costs_no_look_at_the_others_connections() -> None:
    world, tenants = World(), [f"lkc-{number:06d}" for number in range(600)]
    world.change(*(TenantRecord(one, one, "default", 0) for one in tenants))
    for one in tenants:
        _, _, login = world.come()
        assert world.security.enter(login, f"key-{one}", "", one) == ""
        login.user = f"key-{one}"
    connection, _, _ = await world.log_in()
    with counted_calls() as count:
        world.change(TenantRecord(TENANT, "one", "default", 0, state=TenantState.DELETING))
    assert connection.is_closed
    assert count.calls < len(tenants)


async def test_a_tenant_has_so_many_connections_and_no_more() -> None:
    world = World()
    _, first, _ = await world.log_in()
    assert (await world.log_in())[2] == ""
    _, refused, why = await world.log_in()
    assert why == "too many connections of the tenant"
    assert (refused.tenant, refused.principal, refused.access) == (None, ANONYMOUS, None), "it is nobody's yet"
    first.closed()
    assert (await world.log_in())[2] == ""


async def test_an_operators_wildcard_does_not_mean_tenants() -> None:
    world = World()
    world.change(
        RemoveAclRecord(ACL),
        AclRecord(
            b"b" * 16, AclResource.TOPIC, "*", AclPattern.LITERAL, "User:*", "*", AclOperation.ALL, AclPermission.ALLOW
        ),
    )
    access = (await world.log_in())[1].access
    assert access is not None and not access.may(READ, TOPIC, f"{TENANT}_t")


@pytest.mark.parametrize("name", ["", "example.org", "lkc-bbbbbb.example.org", f"{TENANT}.another.org"])
async def test_a_name_that_is_not_the_tenants_knows_none_of_its_keys(name: str) -> None:
    _, session, refusal = await World().log_in(name)
    assert refusal == "invalid credentials"
    assert (session.tenant, session.principal, session.access) == (None, ANONYMOUS, None)


MOVED: MetadataRecord = TenantRecord(TENANT, "one", "west", 0)
MOVING = TenantRecord(TENANT, "one", "default", 0, target_cell="west", state=TenantState.MOVING)
OWN_TOPIC, GROUPS = b"t" * 16, b"g" * 16


def brokers(*cells: str) -> list[MetadataRecord]:
    return [RegisterBrokerRecord(b, bytes([b]) * 16, (), None, cell=cell, fenced=False) for b, cell in enumerate(cells)]


def replicas(topic_id: bytes, name: str, *replicas: int) -> list[MetadataRecord]:
    return [TopicRecord(name, topic_id), PartitionRecord(topic_id, 0, replicas, replicas, replicas[0])]


@pytest.mark.parametrize(
    ("records", "stays"),
    [
        ([], True),
        ([MOVING], True),
        ([MOVED], False),
        ([MOVED, *replicas(OWN_TOPIC, f"{TENANT}_t", 0, 1)], True),
        ([MOVED, *replicas(OWN_TOPIC, f"{TENANT}_t", 1)], False),
        ([MOVED, *replicas(OWN_TOPIC, "lkc-bbbbbb_t", 0)], False),
        ([MOVED, *replicas(GROUPS, "__consumer_offsets", 0)], True),
        ([MOVED, *replicas(GROUPS, "__consumer_offsets", 1)], False),
    ],
    ids=[
        "at home",
        "on its way",
        "gone",
        "a replica left",
        "replicas elsewhere",
        "another's",
        "its groups left",
        "none",
    ],
)
async def test_connections_that_a_moved_tenant_leaves_behind_close_when_nothing_of_it_is_here(
    records: list[MetadataRecord], stays: bool
) -> None:
    world = World()
    world.change(*brokers("default", "west"))
    early, _, _ = await world.log_in()
    world.change(*records)
    late, _, _ = await world.log_in()  # by a name that it still knew
    await asyncio.sleep(LEFT_ALONE_S - 1)
    assert not early.is_closed and not late.is_closed, "its clients have time to go by themselves"
    await asyncio.sleep(2 * LEFT_ALONE_S)
    assert early.is_closed == late.is_closed == (not stays)
    if stays and MOVED in records:
        world.change(*(RemoveTopicRecord(one.topic_id) for one in records if isinstance(one, TopicRecord)))
        await asyncio.sleep(LEFT_ALONE_S)
        assert early.is_closed and late.is_closed, "the last replica has left"


async def test_connections_stay_where_their_tenant_came_back_in_time() -> None:
    world = World()
    world.change(*brokers("default", "west"))
    connection, _, _ = await world.log_in()
    world.change(MOVED)
    await asyncio.sleep(LEFT_ALONE_S - 10)
    world.change(TenantRecord(TENANT, "one", "default", 0))
    await asyncio.sleep(5)
    world.change(MOVED)
    await asyncio.sleep(LEFT_ALONE_S - 1)
    assert not connection.is_closed
    await asyncio.sleep(2)
    assert connection.is_closed


async def test_nothing_waits_for_a_tenant_whose_connections_are_gone() -> None:
    world = World()
    world.change(*brokers("default", "west"), MOVED)
    _, session, _ = await world.log_in()
    await asyncio.sleep(LEFT_ALONE_S - 10)
    session.closed()
    connection, _, _ = await world.log_in()
    await asyncio.sleep(LEFT_ALONE_S - 1)
    assert not connection.is_closed, "it has as much time as the first one"
    await asyncio.sleep(2)
    assert connection.is_closed


async def test_a_broker_that_is_in_another_cell_now_lets_its_tenants_go() -> None:
    world = World()
    world.change(*brokers("default", "west"))
    connection, _, _ = await world.log_in()
    await asyncio.sleep(2 * LEFT_ALONE_S)
    assert not connection.is_closed
    world.change(*brokers("west"))
    await asyncio.sleep(LEFT_ALONE_S + 1)
    assert connection.is_closed
