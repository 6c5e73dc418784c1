"""The whole way over real sockets: a client, the listener, brokers that echo what follows the PROXY header."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import random
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.host_names import broker_host
from common.ports import Address
from proxy.failures import Cause
from proxy.host_addresses import HostAddresses
from proxy.limits import ProxyLimits
from proxy.networks import NetworkRules, Networks
from proxy.routing import RoutingTable, TenantRoute
from proxy.server_tls import ServerContext
from proxy.sockets import listen
from tests.proxy.proxy_world import (
    DOMAIN,
    HOST,
    LOOPBACK,
    OTHER,
    TENANT,
    WAIT_S,
    Authority,
    EchoBroker,
    blocking_client,
    echoed,
    hello,
    running,
    table,
    trusting_context,
    until,
)


async def test_the_broker_learns_who_the_client_is_and_what_it_asked_for(
    authority: Authority, certificate: ServerContext
) -> None:
    async with running(certificate) as proxy:

        def talk() -> tuple[str, int]:
            with blocking_client(proxy.port, authority.client_context(), HOST.upper()) as sock:
                assert echoed(sock, b"hello") == b"hello"
                name: tuple[str, int] = sock.getsockname()
                return name

        source = await asyncio.to_thread(talk)
        header = proxy.broker.headers[0]
        assert header == ((source[0], source[1]), (LOOPBACK, proxy.port), HOST)
        await until(lambda: not proxy.listener.relays)
        assert proxy.listener.moved_bytes() == (5, 5)


async def test_the_broker_learns_of_a_client_that_says_nothing(
    authority: Authority, certificate: ServerContext
) -> None:
    async with running(certificate) as proxy:
        client = await asyncio.to_thread(blocking_client, proxy.port, authority.client_context())
        with client:
            await until(lambda: proxy.broker.headers)
        assert proxy.broker.headers[0].authority == HOST


@pytest.mark.parametrize("tls", ["none", "client", "lean", "both"])
async def test_bytes_survive_backpressure_in_both_directions(
    authority: Authority, certificate: ServerContext, tmp_path: Path, tls: str
) -> None:
    data = random.Random(5).randbytes(64 << 20)  # the kernel's buffers on the way grow to some 30 MB
    context = None if tls == "none" else certificate
    broker_tls = authority.broker_context(tmp_path / "broker.pem", (LOOPBACK,)) if tls == "both" else None
    to_broker = authority.client_context() if tls == "both" else None
    limits = ProxyLimits(quick=0 if tls == "lean" else 1)
    async with running(context, limits, broker_tls=broker_tls, broker_context=to_broker) as proxy:
        client = authority.client_context() if context is not None else None
        small = socket.socket()
        small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        small.connect((LOOPBACK, proxy.port))
        reader, writer = await asyncio.open_connection(sock=small, ssl=client, server_hostname=HOST if client else None)
        opening = b"" if client else hello(HOST)
        writer.write(opening)

        async def send() -> None:
            for at in range(0, len(data), 99_991):
                writer.write(data[at : at + 99_991])
                await writer.drain()

        sending = asyncio.create_task(send())
        stalled, last = 0, -1
        while stalled < 20:  # nobody reads: every buffer on the way fills until nothing moves any more
            await asyncio.sleep(0.01)
            moved = sum(proxy.listener.moved_bytes())
            stalled = stalled + 1 if 0 < moved == last else 0
            last = moved
        assert not sending.done()
        assert await reader.readexactly(len(opening)) == opening
        got, left = hashlib.sha256(), len(data)
        while left:
            piece = await asyncio.wait_for(reader.read(1 << 20), WAIT_S)
            assert piece
            got.update(piece)
            left -= len(piece)
        await sending
        assert got.digest() == hashlib.sha256(data).digest()
        writer.close()


@pytest.mark.parametrize("passes", [True, False])
async def test_a_brokers_end_reaches_the_client_as_an_orderly_end(
    authority: Authority, certificate: ServerContext, passes: bool
) -> None:
    async with running(None if passes else certificate) as proxy:

        def talk() -> bytes:
            if passes:
                with socket.create_connection((LOOPBACK, proxy.port), WAIT_S) as plain:
                    echoed(plain, hello(HOST))
                    plain.sendall(b"close")
                    return plain.recv(1)
            with blocking_client(proxy.port, authority.client_context()) as sock:
                sock.suppress_ragged_eofs = False  # type: ignore[attr-defined]  # an end without close_notify raises
                echoed(sock, b"hello")
                sock.sendall(b"close")
                return sock.recv(1)

        assert await asyncio.to_thread(talk) == b""
        await until(lambda: not proxy.listener.relays)


async def test_an_end_right_behind_full_records_is_seen(authority: Authority, certificate: ServerContext) -> None:
    """No event announces it: OpenSSL has taken it from the socket together with the burst before it."""
    async with running(certificate) as proxy:

        def talk() -> None:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = authority.client_context().wrap_bio(incoming, outgoing, server_hostname=HOST)
            with socket.create_connection((LOOPBACK, proxy.port), WAIT_S) as sock:
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        sock.sendall(outgoing.read())
                        incoming.write(sock.recv(65_536))
                tls.write(bytes(16_384))
                with pytest.raises(ssl.SSLWantReadError):
                    tls.unwrap()
                sock.sendall(outgoing.read())
                while sock.recv(65_536):  # times out if the proxy missed the end
                    pass

        await asyncio.to_thread(talk)
        await until(lambda: not proxy.listener.relays)


async def test_a_clients_end_is_passed_on_and_the_reply_still_comes() -> None:
    async with running(None) as proxy:
        words = hello(HOST)
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        writer.write(words)
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), WAIT_S) == words
        writer.close()


async def test_an_end_without_a_word_of_tls_leaves_the_answers_their_way(authority: Authority, tmp_path: Path) -> None:
    """As clients end that close their socket and no more: what a broker says then still arrives."""
    words = random.Random(6).randbytes(1 << 20)
    context = authority.server_context(tmp_path / "proxy.pem")

    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(words)
        await writer.drain()
        writer.close()

    def talk(port: int) -> bytes:
        with blocking_client(port, authority.client_context()) as sock:
            sock.sendall(b"x")
            with socket.socket(fileno=os.dup(sock.fileno())) as bare:
                bare.shutdown(socket.SHUT_WR)  # the client's TLS does not know, and says nothing
            return b"".join(iter(lambda: sock.recv(65_536), b""))

    server = await asyncio.start_server(answer_at_the_end, LOOPBACK, 0)
    late = server.sockets[0].getsockname()[:2]
    async with running(context, routes=table((late[0], late[1]))) as proxy:
        assert await asyncio.to_thread(talk, proxy.port) == words
    server.close()


async def test_half_a_connection_is_not_kept_for_long() -> None:
    async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(never_ends, LOOPBACK, 0)
    silent = server.sockets[0].getsockname()[:2]
    limits = ProxyLimits(half_closed_s=0.2, idle_s=600)
    async with running(None, limits, routes=table((silent[0], silent[1])), quiet_s=0.1) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        writer.write(hello(HOST))
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        assert not proxy.listener.relays
    ended.set()
    server.close()


async def test_an_idle_connection_is_closed(authority: Authority, certificate: ServerContext) -> None:
    async with running(certificate, ProxyLimits(idle_s=0.3), quiet_s=0.1) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                echoed(sock, b"x")
                return sock.recv(1)

        assert await asyncio.to_thread(talk) == b""


async def test_the_broker_is_reached_over_tls_with_the_proxys_certificate(
    authority: Authority, certificate: ServerContext, tmp_path: Path
) -> None:
    broker_tls = authority.broker_context(tmp_path / "broker.pem", (LOOPBACK,))
    broker_tls.verify_mode = ssl.CERT_REQUIRED
    broker_tls.load_verify_locations(cadata=authority.pem())
    to_broker = authority.client_context()
    to_broker.load_cert_chain(authority.write(tmp_path / "proxy.pem", ("proxy.internal",), common_name="proxy"))
    async with running(certificate, broker_tls=broker_tls, broker_context=to_broker) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                return echoed(sock, b"hello")

        assert await asyncio.to_thread(talk) == b"hello"
        assert proxy.broker.headers[0].authority == HOST


async def test_a_broker_that_is_no_broker_of_ours_gets_nothing(
    authority: Authority, certificate: ServerContext, tmp_path: Path
) -> None:
    stranger = Authority.make().broker_context(tmp_path / "stranger.pem", (LOOPBACK,))
    async with running(certificate, broker_tls=stranger, broker_context=authority.client_context()) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock, contextlib.suppress(OSError):
                return sock.recv(1)
            return b""

        assert await asyncio.to_thread(talk) == b""
        assert proxy.reception.failures.counts[Cause.BROKER_UNREACHABLE] == 1
        assert proxy.broker.headers == []


async def test_another_broker_of_the_cell_is_tried_for_a_bootstrap_name_alone(
    authority: Authority, certificate: ServerContext
) -> None:
    broker = EchoBroker()
    async with running(certificate, broker=broker) as proxy:
        live = proxy.routes.current.brokers[0].address
        with socket.socket() as reserved:
            reserved.bind((LOOPBACK, 0))
            dead = reserved.getsockname()
            proxy.routes.replace(table((dead[0], dead[1]), (dead[0], dead[1]), live))

            def talk() -> None:
                for _ in range(4):
                    with blocking_client(proxy.port, authority.client_context()) as sock:
                        assert echoed(sock, b"hello") == b"hello"

            await asyncio.to_thread(talk)
            assert not proxy.reception.failures.counts[Cause.BROKER_UNREACHABLE]

            def by_name() -> None:
                name = broker_host(0, TENANT, DOMAIN)
                with (
                    blocking_client(proxy.port, authority.client_context(), name) as sock,
                    socket.socket(fileno=os.dup(sock.fileno())) as below_tls,
                ):
                    below_tls.settimeout(WAIT_S)
                    while below_tls.recv(1 << 16):  # a session's tickets may come first
                        pass

            for _ in range(5):
                with pytest.raises(ConnectionResetError):  # as if the broker's host had answered
                    await asyncio.to_thread(by_name)
            assert proxy.reception.failures.counts[Cause.BROKER_UNREACHABLE] == 5


@contextlib.contextmanager
def deaf_broker() -> Iterator[Address]:
    """Its backlog is full, so that a connection is never made."""
    deaf = socket.socket()
    deaf.bind((LOOPBACK, 0))
    deaf.listen(0)
    address = deaf.getsockname()
    fillers = []
    for _ in range(4):
        filler = socket.socket()
        filler.setblocking(False)
        filler.connect_ex(address)
        fillers.append(filler)
    yield address[0], address[1]
    for one in (*fillers, deaf):
        one.close()


async def test_a_broker_that_does_not_answer_is_given_up(authority: Authority, certificate: ServerContext) -> None:
    async with running(certificate, ProxyLimits(connect_timeout_s=0.3)) as proxy:
        live = proxy.routes.current.brokers[0].address
        with deaf_broker() as deaf:
            proxy.routes.replace(table(deaf, live))

            def talk() -> None:
                for _ in range(2):
                    with blocking_client(proxy.port, authority.client_context()) as sock:
                        assert echoed(sock, b"early words") == b"early words"

            await asyncio.to_thread(talk)
            assert proxy.reception.avoided


async def test_what_comes_while_a_broker_is_awaited_waits_in_the_socket() -> None:
    async with running(None, ProxyLimits(connect_timeout_s=0.3)) as proxy:
        live = proxy.routes.current.brokers[0].address
        with deaf_broker() as deaf:
            proxy.routes.replace(table(deaf, live))
            for _ in range(2):
                words = hello(HOST)
                reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
                for piece in (words[:40], words[40:], b"and ", b"more"):
                    writer.write(piece)
                    await asyncio.sleep(0.03)
                expected = words + b"and more"
                assert await asyncio.wait_for(reader.readexactly(len(expected)), WAIT_S) == expected
                assert proxy.reception.tenants.total(TENANT) == 1
                writer.close()
                await until(lambda: not proxy.listener.relays)
            assert len(proxy.reception.tenants) == 0


async def test_a_name_that_is_found_too_late_is_not_taken_for_the_next_brokers(
    authority: Authority, certificate: ServerContext
) -> None:
    answered = asyncio.Event()

    async def lookup(host: str) -> str:
        await answered.wait()
        return LOOPBACK

    async with running(certificate, ProxyLimits(connect_timeout_s=0.2), hosts=HostAddresses(lookup)) as proxy:
        live = proxy.routes.current.brokers[0].address
        with deaf_broker() as deaf:
            slow = table(("slow-name", live[1]), deaf, live)
            proxy.routes.replace(slow)
            proxy.reception.rotation = 2

            def talk() -> None:
                with blocking_client(proxy.port, authority.client_context()) as sock:
                    assert echoed(sock, b"x") == b"x"

            talking = asyncio.create_task(asyncio.to_thread(talk))
            await until(lambda: len(proxy.reception.avoided) == 1)
            answered.set()
            await talking
            assert proxy.broker.connections == 1


async def test_a_drain_closes_the_quiet_first_and_all_in_time(authority: Authority, certificate: ServerContext) -> None:
    async with running(certificate, ProxyLimits(drain_s=1.0)) as proxy:
        context = authority.client_context()
        socks = [await asyncio.to_thread(blocking_client, proxy.port, context) for _ in range(8)]
        await until(lambda: proxy.listener.relays == 8)
        loop = asyncio.get_running_loop()
        ends: dict[int, float] = {}

        def talk(number: int) -> None:
            sock = socks[number]
            with contextlib.suppress(OSError):
                if number == 0:
                    while echoed(sock, b"busy"):
                        pass
                sock.recv(1)

        async def watch(number: int) -> None:
            with contextlib.suppress(AssertionError):
                await asyncio.to_thread(talk, number)
            ends[number] = loop.time()

        watching = [asyncio.create_task(watch(number)) for number in range(8)]
        began = loop.time()
        await asyncio.wait_for(proxy.listener.drain(), WAIT_S)
        await asyncio.gather(*watching)
        assert not proxy.listener.relays
        quiet = sorted(ends[number] - began for number in range(1, 8))
        assert ends[0] >= max(ends.values()) - 0.2, "the busy one is the last"
        assert quiet[0] < 0.4 < quiet[-1] < 1.5, "they are closed one after the other"
        with pytest.raises(ConnectionRefusedError):
            await asyncio.to_thread(blocking_client, proxy.port, context)
        for sock in socks:
            sock.close()


async def test_a_deleted_tenants_connections_end(authority: Authority, certificate: ServerContext) -> None:
    async with running(certificate) as proxy:
        context = authority.client_context()
        gone = await asyncio.to_thread(blocking_client, proxy.port, context)
        stays = await asyncio.to_thread(blocking_client, proxy.port, context, f"{OTHER}.{DOMAIN}")
        await until(lambda: proxy.listener.relays == 2)
        now = proxy.routes.current
        proxy.routes.replace(RoutingTable({OTHER: TenantRoute(OTHER, "default")}, now.brokers))
        assert await asyncio.to_thread(gone.recv, 1) == b""
        assert await asyncio.to_thread(echoed, stays, b"x") == b"x"
        gone.close()
        stays.close()


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize(
    "rules", [NetworkRules(deny=Networks(("127.0.0.0/8",))), NetworkRules(Networks(("10.0.0.0/8",)))]
)
async def test_connections_from_an_address_that_the_tenant_now_denies_end(
    certificate: ServerContext, terminates: bool, rules: NetworkRules
) -> None:
    async with running(certificate if terminates else None) as proxy:

        async def connect(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            context = trusting_context() if terminates else None
            made = await asyncio.open_connection(
                LOOPBACK, proxy.port, ssl=context, server_hostname=name if terminates else None
            )
            words = b"x" if terminates else hello(name)
            made[1].write(words)
            assert await asyncio.wait_for(made[0].readexactly(len(words)), WAIT_S) == words
            return made

        gone, stays = await connect(HOST), await connect(f"{OTHER}.{DOMAIN}")
        begun = await asyncio.open_connection(LOOPBACK, proxy.port)
        if terminates:  # named, and its handshake not complete
            begun[1].write(hello(HOST))
            await until(lambda: proxy.reception.tenants.total(TENANT) == 2)
        before = proxy.routes.current
        for same in (TenantRoute(TENANT, "default"), TenantRoute(TENANT, "default", 7)):
            proxy.routes.replace(RoutingTable({**before.tenants, TENANT: same}, before.brokers))
            assert proxy.listener.relays == 2
        denied = TenantRoute(TENANT, "default", rules=rules)
        proxy.routes.replace(RoutingTable({**before.tenants, TENANT: denied}, before.brokers))
        assert proxy.listener.relays == 1
        assert await asyncio.wait_for(gone[0].read(), WAIT_S) == b""
        if terminates:
            assert proxy.reception.failures.counts[Cause.TENANT_DENIED] == 1
            assert not proxy.listener.openings
        stays[1].write(b"y")
        assert await asyncio.wait_for(stays[0].readexactly(1), WAIT_S) == b"y"
        for _, writer in (gone, stays, begun):
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await asyncio.wait_for(writer.wait_closed(), WAIT_S)


async def test_a_new_certificate_is_used_by_the_next_handshake(
    authority: Authority, certificate: ServerContext, tmp_path: Path
) -> None:
    second = Authority.make()
    async with running(certificate) as proxy:
        first = await asyncio.to_thread(blocking_client, proxy.port, authority.client_context())
        proxy.reception.client_context = second.server_context(tmp_path / "second.pem")
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.to_thread(blocking_client, proxy.port, authority.client_context())
        renewed = await asyncio.to_thread(blocking_client, proxy.port, second.client_context())
        for sock in (first, renewed):
            assert await asyncio.to_thread(echoed, sock, b"x") == b"x"
            sock.close()


async def test_several_sockets_share_a_port() -> None:
    socks = listen((LOOPBACK, 0), 3)
    assert len({sock.getsockname() for sock in socks}) == 1
    with pytest.raises(OSError, match="in use"):
        socket.create_server(socks[0].getsockname())
    for sock in socks:
        sock.close()
