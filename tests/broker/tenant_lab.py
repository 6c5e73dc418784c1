"""A controller and a broker in one process, with tenants in them whose resources have the same names.

Connections to a tenant's listener become that tenant's without a login: what a login leads to is tested elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.audit.config import AuditConfig
from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.listeners import Listen
from broker.node import BrokerNode
from broker.partitions.config import LogDuties
from broker.security.authorizer import AuthorizerConfig
from broker.security.config import SecurityConfig
from broker.security.session import ANONYMOUS, ClientSession
from broker.tenancy.compiled_names import CompiledNames
from broker.tenancy.compiler import Compiler
from broker.tenancy.rewriter import TenantNames
from broker.tenancy.scope import ProxyAddress
from common.errors import ErrorCode
from common.node_settings.topics import TopicDefaults
from common.ports import Address, Ports
from common.settings import SettingValues
from kraft.controller.node import ControllerConfig, ControllerNode
from kraft.controller.policy import ControllerPolicy
from tests.broker.replication_lab import SECRET
from tests.broker.reserved_port import LOCALHOST, ReservedPort
from tests.common.steered_clock import SteeredClock
from tests.virtual_time import lab_ports
from wire.codec import decode_response, encode_request
from wire.connection import Connection
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol
from wire.messages import CreateAclsRequest, CreateTenantRequest

DOMAIN = "kafka.example.org"
PROXY_PORT = 9094
INSIDE_HOST = "inside-broker"
INSIDE_DIRECTORY = "/inside/directory"
GIVEN = SettingValues(
    {
        "log.dirs": INSIDE_DIRECTORY,
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1,
        "tidelog.audit.topic.replication.factor": 1,
    }
)
ALPHA, BETA, GAMMA, OPERATOR, INTERNAL = "ALPHA", "BETA", "GAMMA", "OPERATOR", "INTERNAL"
CONTROLLER = "CONTROLLER"  # the controller's listener, for nodes
KEYS = {ALPHA: "TKAAAAAAAAAAAAAA", BETA: "TKBBBBBBBBBBBBBB", GAMMA: "TKGGGGGGGGGGGGGG"}
_ALL_RESOURCES = ((2, 4, ""), (3, 4, ""), (5, 4, ""), (4, 3, "kafka-cluster"))  # types, patterns, names


class Wire:
    """A client that sees bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.ends: tuple[Address, Address] = writer.get_extra_info("sockname"), writer.get_extra_info("peername")

    async def exchange(self, message: Any, version: int) -> bytes | None:
        """The answer's payload; None when the connection was closed in its place."""
        return await self.send(encode_request(message, version, 7, "lab"))

    async def send(self, frame: bytes) -> bytes | None:
        """As `exchange`, with a whole frame."""
        self._writer.write(frame)
        try:
            async with asyncio.timeout(20):
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def call(self, message: Any, version: int) -> Any:
        payload = await self.exchange(message, version)
        assert payload is not None
        return decode_response(message.API_KEY, version, payload)[1]

    def close(self) -> None:
        self._writer.close()


