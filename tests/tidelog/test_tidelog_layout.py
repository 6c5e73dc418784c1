"""Where an embedded cluster's nodes live, and what each is told."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from broker.coordination.hosted_shard import HostLimits
from broker.coordinators import host_limits
from broker.partitions.config import LogDuties
from broker.replication.config import ReplicationConfig
from common.node_settings.catalogue import NODE_SETTINGS
from common.node_settings.connections import ConnectionSettings
from common.node_settings.tier import TierReads
from common.settings import SettingError
from kraft.controller.node import ControllerConfig
from kraft.quorum.quorum import QuorumConfig
from tidelog.cluster.layout import (
    LAYOUT_FILE,
    SECRET_FILE,
    ClusterLayout,
    PortTaken,
    forget_broker,
    grow_layout,
    is_free,
    load_layout,
    prepare_layout,
)
from tidelog.configuration.controller_config import controller_config
from tidelog.configuration.listener_config import host_and_port, parse_listeners
from tidelog.configuration.node_config import (
    broker_config,
    parse_voters,
)
from tidelog.configuration.security_config import security_config
from tidelog.configuration.settings_check import check_settings
from wire.server import ServerLimits

TIER = {"tidelog.tier.uri": "file:///tier"}


def test_a_new_cluster_has_three_of_each_and_keeps_its_addresses(tmp_path: Path) -> None:
    first = prepare_layout(tmp_path, None, None, 21_000, {"num.partitions": "4"})
    assert [node.name for node in first.nodes] == [f"controller-{i}" for i in range(3)] + [
        f"broker-{i}" for i in range(3)
    ]
    assert first.bootstrap == "127.0.0.1:21000,127.0.0.1:21001,127.0.0.1:21002"
    ports = [p for n in first.nodes for p in (n.port, n.internal_port, n.metrics_port, n.quorum_port) if p]
    assert len(set(ports)) == len(ports)
    assert_metrics_are_where_they_are_expected(first)
    assert prepare_layout(tmp_path, None, None, None, {}) == first
    assert stat.S_IMODE((tmp_path / SECRET_FILE).stat().st_mode) == 0o600


def test_a_cluster_grows_but_does_not_shrink(tmp_path: Path) -> None:
    before = prepare_layout(tmp_path, 1, 1, 21_000, {})
    after = prepare_layout(tmp_path, 3, None, None, {})
    assert after.nodes[:2] == before.nodes
    assert len(after.brokers) == 3
    with pytest.raises(SettingError, match="--brokers"):
        prepare_layout(tmp_path, 2, None, None, {})
    with pytest.raises(SettingError, match="--controllers"):
        prepare_layout(tmp_path, None, 3, None, {})


def assert_metrics_are_where_they_are_expected(layout: ClusterLayout) -> None:
    """Unless this machine happens to use such a port already."""
    for nodes, first in ((layout.brokers, layout.port + 2_000), (layout.controllers, layout.port + 3_000)):
        for index, node in enumerate(nodes):
            assert node.metrics_port == first + index or not is_free(first + index)


def test_a_new_port_that_is_taken_stops_the_start_and_one_that_the_cluster_had_does_not(tmp_path: Path) -> None:
    with pytest.raises(PortTaken, match=r"port 21001 of broker-1 .* --port"):
        prepare_layout(tmp_path, 2, 1, 21_000, {}, lambda port: port != 21_001)
    assert load_layout(tmp_path) is None
    layout = prepare_layout(tmp_path, 2, 1, 21_000, {})
    assert prepare_layout(tmp_path, None, None, None, {}, lambda port: False) == layout
    with pytest.raises(PortTaken, match="21002"):
        prepare_layout(tmp_path, 3, None, None, {}, lambda port: False)
    with pytest.raises(PortTaken, match="21010"):
        prepare_layout(tmp_path, None, None, 21_010, {}, lambda port: False)
    assert load_layout(tmp_path) == layout


@pytest.mark.parametrize(
    ("brokers", "controllers", "port", "named"),
    [(0, 1, 9_092, "--brokers"), (1, 2, 9_092, "--controllers"), (3, 1, 65_534, "--port"), (1, 1, 0, "--port")],
)
def test_impossible_sizes_are_refused_by_name(
    tmp_path: Path, brokers: int, controllers: int, port: int, named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        prepare_layout(tmp_path, brokers, controllers, port, {})


def test_a_damaged_layout_is_named(tmp_path: Path) -> None:
    (tmp_path / LAYOUT_FILE).write_text("{}")
    with pytest.raises(SettingError, match=r"cluster\.json is damaged"):
        load_layout(tmp_path)


@pytest.mark.parametrize(("brokers", "replicas", "in_sync"), [(1, 1, 1), (2, 2, 1), (3, 3, 2), (5, 3, 2)])
def test_replication_defaults_follow_the_number_of_brokers(
    tmp_path: Path, brokers: int, replicas: int, in_sync: int
) -> None:
    layout = prepare_layout(tmp_path, brokers, 1, 21_000, {})
    settings = layout.node_settings(layout.brokers[0], tmp_path)
    assert settings["default.replication.factor"] == str(replicas)
    assert settings["min.insync.replicas"] == str(in_sync)


def test_every_node_of_a_layout_has_a_valid_configuration(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 2, 3, 21_000, {"min.insync.replicas": "1", "broker.session.timeout.ms": "5000"})
    for node in layout.brokers:
        config = broker_config(layout.node_settings(node, tmp_path))
        assert config.node_id == node.node_id
        assert config.sessions.broker_session_timeout_ms == 5_000
        assert config.internal_listener.address[1] == node.internal_port
        assert set(config.controllers) == {1000, 1001, 1002}
    for node in layout.controllers:
        controller_config(layout.node_settings(node, tmp_path))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"group.min.session.timeout.ms": "9000", "group.max.session.timeout.ms": "8000"}, "group.min.session"),
        ({"broker.heartbeat.interval.ms": "2000"}, "broker.session.timeout.ms"),
        ({"socket.request.max.bytes": "2000000000"}, "tidelog.connection.request.bytes.max"),
        ({"log.segment.byte": "1"}, "log.segment.bytes"),
        ({"tidelog.tier.uri": "tier"}, "tidelog.tier.uri"),
        ({"tidelog.tracing.endpoint": "collector:4318"}, "tidelog.tracing.endpoint"),
        ({"tidelog.tracing.endpoint": "http://[::1:4318/v1/traces"}, "tidelog.tracing.endpoint"),
        ({"tidelog.tracing.endpoint": "http://collector:port/v1/traces"}, "tidelog.tracing.endpoint"),
        (TIER | {"log.local.retention.ms": "604800001"}, "log.local.retention.ms"),
        (TIER | {"log.local.retention.ms": "3600001", "log.retention.hours": "1"}, "log.local.retention.ms"),
        (TIER | {"log.local.retention.bytes": "-1", "log.retention.bytes": "10"}, "log.local.retention.bytes"),
    ],
)
def test_settings_that_contradict_each_other_stop_the_start(settings: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        check_settings(settings)


@pytest.mark.parametrize("url", ["keys.json", "https://[::1/keys.json", "https://issuer:port/keys.json"])
def test_keys_of_tokens_are_where_they_can_be_asked(url: str) -> None:
    with pytest.raises(SettingError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
        security_config(check_settings({"sasl.oauthbearer.jwks.endpoint.url": url}), (), "")


@pytest.mark.parametrize(
    "settings",
    [
        {"log.local.retention.ms": "604800000"},
        {"log.local.retention.ms": "3600001", "log.retention.ms": "3600001", "log.retention.hours": "1"},
        {"log.local.retention.ms": "-1", "log.retention.ms": "-1"},
        {"log.local.retention.bytes": "10"},
    ],
)
def test_brokers_may_keep_what_a_topic_has(settings: dict[str, str]) -> None:
    check_settings(TIER | settings)


def test_listeners_are_checked() -> None:
    def listeners(**given: str) -> list[tuple[str, str]]:
        named = {name.replace("_", "."): value for name, value in given.items()}
        return [(listen.name, listen.kind) for listen in parse_listeners(check_settings(named))]

    both = "PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:9093"
    assert listeners(listeners=both) == [("PLAINTEXT", "operator"), ("INTERNAL", "internal")]
    with pytest.raises(SettingError, match="INTERNAL"):
        listeners(listeners="PLAINTEXT://127.0.0.1:9092")
    with pytest.raises(SettingError, match=r"tidelog\.internal\.allow\.plaintext"):
        listeners(listeners="PLAINTEXT://127.0.0.1:9092,INTERNAL://10.0.0.1:9093")
    with pytest.raises(SettingError, match=r"advertised\.listeners"):
        listeners(listeners="PLAINTEXT://:9092,INTERNAL://127.0.0.1:9093")
    with pytest.raises(SettingError, match="NAME://host:port"):
        listeners(listeners="9092")


def test_settings_of_a_listener_that_no_broker_has_are_refused(tmp_path: Path) -> None:
    wrong = {"listener.name.nosuch.max.connections": "3"}
    with pytest.raises(SettingError, match="there is no listener nosuch, there are PLAINTEXT, INTERNAL"):
        prepare_layout(tmp_path, 1, 1, 21_000, wrong)
    assert load_layout(tmp_path) is None
    with pytest.raises(SettingError, match="there is no listener tenant"):
        prepare_layout(tmp_path, 1, 1, 21_000, {"listener.name.tenant.max.connections": "3"})


def test_settings_of_a_listener_wait_while_no_broker_has_it(tmp_path: Path) -> None:
    own = "listener.name.tenant.max.connections"
    for proxies, given in ((1, {own: "3"}), (0, {}), (1, {})):
        layout = prepare_layout(tmp_path, 1, 1, 21_000, given, proxies=proxies)
        settings = layout.node_settings(layout.brokers[0], tmp_path)
        assert settings.get(own) == ("3" if proxies else None)
        tenants = [one.connections_max for one in broker_config(settings).listeners if one.name == "TENANT"]
        assert tenants == [3] * proxies


def test_addresses_and_voters_are_parsed() -> None:
    assert host_and_port("[::1]:80", "s") == ("::1", 80)
    assert host_and_port(":80", "s") == ("0.0.0.0", 80)
    assert parse_voters(("1@a:2", "3@b:4"), "v") == {1: ("a", 2), 3: ("b", 4)}
    for wrong in [("1:2",), ("x@a:2",), ("1@a:2", "1@b:2"), (), ("1@a:99999",)]:
        with pytest.raises(SettingError, match="voters"):
            parse_voters(wrong, "voters")


def test_a_node_without_settings_has_the_defaults_that_its_parts_are_built_with(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 1, 1, 21_000, {})
    broker, controller = (layout.node_settings(node, tmp_path) for node in (*layout.brokers, *layout.controllers))
    config = broker_config(broker)
    assert config.limits == ServerLimits()
    assert config.duties == LogDuties()
    assert config.replication == ReplicationConfig()
    assert config.tier_reads == TierReads()
    built = controller_config(controller)
    assert built == ControllerConfig(
        built.node_id, built.voters, built.listener, built.secret, policy=built.policy, quorum=QuorumConfig()
    )


def test_what_a_controller_keeps_in_memory_is_bounded_by_settings(tmp_path: Path) -> None:
    given = {
        "metadata.log.max.record.bytes.between.snapshots": str(17 << 20),
        "tidelog.metadata.tail.bytes.max": str(2 << 20),
        "tidelog.metadata.tail.batches.max": "300",
    }
    layout = prepare_layout(tmp_path, 1, 1, 21_000, given)
    built = controller_config(layout.node_settings(layout.controllers[0], tmp_path))
    assert built.quorum.node.compaction_bytes_min == 17 << 20
    assert (built.tail_bytes_max, built.tail_batches_max) == (2 << 20, 300)


def test_the_least_that_is_allowed_between_snapshots_works(tmp_path: Path) -> None:
    name = "metadata.log.max.record.bytes.between.snapshots"
    least = NODE_SETTINGS[name].low
    assert least is not None
    layout = prepare_layout(tmp_path, 1, 1, 21_000, {name: str(int(least))})
    quorum = controller_config(layout.node_settings(layout.controllers[0], tmp_path)).quorum
    assert quorum.node.compaction_bytes_min >= 2 * quorum.inflight_bytes_max


def test_brokers_and_controllers_bound_their_connections_alike(tmp_path: Path) -> None:
    given = {
        "socket.request.max.bytes": "2000",
        "connections.max.idle.ms": "3000",
        "max.connections": "40",
        "max.connections.per.ip": "5",
        "queued.max.request.bytes": "6000000",
        "tidelog.connection.request.bytes.max": "5000000",
        "tidelog.connection.requests.max": "8",
        "tidelog.connection.reply.bytes.max": "90000",
        "tidelog.reply.bytes.max": "1100000",
        "tidelog.connection.stall.ms": "1200",
    }
    layout = prepare_layout(tmp_path, 1, 1, 21_000, given)
    broker, controller = (layout.node_settings(node, tmp_path) for node in (*layout.brokers, *layout.controllers))
    built = controller_config(controller)
    connection = ConnectionSettings(
        frame_bytes_max=2_000,
        idle_s=3.0,
        queued_max_request_bytes=6_000_000,
        held_bytes_max=5_000_000,
        replies_pending_max=8,
        unsent_bytes_max=90_000,
        reply_bytes_max=1_100_000,
        stall_s=1.2,
    )
    assert built.limits == ServerLimits(connections_max=40, connections_per_ip_max=5, connection=connection)
    assert built.limits == broker_config(broker).limits


def test_a_running_cluster_grows_and_shrinks_and_never_gives_an_id_twice(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 2, 1, 21_000, {})
    shared = layout.shared_settings()
    with pytest.raises(PortTaken, match="21002"):
        grow_layout(layout, tmp_path, 1, lambda port: False)
    assert load_layout(tmp_path) == layout
    (added,) = grow_layout(layout, tmp_path, 1, lambda port: True)
    assert (added.name, added.node_id, added.port) == ("broker-2", 2, 21_002)
    assert load_layout(tmp_path) == layout
    assert layout.node_settings(added, tmp_path)["min.insync.replicas"] == "2"
    assert layout.node_settings(added, tmp_path, shared)["min.insync.replicas"] == "1"
    forget_broker(layout, tmp_path, "broker-2")
    assert [node.name for node in layout.brokers] == ["broker-0", "broker-1"]
    assert load_layout(tmp_path) == layout
    grown = prepare_layout(tmp_path, 4, None, None, {})
    assert [node.node_id for node in grown.brokers] == [0, 1, 3, 4]


def test_a_layout_from_before_brokers_could_go_is_read(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 3, 1, 21_000, {})
    raw = json.loads((tmp_path / LAYOUT_FILE).read_text())
    del raw["next_broker"]
    (tmp_path / LAYOUT_FILE).write_text(json.dumps(raw))
    assert load_layout(tmp_path) == layout


STEPS_LEFT: list[int] = []
"""While there is a number: how many steps on files may still be done in this process."""
WRITING = os.O_WRONLY | os.O_RDWR


def _interrupt(event: str, arguments: tuple[Any, ...]) -> None:
    if not STEPS_LEFT:
        return
    if event in ("os.rename", "os.remove", "os.mkdir") or (event == "open" and arguments[2] & WRITING):
        STEPS_LEFT[0] -= 1
        if STEPS_LEFT[0] < 0:
            raise KeyboardInterrupt


sys.addaudithook(_interrupt)


def test_what_an_interrupted_start_left_is_started_from(tmp_path: Path) -> None:
    """Interrupted before each of its steps on files in turn, until it comes through."""
    secrets, interrupted = set(), 0
    while load_layout(tmp_path) is None:
        STEPS_LEFT.append(interrupted)
        try:
            prepare_layout(tmp_path, 1, 1, None, {}, tls=True)
        except KeyboardInterrupt:
            assert load_layout(tmp_path) is None
            interrupted += 1
        finally:
            STEPS_LEFT.clear()
        if (tmp_path / SECRET_FILE).exists():
            secrets.add((tmp_path / SECRET_FILE).read_text())
    assert interrupted > 10
    assert len(secrets) == 1, "one that a node may know is never replaced"


@pytest.mark.parametrize(("wait_ms", "freshness_s"), [(500, HostLimits().freshness_s), (1_000, 2.0), (5_000, 10.0)])
def test_coordinators_give_followers_that_wait_longer_for_data_more_time(
    tmp_path: Path, wait_ms: int, freshness_s: float
) -> None:
    """Reads need followers that fetched within the freshness: one fetch must not take all of it."""
    layout = prepare_layout(tmp_path, 1, 1, 21_000, {"replica.fetch.wait.max.ms": str(wait_ms)})
    config = broker_config(layout.node_settings(layout.brokers[0], tmp_path))
    assert host_limits(config).freshness_s == freshness_s
