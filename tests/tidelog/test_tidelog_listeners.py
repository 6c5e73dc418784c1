"""Listeners as an operator writes them: protocols, TLS, what each kind must be, and one line for what it is not."""

from __future__ import annotations

import json
from ipaddress import ip_network
from pathlib import Path

import pytest

from broker.config import BrokerConfig
from broker.listeners import Listen
from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import INT_MAX, SettingError
from tidelog.cluster.layout import grow_layout, load_layout, prepare_layout
from tidelog.configuration.controller_config import controller_config
from tidelog.configuration.node_config import broker_config
from wire.listeners import ProxyForm, SecurityProtocol

STORES = {"ssl.keystore.location": "/etc/node.pem", "ssl.truststore.location": "/etc/ca.pem"}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s" * 32)
    return path


def broker(secret: Path, listeners: str, **changes: str) -> BrokerConfig:
    given = {
        "node.id": "0",
        "listeners": f"{listeners},INTERNAL://127.0.0.1:2",
        "controller.quorum.voters": "1000@localhost:1",
        "tidelog.cluster.secret.file": str(secret),
    }
    return broker_config(given | {name.replace("__", "."): value for name, value in changes.items()})


def first(config: BrokerConfig) -> Listen:
    return config.listeners[0]


def test_rules_for_clients_names_are_not_for_nodes_and_proxies(secret: Path) -> None:
    """A rule that fits clients alone would else keep the cluster's own nodes out."""
    rules = "RULE:^CN=client,.*$/owner/"
    protocols = {"listener.security.protocol.map": "INTERNAL:SSL,TENANT:SASL_SSL", "ssl.principal.mapping.rules": rules}
    listeners = "SSL://127.0.0.1:1,TENANT://127.0.0.1:3"
    config = broker(secret, listeners, **STORES, **protocols, **{"tidelog.tenant.listeners": "TENANT"})
    found = {one.name: one.tls.principal_mapping_rules for one in config.listeners if one.tls is not None}
    assert found == {"SSL": rules, "TENANT": "DEFAULT", "INTERNAL": "DEFAULT"}


@pytest.mark.parametrize(
    ("name", "mapped", "protocol"),
    [
        ("PLAINTEXT", "", SecurityProtocol.PLAINTEXT),
        ("SSL", "", SecurityProtocol.SSL),
        ("SASL_SSL", "", SecurityProtocol.SASL_SSL),
        ("SASL_PLAINTEXT", "", SecurityProtocol.SASL_PLAINTEXT),
        ("HOST", "", SecurityProtocol.PLAINTEXT),
        ("HOST", "HOST:SSL,ABSENT:SASL_SSL", SecurityProtocol.SSL),
        ("SSL", "SSL:PLAINTEXT", SecurityProtocol.PLAINTEXT),
    ],
)
def test_a_listener_has_the_mapped_protocol_else_its_names(
    secret: Path, name: str, mapped: str, protocol: SecurityProtocol
) -> None:
    config = broker(secret, f"{name}://127.0.0.1:1", **STORES, **{"listener.security.protocol.map": mapped})
    assert first(config).protocol is protocol
    assert (first(config).tls is not None) == protocol.uses_tls
    assert config.internal_listener.protocol is SecurityProtocol.PLAINTEXT


def test_one_listeners_own_values_come_before_everybodys(secret: Path) -> None:
    own = {
        "ssl.client.auth": "requested",
        "listener.name.outside.ssl.client.auth": "required",
        "listener.name.outside.ssl.keystore.location": "/etc/outside.pem",
        "listener.name.outside.max.connections": "7",
        "listener.name.outside.max.connection.creation.rate": "3",
        "max.connections": "100",
        "max.connections.per.ip.overrides": "127.0.0.1:5,[::1]:6",
        "listener.security.protocol.map": "OUTSIDE:SSL",
    }
    config = broker(secret, "OUTSIDE://127.0.0.1:1,SSL://127.0.0.1:3", **STORES, **own)
    outside, other = config.listeners[:2]
    assert outside.tls is not None
    assert other.tls is not None
    assert (outside.tls.client_auth, outside.tls.keystore_location) == ("required", "/etc/outside.pem")
    assert (other.tls.client_auth, other.tls.keystore_location) == ("requested", "/etc/node.pem")
    assert (outside.connections_max, outside.creation_rate) == (7, 3)
    assert (other.connections_max, other.creation_rate) == (INT_MAX, INT_MAX)
    assert config.limits.connections_max == 100
    assert config.limits.connections_per_ip == {"127.0.0.1": 5, "::1": 6}


def test_a_variable_of_the_environment_names_a_listener() -> None:
    given = {
        "TIDELOG_LISTENER_NAME_SASL_SSL_SSL_CLIENT_AUTH": "required",
        "TIDELOG_LISTENER_NAME_OUT_SIDE_TIDELOG_TENANT_TLS": "passthrough",
        "TIDELOG_LISTENER_NAME_X_NODE_ID": "4",
        "TIDELOG_MAX_CONNECTIONS": "5",
    }
    assert NODE_SETTINGS.from_environment(given) == {
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        "listener.name.out_side.tidelog.tenant.tls": "passthrough",
        "max.connections": "5",
    }


