"""Frames that no honest client sends, over every API and version, the same for the same seed.

`python -m tests.faults.hostile_frames --frames 1000000 --seed 1` sends them to three brokers in processes of their own
and prints how much memory each holds on the way: it has to be flat in the second half. What comes in the first half is
bounded by the schemas: what reads and writes each API version is compiled on first use, some 10 MiB for all.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import socket
from collections.abc import Iterator
from struct import pack

from bench.embedded import EmbeddedCluster
from tests.faults.watched_node import MIB, WatchedNode
from tests.wire.schema_values import message_of
from wire.apis import APIS, Api
from wire.codec import encode_request
from wire.listeners import ListenerKind

FRAMES_PER_CONNECTION = 8  # the first malformed one ends it
SAMPLES = 20
LENGTH_BYTES = 4
GOODBYE = pack(">ihhi", 8, 999, 0, 1)  # no API: the broker has answered what came before when it closes
ANSWER_S = 0.25  # some requests may wait for long
NODE_APIS_SHARE = 0.05  # of frames, which ask for what clients are not served
LEFT_OUT = "UnregisterBroker"  # an operator's, who ends a broker by it
MAKES = frozenset({"CreateTopics", "CreatePartitions", "CreateTenant", "CreateApiKey", "CreateAcls", "AlterConfigs",
                   "IncrementalAlterConfigs"})  # fmt: skip
"""What these make is meant to stay: they are sent spoilt alone."""


def frames(seed: int) -> Iterator[bytes]:
    """Whole frames, length included, without an end."""
    rng = random.Random(seed)
    clients = [api for api in APIS.values() if ListenerKind.OPERATOR in api.kinds and api.name != LEFT_OUT]
    others = [api for api in APIS.values() if ListenerKind.OPERATOR not in api.kinds]
    while True:
        api = rng.choice(others if rng.random() < NODE_APIS_SHARE else clients)
        yield _frame(api, rng.randint(api.min_version, api.max_version), rng)


def _frame(api: Api, version: int, rng: random.Random) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return _framed(pack(">hhi", api.key, version, 1) + b"\0\1h" + rng.randbytes(rng.choice([0, 3, 40, 900])))
    if kind == 1:
        return _framed(
            pack(">hhi", rng.randrange(-5, 120), rng.randrange(-3, 30), 1) + rng.randbytes(rng.randrange(60))
        )
    body = bytearray(encode_request(message_of(api.request, version, rng), version, 1, "hostile")[LENGTH_BYTES:])
    if kind == 2 and api.name not in MAKES:
        return _framed(bytes(body))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(LENGTH_BYTES, len(body))
        if rng.random() < 0.2:
            body[at : at + 4] = rng.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
        else:
            body[at] = rng.randrange(256)
    if kind == 3:
        del body[rng.randrange(8, len(body)) :]
    return _framed(bytes(body))


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH_BYTES, "big") + payload


def send_all(addresses: list[str], source: Iterator[bytes], count: int) -> tuple[int, int]:
    """`count` frames, some on each connection. How many connections were made, and how many bytes came back."""
    connections = received = 0
    for number in range(0, count, FRAMES_PER_CONNECTION):
        host, _, port = addresses[number // FRAMES_PER_CONNECTION % len(addresses)].rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=10) as peer:
            connections += 1
            for _ in range(min(FRAMES_PER_CONNECTION, count - number)):
                peer.sendall(next(source))
            peer.sendall(GOODBYE)
            peer.settimeout(ANSWER_S)
            while answer := peer.recv(1 << 16):
                received += len(answer)
    return connections, received


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--frames", type=int, default=1_000_000)
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    settings = {"auto.create.topics.enable": "false", "log.dir.free.bytes.min": "0", "offsets.retention.minutes": "1"}
    with EmbeddedCluster(brokers=3, controllers=1, settings=settings) as cluster:
        nodes = [WatchedNode(cluster, f"broker-{number}") for number in range(3)]
        source = frames(chosen.seed)
        print(0, *(f"{node.resident_bytes() / MIB:.1f}" for node in nodes), "MiB", flush=True)
        for sample in range(1, SAMPLES + 1):
            sent = send_all([node.address for node in nodes], source, chosen.frames // SAMPLES)
            held = [f"{node.resident_bytes() / MIB:.1f}" for node in nodes]
            print(sample * (chosen.frames // SAMPLES), *held, "MiB, connections and bytes back:", *sent, flush=True)
        for node in nodes:
            assert node.is_same_process
            for complaint in node.complaints()[:5]:
                print(node.name, complaint)


if __name__ == "__main__":
    main()
