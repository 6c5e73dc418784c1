"""The whole way over real sockets: a client, the listener, brokers that echo what follows the PROXY header."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from common.host_names import broker_host
from proxy.failures import Cause
from proxy.limits import ProxyLimits
from proxy.networks import NetworkRules, Networks
from proxy.routing import RoutingTable, TenantRoute
from proxy.sockets import OutOfFiles, accept, listen
from tests.proxy.proxy_world import (
    DOMAIN,
    HOST,
    LOOPBACK,
    OTHER,
    TENANT,
    WAIT_S,
    Authority,
    EchoBroker,
    Running,
    blocking_client,
    echoed,
    hello,
    running,
    table,
    trusting_context,
)


async def until(condition: Callable[[], object]) -> None:
    """Turns of the loop until `condition()` holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  sockets of the kernel set no events
            await asyncio.sleep(0.005)


async def test_the_broker_learns_who_the_client_is_and_what_it_asked_for(
    authority: Authority, certificate: ssl.SSLContext
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


@pytest.mark.parametrize("tls", ["none", "client", "both"])
async def test_bytes_survive_backpressure_in_both_directions(
    authority: Authority, certificate: ssl.SSLContext, tmp_path: Path, tls: str
) -> None:
    data = random.Random(5).randbytes(24 << 20)
    context = None if tls == "none" else certificate
    broker_tls = authority.server_context(tmp_path / "broker.pem", (LOOPBACK,)) if tls == "both" else None
    to_broker = authority.client_context() if tls == "both" else None
    async with running(context, broker_tls=broker_tls, broker_context=to_broker) as proxy:
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


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("name", [f"lkc-zzzzzz.{DOMAIN}", f"{TENANT}.other.test", "kafka.test", None])
async def test_a_client_sees_the_alert_for_a_name_that_is_not_served(
    certificate: ssl.SSLContext, name: str | None, terminates: bool
) -> None:
    async with running(certificate if terminates else None) as proxy:
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await asyncio.to_thread(blocking_client, proxy.port, trusting_context(), name)
        await until(lambda: not proxy.listener.openings)
        cause = Cause.NO_SERVER_NAME if name is None else Cause.UNKNOWN_NAME
        assert proxy.reception.failures.counts[cause] == 1
        assert proxy.broker.connections == 0


async def test_a_broker_that_is_not_known_ends_the_connection_so_that_clients_try_again(
    certificate: ssl.SSLContext,
) -> None:
    async with running(certificate) as proxy:
        with pytest.raises(ssl.SSLEOFError):
            await asyncio.to_thread(blocking_client, proxy.port, trusting_context(), broker_host(9, TENANT, DOMAIN))
        assert proxy.reception.failures.counts[Cause.UNKNOWN_BROKER] == 1


async def test_a_hello_that_comes_in_drips_is_waited_for_without_spinning(certificate: ssl.SSLContext) -> None:
    async with running(None) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        looks = count_calls(proxy)
        words = hello(HOST)
        for at in range(0, len(words), 40):
            writer.write(words[at : at + 40])
            await asyncio.sleep(0.01)
        assert await asyncio.wait_for(reader.readexactly(len(words)), WAIT_S) == words
        assert looks[0] <= 2 * (len(words) // 40 + 1)
        assert proxy.broker.headers[0].authority is None
        writer.close()


def count_calls(proxy: Running) -> list[int]:
    """How often readers were called that the listener adds from now on."""
    calls = [0]
    loop = asyncio.get_running_loop()

    class Counting:
        remove_reader, add_writer, remove_writer = loop.remove_reader, loop.add_writer, loop.remove_writer

        def add_reader(self, fd: int, callback: Callable[[], object], /) -> None:
            def counted() -> None:
                calls[0] += 1
                callback()

            loop.add_reader(fd, counted)

    proxy.reception.ready = Counting()
    return calls


async def test_a_forged_proxy_header_is_no_hello(certificate: ssl.SSLContext) -> None:
    forged = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12) + hello(HOST)
    for context in (certificate, None):
        async with running(context) as proxy:
            reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
            writer.write(forged)
            assert (await asyncio.wait_for(reader.read(), WAIT_S))[:1] == b"\x15"
            assert proxy.reception.failures.counts[Cause.BAD_HELLO] == 1
            assert proxy.broker.connections == 0
            writer.close()


async def test_a_proxy_header_inside_the_clients_tls_is_the_clients_own_data(
    authority: Authority, certificate: ssl.SSLContext
) -> None:
    forged = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)
    async with running(certificate) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                return echoed(sock, forged)

        assert await asyncio.to_thread(talk) == forged
        assert proxy.broker.headers[0].authority == HOST


@pytest.mark.parametrize("piece", [b"", b"\x16", b"\x16\x03\x01"])
async def test_a_silent_client_is_timed_out(certificate: ssl.SSLContext, piece: bytes) -> None:
    async with running(certificate, ProxyLimits(opening_timeout_s=0.5)) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        writer.write(piece)
        if piece:
            await until(lambda: proxy.listener.openings)
            assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
            assert proxy.reception.failures.counts[Cause.TIMEOUT] == 1
        else:  # the kernel does not even show it
            await asyncio.sleep(0.2)
            assert proxy.listener.tally.accepted == 0
        writer.close()


