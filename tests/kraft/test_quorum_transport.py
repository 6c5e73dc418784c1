"""The voters' links: handshake, unauthenticated connections, attacks, silence."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.identifiers import ZERO_UUID
from common.machine import machine_ports
from kraft.quorum.handshake import Acceptor, Dialer, HandshakeFailed, Identity, Purpose, Seal
from kraft.quorum.link import FRAME_BYTES_MAX
from kraft.quorum.message_filter import Message
from kraft.quorum.transport import UNAUTHENTICATED_MAX, QuorumTransport, TransportConfig, TransportEvents
from tests.kraft.loopback import free_addresses, until

SECRET = b"the secret of this cluster"
PURPOSES = (Purpose.RAFT, Purpose.PROBE)
VOTE = {"type": "response_vote", "term": 1}


def mac(seal: Seal, payload: bytes) -> bytes:
    """Of the next frame."""
    begun = seal.begin()
    begun.update(payload)
    return begun.digest()


def shake(dialer: Dialer, acceptor: Acceptor) -> None:
    hello = dialer.receive(acceptor.opening() or b"")
    assert hello is not None
    welcome = acceptor.receive(hello)
    assert welcome is not None
    dialer.receive(welcome)


def dialer_of(node_id: int = 2, to: int = 1, secret: bytes = SECRET, cluster_id: bytes = ZERO_UUID) -> Dialer:
    return Dialer(Identity(node_id, cluster_id, secret), to, Purpose.RAFT, random.Random(1))


def acceptor_of(node_id: int = 1, secret: bytes = SECRET, cluster_id: bytes = ZERO_UUID) -> Acceptor:
    return Acceptor(Identity(node_id, cluster_id, secret), [2, 3], PURPOSES, random.Random(2))


def test_both_sides_end_with_keys_that_fit() -> None:
    dialer, acceptor = dialer_of(), acceptor_of(cluster_id=b"c" * 16)
    shake(dialer, acceptor)
    assert dialer.session is not None
    assert acceptor.session is not None
    assert (dialer.session.peer, acceptor.session.peer) == (1, 2)
    assert dialer.session.cluster_id == b"c" * 16
    for _ in range(2):
        assert mac(dialer.session.sending, b"x") == mac(acceptor.session.receiving, b"x")
        assert mac(acceptor.session.sending, b"y") == mac(dialer.session.receiving, b"y")
    assert mac(dialer.session.sending, b"x") != mac(dialer.session.sending, b"x")  # no frame counts twice


@pytest.mark.parametrize(
    "dialer",
    [
        dialer_of(secret=b"another secret, as long"),
        dialer_of(to=3),
        dialer_of(node_id=9),
        dialer_of(node_id=1),
        dialer_of(cluster_id=b"d" * 16),
    ],
    ids=["secret", "addressee", "stranger", "itself", "cluster"],
)
def test_the_acceptor_refuses(dialer: Dialer) -> None:
    acceptor = acceptor_of(cluster_id=b"c" * 16)
    with pytest.raises(HandshakeFailed):
        shake(dialer, acceptor)
    assert acceptor.session is None


def test_the_dialer_refuses_an_acceptor_without_the_secret() -> None:
    class Impostor(Acceptor):
        def receive(self, frame: bytes) -> bytes | None:
            return bytes(48)

    dialer = dialer_of()
    with pytest.raises(HandshakeFailed, match="welcome"):
        shake(dialer, Impostor(Identity(1, ZERO_UUID, b"x" * 16), [2], PURPOSES, random.Random(3)))
    assert dialer.session is None


def test_an_old_hello_does_not_fit_a_new_challenge() -> None:
    old = acceptor_of()
    hello = dialer_of().receive(old.opening() or b"")
    assert hello is not None
    new = Acceptor(Identity(1, ZERO_UUID, SECRET), [2], PURPOSES, random.Random(99))
    with pytest.raises(HandshakeFailed):
        new.receive(hello)


class Voter:
    """A transport and what it reported."""

    def __init__(self, root: Path, node_id: int, voters: dict[int, tuple[str, int]], config: TransportConfig) -> None:
        self.connected: dict[int, None] = {}
        self.messages: list[tuple[int, Message]] = []
        self.address = voters[node_id]
        events = TransportEvents(
            connected=lambda peer: self.connected.update({peer: None}),
            disconnected=self.connected.__delitem__,
            received=lambda peer, message: self.messages.append((peer, message)),
            probed=lambda peer: {"asked by": peer},
        )
        ports = machine_ports(root / str(node_id))
        self.transport = QuorumTransport(ports, node_id, voters, SECRET, lambda: ZERO_UUID, config, events)
        self.transport.listen(self.address)

    def say(self, peer: int, message: Message) -> None:
        self.transport.send(peer, message)
        self.transport.flush()


MakeVoter = Callable[[int], Voter]


@pytest.fixture
async def make_voter(tmp_path: Path) -> AsyncIterator[MakeVoter]:
    voters = dict(enumerate(free_addresses(2), start=1))
    config = TransportConfig(
        handshake_timeout_s=0.3,
        redial_interval_s=0.02,
        life_interval_s=0.05,
        silence_max_s=0.3,
        unsent_bytes_max=16 << 20,
    )
    made: list[Voter] = []

    def make(node_id: int) -> Voter:
        made.append(Voter(tmp_path, node_id, voters, config))
        return made[-1]

    yield make
    for voter in made:
        await voter.transport.stop()


async def test_messages_travel_both_ways_whatever_their_size(make_voter: MakeVoter) -> None:
    one, two = make_voter(1), make_voter(2)
    one.transport.join()
    two.transport.join()
    await until(lambda: 2 in one.connected and 1 in two.connected)
    entry = [b"\0" + bytes(4 << 20), 2, 1]
    large = {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}
    one.say(2, {**large, "entries": [entry]})
    two.say(1, VOTE)
    assert one.transport.unsent_bytes(2) > 1 << 20
    await until(lambda: bool(two.messages and one.messages))
    assert one.messages == [(2, VOTE)]
    assert two.messages[0][1]["entries"] == [entry]
    assert one.transport.unsent_bytes(2) == 0


async def test_probes_are_answered_before_a_voter_takes_part_and_raft_is_not(make_voter: MakeVoter) -> None:
    one, two = make_voter(1), make_voter(2)
    two.transport.join()
    assert await two.transport.probe(1, 2.0) == {"asked by": 2}
    assert await one.transport.probe(2, 2.0) == {"asked by": 1}
    await asyncio.sleep(0.1)  # several dials
    assert not one.connected
    assert not two.connected
    one.transport.join()
    await until(lambda: 1 in two.connected)


async def test_a_probe_of_nobody_ends(make_voter: MakeVoter) -> None:
    assert await make_voter(1).transport.probe(2, 0.5) is None


async def test_a_link_comes_back(make_voter: MakeVoter) -> None:
    one, two = make_voter(1), make_voter(2)
    one.transport.join()
    two.transport.join()
    await until(lambda: 1 in two.connected)
    await one.transport.stop()
    await until(lambda: 1 not in two.connected)
    one = make_voter(1)
    one.transport.join()
    await until(lambda: 1 in two.connected and 2 in one.connected)


async def ends(address: tuple[str, int], data: bytes) -> bool:
    """Send `data` instead of a hello; True when the connection is cut at once rather than by the timeout."""
    reader, writer = await asyncio.open_connection(*address)
    try:
        challenge = await reader.readexactly(36)
        assert challenge[:4] == struct.pack("<I", 32)
        writer.write(data)
        async with asyncio.timeout(0.2):
            return await reader.read() == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack("<I", 257) + bytes(257),
        struct.pack("<I", 1 << 31),
        struct.pack("<I", 0),
        struct.pack("<I", 98) + bytes(98),
        b"\xff" * 100_000,
    ],
    ids=["http", "257 bytes", "2 GiB", "nothing", "unsigned hello", "junk"],
)
async def test_junk_is_cut_off_at_once(make_voter: MakeVoter, data: bytes) -> None:
    assert await ends(make_voter(1).address, data)


async def test_a_silent_stranger_is_cut_off_in_time(make_voter: MakeVoter) -> None:
    voter = make_voter(1)
    reader, writer = await asyncio.open_connection(*voter.address)
    await reader.readexactly(36)
    async with asyncio.timeout(2):
        with pytest.raises(ConnectionResetError):
            await reader.read()
    writer.close()


async def test_unauthenticated_connections_do_not_keep_a_voter_out(make_voter: MakeVoter) -> None:
    one = make_voter(1)
    one.transport.join()
    silent = [await asyncio.open_connection(*one.address) for _ in range(UNAUTHENTICATED_MAX + 5)]
    two = make_voter(2)
    two.transport.join()
    await until(lambda: 2 in one.connected, timeout_s=0.25)  # before the handshake's timeout frees any place
    for _, writer in silent:
        writer.close()


class Attacker:
    """Knows the secret, dials as voter 2, and then says what it likes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address

    async def __aenter__(self) -> Attacker:
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        dialer = dialer_of()
        hello = dialer.receive((await self.reader.readexactly(36))[4:])
        assert hello is not None
        self.writer.write(struct.pack("<I", len(hello)) + hello)
        dialer.receive((await self.reader.readexactly(52))[4:])
        assert dialer.session is not None
        self.seal = dialer.session.sending
        return self

    def frame(self, payload: bytes) -> bytes:
        return struct.pack("<I", 16 + len(payload)) + mac(self.seal, payload) + payload

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()


