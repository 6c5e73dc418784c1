"""Connections before their first Kafka byte: proxies' headers, forged ones, crowds, rates, limits of addresses."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.machine import MachineClock
from common.ports import Address
from tests.wire.fakes import until
from tests.wire.tls_world import EchoServer, Material, TlsClient, client_context, echoing, make_material, tls_listener
from tests.wire.tls_world import passed as passed_listener
from wire.failure_log import LOG_AGAIN_S, REMEMBERED_MAX, FailureLog
from wire.identity import PeerIdentity
from wire.listeners import ListenerConfig, ListenerKind, ProxyForm
from wire.proxy_protocol import ProxyHeader, encode
from wire.server import ServerLimits
from wire.tls import TlsContexts

HEADER = ProxyHeader(("203.0.113.9", 4711), ("198.51.100.1", 9093), "lkc-abc123.tidelog.localhost")
PLAIN = ListenerConfig("PLAINTEXT", ("127.0.0.1", 0), None, ListenerKind.OPERATOR)


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(tmp_path_factory.mktemp("opening"))


def contexts(material: Material, **changes: Any) -> TlsContexts:
    return TlsContexts(material.config(**changes), MachineClock())


def terminated(material: Material) -> ListenerConfig:
    return tls_listener(contexts(material, client_auth="required"), proxies=ProxyForm.TERMINATED)


def identity_of(server: EchoServer) -> PeerIdentity:
    found = server.opened[-1].identity
    assert found is not None
    return found


async def ask(address: Address, context: ssl.SSLContext, before: bytes = b"", inside: bytes = b"") -> TlsClient:
    client = await TlsClient.connect(address, context, before=before)
    client.writer.write(inside)
    assert await client.call(b"ping") == b"ping"
    return client


@pytest.mark.parametrize("pieces", [False, True])
async def test_a_proxy_says_who_its_client_is(material: Material, tmp_path: Path, pieces: bool) -> None:
    async with echoing(tmp_path, terminated(material)) as server:
        client = await TlsClient.connect(server.address, client_context(material, material.proxy))
        opening = encode(HEADER) + b"\0\0\0\4ping"
        for at in range(0, len(opening), 1 if pieces else len(opening)):
            client.writer.write(opening[at : at + (1 if pieces else len(opening))])
            await asyncio.sleep(0)
        assert await client.answer() == b"ping"
        identity = identity_of(server)
        assert identity.client_address == HEADER.source
        assert identity.server_name == HEADER.authority
        assert identity.tls_principal is None  # the proxy's certificate is not the client's
        client.close()


@pytest.mark.parametrize("certificate", ["client", "node"])
async def test_only_a_proxys_certificate_may_speak_for_clients(
    material: Material, tmp_path: Path, certificate: str
) -> None:
    async with echoing(tmp_path, terminated(material)) as server:
        own = client_context(material, getattr(material, certificate))
        client = await TlsClient.connect(server.address, own)
        client.writer.write(encode(HEADER))
        assert await client.reader.read() == b""
        await until(lambda: server.failures == {"refused": 1})
        assert not server.opened


@pytest.mark.parametrize(
    "inside", [b"\0\0\0\4ping" * 4, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n"]
)
async def test_a_proxy_without_a_header_is_closed(material: Material, tmp_path: Path, inside: bytes) -> None:
    async with echoing(tmp_path, terminated(material)) as server:
        client = await TlsClient.connect(server.address, client_context(material, material.proxy))
        client.writer.write(inside)
        assert await client.reader.read() == b""
        await until(lambda: server.failures == {"refused": 1})


async def test_a_passed_connection_has_its_own_server_name_and_the_proxys_word_for_the_address(
    material: Material, tmp_path: Path
) -> None:
    async with echoing(tmp_path, passed_listener(contexts(material), "127.0.0.0/8")) as server:
        client = await ask(server.address, client_context(material), before=encode(HEADER))
        identity = identity_of(server)
        assert identity.client_address == HEADER.source
        assert identity.server_name == "localhost"  # never the header's
        client.close()


@pytest.mark.parametrize("header", [encode(HEADER), encode(HEADER._replace(authority=None))])
async def test_a_header_from_where_no_proxy_is_closes_the_connection(
    material: Material, tmp_path: Path, header: bytes
) -> None:
    async with echoing(tmp_path, passed_listener(contexts(material), "10.0.0.0/8")) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(header)
        assert b"QUIT" not in await reader.read()
        writer.close()
        await until(lambda: server.failures == {"TLS handshake failed": 1})
        direct = await ask(server.address, client_context(material))
        assert identity_of(server).client_address == direct.writer.get_extra_info("sockname")
        direct.close()


async def test_a_header_within_the_clients_own_tls_is_no_header(material: Material, tmp_path: Path) -> None:
    """What a client that was passed through sends inside is Kafka's protocol, and a header is none of it."""
    async with echoing(tmp_path, passed_listener(contexts(material), "10.0.0.0/8")) as server:
        client = await TlsClient.connect(server.address, client_context(material))
        client.writer.write(encode(HEADER))
        assert await client.reader.read() == b""
        await until(lambda: server.violations)
        assert not server.opened


