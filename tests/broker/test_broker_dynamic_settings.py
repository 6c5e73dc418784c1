"""Settings of a broker that change while it runs: those that mean something here, the others, and unknown ones."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from broker.config import BrokerConfig
from broker.dynamic_settings import DynamicSettings
from broker.listeners import Listen
from broker.partitions.config import LogDuties
from broker.partitions.duties import cleaner_config
from broker.partitions.log_settings import LogSettings
from common.errors import ErrorCode
from common.machine_disk import MachineDisk
from common.node_settings.listeners import AcceptSettings
from common.node_settings.topics import BrokerLogSettings
from common.node_settings.transactions import VerificationSettings
from common.ports import Ports
from common.settings import INT_MAX
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE
from kraft.records import ConfigRecord, ResourceType
from storage.cleaning.cleaner import CleanerConfig
from tests.broker.replication_lab import SECRET, eventually
from tests.broker.reserved_port import LOCALHOST
from tests.broker.tenant_lab import OPERATOR, TenantLab, Wire
from tests.virtual_time import lab_ports
from wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from wire.server import ServerLimits

BROKER, SET, DELETE = 4, 0, 1
THREADS = 4  # of recovery: fewer than an event loop has
PATIENCE_S = 10.0  # for the last of them
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


async def accepted_at(lab: TenantLab) -> None:
    """Connect until the listener takes it."""
    while not await (await lab.connect(OPERATOR)).exchange(ApiVersionsRequest(), 0):
        pass


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
        overrides = "127.0.0.1:999,[::1]:7"
        assert await altered(wire, ALL, {"max.connections.per.ip.overrides": overrides}) is ErrorCode.NONE
        await eventually(lambda: server.limits.connections_per_ip == {"127.0.0.1": 999, "::1": 7})
        own = "listener.name.operator.max.connections"
        assert await altered(wire, ONE, {own: "1"}) is ErrorCode.NONE
        await refused_at(lab, "max.connections of the listener is reached")
        assert (await shown(wire, ONE, own))[own].value == "1"
        assert await altered(wire, ONE, {own: ""}, DELETE) is ErrorCode.NONE
        await accepted_at(lab)
        assert await altered(wire, ALL, {"max.connections": "7"}) is ErrorCode.NONE
        await refused_at(lab, "max.connections is reached")
        for wrong in ("1.2.3:4", "x:1", "127.0.0.1"):
            assert await altered(wire, ALL, {"max.connections.per.ip.overrides": wrong}) is ErrorCode.INVALID_CONFIG
        assert await altered(wire, ALL, {"log.cleaner.io.max.bytes.per.second": "nan"}) is ErrorCode.INVALID_CONFIG


class Obeying:
    """All that settings are handed to; `given` has what each was given last."""

    listener_names: ClassVar = ["OPERATOR", "TENANTS"]

    def __init__(self) -> None:
        self.settings = LogSettings(0, {})
        self.duties = self.fetch = self.transactions = self
        self.given: dict[str, Any] = {}

    def configure(self, settings: VerificationSettings) -> None:
        self.given["transactions"] = settings.verification_enable

    def wait_for_tier(self, wait_ms: int) -> None:
        self.given["fetch"] = wait_ms

    def configure_cleaner(self, config: BrokerLogSettings) -> None:
        self.given["cleaner"] = cleaner_config(config, 1)

    def limit_connections(self, limits: ServerLimits) -> None:
        self.given["server"] = limits

    def limit_listener(self, name: str, limits: AcceptSettings) -> None:
        self.given[name] = limits


def test_each_is_handed_its_settings_as_they_hold_now() -> None:
    """One broker's own go before all brokers', and what is deleted is as the broker was started with."""
    listeners = tuple(
        Listen(name, (LOCALHOST, 1), (LOCALHOST, 1), kind)
        for name, kind in (("OPERATOR", "operator"), ("TENANTS", "tenant"), ("INTERNAL", "internal"))
    )
    obeying: Any = Obeying()
    dynamic = DynamicSettings(BrokerConfig(0, listeners, {}, SECRET), obeying, obeying)
    image = EMPTY_IMAGE

    def set_to(broker: str, values: dict[str, str | None]) -> None:
        nonlocal image
        delta = MetadataDelta(image)
        delta.replay_all([ConfigRecord(ResourceType.BROKER, broker, name, value) for name, value in values.items()])
        image = delta.image()
        dynamic.metadata_changed(delta, image)

    changes: dict[str, str | None] = {
        "log.cleaner.backoff.ms": "7",
        "log.cleaner.io.max.bytes.per.second": "1000.5",
        "log.cleaner.dedupe.buffer.size": "1000000",
        "remote.fetch.max.wait.ms": "70",
        "remote.list.offsets.request.timeout.ms": "900",
        "max.connection.creation.rate": "50",
        "listener.name.operator.max.connection.creation.rate": "20",
    }
    set_to(ALL, changes)
    set_to(ONE, {"max.connections": "8"})
    cleaner, server, given = obeying.given["cleaner"], obeying.given["server"], obeying.given
    assert (cleaner.backoff_ms, cleaner.io_bytes_per_second_max, cleaner.dedupe_buffer_bytes) == (7, 1000.5, 1_000_000)
    assert (given["fetch"], dynamic.tier_reads.remote_list_offsets_request_timeout_ms) == (70, 900)
    assert (server.connections_max, server.creation_rate) == (8, 50)
    assert [given[name].creation_rate for name in Obeying.listener_names] == [20, INT_MAX]
    assert "INTERNAL" not in given
    given.clear()
    set_to("1", {"max.connections": "9"})
    assert given == {}, "another broker's"
    set_to(ALL, dict.fromkeys(changes))
    assert given["cleaner"].backoff_ms == CleanerConfig().backoff_ms
    assert (given["fetch"], dynamic.tier_reads.remote_list_offsets_request_timeout_ms) == (500, 30_000)
    assert (given["server"].connections_max, given["server"].creation_rate) == (8, INT_MAX)


async def test_clients_wait_for_the_tier_by_other_values_at_once(tmp_path: Path) -> None:
    async with TenantLab(tmp_path) as lab:
        wire = await lab.connect(OPERATOR)
        assert await altered(wire, ALL, {"remote.fetch.max.wait.ms": "70"}) is ErrorCode.NONE
        await eventually(lambda: lab.broker.data_plane.fetch.remote_wait_ms == 70)
        assert await altered(wire, ALL, {"remote.fetch.max.wait.ms": ""}, DELETE) is ErrorCode.NONE
        await eventually(lambda: lab.broker.data_plane.fetch.remote_wait_ms == 500)


class CrowdedDisk(MachineDisk):
    """Threads that look at a log of the topic `wide` wait there for THREADS of them; `most` were there at one time."""

    most = 0

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._lock = threading.Lock()
        self._all_there = threading.Event()
        self._inside = 0

    def list(self, directory: str) -> list[str]:
        if not directory.startswith("wide-") or threading.current_thread() is threading.main_thread():
            return super().list(directory)
        with self._lock:
            self._inside += 1
            self.most = max(self.most, self._inside)
            if self._inside == THREADS:
                self._all_there.set()
        self._all_there.wait(PATIENCE_S)
        self._all_there.set()  # whoever comes after a wait in vain does not wait again
        with self._lock:
            self._inside -= 1
        return super().list(directory)


async def test_logs_are_recovered_by_as_many_threads_as_was_said_while_the_broker_ran(tmp_path: Path) -> None:
    disks: list[CrowdedDisk] = []

    def world(root: Path) -> Ports:
        disks.append(CrowdedDisk(root))
        return replace(lab_ports(root), disk=disks[-1])

    async with TenantLab(tmp_path, world) as lab:
        wire = await lab.connect(OPERATOR)
        wide = CreateTopicsRequest.CreatableTopic(
            name="wide", num_partitions=3 * THREADS, replication_factor=1, assignments=[], configs=[]
        )
        made = await wire.call(CreateTopicsRequest(topics=[wide], timeout_ms=20_000), 7)
        assert not made.topics[0].error_code
        assert await altered(wire, ALL, {"num.recovery.threads.per.data.dir": str(THREADS)}) is ErrorCode.NONE
        settings, partitions = lab.broker.data_plane.settings, lab.broker.partitions
        started_with = LogDuties()
        assert started_with.recovery_threads < THREADS
        await eventually(lambda: settings.under(partitions.image, started_with).recovery_threads == THREADS)
        await lab.restart()
        assert disks[-1].most == THREADS


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
