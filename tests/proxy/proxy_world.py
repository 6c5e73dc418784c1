"""What tests of the proxy share: certificates, brokers that echo, a listener on a free port, clients, hellos."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from common.host_names import bootstrap_host
from common.ports import Address
from proxy.certificates import ChainFiles, server_context
from proxy.failures import FailureLog
from proxy.handshake_queue import HandshakeQueue
from proxy.host_addresses import HostAddresses
from proxy.limits import Counts, ProxyLimits
from proxy.listener import QUIET_S, ProxyListener
from proxy.networks import NetworkRules
from proxy.opening import Reception
from proxy.relay import Room
from proxy.routing import BrokerRoute, RouteSource, RoutingTable, TenantRoute
from proxy.server_tls import Places, ServerContext
from proxy.sockets import listen
from wire.proxy_protocol import ProxyHeader, parse

DOMAIN = "kafka.test"
TENANT, OTHER = "lkc-aaaaaa", "lkc-bbbbbb"
HOST = bootstrap_host(TENANT, DOMAIN)
LOOPBACK = "127.0.0.1"
WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority of a test and what it signs."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def make() -> Authority:
        key = ec.generate_private_key(ec.SECP256R1())
        return Authority(key, _signed(_name("test authority"), key.public_key(), _name("test authority"), key, 30, ()))

    def pem(self) -> str:
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def write(self, path: Path, names: tuple[str, ...], days: float = 30, common_name: str = "test") -> Path:
        """A key and a certificate in one PEM file; `days` may be negative."""
        key = ec.generate_private_key(ec.SECP256R1())
        made = _signed(_name(common_name), key.public_key(), self.certificate.subject, self.key, days, names)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
        return path

    def server_context(self, path: Path, names: tuple[str, ...] = (f"*.{DOMAIN}",)) -> ServerContext:
        """A proxy's."""
        return server_context(ChainFiles(str(self.write(path, names))))

    def broker_context(self, path: Path, names: tuple[str, ...]) -> ssl.SSLContext:
        """A broker's own."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        context.load_cert_chain(self.write(path, names))
        return context

    def client_context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.pem())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


_SIGNS_CERTIFICATES = x509.KeyUsage(
    digital_signature=False, content_commitment=False, key_encipherment=False, data_encipherment=False,
    key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
)  # fmt: skip


def _signed(
    subject: x509.Name,
    public: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    signer: ec.EllipticCurvePrivateKey,
    days: float,
    names: tuple[str, ...],
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=60))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=not names, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if not names:  # from 3.13 on Python wants it of an authority
        builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
    else:
        kinds = [x509.IPAddress(ipaddress.ip_address(one)) if one[0].isdigit() else x509.DNSName(one) for one in names]
        builder = builder.add_extension(x509.SubjectAlternativeName(kinds), critical=False)
    return builder.sign(signer, hashes.SHA256())


class EchoBroker:
    """Reads a PROXY header (unless told that none comes), then echoes; `close` as a message ends the connection."""

    def __init__(self, header: bool = True) -> None:
        self.headers: list[ProxyHeader] = []
        self.connections = 0
        self.served: set[asyncio.Task[None]] = set()
        self._header = header
        self._server: asyncio.Server | None = None

    async def start(self, context: ssl.SSLContext | None = None) -> Address:
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, ssl=context, backlog=1024)
        return LOOPBACK, self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in list(self.served):
            task.cancel()
        await asyncio.gather(*self.served, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.served.add(task)
        self.connections += 1
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await self._echo(reader, writer)
        writer.close()
        self.served.discard(task)

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = b""
        while self._header:
            parsed = parse(data)
            if parsed is not None:
                self.headers.append(parsed[0])
                data = data[parsed[1] :]
                break
            more = await reader.read(512)
            if not more:
                return
            data += more
        writer.write(data)
        while piece := await reader.read(65_536):
            if piece.startswith(b"close"):
                break
            writer.write(piece)
            await writer.drain()


def table(*addresses: Address, cell: str = "default", **tenant: Any) -> RoutingTable:
    """The test's two tenants and a broker at each address."""
    tenants = {TENANT: TenantRoute(TENANT, cell, **tenant), OTHER: TenantRoute(OTHER, cell)}
    return RoutingTable(
        tenants, {number: BrokerRoute(number, address, cell, True) for number, address in enumerate(addresses)}
    )


