"""A controller and a broker of ours in one process, with the same settings as the node of Apache Kafka."""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from broker.audit.config import AuditConfig
from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.listeners import Listen
from broker.node import BrokerNode
from broker.partitions.config import LogDuties
from broker.security.config import SecurityConfig
from common.machine import MachineClock, machine_ports
from common.ports import Clock
from kraft.controller.node import ControllerConfig, ControllerNode
from kraft.controller.policy import ControllerPolicy
from kraft.quorum.quorum import QuorumConfig
from tests.broker.gate_oracle.rights import RIGHTS, user_of
from tests.broker.gate_oracle.scene import furnish
from tests.broker.gate_oracle.things import Ids
from tests.broker.replication_lab import SECRET
from tests.broker.reserved_port import LOCALHOST, ReservedPort
from tests.broker.tenant_lab import Wire
from wire.listeners import ListenerConfig, ListenerKind, SecurityProtocol
from wire.messages import AlterUserScramCredentialsRequest, SaslAuthenticateRequest, SaslHandshakeRequest

PASSWORD, SALT, ITERATIONS = "secret", b"salt of the oracle", 4_096


class GatedNode:
    """Use as an asynchronous context."""

    def __init__(
        self,
        root: Path,
        security: SecurityConfig,
        clock: Clock | None = None,
        quorum: QuorumConfig | None = None,
    ) -> None:
        """`clock` is the broker's, `quorum` the controller's."""
        self.root = root
        self._clock = clock or MachineClock()
        self._quorum = quorum or QuorumConfig()
        self._held = [ReservedPort() for _ in range(5)]
        self._wires: list[Wire] = []
        self._security = security
        self.fatal: list[str] = []
        self.ids = Ids({})
        self.wires: dict[str, Wire] = {}  # by right

    async def __aenter__(self) -> GatedNode:
        consensus, listener, plain, sasl, internal = ((LOCALHOST, port.number) for port in self._held)
        self._plain, self._sasl = plain, sasl
        controller = ControllerConfig(
            100,
            {100: consensus},
            ListenerConfig("INTERNAL", listener, listener, ListenerKind.INTERNAL),
            SECRET,
            policy=ControllerPolicy(default_replication_factor=1, min_insync_replicas=1),
            quorum=self._quorum,
        )
        self.controller = ControllerNode(machine_ports(self.root / "controller"), controller, self.fatal.append)
        await self.controller.start()
        broker = BrokerConfig(
            0,
            (
                Listen("PLAINTEXT", plain, plain),
                Listen("SASL_PLAINTEXT", sasl, sasl, protocol=SecurityProtocol.SASL_PLAINTEXT),
                Listen("INTERNAL", internal, internal, "internal"),
            ),
            {100: listener},
            SECRET,
            duties=LogDuties(free_bytes_min=0, log_cleaner_enable=False),
            security=self._security,
            groups=GroupConfig(offsets_topic_num_partitions=1, offsets_topic_replication_factor=1),
            audit=AuditConfig(topic_replication_factor=1),
            node_settings={"offsets.topic.replication.factor": 1, "tidelog.audit.topic.replication.factor": 1},
        )
        ports = replace(machine_ports(self.root / "broker"), clock=self._clock)
        self.broker = BrokerNode(ports, broker, self.fatal.append)
        await self.broker.start()
        await self.broker.wait_ready()
        self.anonymous = await self.connect()
        return self

    async def furnish(self) -> None:
        """The oracle's scene and its principals."""
        await self.make_users(*map(user_of, RIGHTS))
        self.ids = await furnish(self.anonymous, self.login)

    async def __aexit__(self, *_: object) -> None:
        for wire in self._wires:
            wire.close()
        await self.broker.stop()
        await self.controller.stop()
        for port in self._held:
            port.close()
        assert not self.fatal

    async def connect(self, *, sasl: bool = False) -> Wire:
        wire = Wire(*await asyncio.open_connection(*(self._sasl if sasl else self._plain)))
        self._wires.append(wire)
        return wire

    async def login(self, right: str) -> Wire:
        """As the principal that has that right."""
        wire = await self.connect(sasl=True)
        answer = await authenticate(wire, user_of(right))
        assert not answer.error_code, answer
        return wire

    async def make_users(self, *names: str) -> None:
        salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), SALT, ITERATIONS)
        upsertion = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
        rows = [
            upsertion(name=name, mechanism=1, iterations=ITERATIONS, salt=SALT, salted_password=salted)
            for name in names
        ]
        made = await self.anonymous.call(AlterUserScramCredentialsRequest(deletions=[], upsertions=rows), 0)
        assert not any(result.error_code for result in made.results), made


async def authenticate(wire: Wire, user: str) -> Any:
    """SaslAuthenticate's answer."""
    await wire.call(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    return await wire.call(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0{PASSWORD}".encode()), 2)