def test_tenants_listeners_stand_behind_proxies(secret: Path) -> None:
    changes = {
        "tidelog.tenant.listeners": "TENANTS,PASSED",
        "listener.security.protocol.map": "TENANTS:SASL_SSL,PASSED:SASL_SSL",
        "listener.name.passed.tidelog.tenant.tls": "passthrough",
        "tidelog.proxy.networks": "10.0.0.0/8,fd00::/8",
    }
    config = broker(secret, "TENANTS://127.0.0.1:1,PASSED://127.0.0.1:3", **STORES, **changes)
    terminated, passed = config.listeners[:2]
    assert (terminated.proxies, terminated.proxy_networks) == (ProxyForm.TERMINATED, ())
    assert terminated.tls is not None
    assert terminated.tls.client_auth == "required"
    assert passed.proxies is ProxyForm.PASSED
    assert passed.proxy_networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert passed.tls is not None
    assert passed.tls.client_auth == "none"


@pytest.mark.parametrize(
    ("listeners", "changes", "words"),
    [
        ("SSL://127.0.0.1:1", {}, "ssl.keystore.location: listener SSL has TLS and needs a key"),
        ("SSL://127.0.0.1:1", {"ssl.keystore.type": "JKS"}, "'JKS' is not valid, it must be PEM; `keytool`"),
        ("SSL://127.0.0.1:1", {"ssl.keystore.location": "/k", "ssl.client.auth": "required"}, "of its clients'"),
        ("A://127.0.0.1:1", {"listener.security.protocol.map": "A:TLS"}, "'A:TLS' is not valid"),
        ("A://127.0.0.1:1", {"listener.security.protocol.map": "INTERNAL:SASL_SSL"}, "INTERNAL is for nodes"),
        ("A://127.0.0.1:1", {"listener.security.protocol.map": "INTERNAL:SSL"}, "listener INTERNAL has TLS and needs"),
        ("A://127.0.0.1:1", {"tidelog.tenant.listeners": "A"}, "A is for tenants"),
        ("A://127.0.0.1:1", {"listener.name.a.node.id": "1"}, "listener.name.a.node.id: no such setting"),
        ("A://127.0.0.1:1", {"listener.name.b.max.connections": "3"}, "there is no listener b, there are A, INTERNAL"),
        ("A://127.0.0.1:1", {"max.connections.per.ip.overrides": "x:1"}, "it must be ADDRESS:COUNT"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_one_line(
    secret: Path, listeners: str, changes: dict[str, str], words: str
) -> None:
    with pytest.raises(SettingError) as refused:
        broker(secret, listeners, **changes)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_passthrough_needs_networks_that_are_networks(secret: Path) -> None:
    changes = {
        "tidelog.tenant.listeners": "A",
        "tidelog.tenant.tls": "passthrough",
        "listener.security.protocol.map": "A:SASL_SSL",
        "tidelog.proxy.networks": "10.0.0.1/8",
    }
    with pytest.raises(SettingError, match=r"tidelog\.proxy\.networks"):
        broker(secret, "A://127.0.0.1:1", **STORES, **changes)


@pytest.mark.parametrize("tls", [False, True])
def test_nodes_listeners_leave_loopback_with_tls_alone(secret: Path, tls: bool) -> None:
    given = {
        "node.id": "1000",
        "listeners": "INTERNAL://0.0.0.0:1",
        "advertised.listeners": "INTERNAL://controller-0:1",
        "controller.quorum.voters": "1000@controller-0:1",
        "tidelog.quorum.voters": "1000@controller-0:2",
        "tidelog.cluster.secret.file": str(secret),
    }
    if tls:
        config = controller_config(given | STORES | {"listener.security.protocol.map": "INTERNAL:SSL"})
        assert config.tls is not None
        assert config.tls.client_auth == "required"
        return
    with pytest.raises(SettingError, match=r"INTERNAL on 0\.0\.0\.0 leaves loopback without TLS"):
        controller_config(given)
    assert controller_config(given | {"tidelog.internal.allow.plaintext": "true"}).tls is None


def test_an_embedded_cluster_gets_certificates_and_keeps_them(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 2, 1, 21_000, {"listener.security.protocol.map": "SSL:SSL"}, tls=True)
    first_made = (tmp_path / "tls" / "node.pem").read_bytes()
    assert prepare_layout(tmp_path, None, None, None, {}) == layout == load_layout(tmp_path)
    assert (tmp_path / "tls" / "node.pem").read_bytes() == first_made
    (added,) = grow_layout(layout, tmp_path, 1, lambda port: True)
    assert len({node.tls_port for node in layout.brokers}) == 3
    (tmp_path / "cluster.secret").touch()
    settings = layout.node_settings(added, tmp_path)
    config = broker_config(settings)
    assert {listen.name: listen.protocol.name for listen in config.listeners} == {
        "PLAINTEXT": "PLAINTEXT",
        "SSL": "SSL",
        "INTERNAL": "SSL",
    }
    assert added.listeners()["SSL"] == f"127.0.0.1:{added.tls_port}"


def test_a_cluster_without_certificates_stays_so_until_asked(tmp_path: Path) -> None:
    layout = prepare_layout(tmp_path, 1, 1, 21_000, {})
    assert not (tmp_path / "tls").exists()
    raw = json.loads((tmp_path / "cluster.json").read_text())
    del raw["tls"], raw["nodes"][0]["tls_port"]  # as an older version wrote it
    (tmp_path / "cluster.json").write_text(json.dumps(raw))
    assert load_layout(tmp_path) == layout
    assert prepare_layout(tmp_path, None, None, None, {}, tls=True).brokers[0].tls_port
