"""Certificates that an operator's tool has loaded anew: IncrementalAlterConfigs on a broker names the file in use."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from broker.handlers.certificate_reloads import CertificateReloads
from broker.handlers.configs import ConfigHandlers
from broker.handlers.logger_levels import LoggerLevels
from common.errors import ErrorCode
from common.machine import MachineClock
from kraft.records import ResourceType
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire, versions_of
from tests.wire.tls_world import LOCAL_HOSTS, Material, make_material
from tidelog.cluster.certificates import NODE, certificate
from wire.messages import IncrementalAlterConfigsRequest
from wire.tls import TlsContexts

pytestmark = pytest.mark.virtual_time

SET, DELETE = 0, 1
BROKER = ResourceType.BROKER
KEYSTORE = "ssl.keystore.location"


class World(BrokerWorld):
    """Listeners ONE and TWO; both show the same file at first, TWO trusts nobody."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.material: Material = make_material(root)
        clock = MachineClock()
        self.one = TlsContexts(self.material.config(name="ONE"), clock)
        self.two = TlsContexts(self.material.config(name="TWO", truststore_location=""), clock)
        self.reloads = CertificateReloads(0, lambda: [self.one, self.two])
        self.handlers = ConfigHandlers(self.forwarder, 0, {}, self.reloads, LoggerLevels(0, logging.root.manager))

    @property
    def in_use(self) -> str:
        return str(self.material.node)

    @property
    def counts(self) -> tuple[int, int]:
        return self.one.reloads, self.two.reloads

    def replace(self) -> None:
        self.material.node.unlink()
        certificate(self.material.directory, "node.pem", self.material.authority, NODE, "node-0", LOCAL_HOSTS)

    async def alter(
        self, *changes: tuple[str, int, str | None], broker: str = "0", version: int = 1, **more: Any
    ) -> Any:
        """The one answer's (code, message)."""
        configs = [
            IncrementalAlterConfigsRequest.AlterConfigsResource.AlterableConfig(
                name=name, config_operation=operation, value=value
            )
            for name, operation, value in changes
        ]
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=BROKER, resource_name=broker, configs=configs
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=more.get("validate_only", False))
        asking = context("IncrementalAlterConfigs", version)
        asking.session.tenant = more.get("tenant")
        answer = await self.handlers.incremental_alter_configs(asking, over_the_wire(version, request))
        (row,) = reply_over_the_wire(asking, answer).responses
        assert (row.resource_type, row.resource_name) == (BROKER, broker)
        return row.error_code, row.error_message


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("version", versions_of("IncrementalAlterConfigs"))
async def test_the_file_in_use_is_read_at_once(world: World, version: int) -> None:
    before = world.one.server
    world.replace()
    assert await world.alter((KEYSTORE, SET, world.in_use), version=version) == (0, None)
    assert world.counts == (1, 1) and world.one.server is not before
    assert not world.forwarded and not len(world.image.configs.of(BROKER, "0")), "nothing of it is in the metadata"


async def test_a_listener_alone_is_meant_by_its_prefix(world: World) -> None:
    world.replace()
    assert await world.alter((f"listener.name.two.{KEYSTORE}", SET, world.in_use)) == (0, None)
    assert world.counts == (0, 1)
    trusted = str(world.material.ca)
    assert await world.alter(("ssl.truststore.location", SET, trusted), (KEYSTORE, SET, world.in_use)) == (0, None)
    assert world.counts == (1, 2)


async def test_what_does_not_load_is_said_and_changes_nothing(world: World) -> None:
    before = world.one.server, world.two.server
    world.material.node.write_text("no certificate")
    code, message = await world.alter((KEYSTORE, SET, world.in_use))
    assert code == ErrorCode.INVALID_CONFIG and "ONE" in message and KEYSTORE in message
    world.material.node.unlink()
    assert (await world.alter((KEYSTORE, SET, world.in_use)))[0] == ErrorCode.INVALID_CONFIG
    assert (world.one.server, world.two.server) == before and world.counts == (0, 0)


async def test_a_check_alone_takes_nothing(world: World) -> None:
    world.replace()
    assert await world.alter((KEYSTORE, SET, world.in_use), validate_only=True) == (0, None)
    assert world.counts == (0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        [(KEYSTORE, SET, "/etc/passwd")],
        [(KEYSTORE, SET, "")],
        [(KEYSTORE, SET, None)],
        [(KEYSTORE, DELETE, None)],
        [(f"listener.name.three.{KEYSTORE}", SET, "IN USE")],
        [("listener.name.two.ssl.truststore.location", SET, "")],
        [(KEYSTORE, SET, "IN USE"), ("log.retention.ms", SET, "1000")],
        [("ssl.keystore.key", SET, "-----BEGIN PRIVATE KEY-----")],
    ],
)
async def test_nothing_else_can_be_said_of_certificates(
    world: World, changes: list[tuple[str, int, str | None]]
) -> None:
    world.replace()
    given = [(name, operation, world.in_use if value == "IN USE" else value) for name, operation, value in changes]
    code, message = await world.alter(*given)
    assert code == ErrorCode.INVALID_REQUEST and message
    assert world.counts == (0, 0) and not len(world.image.configs.of(BROKER, "0"))


async def test_another_broker_and_a_tenant_cannot(world: World) -> None:
    world.replace()
    for broker in ("1", ""):
        assert (await world.alter((KEYSTORE, SET, world.in_use), broker=broker))[0] == ErrorCode.INVALID_REQUEST
    refused = await world.alter((KEYSTORE, SET, world.in_use), tenant="lkc-aaaaaa")
    assert refused[0] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert world.counts == (0, 0)