async def test_a_handshake_that_is_never_finished_is_timed_out(certificate: ssl.SSLContext) -> None:
    async with running(certificate, ProxyLimits(opening_timeout_s=0.3)) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        writer.write(hello(HOST))
        assert (await asyncio.wait_for(reader.read(), WAIT_S))[:1] == b"\x16"
        assert proxy.reception.failures.counts[Cause.TIMEOUT] == 1
        assert proxy.broker.connections == 0
        writer.close()


async def test_a_failed_handshake_tells_the_client_why(certificate: ssl.SSLContext, tmp_path: Path) -> None:
    strict = Authority.make().server_context(tmp_path / "strict.pem")
    strict.minimum_version = ssl.TLSVersion.TLSv1_3
    async with running(strict) as proxy:
        old = trusting_context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
            await asyncio.to_thread(blocking_client, proxy.port, old)
        assert proxy.reception.failures.counts[Cause.HANDSHAKE] == 1


@pytest.mark.parametrize("passes", [True, False])
async def test_a_brokers_end_reaches_the_client_as_an_orderly_end(
    authority: Authority, certificate: ssl.SSLContext, passes: bool
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


async def test_an_end_right_behind_full_records_is_seen(authority: Authority, certificate: ssl.SSLContext) -> None:
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


async def test_half_a_connection_is_not_kept_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.listener.QUIET_S", 0.1)

    async def never_ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        await ended.wait()
        writer.close()

    ended = asyncio.Event()
    server = await asyncio.start_server(never_ends, LOOPBACK, 0)
    silent = server.sockets[0].getsockname()[:2]
    limits = ProxyLimits(half_closed_s=0.2, idle_s=600)
    async with running(None, limits, routes=table((silent[0], silent[1]))) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        writer.write(hello(HOST))
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        writer.close()
        assert not proxy.listener.relays
    ended.set()
    server.close()


async def test_an_idle_connection_is_closed(
    authority: Authority, certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.listener.QUIET_S", 0.1)
    async with running(certificate, ProxyLimits(idle_s=0.3)) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                echoed(sock, b"x")
                return sock.recv(1)

        assert await asyncio.to_thread(talk) == b""


async def test_the_broker_is_reached_over_tls_with_the_proxys_certificate(
    authority: Authority, certificate: ssl.SSLContext, tmp_path: Path
) -> None:
    broker_tls = authority.server_context(tmp_path / "broker.pem", (LOOPBACK,))
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
    authority: Authority, certificate: ssl.SSLContext, tmp_path: Path
) -> None:
    stranger = Authority.make().server_context(tmp_path / "stranger.pem", (LOOPBACK,))
    async with running(certificate, broker_tls=stranger, broker_context=authority.client_context()) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock, contextlib.suppress(OSError):
                return sock.recv(1)
            return b""

        assert await asyncio.to_thread(talk) == b""
        assert proxy.reception.failures.counts[Cause.BROKER_UNREACHABLE] == 1
        assert proxy.broker.headers == []


async def test_another_broker_of_the_cell_is_tried_for_a_bootstrap_name_alone(
    authority: Authority, certificate: ssl.SSLContext
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

            def by_name() -> bytes:
                name = broker_host(0, TENANT, DOMAIN)
                with blocking_client(proxy.port, authority.client_context(), name) as sock:
                    with contextlib.suppress(OSError):
                        return sock.recv(1)
                    return b""

            assert await asyncio.to_thread(by_name) == b""
            assert proxy.reception.failures.counts[Cause.BROKER_UNREACHABLE] == 1


async def test_a_broker_that_does_not_answer_is_given_up(authority: Authority, certificate: ssl.SSLContext) -> None:
    """Its backlog is full, so that the connection is never made."""
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
    async with running(certificate, ProxyLimits(connect_timeout_s=0.3)) as proxy:
        live = proxy.routes.current.brokers[0].address
        proxy.routes.replace(table((address[0], address[1]), live))

        def talk() -> None:
            for _ in range(2):
                with blocking_client(proxy.port, authority.client_context()) as sock:
                    assert echoed(sock, b"early words") == b"early words"

        await asyncio.to_thread(talk)
    for one in (*fillers, deaf):
        one.close()


async def test_the_limit_of_one_tenant_leaves_others_alone(authority: Authority, certificate: ssl.SSLContext) -> None:
    async with running(certificate) as proxy:
        address = proxy.routes.current.brokers[0].address
        proxy.routes.replace(table(address, connections_max=2))

        def talk() -> None:
            context = authority.client_context()
            first, second = (blocking_client(proxy.port, context) for _ in range(2))
            with pytest.raises((ssl.SSLEOFError, ConnectionResetError)):
                blocking_client(proxy.port, context)
            with blocking_client(proxy.port, context, f"{OTHER}.{DOMAIN}") as other:
                assert echoed(other, b"x") == b"x"
            first.close()
            assert echoed(second, b"x") == b"x"
            second.close()

        await asyncio.to_thread(talk)
        assert proxy.reception.failures.counts[Cause.TENANT_CONNECTIONS] == 1
        await until(lambda: not proxy.listener.relays)
        assert len(proxy.reception.tenants) == len(proxy.reception.addresses) == 0


async def test_what_an_address_and_a_tenant_may_do_is_bounded(certificate: ssl.SSLContext) -> None:
    async def refused(limits: ProxyLimits, rule: NetworkRules, cause: Cause, /, **tenant: Any) -> None:
        async with running(certificate, limits, rules=rule) as proxy:
            address = proxy.routes.current.brokers[0].address
            proxy.routes.replace(table(address, **tenant))

            def talk() -> None:
                with contextlib.suppress(OSError):
                    for _ in range(4):
                        blocking_client(proxy.port, trusting_context()).close()

            await asyncio.to_thread(talk)
            assert proxy.reception.failures.counts[cause] >= 1, cause
            await until(lambda: not proxy.listener.relays)
            assert len(proxy.reception.tenants) == len(proxy.reception.addresses) == 0

    nobody = NetworkRules()
    everywhere = NetworkRules(deny=Networks(("127.0.0.0/8",)))
    await refused(ProxyLimits(), everywhere, Cause.ADDRESS_DENIED)
    await refused(ProxyLimits(address_new_per_second=1), nobody, Cause.ADDRESS_RATE)
    await refused(ProxyLimits(address_connections=0), nobody, Cause.ADDRESS_CONNECTIONS)
    await refused(ProxyLimits(), nobody, Cause.TENANT_DENIED, rules=everywhere)
    await refused(ProxyLimits(tenant_new_per_second=1), nobody, Cause.TENANT_RATE)
    await refused(ProxyLimits(), nobody, Cause.TENANT_RATE, connection_rate=1.0)


async def test_the_oldest_makes_room_when_too_many_are_slow(authority: Authority, certificate: ssl.SSLContext) -> None:
    limits = ProxyLimits(opening=8, crowd_patience_s=0.1, opening_timeout_s=60)
    async with running(certificate, limits) as proxy:
        slow = [socket.create_connection((LOOPBACK, proxy.port)) for _ in range(20)]
        for one in slow:
            one.sendall(b"\x16")

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                return echoed(sock, b"x")

        assert await asyncio.to_thread(talk) == b"x"
        assert proxy.listener.openings <= 8
        assert proxy.reception.failures.counts[Cause.CROWDED_OUT] >= 12
        for one in slow:
            one.close()


async def test_new_connections_are_taken_at_the_given_rate(certificate: ssl.SSLContext) -> None:
    async with running(certificate, ProxyLimits(new_per_second=4, new_burst=2)) as proxy:
        began = asyncio.get_running_loop().time()

        def talk() -> None:
            for _ in range(5):
                blocking_client(proxy.port, trusting_context()).close()

        await asyncio.to_thread(talk)
        assert asyncio.get_running_loop().time() - began > 3 / 4 * 0.9
        assert proxy.listener.tally.rate_pauses


async def test_without_descriptors_accepting_pauses_and_goes_on(
    certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, authority: Authority
) -> None:
    failing = [3]

    def no_descriptor(sock: socket.socket) -> object:
        if failing[0]:
            failing[0] -= 1
            raise OutOfFiles
        return accept(sock)

    monkeypatch.setattr("proxy.listener.accept", no_descriptor)
    async with running(certificate) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                return echoed(sock, b"x")

        assert await asyncio.to_thread(talk) == b"x"
        assert proxy.listener.tally.file_pauses == 3


async def test_a_flood_of_garbage_leaves_nothing_behind(authority: Authority, certificate: ssl.SSLContext) -> None:
    async with running(certificate) as proxy:

        def flood() -> None:
            rng = random.Random(11)
            for number in range(500):
                sock = socket.socket()
                if number % 2:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.connect((LOOPBACK, proxy.port))
                with contextlib.suppress(OSError):
                    sock.sendall(hello(HOST)[: rng.randrange(600)] if number % 3 else rng.randbytes(100))
                sock.close()
            with blocking_client(proxy.port, authority.client_context()) as good:
                assert echoed(good, b"x") == b"x"

        await asyncio.to_thread(flood)
        await until(lambda: not proxy.listener.openings and not proxy.listener.relays)
        assert len(proxy.reception.addresses) == len(proxy.reception.tenants) == 0


async def test_a_drain_closes_the_quiet_first_and_all_in_time(
    authority: Authority, certificate: ssl.SSLContext
) -> None:
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


async def test_a_deleted_tenants_connections_end(authority: Authority, certificate: ssl.SSLContext) -> None:
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


async def test_a_new_certificate_is_used_by_the_next_handshake(
    authority: Authority, certificate: ssl.SSLContext, tmp_path: Path
) -> None:
    second = Authority.make()
    async with running(certificate) as proxy:
        first = await asyncio.to_thread(blocking_client, proxy.port, authority.client_context())
        proxy.listener.use_certificate(second.server_context(tmp_path / "second.pem"))
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
