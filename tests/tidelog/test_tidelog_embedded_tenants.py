"""`tidelog up --proxies N --tenants NAME,… --cells N`: what each node is told, and what is made for clients."""

from __future__ import annotations

import json
import re
import shlex
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.embedded import EmbeddedCluster, free_ports
from common.settings import SettingError
from tests.tidelog.test_tidelog_command import tidelog
from tidelog.cluster.client_files import TenantAccess, read_key, write_client_files
from tidelog.cluster.embedded_tenants import access_of, parse_names, refresh_client_files, tell_tenants
from tidelog.cluster.layout import (
    PROXIES_MAX,
    ClusterLayout,
    PortTaken,
    grow_layout,
    load_layout,
    prepare_layout,
)
from tidelog.cluster.local_names import advice, hosts_line, names_of, resolves
from tidelog.configuration.node_config import broker_config
from tidelog.configuration.proxy_config import proxy_config
from wire.listeners import ProxyForm

ACCESS = TenantAccess(
    "demo", "lkc-abc123", "TKABCDEFGHIJKLMN", "s3cr-et_", "tidelog.localhost", 10_092, Path("/x y/ca.pem")
)


def test_proxies_share_a_port_and_have_all_that_they_need(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 2, 1, 21_000, {}, proxies=2)
    assert [(node.name, node.port) for node in layout.proxies] == [("proxy-0", 22_000), ("proxy-1", 22_000)]
    assert layout.proxies[0].listeners() == {"SASL_SSL": "127.0.0.1:22000"}
    assert prepare_layout(tmp_path, None, None, None, {}) == layout == load_layout(tmp_path)
    for node in layout.proxies:
        config = proxy_config(layout.node_settings(node, tmp_path))
        assert config.listen == ("127.0.0.1", 22_000)
        assert config.domain == "tidelog.localhost"
        assert config.broker_certificate is not None and config.links_tls is not None
        assert config.metrics == ("127.0.0.1", node.metrics_port)
    settings = layout.node_settings(layout.brokers[0], tmp_path)
    broker = broker_config(settings)
    tenant = next(listen for listen in broker.listeners if listen.kind == "tenant")
    assert (tenant.name, tenant.proxies, tenant.protocol.name) == ("TENANT", ProxyForm.TERMINATED, "SASL_SSL")
    assert (settings["tidelog.proxy.domain"], settings["tidelog.proxy.port"]) == ("tidelog.localhost", "22000")
    (added,) = grow_layout(layout, tmp_path, 1, lambda port: True)
    assert added.tenant_port


def test_where_proxies_pass_tls_through_brokers_hold_the_tenants_certificate(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 1, 1, 21_000, {"tidelog.proxy.mode": "passthrough"}, proxies=1)
    broker = broker_config(layout.node_settings(layout.brokers[0], tmp_path))
    tenant = next(listen for listen in broker.listeners if listen.kind == "tenant")
    assert tenant.proxies is ProxyForm.PASSED and [str(one) for one in tenant.proxy_networks] == ["127.0.0.1/32"]
    assert tenant.tls is not None and tenant.tls.keystore_location == str(tmp_path / "tls" / "tenants.pem")
    assert tenant.tls.client_auth == "none"
    proxy = proxy_config(layout.node_settings(layout.proxies[0], tmp_path))
    assert proxy.certificate is None and proxy.broker_certificate is None and proxy.header
    own = {"listener.name.tenant.ssl.keystore.location": "/own.pem"}
    layout = prepare_layout(tmp_path, None, None, None, own)
    assert layout.node_settings(layout.brokers[0], tmp_path).items() >= own.items()


def test_proxies_follow_the_port_and_the_setting(tmp_path: Path) -> None:
    prepare_layout(tmp_path, 1, 1, 21_000, {}, proxies=3)
    moved = prepare_layout(tmp_path, None, None, 21_500, {}, proxies=1)
    assert [node.port for node in moved.proxies] == [22_500]
    chosen = {"tidelog.proxy.port": "9999", "tidelog.proxy.domain": "Kafka.Example.org"}
    layout = prepare_layout(tmp_path, None, None, None, chosen)
    config = proxy_config(layout.node_settings(layout.proxies[0], tmp_path))
    assert (config.listen[1], config.domain) == (9_999, "kafka.example.org")
    gone = prepare_layout(tmp_path, None, None, None, {}, proxies=0)
    assert "TENANT" not in gone.brokers[0].listeners()
    broker_config(gone.node_settings(gone.brokers[0], tmp_path))


