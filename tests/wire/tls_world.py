"""A server with TLS on real sockets, the certificates of a small world, and a client that is the library's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from common.machine import machine_ports
from common.node_settings.connections import ConnectionSettings
from common.ports import Address, Ports
from tidelog.cluster.certificates import CLIENT, NODE, PROXY, Authority, authority, certificate
from wire.buffers import BufferPool
from wire.connection import Connection
from wire.listeners import ListenerConfig, ListenerKind, ProxyForm, SecurityProtocol
from wire.server import Server, ServerLimits
from wire.tick import Tick
from wire.tls import TlsConfig, TlsContexts
from wire.watch import Watch

ANYWHERE = ("127.0.0.1", 0)
LOCAL_HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Material:
    """Files of one authority: a node's, a proxy's, a client's, and another authority that nobody trusts."""

    directory: Path
    authority: Authority
    node: Path
    proxy: Path
    client: Path
    stranger: Path

    @property
    def ca(self) -> Path:
        return self.directory / "ca.pem"

    def config(self, **changes: Any) -> TlsConfig:
        return replace(
            TlsConfig(name="TEST", keystore_location=str(self.node), truststore_location=str(self.ca)), **changes
        )


def make_material(directory: Path) -> Material:
    own, other = authority(directory), authority(directory / "other")
    return Material(
        directory,
        own,
        certificate(directory, "node.pem", own, NODE, "node-0", LOCAL_HOSTS),
        certificate(directory, "proxy.pem", own, PROXY, "proxy-0", []),
        certificate(directory, "client.pem", own, CLIENT, "Ada Example", []),
        certificate(directory / "other", "client.pem", other, CLIENT, "Ada Example", []),
    )


def tls_listener(contexts: TlsContexts | None, **changes: Any) -> ListenerConfig:
    plain = ListenerConfig("SSL", ANYWHERE, None, ListenerKind.OPERATOR, SecurityProtocol.SSL, contexts)
    return replace(plain, **changes)


def passed(contexts: TlsContexts, *networks: str) -> ListenerConfig:
    return tls_listener(contexts, proxies=ProxyForm.PASSED, proxy_networks=tuple(ip_network(text) for text in networks))


@dataclass
class EchoServer:
    """Answers every frame with its payload, `times` over, and with a file behind it when there is one."""

    ports: Ports
    listeners: list[ListenerConfig]
    limits: ServerLimits = field(default_factory=ServerLimits)
    secret: bytes | None = None
    region: Any = None
    times: int = 1

    def __post_init__(self) -> None:
        self.watch = Watch(0.01)
        self.opened: list[Connection] = []
        self.closed: list[Connection] = []
        self.violations: list[str] = []
        self.pool = BufferPool()
        self.tick = Tick()
        self.server = Server(
            self.ports, self.listeners, self.echo, self.closed.append, lambda _, why: self.violations.append(why),
            self.limits, self.tick, self.pool, self.watch, secret=self.secret,
        )  # fmt: skip
        self.server.start()

    def echo(self, connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        if connection not in self.opened:
            self.opened.append(connection)
        payload = bytes(view[at:end])
        behind = [self.region] if self.region is not None else []
        size = len(payload) * self.times + sum(part.length for part in behind)
        connection.reply([size.to_bytes(4, "big"), *[payload] * self.times, *behind])

    @property
    def address(self) -> Address:
        return self.server.addresses[self.listeners[0].name]

    @property
    def failures(self) -> dict[str, int]:
        return self.server.failures.counts

    async def stop(self) -> None:
        await self.server.close()
        self.watch.close()


@asynccontextmanager
async def echoing(
    directory: Path, *listeners: ListenerConfig, limits: ServerLimits | None = None, **options: Any
) -> AsyncIterator[EchoServer]:
    server = EchoServer(machine_ports(directory), list(listeners), limits or ServerLimits(), **options)
    try:
        yield server
    finally:
        await server.stop()


def client_context(material: Material, identity: Path | None = None, **versions: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(material.ca))
    if identity is not None:
        context.load_cert_chain(identity)
    for name, version in versions.items():
        setattr(context, name, version)
    return context


@dataclass
class TlsClient:
    """The standard library's own client over asyncio's transport: an implementation that is not ours."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    async def connect(
        cls, address: Address, context: ssl.SSLContext, name: str = "localhost", before: bytes = b""
    ) -> TlsClient:
        """`before` goes ahead in clear."""
        reader, writer = await asyncio.open_connection(*address)
        if before:
            writer.write(before)
            await writer.drain()
        await writer.start_tls(context, server_hostname=name)
        return cls(reader, writer)

    async def call(self, payload: bytes) -> bytes:
        self.writer.write(len(payload).to_bytes(4, "big") + payload)
        return await self.answer()

    async def answer(self) -> bytes:
        size = int.from_bytes(await self.reader.readexactly(4), "big")
        return await self.reader.readexactly(size)

    def close(self) -> None:
        self.writer.close()


STALLS = ConnectionSettings(stall_s=0.3)
