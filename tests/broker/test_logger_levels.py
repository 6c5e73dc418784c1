"""Levels of a broker's loggers, as `kafka-configs.sh --entity-type broker-loggers` shows and changes them."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from broker.handlers.certificate_reloads import CertificateReloads
from broker.handlers.configs import ConfigHandlers
from broker.handlers.logger_levels import ROOMS, LoggerLevels
from common.errors import ErrorCode
from kraft.image.configs import BROKER_LOGGER, ConfigSource
from kraft.records import ResourceType
from tests.broker.broker_world import BrokerWorld, context, over_the_wire, reply_over_the_wire, versions_of
from wire.messages import DescribeConfigsRequest, IncrementalAlterConfigsRequest, ListConfigResourcesRequest

pytestmark = pytest.mark.virtual_time

SET, DELETE, APPEND, SUBTRACT = range(4)
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


class World(BrokerWorld):
    """Broker 0 with loggers of its own: of two modules, of the package around them, and of a library."""

    def __init__(self) -> None:
        super().__init__()
        self.loggers = logging.Manager(logging.RootLogger(logging.INFO))
        for name in ("broker.one", "broker.two", "botocore.auth"):
            self.loggers.getLogger(name)
        levels = LoggerLevels(0, self.loggers)
        self.handlers = ConfigHandlers(self.forwarder, 0, {}, CertificateReloads(0, list), levels)

    def describe(self, *, broker: str = "0", version: int = 4, tenant: str | None = None) -> Any:
        asking = context("DescribeConfigs", version)
        asking.session.tenant = tenant
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=BROKER_LOGGER, resource_name=broker, configuration_keys=None
        )
        answer = self.handlers.describe_configs(
            asking, over_the_wire(version, DescribeConfigsRequest(resources=[resource]))
        )
        (row,) = reply_over_the_wire(asking, answer).results
        return row

    @property
    def levels(self) -> dict[str, str]:
        return {row.name: row.value for row in self.describe().configs}

    async def alter(
        self, *resources: Any, version: int = 1, validate_only: bool = False, tenant: str | None = None
    ) -> list[tuple[int, str | None]]:
        asking = context("IncrementalAlterConfigs", version)
        asking.session.tenant = tenant
        request = IncrementalAlterConfigsRequest(resources=list(resources), validate_only=validate_only)
        answer = await self.handlers.incremental_alter_configs(asking, over_the_wire(version, request))
        return [(row.error_code, row.error_message) for row in reply_over_the_wire(asking, answer).responses]


def changes(*given: tuple[str, int, str | None], broker: str = "0", kind: int = BROKER_LOGGER) -> Any:
    rows = [_Resource.AlterableConfig(name=name, config_operation=what, value=value) for name, what, value in given]
    return _Resource(resource_type=kind, resource_name=broker, configs=rows)


@pytest.mark.parametrize("version", versions_of("DescribeConfigs"))
async def test_each_logger_of_ours_is_shown_with_the_level_in_force(version: int) -> None:
    row = World().describe(version=version)
    assert (row.error_code, row.resource_type, row.resource_name) == (0, BROKER_LOGGER, "0")
    assert {one.name: one.value for one in row.configs} == dict.fromkeys(
        ("root", "broker", "broker.one", "broker.two"), "INFO"
    )
    for one in row.configs:
        assert (one.read_only, one.is_sensitive, one.synonyms) == (False, False, [])
        assert one.config_source == ConfigSource.DYNAMIC_BROKER_LOGGER


@pytest.mark.parametrize("version", versions_of("IncrementalAlterConfigs"))
async def test_a_level_holds_at_once_until_it_is_removed(version: int) -> None:
    world = World()
    one = world.loggers.getLogger("broker.one")
    assert not one.isEnabledFor(logging.DEBUG)
    assert await world.alter(changes(("broker.one", SET, "DEBUG")), version=version) == [(0, None)]
    assert one.isEnabledFor(logging.DEBUG)
    assert world.levels == {"root": "INFO", "broker": "INFO", "broker.one": "DEBUG", "broker.two": "INFO"}
    assert await world.alter(changes(("broker.one", DELETE, None)), version=version) == [(0, None)]
    assert world.levels["broker.one"] == "INFO" and not one.isEnabledFor(logging.DEBUG)
    assert not world.forwarded, "nothing of it is in the metadata"


async def test_a_packages_level_is_that_of_its_modules() -> None:
    world = World()
    await world.alter(changes(("broker", SET, "ERROR"), ("broker.two", SET, "TRACE")))
    assert world.levels == {"root": "INFO", "broker": "ERROR", "broker.one": "ERROR", "broker.two": "TRACE"}
    await world.alter(changes(("root", SET, "FATAL"), ("broker", DELETE, "")))
    assert world.levels == {"root": "FATAL", "broker": "FATAL", "broker.one": "FATAL", "broker.two": "TRACE"}


@pytest.mark.parametrize("level", ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"])
async def test_a_level_is_shown_as_it_was_set(level: str) -> None:
    world = World()
    await world.alter(changes(("broker.one", SET, level)))
    assert world.levels["broker.one"] == level
    numbers = list(range(logging.DEBUG, logging.CRITICAL + 1, 10))
    first = {"TRACE": 10, "DEBUG": 10, "INFO": 20, "WARN": 30, "ERROR": 40, "FATAL": 50}[level]
    one = world.loggers.getLogger("broker.one")
    assert [one.isEnabledFor(number) for number in numbers] == [number >= first for number in numbers]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("broker.three", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("broker.three", DELETE, None), ErrorCode.INVALID_CONFIG),
        (("botocore.auth", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("x" * 32_767, SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("broker.one", SET, "debug"), ErrorCode.INVALID_CONFIG),
        (("broker.one", SET, "x" * 32_767), ErrorCode.INVALID_CONFIG),
        (("broker.one", SET, ""), ErrorCode.INVALID_CONFIG),
        (("broker.one", SET, None), ErrorCode.INVALID_REQUEST),
        (("broker.one", APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST),
        (("broker.one", SUBTRACT, "DEBUG"), ErrorCode.INVALID_REQUEST),
        (("broker.one", 99, "DEBUG"), ErrorCode.INVALID_REQUEST),
        (("broker.two", SET, "ERROR"), ErrorCode.INVALID_REQUEST),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
    ],
)
@pytest.mark.parametrize("version", versions_of("IncrementalAlterConfigs"))
async def test_a_wrong_change_is_named_and_nothing_changes(change: Any, code: ErrorCode, version: int) -> None:
    world = World()
    ((given, message),) = await world.alter(changes(("broker.two", SET, "DEBUG"), change), version=version)
    assert given == code and message
    assert set(world.levels.values()) == {"INFO"}
    assert "broker.three" not in world.loggers.loggerDict


async def test_another_brokers_loggers_are_not_this_ones() -> None:
    world = World()
    for broker in ("", "1", "00", "x", "x" * 32_767):
        for version in versions_of("DescribeConfigs"):
            row = world.describe(broker=broker, version=version)
            assert (row.error_code, row.configs) == (ErrorCode.INVALID_REQUEST, []) and row.error_message
        ((code, message),) = await world.alter(changes(("broker.one", SET, "DEBUG"), broker=broker), version=0)
        assert code == ErrorCode.INVALID_REQUEST and message
    assert set(world.levels.values()) == {"INFO"}


async def test_a_check_alone_changes_nothing() -> None:
    world = World()
    assert await world.alter(changes(("broker.one", SET, "DEBUG")), validate_only=True) == [(0, None)]
    assert set(world.levels.values()) == {"INFO"}


async def test_a_broker_that_is_named_twice_keeps_its_levels() -> None:
    world = World()
    twice = [changes((f"broker.{name}", SET, "DEBUG")) for name in ("one", "two")]
    assert [code for code, _ in await world.alter(*twice)] == [ErrorCode.INVALID_REQUEST] * 2
    assert set(world.levels.values()) == {"INFO"}


async def test_other_resources_of_the_request_change_as_well() -> None:
    world = World()
    cluster = changes(("log.retention.ms", SET, "5"), broker="", kind=ResourceType.BROKER)
    assert await world.alter(cluster, changes(("broker.one", SET, "DEBUG"))) == [(0, None)] * 2
    assert world.levels["broker.one"] == "DEBUG"
    assert dict(world.image.configs.cluster()) == {"log.retention.ms": "5"}


async def test_a_tenant_sees_and_changes_no_logger() -> None:
    world = World()
    row = world.describe(tenant="lkc-aaaaaa")
    assert (row.error_code, row.configs) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, [])
    ((code, _),) = await world.alter(changes(("broker.one", SET, "DEBUG")), tenant="lkc-aaaaaa")
    assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert set(world.levels.values()) == {"INFO"}


async def test_the_brokers_that_have_loggers_are_listed() -> None:
    world = World()
    asking = context("ListConfigResources", 1)
    answer = world.handlers.list_config_resources(asking, ListConfigResourcesRequest(resource_types=[BROKER_LOGGER]))
    rows = reply_over_the_wire(asking, answer).config_resources
    assert [(row.resource_type, row.resource_name) for row in rows] == [
        (BROKER_LOGGER, str(broker)) for broker in sorted(world.image.brokers)
    ]


_PRINT_ROOMS = """
import logging, sys
from pathlib import Path
import broker.node, tidelog.nodes.node_process

root = Path(broker.node.__file__).parent.parent
loggers = logging.root.manager.loggerDict
files = {name: Path(getattr(sys.modules.get(name), "__file__", None) or "/") for name in loggers}
ours = (name for name, file in files.items() if root in file.parents and not file.is_relative_to(sys.prefix))
print(*{name.partition(".")[0] for name in ours})
"""


def test_every_module_of_a_node_that_logs_is_in_a_room_that_is_shown() -> None:
    printed = subprocess.run([sys.executable, "-c", _PRINT_ROOMS], check=True, capture_output=True, text=True).stdout
    assert {"broker", "kraft", "tidelog"} <= set(printed.split()) <= ROOMS
