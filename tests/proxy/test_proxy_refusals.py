"""Who is not let through, and what it costs: bad and slow hellos, forged headers, limits, floods."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import socket
import ssl
import struct
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.host_names import broker_host
from proxy.failures import Cause
from proxy.limits import ProxyLimits
from proxy.networks import NetworkRules, Networks
from proxy.server_tls import ServerContext
from proxy.sockets import prepare_listener
from tests.proxy.proxy_world import (
    DOMAIN,
    HOST,
    LOOPBACK,
    OTHER,
    TENANT,
    WAIT_S,
    Authority,
    Running,
    blocking_client,
    echoed,
    hello,
    running,
    table,
    trusting_context,
    until,
)

# An end without an alert, after which clients try again, as a client sees it: Python 3.11.2 sets this option by itself.
_IGNORES_EOF = ssl.create_default_context().options & ssl.OP_IGNORE_UNEXPECTED_EOF
ENDED = ssl.SSLZeroReturnError if _IGNORES_EOF else ssl.SSLEOFError


@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("name", [f"lkc-zzzzzz.{DOMAIN}", f"{TENANT}.other.test", "kafka.test", None])
async def test_a_client_sees_the_alert_for_a_name_that_is_not_served(
    certificate: ServerContext, name: str | None, terminates: bool
) -> None:
    async with running(certificate if terminates else None) as proxy:
        with pytest.raises(ssl.SSLError, match="UNRECOGNIZED_NAME"):
            await asyncio.to_thread(blocking_client, proxy.port, trusting_context(), name)
        await until(lambda: not proxy.listener.openings)
        cause = Cause.NO_SERVER_NAME if name is None else Cause.UNKNOWN_NAME
        assert proxy.reception.failures.counts[cause] == 1
        assert proxy.broker.connections == 0


async def test_a_broker_that_is_not_known_ends_the_connection_so_that_clients_try_again(
    certificate: ServerContext,
) -> None:
    async with running(certificate) as proxy:
        with pytest.raises(ENDED):
            await asyncio.to_thread(blocking_client, proxy.port, trusting_context(), broker_host(9, TENANT, DOMAIN))
        assert proxy.reception.failures.counts[Cause.UNKNOWN_BROKER] == 1


async def test_a_hello_that_comes_in_drips_is_waited_for_without_spinning(certificate: ServerContext) -> None:
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


async def test_a_forged_proxy_header_is_no_hello(certificate: ServerContext) -> None:
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
    authority: Authority, certificate: ServerContext
) -> None:
    forged = b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12)
    async with running(certificate) as proxy:

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                return echoed(sock, forged)

        assert await asyncio.to_thread(talk) == forged
        assert proxy.broker.headers[0].authority == HOST


@pytest.mark.parametrize("piece", [b"", b"\x16", b"\x16\x03\x01"])
async def test_a_silent_client_is_timed_out(certificate: ServerContext, piece: bytes) -> None:
    async with running(certificate, ProxyLimits(opening_timeout_s=0.5)) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        writer.write(piece)
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert proxy.reception.failures.counts[Cause.TIMEOUT] == 1
        writer.close()


async def test_the_time_that_the_kernel_keeps_a_silent_client_back_counts(certificate: ServerContext) -> None:
    """One that was accepted just now is old enough to be evicted for a newer one."""
    async with running(certificate, ProxyLimits(opening_timeout_s=6, opening=1, eviction_age_s=2.9)) as proxy:
        assert proxy.reception.deferral_s == 3
        reader, silent = await asyncio.open_connection(LOOPBACK, proxy.port)
        await until(lambda: proxy.listener.openings)
        _, newer = await asyncio.open_connection(LOOPBACK, proxy.port)
        newer.write(b"\x16")
        assert await asyncio.wait_for(reader.read(), WAIT_S) == b""
        assert (proxy.reception.failures.counts[Cause.EVICTED], proxy.listener.tally.full_pauses) == (1, 0)
        for writer in (silent, newer):
            writer.close()


@given(st.floats(0.1, 86_400))
def test_the_kernel_keeps_a_silent_client_back_for_at_most_half_of_its_time(timeout_s: float) -> None:
    with socket.socket() as sock:
        kept = prepare_listener(sock, timeout_s)
        assert kept == sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT)
        assert 2 * kept <= timeout_s
        assert kept or timeout_s < 2


async def test_a_handshake_that_is_never_finished_is_timed_out(certificate: ServerContext) -> None:
    async with running(certificate, ProxyLimits(opening_timeout_s=0.3)) as proxy:
        reader, writer = await asyncio.open_connection(LOOPBACK, proxy.port)
        writer.write(hello(HOST))
        assert (await asyncio.wait_for(reader.read(), WAIT_S))[:1] == b"\x16"
        assert proxy.reception.failures.counts[Cause.TIMEOUT] == 1
        assert proxy.broker.connections == 0
        writer.close()


async def test_a_failed_handshake_tells_the_client_why(certificate: ServerContext) -> None:
    async with running(certificate) as proxy:
        old = trusting_context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.set_ciphers("kRSA")  # without forward secrecy
        with pytest.raises(ssl.SSLError, match="HANDSHAKE_FAILURE"):
            await asyncio.to_thread(blocking_client, proxy.port, old)
        assert proxy.reception.failures.counts[Cause.HANDSHAKE] == 1


async def test_the_limit_of_one_tenant_leaves_others_alone(authority: Authority, certificate: ServerContext) -> None:
    async with running(certificate) as proxy:
        address = proxy.routes.current.brokers[0].address
        proxy.routes.replace(table(address, connections_max=2))

        def talk() -> None:
            context = authority.client_context()
            first, second = (blocking_client(proxy.port, context) for _ in range(2))
            with pytest.raises((ENDED, ConnectionResetError)):
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


async def test_what_an_address_and_a_tenant_may_do_is_bounded(certificate: ServerContext) -> None:
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


async def test_the_oldest_makes_room_when_too_many_are_slow(authority: Authority, certificate: ServerContext) -> None:
    limits = ProxyLimits(opening=8, eviction_age_s=0.1, opening_timeout_s=60)
    async with running(certificate, limits) as proxy:
        slow = [socket.create_connection((LOOPBACK, proxy.port)) for _ in range(20)]
        for one in slow:
            one.sendall(b"\x16")

        def talk() -> bytes:
            with blocking_client(proxy.port, authority.client_context()) as sock:
                return echoed(sock, b"x")

        assert await asyncio.to_thread(talk) == b"x"
        assert proxy.listener.openings <= 8
        assert proxy.reception.failures.counts[Cause.EVICTED] >= 12
        for one in slow:
            one.close()


async def test_new_connections_are_taken_at_the_given_rate(certificate: ServerContext) -> None:
    async with running(certificate, ProxyLimits(new_per_second=4, new_burst=2)) as proxy:
        began = asyncio.get_running_loop().time()

        def talk() -> None:
            for _ in range(5):
                blocking_client(proxy.port, trusting_context()).close()

        await asyncio.to_thread(talk)
        assert asyncio.get_running_loop().time() - began > 3 / 4 * 0.9
        assert proxy.listener.tally.rate_pauses


@contextlib.contextmanager
def no_descriptor_more() -> Iterator[None]:
    """Within, this process can open nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)  # the lowest number that is free
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_without_descriptors_accepting_pauses_and_goes_on(
    certificate: ServerContext, authority: Authority
) -> None:
    async with running(certificate) as proxy:
        raw, context = socket.create_connection((LOOPBACK, proxy.port), WAIT_S), authority.client_context()

        def talk() -> bytes:
            with context.wrap_socket(raw, server_hostname=HOST) as sock:
                return echoed(sock, b"x")

        with no_descriptor_more():
            talking = asyncio.create_task(asyncio.to_thread(talk))
            await until(lambda: proxy.listener.tally.file_pauses >= 3)
            assert not proxy.listener.tally.accepted
        assert await asyncio.wait_for(talking, WAIT_S) == b"x"


async def test_a_flood_of_garbage_leaves_nothing_behind(authority: Authority, certificate: ServerContext) -> None:
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
