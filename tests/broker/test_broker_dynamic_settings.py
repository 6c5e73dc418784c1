"""Settings of a broker that change while it runs: those that mean something here, the others, and unknown ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.partitions.config import LogDuties
from common.errors import ErrorCode
from common.settings import INT_MAX
from storage.directory.log_directory import LogDirectory
from storage.log.log_config import LogConfig
from tests.broker.replication_lab import eventually
from tests.broker.tenant_lab import OPERATOR, TenantLab, Wire
from wire.messages import CreateTopicsRequest, DescribeConfigsRequest, IncrementalAlterConfigsRequest

BROKER, SET, DELETE = 4, 0, 1
DYNAMIC_BROKER, DYNAMIC_DEFAULT = 2, 3
ALL, ONE = "", "0"
_Resource = IncrementalAlterConfigsRequest.AlterConfigsResource


async def answered(wire: Wire, broker: str, settings: dict[str, str], operation: int = SET) -> Any:
    changes = [
        _Resource.AlterableConfig(name=name, config_operation=operation, value=value)
        for name, value in settings.items()
    ]
    resource = _Resource(resource_type=BROKER, resource_name=broker, configs=changes)
    answer = await wire.call(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1)
    return answer.responses[0]


async def altered(wire: Wire, broker: str, settings: dict[str, str], operation: int = SET) -> ErrorCode:
    return ErrorCode((await answered(wire, broker, settings, operation)).error_code)


async def shown(wire: Wire, broker: str, *names: str) -> dict[str, Any]:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=BROKER, resource_name=broker, configuration_keys=list(names) or None
    )
    answer = await wire.call(
        DescribeConfigsRequest(resources=[resource], include_synonyms=False, include_documentation=True), 4
    )
    return {config.name: config for config in answer.results[0].configs}


async def refused_at(lab: TenantLab, limit: str) -> None:
    """Connect until the listener refuses it."""
    while not lab.broker.server.failures.counts.get(limit):
        with contextlib.suppress(ConnectionError):
            await lab.connect(OPERATOR)


async def test_what_listeners_accept_changes_at_once(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        assert await altered(wire, ALL, {"max.connections.per.ip": "2"}) is ErrorCode.NONE
        assert await altered(wire, ONE, {"max.connections.per.ip": "3"}) is ErrorCode.NONE
        server = lab.broker.server
        await eventually(
            lambda: server.limits.connections_per_ip_max == 3, "one broker's value goes before all brokers'"
        )
        await refused_at(lab, "max.connections.per.ip is reached")
        assert await altered(wire, ALL, {"max.connections.per.ip.overrides": "127.0.0.1:9,[::1]:7"}) is ErrorCode.NONE
        await eventually(lambda: server.limits.connections_per_ip == {"127.0.0.1": 9, "::1": 7})
        own = "listener.name.operator.max.connections"
        assert await altered(wire, ONE, {own: "1"}) is ErrorCode.NONE
        await eventually(lambda: server._doors[OPERATOR].connections_max == 1)
        assert (await shown(wire, ONE, own))[own].value == "1"
        await refused_at(lab, "max.connections of the listener is reached")
        assert await altered(wire, ONE, {own: ""}, DELETE) is ErrorCode.NONE
        await eventually(lambda: server._doors[OPERATOR].connections_max == INT_MAX)
        assert (
            await altered(wire, ALL, {"max.connections": "7", "max.connection.creation.rate": "50"}) is ErrorCode.NONE
        )
        await eventually(lambda: (server.limits.connections_max, server._rate.rate) == (7, 50))
        for wrong in ("1.2.3:4", "x:1", "127.0.0.1"):
            assert await altered(wire, ALL, {"max.connections.per.ip.overrides": wrong}) is ErrorCode.INVALID_CONFIG


async def test_the_cleaner_works_by_other_values_at_once(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        values = {"log.cleaner.backoff.ms": "7", "log.cleaner.io.max.bytes.per.second": "1000.5"}
        assert await altered(wire, ALL, {"log.cleaner.dedupe.buffer.size": "1000000", **values}) is ErrorCode.NONE
        duties = lab.broker.data_plane.duties
        await eventually(lambda: duties._cleaner_config.backoff_ms == 7)
        assert duties._cleaner_config.io_bytes_per_second_max == 1000.5
        assert duties._cleaner_config.dedupe_buffer_bytes == 1_000_000
        assert await altered(wire, ALL, {"log.cleaner.io.max.bytes.per.second": "nan"}) is ErrorCode.INVALID_CONFIG


async def test_clients_wait_for_the_tier_by_other_values_at_once(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        values = {"remote.fetch.max.wait.ms": "70", "remote.list.offsets.request.timeout.ms": "900"}
        assert await altered(wire, ALL, values) is ErrorCode.NONE
        await eventually(lambda: lab.broker.data_plane.fetch.remote_wait_ms == 70)
        assert lab.broker._dynamic.tier_reads.remote_list_offsets_request_timeout_ms == 900
        assert await altered(wire, ALL, dict.fromkeys(values, ""), DELETE) is ErrorCode.NONE
        await eventually(lambda: lab.broker.data_plane.fetch.remote_wait_ms == 500)
        assert lab.broker._dynamic.tier_reads.remote_list_offsets_request_timeout_ms == 30_000


async def test_logs_are_recovered_by_as_many_threads_as_was_said_while_the_broker_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    recover = LogDirectory.recover

    async def noting(
        logs: LogDirectory,
        config_of: Callable[[str], LogConfig],
        progress: Callable[[int, int], None] | None = None,
        threads: int = 0,
    ) -> None:
        told.append(threads)
        await recover(logs, config_of, progress, threads)

    monkeypatch.setattr(LogDirectory, "recover", noting)
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        assert await altered(wire, ALL, {"num.recovery.threads.per.data.dir": "9"}) is ErrorCode.NONE
        settings, partitions = lab.broker.data_plane.settings, lab.broker.partitions
        started_with = LogDuties()
        await eventually(lambda: settings.under(partitions.image, started_with).recovery_threads == 9)
        assert told == [2]  # by the image that it started with


async def test_what_means_nothing_here_is_taken_and_shown(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        for broker in (ALL, ONE):
            assert await altered(wire, broker, {"num.io.threads": "16", "background.threads": "4"}) is ErrorCode.NONE
        assert await altered(wire, ONE, {"listener.name.operator.num.network.threads": "5"}) is ErrorCode.NONE
        assert await altered(wire, ALL, {"num.replica.fetchers": "none"}) is ErrorCode.INVALID_CONFIG
        config = (await shown(wire, ONE, "num.io.threads"))["num.io.threads"]
        assert (config.value, config.config_source, config.read_only) == ("16", DYNAMIC_BROKER, False)
        assert config.documentation.startswith("Without effect")


async def test_a_name_that_nobody_knows_is_kept(tmp_path: Path) -> None:
    """For one broker and for all, as Apache Kafka keeps it for plug-ins. Its value is not shown."""
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        for broker, source in ((ALL, DYNAMIC_DEFAULT), (ONE, DYNAMIC_BROKER)):
            assert await altered(wire, broker, {"my.plugin.colour": "green"}) is ErrorCode.NONE
            config = (await shown(wire, broker))["my.plugin.colour"]
            assert (config.value, config.is_sensitive, config.config_source) == (None, True, source)
            assert await altered(wire, broker, {"tidelog.colour": "green"}) is ErrorCode.INVALID_CONFIG
            assert await altered(wire, broker, {"my.plugin.colour": ""}, DELETE) is ErrorCode.NONE


async def test_what_is_read_at_the_start_alone_is_refused(tmp_path: Path) -> None:
    """Also what means nothing here: in Apache Kafka's words, which tools know."""
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        for names in (("num.partitions",), ("broker.id", "log.dir"), ("security.inter.broker.protocol",)):
            for broker in (ALL, ONE):
                told = await answered(wire, broker, dict.fromkeys([*names, "num.io.threads"], "9"))
                said = f"Cannot update these configs dynamically: Set({', '.join(names)})"
                assert (told.error_code, told.error_message) == (ErrorCode.INVALID_REQUEST, said)
        config = (await shown(wire, ONE, "num.io.threads"))["num.io.threads"]
        assert config.value == "8", "a resource is changed wholly or not at all"
        assert await altered(wire, ONE, {"broker.id": ""}, DELETE) is ErrorCode.NONE


async def test_topics_take_preallocate(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        creatable = CreateTopicsRequest.CreatableTopic
        configs = [creatable.CreatableTopicConfig(name="preallocate", value="true")]
        topic = creatable(name="t", num_partitions=1, replication_factor=1, assignments=[], configs=configs)
        made = await wire.call(CreateTopicsRequest(topics=[topic], timeout_ms=20_000), 7)
        (told,) = [config for config in made.topics[0].configs if config.name == "preallocate"]
        assert (made.topics[0].error_code, told.value) == (0, "true")