class TenantLab:
    """Use as an asynchronous context."""

    def __init__(self, root: Path, world: Callable[[Path], Ports] = lab_ports, retention_ms: int = 300_000) -> None:
        """`world` makes the ports of a node in one life; its directory is named after it. `retention_ms`: how often the
        broker's retention runs."""
        self.directory = root
        self._world = world
        self._duties = LogDuties(
            free_bytes_min=0,
            log_cleaner_enable=False,
            recovery_chunk_logs=1,
            log_retention_check_interval_ms=retention_ms,
        )
        self._held = [ReservedPort() for _ in range(7)]
        self._wires: list[Wire] = []
        self.fatal: list[str] = []
        self.clocks: dict[str, SteeredClock] = {}  # the broker's and the controller's
        self.rights = True  # whether tenants' connections have their rights, or all of them, from now on
        self.tenants: dict[str, str] = {}  # listener → tenant id

    async def __aenter__(self) -> TenantLab:
        consensus, listener, *clients = ((LOCALHOST, port.number) for port in self._held)
        self._addresses = dict(zip((*KEYS, OPERATOR, INTERNAL), clients, strict=True))
        self._addresses[CONTROLLER] = listener
        controller = ControllerConfig(
            100,
            {100: consensus},
            ListenerConfig(INTERNAL, listener, listener, ListenerKind.INTERNAL),
            SECRET,
            policy=ControllerPolicy(default_replication_factor=1, min_insync_replicas=1),
        )
        self.controller = ControllerNode(self._ports("controller"), controller, self.fatal.append)
        await self.controller.start()
        inside = (INSIDE_HOST, 1)
        self._config = BrokerConfig(
            0,
            tuple(
                Listen(
                    name, self._addresses[name], self._addresses[name] if name == INTERNAL else inside, kind, protocol
                )
                for name, kind, protocol in (
                    *((name, "tenant", SecurityProtocol.SASL_PLAINTEXT) for name in KEYS),
                    (OPERATOR, "operator", SecurityProtocol.PLAINTEXT),
                    (INTERNAL, "internal", SecurityProtocol.PLAINTEXT),
                )
            ),
            {100: listener},
            SECRET,
            log_dirs=INSIDE_DIRECTORY,
            topics=TopicDefaults(auto_create_topics_enable=False),
            duties=self._duties,
            proxy_domain=DOMAIN,
            proxy_port=PROXY_PORT,
            security=SecurityConfig(
                authorizer=AuthorizerConfig(frozenset({ANONYMOUS})), authentication_ms=3_600_000
            ),  # nobody logs in
            groups=GIVEN.group(GroupConfig),
            audit=GIVEN.group(AuditConfig),
            node_settings=dict(GIVEN.given),
        )
        await self._start_broker()
        await self._make_tenants()
        return self

    async def _start_broker(self) -> None:
        self.broker = BrokerNode(self._ports("broker"), self._config, self.fatal.append)
        await self.broker.start()
        await self.broker.wait_ready()

    async def restart(self) -> None:
        """The broker stops, and starts again on the same disk."""
        await self.broker.stop()
        await self._start_broker()

    async def __aexit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.close()
        await self.broker.stop()
        await self.controller.stop()
        for port in self._held:
            port.close()
        assert not self.fatal, self.fatal

    def _ports(self, node: str) -> Ports:
        ports = self._world(self.directory / node)
        clock = self.clocks[node] = SteeredClock(ports.clock)
        return replace(ports, clock=clock)

    def address(self, listener: str) -> Address:
        return self._addresses[listener]

    async def connect(self, listener: str, kind: type[Wire] = Wire) -> Wire:
        wire = kind(*await asyncio.open_connection(*self.address(listener)))
        self._wires.append(wire)
        if listener in KEYS:
            self._admit(await self._connection(wire), self.tenants[listener], KEYS[listener])
        return wire

    def _admit(self, connection: Connection, tenant: str, key: str) -> None:
        session, security, principal = connection.state, self.broker.security, f"User:{tenant}_{key}"
        assert isinstance(session, ClientSession)
        rights = security.rights(principal, session.client_host, tenant) if self.rights else None
        session.belong_to(principal, tenant, rights)
        session.grant(security.usage.of(tenant))
        connection.hand_to(self.broker.dispatcher.frame, security.frame_bytes_max)

    async def _connection(self, wire: Wire) -> Connection:
        """The broker's end of it. Connections to two listeners may come from the same port."""
        async with asyncio.timeout(20):
            while True:
                for connection in self.broker.server.connections:
                    listener = connection.listener
                    if listener is None or connection.state is None:
                        continue
                    if (connection.peer, self.address(listener.name)) == wire.ends:
                        return connection
                await asyncio.sleep(0)

    async def session(self, wire: Wire) -> ClientSession:
        """What the broker knows of that client."""
        session = (await self._connection(wire)).state
        assert isinstance(session, ClientSession)
        return session

    def compile_with(self, compiler: Compiler) -> Callable[[], None]:
        """Rewrite from now on as `compiler` has it; call the result to go back."""
        names = TenantNames(
            lambda: self.broker.observer.image, ProxyAddress(DOMAIN, PROXY_PORT), CompiledNames(compiler)
        )
        before = self.broker.dispatcher.serving.chain
        self.broker.dispatcher.serving.chain = type(before)(names, before.throttle)

        def restore() -> None:
            self.broker.dispatcher.serving.chain = before

        return restore

    async def _make_tenants(self) -> None:
        operator = await self.connect(OPERATOR)
        for name, key in KEYS.items():
            made = await operator.call(CreateTenantRequest(tenant_name=name.lower(), limits=[]), 0)
            assert not made.error_code, (ErrorCode(made.error_code), made.error_message)
            tenant = self.tenants[name] = made.tenant_id
            creation = CreateAclsRequest.AclCreation
            acls = [
                creation(
                    resource_type=kind,
                    resource_name=f"{tenant}_{resource}",
                    resource_pattern_type=pattern,
                    principal=f"User:{tenant}_{key}",
                    host="*",
                    operation=2,
                    permission_type=3,
                )
                for kind, pattern, resource in _ALL_RESOURCES
            ]
            granted = await operator.call(CreateAclsRequest(creations=acls), 3)
            assert not any(result.error_code for result in granted.results), granted