@pytest.mark.parametrize(
    ("port", "proxies", "settings", "named"),
    [
        (21_000, -1, {}, "--proxies"),
        (21_000, PROXIES_MAX + 1, {}, "--proxies"),
        (65_000, 1, {}, "tidelog.proxy.port"),
        (21_000, 1, {"tidelog.proxy.port": "21000"}, "tidelog.proxy.port"),
        (21_000, 1, {"tidelog.proxy.port": "0"}, "tidelog.proxy.port"),
    ],
)
def test_impossible_proxies_are_refused_by_name(
    tmp_path: Path, port: int, proxies: int, settings: dict[str, str], named: str
) -> None:
    with pytest.raises(SettingError, match=named):
        prepare_layout(tmp_path, 1, 1, port, settings, proxies=proxies)
    assert load_layout(tmp_path) is None


def test_a_proxys_port_that_is_taken_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(PortTaken, match="22000 of proxy-0"):
        prepare_layout(tmp_path, 1, 1, 21_000, {}, lambda port: port != 22_000, proxies=1)


def places(layout: ClusterLayout) -> list[tuple[str, str]]:
    return [(node.cell, node.rack) for node in layout.brokers]


def test_cells_take_neighbouring_brokers_and_spread_over_racks(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 6, 1, 21_000, {}, cells=2)
    racks = ["rack-0", "rack-1", "rack-2"]
    assert places(layout) == [(cell, rack) for cell in "ab" for rack in racks]
    assert layout.shared_settings()["default.replication.factor"] == "3"
    config = broker_config(layout.node_settings(layout.brokers[4], tmp_path))
    assert (config.cell, config.rack) == ("b", "rack-1")
    added = grow_layout(layout, tmp_path, 2, lambda port: True)
    assert [(node.cell, node.rack) for node in added] == [("a", "rack-0"), ("b", "rack-0")]
    with pytest.raises(SettingError, match="--cells"):
        prepare_layout(tmp_path, None, None, None, {}, cells=3)


@pytest.mark.parametrize(("brokers", "cells", "sizes", "factor"), [(5, 2, [3, 2], "2"), (3, 3, [1, 1, 1], "1")])
def test_uneven_cells_hold_what_the_smallest_can(
    tmp_path: Path, brokers: int, cells: int, sizes: list[int], factor: str
) -> None:
    layout = prepare_layout(tmp_path, brokers, 1, 21_000, {}, cells=cells)
    assert [[node.cell for node in layout.brokers].count(cell) for cell in layout.cells] == sizes
    shared = layout.shared_settings()
    assert (shared["default.replication.factor"], shared["min.insync.replicas"]) == (factor, "1")


@pytest.mark.parametrize(("brokers", "cells"), [(3, 0), (3, 4), (None, 27)])
def test_impossible_cells_are_refused_by_name(tmp_path: Path, brokers: int | None, cells: int) -> None:
    with pytest.raises(SettingError, match="--cells"):
        prepare_layout(tmp_path, brokers, 1, 21_000, {}, cells=cells)


def test_one_cell_is_none(tmp_path: Path) -> None:
    assert places(prepare_layout(tmp_path, 3, 1, 21_000, {}, cells=1)) == [("", "")] * 3


def test_client_files_hold_what_each_client_reads(tmp_path: Path) -> None:
    for _ in range(2):
        written = write_client_files(tmp_path, ACCESS)
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in written} == {0o600}
    rdkafka, java, kcat = (path.read_text() for path in written)
    assert "bootstrap.servers=lkc-abc123.tidelog.localhost:10092\n" in rdkafka
    assert "sasl.password=s3cr-et_\n" in rdkafka
    assert 'required username="TKABCDEFGHIJKLMN" password="s3cr-et_";\n' in java
    assert "ssl.truststore.location=/x y/ca.pem\n" in java
    assert "s3cr-et_" not in kcat, "a command's words are seen by everybody"
    words = shlex.split(kcat, comments=True)
    assert words == ["exec", "kcat", "-F", str(tmp_path / "demo.librdkafka.properties"), "$@"]


def test_client_files_follow_the_port(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 1, 1, 21_000, {}, proxies=1)
    (tmp_path / "tenants").mkdir()
    (tmp_path / "tenants" / "demo.key").write_text("key=TKA\nsecret=s\ntenant_id=lkc-abc123\n")
    (tmp_path / "tenants" / "bad.key").write_text("key=TKA\n")
    refresh_client_files(tmp_path, layout)
    file = tmp_path / "tenants" / "demo.librdkafka.properties"
    assert "lkc-abc123.tidelog.localhost:22000" in file.read_text()
    refresh_client_files(tmp_path, prepare_layout(tmp_path, None, None, 21_500, {}))
    assert "lkc-abc123.tidelog.localhost:22500" in file.read_text()
    assert access_of(tmp_path, layout, "bad") is None
    told = tell_tenants(tmp_path, layout, ["demo", "bad"])
    assert str(file.with_suffix("").with_suffix("")) in told[0]
    assert "tidelog keys create --out FILE bad" in told[1]


