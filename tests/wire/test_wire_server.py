"""Servers and clients against each other: listeners, limits, the handshake, calls and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.errors import MalformedFrame
from common.node_settings.connections import ConnectionSettings
from common.ports import Address, Ports
from tests.virtual_time import lab_ports
from tests.wire.fakes import CountingPool, FakeNetwork, fake_ports, frame, turns, until
from wire.apis import Features, api_versions
from wire.buffers import BufferPool
from wire.client import CallTimeout, ClientConnection, ConnectionLost, TooManyCalls
from wire.codec import decode_request, encode_request, encode_response
from wire.connection import Connection
from wire.listeners import ListenerConfig, ListenerKind
from wire.messages import ApiVersionsRequest, MetadataRequest, MetadataResponse
from wire.server import Server, ServerLimits
from wire.tick import Tick
from wire.watch import Watch

SECRET = b"s" * 32
CLIENTS = ListenerConfig("PLAINTEXT", ("127.0.0.1", 9092), None, ListenerKind.OPERATOR)
NODES = ListenerConfig("INTERNAL", ("127.0.0.1", 9192), None, ListenerKind.INTERNAL)
FEATURES = Features(1, {}, {})


class Node:
    """A server whose handler answers ApiVersions at once and leaves Metadata to the test."""

    def __init__(
        self,
        ports: Ports,
        listeners: list[ListenerConfig] | None = None,
        limits: ServerLimits | None = None,
        secret: bytes = SECRET,
    ) -> None:
        self.ports = ports
        self.tick, self.pool, self.watch = Tick(), CountingPool(), Watch(0.01)
        self.violations: list[str] = []
        self.closed: list[Connection] = []
        self.waiting: list[Callable[[], None]] = []
        self.frames = 0
        self.server = Server(
            ports, listeners or [CLIENTS, NODES], self.frame, self.closed.append,
            lambda _, reason: self.violations.append(reason), limits or ServerLimits(),
            self.tick, self.pool, self.watch, secret=secret, cluster="c1",
        )  # fmt: skip
        self.server.start()

    def frame(self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        self.frames += 1
        header, _ = decode_request(view[at:end])
        assert connection.listener is not None
        if header.api_key == 18:
            served = api_versions(connection.listener.kind, header.version, FEATURES)
            connection.reply([encode_response(18, header.version, header.correlation, served)])
            return
        reply = connection.reply_later(end - at)
        answer = MetadataResponse(brokers=[], topics=[], cluster_id=str(header.correlation))
        encoded = encode_response(header.api_key, header.version, header.correlation, answer)
        self.waiting.append(lambda: reply.send([encoded]))

    async def connect(self, address: Address, **options: Any) -> ClientConnection:
        return await ClientConnection.connect(
            self.ports, address, self.tick, self.pool, self.watch, client_id="test", **options
        )

    async def stop(self) -> None:
        await self.server.close()
        self.watch.close()


async def test_calls_over_plain_and_internal_listeners() -> None:
    node = Node(fake_ports(FakeNetwork()))
    plain = await node.connect(CLIENTS.address)
    internal = await node.connect(NODES.address, secret=SECRET, cluster="c1")
    keys = [
        {row.api_key for row in (await client.call(ApiVersionsRequest(), 4, 1.0)).api_keys}
        for client in (plain, internal)
    ]
    assert 63 not in keys[0]
    assert 63 in keys[1]
    assert node.violations == []
    await node.stop()
    await turns()
    assert plain.is_closed
    assert internal.is_closed
    assert len(node.closed) == 2


@pytest.mark.parametrize(("secret", "cluster"), [(b"x" * 32, "c1"), (SECRET, "c2")])
async def test_a_node_of_another_cluster_is_refused(secret: bytes, cluster: str) -> None:
    node = Node(fake_ports(FakeNetwork()))
    with pytest.raises(ConnectionLost, match="secret"):
        await node.connect(NODES.address, secret=secret, cluster=cluster)
    assert node.frames == 0
    await node.stop()


async def test_a_client_on_the_internal_listener_reaches_no_handler() -> None:
    node = Node(fake_ports(FakeNetwork()))
    client = await node.connect(NODES.address)
    with pytest.raises(ConnectionLost):
        await client.call(ApiVersionsRequest(), 3, 1.0)
    assert node.frames == 0
    assert len(node.violations) == 1
    await node.stop()


async def test_a_wrong_proof_is_refused_by_the_acceptor() -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network))
    socket = await network.connect(NODES.address)
    socket.send(frame(b"TIDENODE" + bytes(32)))
    await turns()
    assert len(socket.inbox) == 4 + 64
    request = encode_request(ApiVersionsRequest(), 3, 1, "c")
    socket.send(frame(bytes(32)) + request)
    await turns()
    assert socket.ended
    assert node.frames == 0
    assert "secret" in node.violations[0]
    await node.stop()


async def test_an_internal_connection_without_a_proof_is_closed_in_time() -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network), limits=ServerLimits(handshake_s=0.03))
    sockets = [await network.connect(NODES.address) for _ in range(3)]
    sockets[1].send(b"\0\0")
    sockets[2].send(frame(b"TIDENODE" + bytes(32)))
    good = await node.connect(NODES.address, secret=SECRET, cluster="c1")
    await until(lambda: all(socket.ended for socket in sockets))
    assert len(node.violations) == 3
    assert not good.is_closed
    await node.stop()


async def test_a_crowd_without_proofs_is_bounded_and_keeps_no_node_out() -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network), limits=ServerLimits(unauthenticated_max=3))
    first = await node.connect(NODES.address, secret=SECRET, cluster="c1")
    await turns()
    crowd = [await network.connect(NODES.address) for _ in range(10)]
    await turns()
    assert [socket.ended for socket in crowd] == [True] * 7 + [False] * 3
    assert len(node.violations) == 7
    second = await node.connect(NODES.address, secret=SECRET, cluster="c1")
    assert not first.is_closed
    assert not second.is_closed
    await node.stop()


async def test_an_acceptor_that_never_answers_fails_the_connect() -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network), [CLIENTS])
    network.listen(("10.1.1.1", 1), lambda socket: None)
    for address in (("10.1.1.1", 1), ("10.1.1.1", 2)):
        with pytest.raises(ConnectionLost):
            await node.connect(address, secret=SECRET, timeout_s=0.03)
    network.silent = True
    with pytest.raises(ConnectionLost, match="within"):
        await node.connect(CLIENTS.address, timeout_s=0.03)
    await node.stop()


def test_an_internal_listener_without_a_secret_does_not_start() -> None:
    async def run() -> None:
        watch = Watch()
        with pytest.raises(ValueError, match="secret"):
            Server(
                fake_ports(FakeNetwork()),
                [NODES],
                _unused,
                _unused,
                _unused,
                ServerLimits(),
                Tick(),
                BufferPool(),
                watch,
            )
        watch.close()

    asyncio.run(run())


def _unused(*_: Any) -> None:
    raise AssertionError


async def test_connection_limits_hold_and_spare_the_nodes() -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network), limits=ServerLimits(connections_max=5, connections_per_ip_max=3))
    first = [await network.connect(CLIENTS.address) for _ in range(5)]
    assert [socket.ended for socket in first] == [False] * 3 + [True] * 2
    network.client_ip = "10.0.0.10"
    second = [await network.connect(CLIENTS.address) for _ in range(5)]
    assert [socket.ended for socket in second] == [False] * 2 + [True] * 3
    assert node.server.refused == 5
    await node.connect(NODES.address, secret=SECRET, cluster="c1")
    first[0].close()
    await turns()
    third = await network.connect(CLIENTS.address)
    assert not third.ended
    await node.stop()


async def test_no_setting_lifts_the_bound_of_open_files() -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network), limits=ServerLimits(files_max=2))
    node.server.limit_connections(replace(node.server.limits, connections_max=9))
    clients = [await network.connect(CLIENTS.address) for _ in range(3)]
    assert [socket.ended for socket in clients] == [False, False, True]
    assert node.server.failures.counts == {"the limit of open files (ulimit -n) is reached": 1}
    await node.connect(NODES.address, secret=SECRET, cluster="c1")
    await node.stop()


async def test_several_calls_are_in_flight_at_once() -> None:
    node = Node(fake_ports(FakeNetwork()))
    client = await node.connect(CLIENTS.address)
    calls = [asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0)) for _ in range(5)]
    await until(lambda: len(node.waiting) == 5)
    for answer in reversed(node.waiting):
        answer()
    answers = await asyncio.gather(*calls)
    assert [answer.cluster_id for answer in answers] == ["1", "2", "3", "4", "5"]
    assert node.pool.held == 0
    await node.stop()


async def test_a_call_times_out_and_its_late_answer_harms_nobody() -> None:
    node = Node(fake_ports(FakeNetwork()))
    client = await node.connect(CLIENTS.address, in_flight_max=2)
    with pytest.raises(CallTimeout):
        await client.call(MetadataRequest(), 12, 0.02)
    later = asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0))
    await turns()
    with pytest.raises(TooManyCalls):
        await client.call(MetadataRequest(), 12, 1.0)
    for answer in node.waiting:
        answer()
    assert (await later).cluster_id == "2"
    await node.stop()


async def test_a_cancelled_call_leaves_the_connection_in_order() -> None:
    node = Node(fake_ports(FakeNetwork()))
    client = await node.connect(CLIENTS.address)
    cancelled = asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0))
    kept = asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0))
    await until(lambda: len(node.waiting) == 2)
    cancelled.cancel()
    await turns()
    for answer in node.waiting:
        answer()
    assert (await kept).cluster_id == "2"
    await node.stop()


async def test_pending_calls_fail_when_the_connection_ends() -> None:
    node = Node(fake_ports(FakeNetwork()))
    ended: list[Connection] = []
    client = await node.connect(CLIENTS.address, closed=ended.append)
    calls = [asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0)) for _ in range(3)]
    await until(lambda: len(node.waiting) == 3)
    await node.server.close()
    for call in calls:
        with pytest.raises(ConnectionLost, match="closed by the peer"):
            await call
    with pytest.raises(ConnectionLost):
        await client.call(MetadataRequest(), 12, 5.0)
    assert len(ended) == 1
    for answer in node.waiting:
        answer()
    assert node.pool.held == 0
    await node.stop()


async def test_raw_frames_are_handled_where_they_lie_between_calls() -> None:
    node = Node(fake_ports(FakeNetwork()))
    seen: list[int] = []

    def frames(connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        seen.append(int.from_bytes(buffer[at : at + 4], "big"))

    client = await node.connect(CLIENTS.address, frames=frames)
    correlation = client.next_correlation()
    client.send_frame(correlation, [encode_request(ApiVersionsRequest(), 3, correlation, "raw")])
    await client.call(ApiVersionsRequest(), 3, 1.0)
    assert seen == [correlation]
    await node.stop()


@pytest.mark.parametrize(
    "answer",
    [
        b"\0\0\0\x09" + bytes(20),  # a correlation that nobody waits for
        b"\0\0\0\1\0\0",  # cut short
        b"\0",
    ],
)
async def test_a_garbled_answer_fails_the_call_and_closes(answer: bytes) -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network), [CLIENTS])
    peers: list[Any] = []
    network.listen(("10.1.1.1", 1), peers.append)
    client = await node.connect(("10.1.1.1", 1))
    call = asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0))
    await turns()
    peers[0].send(frame(answer))
    with pytest.raises((ConnectionLost, MalformedFrame)):
        await call
    assert client.is_closed
    await node.stop()


async def test_an_answer_over_the_bound_closes() -> None:
    network = FakeNetwork()
    node = Node(fake_ports(network), [CLIENTS])
    peers: list[Any] = []
    network.listen(("10.1.1.1", 1), peers.append)
    client = await node.connect(("10.1.1.1", 1), response_bytes_max=1000)
    call = asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0))
    await turns()
    peers[0].send((1001).to_bytes(4, "big"))
    with pytest.raises(ConnectionLost, match="1001"):
        await call
    await node.stop()


async def test_close_with_grace_lets_replies_leave() -> None:
    node = Node(fake_ports(FakeNetwork()))
    client = await node.connect(CLIENTS.address)
    call = asyncio.ensure_future(client.call(MetadataRequest(), 12, 5.0))
    await until(lambda: node.waiting)
    closing = asyncio.ensure_future(node.server.close(grace_s=5.0))
    await turns()
    node.waiting[0]()
    await closing
    assert (await call).cluster_id == "1"
    await node.stop()


# over real sockets -------------------------------------------------------------------------------------------


def anywhere(listener: ListenerConfig) -> ListenerConfig:
    return ListenerConfig(listener.name, ("127.0.0.1", 0), None, listener.kind)


async def test_over_loopback_with_the_handshake_and_many_calls(tmp_path: Path) -> None:
    node = Node(lab_ports(tmp_path), [anywhere(CLIENTS), anywhere(NODES)])
    addresses = node.server.addresses
    assert addresses["PLAINTEXT"][1] != 0
    client = await node.connect(addresses["INTERNAL"], secret=SECRET, cluster="c1")
    for _ in range(3):
        calls = [asyncio.ensure_future(client.call(ApiVersionsRequest(), 3, 30.0)) for _ in range(200)]
        assert len(await asyncio.gather(*calls)) == 200
    assert node.pool.lent == 0
    client.close()
    await until(lambda: node.closed)
    with pytest.raises(ConnectionLost):
        await node.connect(addresses["INTERNAL"], secret=b"y" * 32, cluster="c1")
    await node.stop()


async def test_over_loopback_long_frames_and_files_are_whole(tmp_path: Path) -> None:
    ports = lab_ports(tmp_path)
    blob = bytes(range(256)) * 8192  # 2 MiB
    (tmp_path / "segment").write_bytes(blob)
    file = ports.disk.open("segment")
    got: list[bytes] = []

    class Whole:
        position, length = 0, len(blob)

        def __init__(self) -> None:
            self.file = file

    def back(connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        payload = bytes(view[at:end])
        connection.reply([(len(payload) + len(blob)).to_bytes(4, "big"), payload, Whole()])

    tick, pool, watch = Tick(), BufferPool(), Watch()
    server = Server(
        ports, [anywhere(CLIENTS)], back, lambda _: None, lambda _, reason: None, ServerLimits(), tick, pool, watch
    )
    server.start()

    def collect(connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        got.append(bytes(view[at:end]))

    client = await ClientConnection.connect(
        ports, server.addresses["PLAINTEXT"], tick, pool, watch, client_id="c", frames=collect
    )
    for size in (10, 100_000, 3_000_000):
        correlation = client.next_correlation()
        payload = correlation.to_bytes(4, "big") + b"\xab" * size
        client.send_frame(correlation, [frame(payload)])
        await until(lambda: got)
        assert got.pop() == payload + blob
    assert pool.held == 0
    assert pool.unsent == 0
    await server.close()
    watch.close()
    file.close()


async def test_over_loopback_half_open_connections_cost_no_buffers(tmp_path: Path) -> None:
    ports = lab_ports(tmp_path)
    limits = ServerLimits(connection=ConnectionSettings(idle_s=600))
    node = Node(ports, [anywhere(CLIENTS)], limits)
    address = node.server.addresses["PLAINTEXT"]
    count = 400  # within any machine's descriptor limit
    idle = [await ports.network.connect(address) for _ in range(count)]
    for socket in idle:
        socket.send(b"\0\0\1\0half")
    client = await node.connect(address)
    await until(lambda: len(node.server.connections) == count + 1 and node.pool.held == count * 8)
    await client.call(ApiVersionsRequest(), 3, 5.0)
    assert node.pool.lent == 0
    assert node.pool.lent_most <= 2
    for socket in idle:
        socket.close()
    await until(lambda: node.pool.held == 0)
    await node.stop()


async def test_over_loopback_a_port_in_use_is_an_error_and_opens_nothing(tmp_path: Path) -> None:
    ports = lab_ports(tmp_path)
    first = Node(ports, [anywhere(CLIENTS)])
    taken = ListenerConfig("PLAINTEXT", first.server.addresses["PLAINTEXT"], None, ListenerKind.OPERATOR)
    other = ListenerConfig("OTHER", ("127.0.0.1", 0), None, ListenerKind.OPERATOR)
    watch = Watch()
    server = Server(ports, [other, taken], _unused, _unused, _unused, ServerLimits(), Tick(), BufferPool(), watch)
    with pytest.raises(OSError, match="in use"):
        server.start()
    assert server.addresses == {}
    watch.close()
    await first.stop()
