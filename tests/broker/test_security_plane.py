"""Connections of keys: rights of their own, at most as many as the tenant may have, gone when the key is."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.security.config import SecurityConfig
from broker.security.plane import FrameHandlers, Security
from broker.security.session import ANONYMOUS, ClientSession
from common.machine import MachineClock, machine_random
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import (
    AclOperation,
    AclPattern,
    AclPermission,
    AclRecord,
    AclResource,
    ApiKeyRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveAclRecord,
    RemoveApiKeyRecord,
    ScramCredentialRecord,
    ScramMechanism,
    TenantRecord,
    TenantState,
    TopicRecord,
)
from tests.common.call_count import counted_calls
from wire.identity import PeerIdentity
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol

OWN = 0  # the broker
TENANT, KEY, ACL = "lkc-aaaaaa", "TKAAAAAAAAAAAAAA", b"a" * 16
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
        ports: Any = SimpleNamespace(clock=MachineClock(), random=machine_random())
        config = SecurityConfig(tenant_domain="example.org", tenant_connections_max=2)
        now = asyncio.get_running_loop().time
        self.security = Security(config, ports, lambda: self.image, b"secret", 1 << 20, now, OWN)
        self.change(
            TenantRecord(TENANT, "one", "default", 0),
            ApiKeyRecord(KEY, TENANT, "", (), 0),
            ScramCredentialRecord(KEY, ScramMechanism.SHA_256, b"salt", b"stored", b"server", 4_096),
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

    def log_in(self) -> tuple[Connection, ClientSession, str]:
        connection, session, login = self.come()
        login.handshake(1, "SCRAM-SHA-256")
        refusal = login._services.admit(login, KEY)
        if not refusal:
            login.user = KEY
        return connection, session, refusal


async def test_a_key_has_the_rights_of_its_acls_while_they_are_there() -> None:
    world = World()
    _, session, refusal = world.log_in()
    access = session.access
    assert refusal == "" and access is not None
    assert (session.principal, session.tenant) == (f"User:{TENANT}_{KEY}", TENANT)
    assert access.may(READ, TOPIC, f"{TENANT}_t") and not access.may(READ, TOPIC, "t")
    world.change(RemoveAclRecord(ACL))
    assert not access.may(READ, TOPIC, f"{TENANT}_t")


@pytest.mark.parametrize(
    "record",
    [RemoveApiKeyRecord(KEY), TenantRecord(TENANT, "one", "default", 0, state=TenantState.DELETING)],
    ids=["key revoked", "tenant deleted"],
)
async def test_connections_of_a_key_that_is_gone_close_at_once(record: MetadataRecord) -> None:
    world = World()
    connection, session, _ = world.log_in()
    stranger, _, _ = world.come()
    world.change(record)
    assert connection.is_closed and not stranger.is_closed
    session.closed()
    assert world.log_in()[2] == "revoked meanwhile"


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


async def test_a_tenant_has_so_many_connections_and_no_more() -> None:
    world = World()
    _, first, _ = world.log_in()
    assert world.log_in()[2] == ""
    _, refused, why = world.log_in()
    assert why == "too many connections of the tenant"
    assert (refused.tenant, refused.principal, refused.access) == (None, ANONYMOUS, None), "it is nobody's yet"
    first.closed()
    assert world.log_in()[2] == ""


async def test_an_operators_wildcard_does_not_mean_tenants() -> None:
    world = World()
    world.change(
        RemoveAclRecord(ACL),
        AclRecord(
            b"b" * 16, AclResource.TOPIC, "*", AclPattern.LITERAL, "User:*", "*", AclOperation.ALL, AclPermission.ALLOW
        ),
    )
    access = world.log_in()[1].access
    assert access is not None and not access.may(READ, TOPIC, f"{TENANT}_t")


@pytest.mark.parametrize("name", ["", "example.org", "lkc-bbbbbb.example.org", f"{TENANT}.another.org"])
async def test_a_name_that_is_not_the_tenants_knows_none_of_its_keys(name: str) -> None:
    _, _, login = World().come(name)
    login.handshake(1, "SCRAM-SHA-256")
    assert login._services.admit(login, KEY) == "revoked meanwhile"


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
    early, early_session, _ = world.log_in()
    world.change(*records)
    late, late_session, _ = world.log_in()  # by a name that it still knew
    moved_tenants = world.security.moved_tenants
    assert not early.is_closed and not late.is_closed, "its clients have time to go by themselves"
    assert (TENANT in moved_tenants._timers) == (MOVED in records)
    for _ in range(2):
        if timer := moved_tenants._timers.get(TENANT):
            timer.cancel()
            moved_tenants._due(TENANT)  # as when the time has come
    assert early.is_closed == late.is_closed == (not stays)
    early_session.closed()
    late_session.closed()
    assert not moved_tenants._timers, "nothing waits for who is gone"


async def test_they_close_by_themselves_after_a_while_and_not_where_the_tenant_came_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("broker.security.moved_tenants.LEFT_ALONE_S", 0.01)
    world, closed = World(), asyncio.Event()
    world.change(*brokers("default", "west"))
    connection, session, _ = world.log_in()
    monkeypatch.setattr(connection, "close_after_flush", closed.set)
    world.change(MOVED)
    world.change(TenantRecord(TENANT, "one", "default", 0))
    assert not world.security.moved_tenants._timers
    world.change(MOVED)
    async with asyncio.timeout(30):
        await closed.wait()
    session.closed()


async def test_a_broker_that_is_in_another_cell_now_lets_its_tenants_go() -> None:
    world = World()
    world.change(*brokers("default", "west"))
    _, session, _ = world.log_in()
    assert not world.security.moved_tenants._timers
    world.change(*brokers("west"))
    assert TENANT in world.security.moved_tenants._timers
    session.closed()