BAD_PAYLOADS: list[Any] = [
    b"\xc1",
    b"\x93\x01",
    msgspec.msgpack.encode([1, 2]),
    msgspec.msgpack.encode({"type": "apply_command", "command": b"x"}),
    msgspec.msgpack.encode({"type": "append_entries"}),
    b"\x81\xa1a\xa1\xff",  # no UTF-8
    b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",  # nested deeper than any stack
    b"\xdd\xff\xff\xff\xff",  # an array that claims four billion elements
]


@pytest.mark.parametrize("payload", BAD_PAYLOADS)
async def test_bad_messages_of_a_voter_end_its_link(make_voter: MakeVoter, payload: bytes) -> None:
    one = make_voter(1)
    one.transport.join()
    async with Attacker(one.address) as attacker:
        await until(lambda: 2 in one.connected)
        attacker.writer.write(attacker.frame(payload))
        await until(lambda: 2 not in one.connected)
    assert not one.messages


@pytest.mark.parametrize("attack", ["unsealed", "repeated", "changed", "too long"])
async def test_frames_that_the_voter_did_not_send_end_the_link(make_voter: MakeVoter, attack: str) -> None:
    one = make_voter(1)
    one.transport.join()
    payload = msgspec.msgpack.encode(VOTE)
    async with Attacker(one.address) as attacker:
        await until(lambda: 2 in one.connected)
        good = attacker.frame(payload)
        bad = {
            "unsealed": struct.pack("<I", len(payload)) + payload,
            "repeated": good,
            "changed": good[:-1] + b"\2",
            "too long": struct.pack("<I", FRAME_BYTES_MAX + 1),
        }[attack]
        attacker.writer.write(bad if attack == "changed" else good + bad)
        await until(lambda: 2 not in one.connected)
    assert len(one.messages) == (0 if attack == "changed" else 1)


async def test_a_silent_voter_loses_its_link(make_voter: MakeVoter) -> None:
    one = make_voter(1)
    one.transport.join()
    async with Attacker(one.address) as attacker:
        await until(lambda: 2 in one.connected)
        for _ in range(8):
            attacker.writer.write(attacker.frame(b""))
            await asyncio.sleep(0.05)
        assert 2 in one.connected  # signs of life keep it
        await until(lambda: 2 not in one.connected)


async def test_a_voter_that_does_not_read_is_cut_off(make_voter: MakeVoter) -> None:
    one = make_voter(1)
    one.transport.join()
    async with Attacker(one.address):
        await until(lambda: 2 in one.connected)
        for _ in range(100):
            one.say(2, {"type": "append_entries", "data": bytes(1 << 20)})
            if 2 not in one.connected:
                return
        pytest.fail("100 MiB were queued")
