"""The voters' network: both sides show a certificate, whoever does not is never handed on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from common.machine import RECORDS_AT_ONCE_MAX, MachineClock, machine_ports
from common.ports import Socket
from tests.wire.fakes import until
from tests.wire.tls_world import LOCAL_HOSTS, Material, TlsClient, client_context, make_material
from tidelog.cluster.certificates import NODE, authority, certificate
from wire.mutual_network import MutualNetwork
from wire.tls import TlsContexts


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return make_material(tmp_path_factory.mktemp("mutual"))


async def test_only_voters_connect(material: Material, tmp_path: Path) -> None:
    network = machine_ports(tmp_path).network
    contexts = TlsContexts(material.config(client_auth="required"), MachineClock())
    met: list[Socket] = []
    listener = MutualNetwork(network, contexts).listen(("127.0.0.1", 0), met.append)
    fake = authority(tmp_path)
    theirs = certificate(tmp_path, "node.pem", fake, NODE, "node-0", LOCAL_HOSTS)
    for identity in (None, theirs):
        client = await TlsClient.connect(listener.address, client_context(material, identity))
        with pytest.raises(OSError, match=r"SSL"):
            await client.reader.read()
    plain = await network.connect(listener.address)
    plain.send(b"\0" * 100)

    socket = await MutualNetwork(network, contexts).connect(listener.address)
    await until(lambda: met)
    socket.send(b"hello")
    readable = asyncio.Event()
    met[0].on_readable(readable.set)
    await readable.wait()
    view = memoryview(bytearray(10))
    assert bytes(view[: met[0].recv_into(view)]) == b"hello"
    assert len(met) == 1
    for one in (socket, met[0], plain):
        one.close()
    listener.close()


class Reader:
    """Receives into views of one size, one receive for each readiness, and stops listening now and then."""

    def __init__(self, socket: Socket, size: int, pauses: bool) -> None:
        self.socket = socket
        self.got = bytearray()
        self.ended = asyncio.Event()
        self._view = memoryview(bytearray(size))
        self._pauses = pauses
        socket.on_readable(self._readable)

    def _readable(self) -> None:
        try:
            count = self.socket.recv_into(self._view)
        except BlockingIOError:
            return
        self.got += self._view[:count]
        if not count:
            self.socket.on_readable(None)
            self.ended.set()
        elif self._pauses:
            self.socket.on_readable(None)
            asyncio.get_running_loop().call_soon(self.socket.on_readable, self._readable)


@pytest.mark.parametrize("pauses", [False, True])
@pytest.mark.parametrize(("size", "sent"), [(1, 50), (7, 1_000), (16_383, 70_000), (16_384, 49_152), (20_000, 40_000)])
async def test_readiness_holds_for_what_openssl_has_decrypted(
    material: Material, tmp_path: Path, size: int, sent: int, pauses: bool
) -> None:
    """All bytes and the end are announced while the peer says nothing more, however small the receives are."""
    network = machine_ports(tmp_path).network
    mutual = MutualNetwork(network, TlsContexts(material.config(client_auth="required"), MachineClock()))
    met: list[Socket] = []
    listener = mutual.listen(("127.0.0.1", 0), met.append)
    socket = await mutual.connect(listener.address)
    await until(lambda: met)
    data = bytes(number % 251 for number in range(sent))
    assert socket.send(data) == sent
    reader = Reader(met[0], size, pauses)
    await until(lambda: len(reader.got) == sent)
    socket.send(b"last")
    socket.close()
    async with asyncio.timeout(5):
        await reader.ended.wait()
    assert reader.got == data + b"last"
    met[0].close()
    listener.close()


async def test_many_short_records_in_a_row_are_received_together(material: Material, tmp_path: Path) -> None:
    """Some clients send each piece of a request as a record of its own: not one turn of the loop for each."""
    network = machine_ports(tmp_path).network
    mutual = MutualNetwork(network, TlsContexts(material.config(client_auth="required"), MachineClock()))
    met: list[Socket] = []
    listener = mutual.listen(("127.0.0.1", 0), met.append)
    socket = await mutual.connect(listener.address)
    await until(lambda: met)
    for _ in range(1_000):
        socket.send(b"x" * 40)
    receives = 0
    got = bytearray()
    view = memoryview(bytearray(1 << 16))

    def readable() -> None:
        nonlocal receives
        receives += 1
        got.extend(view[: met[0].recv_into(view)])

    met[0].on_readable(readable)
    await until(lambda: len(got) == 40_000)
    assert receives <= 2 + 1_000 / RECORDS_AT_ONCE_MAX + 2
    for one in (socket, met[0]):
        one.close()
    listener.close()