def test_the_line_that_makes_names_resolve_names_all_of_them() -> None:
    names = names_of("lkc-abc123", [0, 2], "nowhere.invalid")
    assert names == ["lkc-abc123.nowhere.invalid", "b0-lkc-abc123.nowhere.invalid", "b2-lkc-abc123.nowhere.invalid"]
    said = advice(names)
    assert said is not None and said.endswith(hosts_line(names)) and "\n" not in said
    assert hosts_line(names) == "127.0.0.1 " + " ".join(names)
    assert resolves("localhost") and not resolves("lkc-abc123.nowhere.invalid")
    assert advice(["localhost"]) is None


@pytest.mark.parametrize("text", ["Demo", "a,b c", "x" * 41, "lkc_1"])
def test_names_of_tenants_are_checked(text: str) -> None:
    with pytest.raises(SettingError, match="--tenants"):
        parse_names(text)


def test_names_of_tenants_are_taken_once() -> None:
    assert parse_names("a,b,,a") == ["a", "b"]


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_a_cluster_with_proxies_makes_its_tenants_once(tmp_path: Path) -> None:
    data, port = tmp_path / "d", free_ports(1)
    at = ("--data", str(data))
    small = ("--brokers", "1", "--controllers", "1", "--port", str(port), "--detach")
    refused = tidelog("up", *at, *small, "--tenants", "demo")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--proxies" in refused.stderr
    up = tidelog("up", *at, *small, "--proxies", "1", "--tenants", "demo,other")
    assert up.returncode == 0, up.stderr
    try:
        assert re.fullmatch(r"ready bootstrap=127\.0\.0\.1:\d+\n", up.stdout), "what scripts read is one line"
        rows = {row["node"]: row for row in json.loads(tidelog("ps", *at, "--json").stdout)}
        proxy = rows["proxy-0"]
        assert (proxy["role"], proxy["state"]) == ("proxy", "running")
        assert proxy["listeners"] == {"SASL_SSL": f"127.0.0.1:{port + 1000}"}
        tenants = listed(at)
        assert {row["tenant"]: row["keys"] for row in tenants} == {"demo": 1, "other": 1}
        keys = {name: read_key(data / "tenants" / f"{name}.key") for name in ("demo", "other")}
        assert {tenant_id for *_, tenant_id in keys.values()} == {row["id"] for row in tenants}
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in (data / "tenants").iterdir())
        assert "demo.{librdkafka.properties,java.properties,kcat}" in up.stderr
        for action, states in (("kill", "stopped"), ("start", "running"), ("stop", "stopped"), ("start", "running")):
            done = json.loads(tidelog(action, "proxy-0", *at, "--json").stdout)
            assert done[0]["state"] == states
        assert tidelog("down", *at).returncode == 0
        again = tidelog("up", *at, "--tenants", "demo,third", "--detach")
        assert again.returncode == 0, again.stderr
        assert {row["tenant"]: row["keys"] for row in listed(at)} == {"demo": 1, "other": 1, "third": 1}
        assert read_key(data / "tenants" / "demo.key") == keys["demo"]
        text = "".join(path.read_text(errors="replace") for path in (data / "logs").iterdir())
        assert not [secret for _, secret, _ in keys.values() if secret in text + up.stdout + up.stderr]
    finally:
        tidelog("down", *at)


def listed(at: tuple[str, str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(tidelog("tenants", "list", *at, "--json").stdout)
    return rows


@pytest.mark.processes
@pytest.mark.timeout(240)
def test_tenants_that_cannot_be_made_fail_the_start(tmp_path: Path) -> None:
    settings = {"tidelog.tenants.max": "1"}
    with EmbeddedCluster(1, settings, tmp_path / "d", 1, proxies=1) as cluster:
        at = ("--data", str(cluster.data))
        assert tidelog("down", *at).returncode == 0
        up = tidelog("up", *at, "--tenants", "one,two", "--detach")
        assert (up.returncode, up.stdout, up.stderr.count("\n")) == (1, "", 1)
        assert "the cluster stops" in up.stderr
        tidelog("down", *at)  # waits for its end, if it has not ended yet
        cluster.up()


def test_access_is_made_of_its_parts() -> None:
    assert replace(ACCESS, port=1).bootstrap == "lkc-abc123.tidelog.localhost:1"


def test_the_kcat_file_is_a_script_for_sh(tmp_path: Path) -> None:
    _, _, kcat = write_client_files(tmp_path, replace(ACCESS, tenant="a"))
    found = subprocess.run(["sh", "-n", str(kcat)], capture_output=True, check=False)
    assert (found.returncode, found.stderr) == (0, b"")
