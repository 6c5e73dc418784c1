"""Tenants whose TLS is passed through: the broker's own handshake tells whose connection it is, and no header does."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import private_hosts
from bench.embedded import EmbeddedCluster
from common.ports import Address
from tests.clients.tenant_programs import value
from tests.clients.test_clients_tenants import DOMAIN, RECORDS, TENANTS, TenantWorld
from tests.tidelog.test_tidelog_tier_rebuild import wait_for
from tidelog.admin.command_config import Login
from tidelog.admin.listener_probe import Refusal, ask, log_in
from tidelog.cluster.client_files import read_key
from wire.messages import MetadataRequest
from wire.proxy_protocol import ProxyHeader, encode

LOOPBACK, ELSEWHERE, CLAIMED = "127.0.0.1", "127.0.0.2", "203.0.113.7"
WAIT_S = 60.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantWorld]:
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "log.dir.free.bytes.min": "0",
        "tidelog.proxy.mode": "passthrough",
    }
    resolves = private_hosts.names_resolve()
    if not resolves:
        reason = private_hosts.problem()
        assert reason is None, reason
    hosts = None if resolves else private_hosts.new_file(tmp_path_factory.mktemp("hosts"))
    with EmbeddedCluster(3, settings, controllers=1, proxies=1, tenants=TENANTS) as cluster:
        yield TenantWorld(cluster, hosts)


def login_of(world: TenantWorld, tenant: str) -> Login:
    key, secret, _ = read_key(world.cluster.tenant_file(tenant, "key"))
    return Login("SCRAM-SHA-256", key, secret)


def proxies(world: TenantWorld) -> Address:
    return LOOPBACK, world.cluster.port + 1000


def broker(world: TenantWorld, number: int = 0) -> Address:
    node = next(row for row in world.cluster.nodes() if row["node"] == f"broker-{number}")
    host, _, port = node["listeners"]["TENANT"].rpartition(":")
    return host, int(port)


def header(authority: str | None = None) -> bytes:
    return encode(ProxyHeader((CLAIMED, 4_000), (LOOPBACK, 9_092), authority))


@contextlib.contextmanager
def opened(
    world: TenantWorld, address: Address, server_name: str | None, before: bytes = b"", source: str = LOOPBACK
) -> Iterator[ssl.SSLSocket]:
    """A handshake from `source`, with `before` in front of it."""
    context = ssl.create_default_context(cafile=str(world.cluster.data / "tls" / "ca.pem"))
    context.check_hostname = server_name is not None
    with socket.create_connection(address, WAIT_S, (source, 0)) as plain:
        plain.sendall(before)
        with context.wrap_socket(plain, server_hostname=server_name) as sock:
            yield sock


def host(world: TenantWorld, tenant: str) -> str:
    return f"{world.ids[tenant]}.{DOMAIN}"


def cluster_of(sock: socket.socket) -> str:
    """The cluster id that it is told, which is the tenant's."""
    return ask(sock, MetadataRequest(topics=[]), 2).cluster_id or ""


def test_clients_work_as_tenants(world: TenantWorld) -> None:
    for tenant in TENANTS:
        seen = world.program("confluent", world.cluster.tenant_file(tenant), "same", RECORDS)
        assert sorted(seen["values"]) == sorted(value(number).decode() for number in range(RECORDS))
        assert "same" in seen["topics"] and not [name for name in seen["topics"] if "lkc-" in name]
        assert (seen["cluster"], len(seen["hosts"])) == (world.ids[tenant], 3)


def test_a_key_is_of_no_use_under_another_tenants_server_name(world: TenantWorld) -> None:
    with opened(world, proxies(world), host(world, "other")) as sock, pytest.raises(Refusal, match="Authentication"):
        log_in(sock, "there", login_of(world, "demo"))


@pytest.mark.parametrize("authority", [None, "other"])
def test_a_header_that_a_client_sends_to_the_proxy_is_no_hello(world: TenantWorld, authority: str | None) -> None:
    forged = header(None if authority is None else host(world, authority))
    with pytest.raises((ssl.SSLError, ConnectionError)), opened(world, proxies(world), host(world, "demo"), forged):
        pytest.fail("it was let in")


@pytest.mark.parametrize("authority", [None, "other"])
def test_a_header_from_outside_the_proxies_networks_ends_the_connection(
    world: TenantWorld, authority: str | None
) -> None:
    own, forged = host(world, "demo"), header(None if authority is None else host(world, authority))
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        opened(world, broker(world), own, forged, source=ELSEWHERE) as sock,
    ):
        log_in(sock, "there", login_of(world, "demo"))
    with opened(world, broker(world), own, source=ELSEWHERE) as sock:  # it was the header, and nothing else
        log_in(sock, "there", login_of(world, "demo"))
        assert cluster_of(sock) == world.ids["demo"]


def test_a_proxys_header_says_no_tenant(world: TenantWorld) -> None:
    """Even where one may stand: the tenant is the one of the server name that the broker's own handshake saw."""
    with opened(world, broker(world), host(world, "demo"), header(host(world, "other"))) as sock:
        log_in(sock, "there", login_of(world, "demo"))
        assert cluster_of(sock) == world.ids["demo"]
    with (
        opened(world, broker(world), host(world, "demo"), header(host(world, "other"))) as sock,
        pytest.raises(Refusal, match="Authentication"),
    ):
        log_in(sock, "there", login_of(world, "other"))


@pytest.mark.parametrize("name", [None, DOMAIN, f"lkc-zzzzzz.{DOMAIN}"])
def test_without_a_tenants_server_name_nobody_comes_in(world: TenantWorld, name: str | None) -> None:
    for address in (proxies(world), broker(world)):
        with (
            pytest.raises((ssl.SSLError, ConnectionError, Refusal)),
            opened(world, address, name) as sock,
        ):
            log_in(sock, "there", login_of(world, "demo"))


def test_brokers_are_told_the_clients_address(world: TenantWorld) -> None:
    """The address that a failed login is logged with."""
    client = "127.0.0.9"
    wrong = Login("SCRAM-SHA-256", login_of(world, "demo").user, "wrong")
    with (
        opened(world, proxies(world), host(world, "demo"), source=client) as sock,
        pytest.raises(Refusal, match="Authentication"),
    ):
        log_in(sock, "there", wrong)
    wait_for(lambda: failed_from(world.cluster.data, client))


def failed_from(data: Path, address: str) -> list[str]:
    """Logins from there that brokers have logged as failed."""
    lines = [line for log in sorted((data / "logs").glob("broker-*.log")) for line in log.read_text().splitlines()]
    return [line for line in lines if 'event="authentication failed"' in line and f" peer={address} " in line]