async def test_limits_of_an_address_count_the_client_and_not_its_proxy(material: Material, tmp_path: Path) -> None:
    limits = ServerLimits(connections_per_ip_max=2, connections_per_ip={"203.0.113.77": 1})
    own = client_context(material, material.proxy)
    async with echoing(tmp_path, terminated(material), limits=limits) as server:
        held = [await ask(server.address, own, inside=encode(HEADER)) for _ in range(2)]
        other = HEADER._replace(source=("203.0.113.77", 1))
        held.append(await ask(server.address, own, inside=encode(other)))
        for header in (HEADER, other):
            client = await TlsClient.connect(server.address, own)
            client.writer.write(encode(header))
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await client.call(b"x")
        assert server.failures == {"max.connections.per.ip is reached": 2}
        held[0].close()
        await until(lambda: server.closed)
        again = await ask(server.address, own, inside=encode(HEADER))
        for client in (*held, again):
            client.close()


async def test_who_says_nothing_is_closed_in_time(material: Material, tmp_path: Path) -> None:
    limits = ServerLimits(opening_s=0.05)
    hello = _hello(client_context(material))
    proxied = replace(terminated(material), name="PROXIED")
    async with echoing(tmp_path, tls_listener(contexts(material)), proxied, limits=limits) as server:
        silent = [await asyncio.open_connection(*server.address) for _ in range(3)]
        silent[1][1].write(hello[:40])
        silent[2][1].write(hello)
        for reader, writer in silent:
            async with asyncio.timeout(5):
                await reader.read()
            writer.close()
        await until(lambda: server.failures == {"no handshake in time": 3})
        proxy = await TlsClient.connect(server.server.addresses["PROXIED"], client_context(material, material.proxy))
        proxy.writer.write(encode(HEADER)[:20])
        async with asyncio.timeout(5):
            assert await proxy.reader.read() == b""
        await until(lambda: server.failures == {"no handshake in time": 4})
        assert server.server.openings == 0


def _hello(context: ssl.SSLContext) -> bytes:
    out = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


async def test_a_crowd_that_says_nothing_is_bounded_and_keeps_nobody_out(material: Material, tmp_path: Path) -> None:
    limits = ServerLimits(openings_max=20)
    async with echoing(tmp_path, tls_listener(contexts(material)), limits=limits) as server:
        crowd = [await asyncio.open_connection(*server.address) for _ in range(60)]
        for _, writer in crowd[::2]:
            writer.write(b"\x16\x03\x01")
        client = await ask(server.address, client_context(material))
        assert server.server.openings <= 20
        assert server.failures["evicted"] >= 40
        client.close()
        for _, writer in crowd:
            writer.close()


async def test_a_crowd_in_earnest_is_served_to_the_last(material: Material, tmp_path: Path) -> None:
    """Nobody that was heard of a moment ago is crowded out; who comes meanwhile waits in the system's queue."""
    limits = ServerLimits(openings_max=8)
    async with echoing(tmp_path, tls_listener(contexts(material)), limits=limits) as server:
        context = client_context(material)
        clients = await asyncio.gather(*(ask(server.address, context, b"") for _ in range(60)))
        assert server.failures == {}
        for client in clients:
            client.close()


async def test_connections_come_no_faster_than_they_may(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with echoing(tmp_path, PLAIN, limits=ServerLimits(creation_rate=20)) as server:
        began = loop.time()
        clients = [await asyncio.open_connection(*server.address) for _ in range(35)]
        for reader, writer in clients:
            writer.write(b"\0\0\0\1x")
            assert await reader.readexactly(5) == b"\0\0\0\1x"
        assert loop.time() - began >= 15 / 20 * 0.9  # twenty at once, the others at their rate
        for _, writer in clients:
            writer.close()


async def test_a_listener_has_its_own_bound(tmp_path: Path) -> None:
    async with echoing(tmp_path, replace(PLAIN, connections_max=1)) as server:
        _, first = await asyncio.open_connection(*server.address)
        await until(lambda: len(server.server.connections) == 1)
        with pytest.raises(ConnectionResetError):
            await (await asyncio.open_connection(*server.address))[0].read()
        assert server.failures == {"max.connections of the listener is reached": 1}
        first.close()


def test_failures_are_said_once_in_a_while_and_always_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    failures = FailureLog(logging.getLogger("test"), "refused", lambda: now)
    for _ in range(10):
        failures.report("cause", "10.0.0.1")
    failures.report("cause", "10.0.0.2")
    failures.report("other", "10.0.0.1")
    assert len(caplog.records) == 3
    now = LOG_AGAIN_S + 1
    failures.report("cause", "10.0.0.1")
    assert caplog.records[-1].__dict__["more_since"] == 9
    assert failures.counts == {"cause": 12, "other": 1}
    for number in range(REMEMBERED_MAX):
        failures.report("cause", str(number))
    caplog.clear()
    failures.report("cause", "10.0.0.1")  # forgotten, because so many came since
    assert len(caplog.records) == 1
    failures.report("cause", str(REMEMBERED_MAX - 1))
    assert len(caplog.records) == 1