def make_reception(routes: RouteSource, context: ServerContext | None, limits: ProxyLimits, **more: Any) -> Reception:
    loop = asyncio.get_running_loop()
    reception = Reception(
        ready=loop,
        now=loop.time,
        routes=routes,
        domain=DOMAIN,
        limits=limits,
        rules=NetworkRules(),
        client_context=context,
        broker_context=None,
        header=True,
        addresses=Counts(),
        tenants=Counts(),
        failures=FailureLog(),
        handshake_queue=HandshakeQueue(loop),
        room=Room(),
        hosts=HostAddresses(),
        quick_places=Places(limits.quick),
    )
    return replace(reception, **more)


class StaticRoutes:
    """A table that a test sets."""

    def __init__(self, table: RoutingTable) -> None:
        self.current = table
        self._callbacks: list[Callable[[RoutingTable, Mapping[str, None]], None]] = []

    def on_change(self, callback: Callable[[RoutingTable, Mapping[str, None]], None]) -> None:
        self._callbacks.append(callback)

    def replace(self, table: RoutingTable) -> None:
        before, self.current = self.current, table
        ruled = {one: route.rules for one, route in table.tenants.items()}
        restricted = {one: None for one, route in before.tenants.items() if ruled.get(one) != route.rules}
        for callback in self._callbacks:
            callback(table, restricted)


@dataclass(slots=True)
class Running:
    """A listener that runs in the test's own loop."""

    port: int
    listener: ProxyListener
    reception: Reception
    routes: StaticRoutes
    broker: EchoBroker = field(default_factory=EchoBroker)


@contextlib.asynccontextmanager
async def running(
    context: ServerContext | None,
    limits: ProxyLimits | None = None,
    *,
    broker: EchoBroker | None = None,
    broker_tls: ssl.SSLContext | None = None,
    routes: RoutingTable | None = None,
    quiet_s: float = QUIET_S,
    **more: Any,
) -> AsyncIterator[Running]:
    echo = broker or EchoBroker()
    address = await echo.start(broker_tls)
    source = StaticRoutes(routes or table(address))
    reception = make_reception(source, context, limits or ProxyLimits(), **more)
    sock = listen((LOOPBACK, 0), 1)[0]
    port = sock.getsockname()[1]
    listener = ProxyListener(asyncio.get_running_loop(), sock, reception, quiet_s)
    listener.start()
    try:
        yield Running(port, listener, reception, source, echo)
    finally:
        listener.close()
        await reception.hosts.stop()
        await echo.stop()


def blocking_client(port: int, context: ssl.SSLContext, name: str | None = HOST) -> ssl.SSLSocket:
    """For a thread: connected and through with its handshake."""
    raw = socket.create_connection((LOOPBACK, port), WAIT_S)
    try:
        return context.wrap_socket(raw, server_hostname=name)
    except BaseException:
        raw.close()
        raise


def echoed(sock: socket.socket, data: bytes) -> bytes:
    """What comes back for `data`, which has to fit into the buffers on the way."""
    sock.sendall(data)
    got = b""
    while len(got) < len(data):
        piece = sock.recv(len(data) - len(got))
        assert piece, f"the connection ended after {len(got)} of {len(data)} bytes"
        got += piece
    return got


def trusting_context() -> ssl.SSLContext:
    """Of a client that wants to see what a proxy says to any name, or to none."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def hello(name: str | None, alpn: tuple[str, ...] = (), *, tls12: bool = False) -> bytes:
    """The first flight of a real client."""
    context = trusting_context()
    if alpn:
        context.set_alpn_protocols(list(alpn))
    if tls12:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


async def until(condition: Callable[[], object]) -> None:
    """Turns of the loop until `condition()` holds."""
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110  sockets of the kernel set no events
            await asyncio.sleep(0.005)
