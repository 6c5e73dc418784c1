"""How simulated clients reach a broker: in order, or not at all."""

from __future__ import annotations

import asyncio
import random

import pytest

from common.ports import Ports, Socket
from tests.sim.client_links import CONNECT_TIMEOUT_S, ClusterLinks, Flight, Unreachable
from tests.sim.history import History
from tests.sim.sample_nodes import Recorder, forever, world_of
from wire.messages import FindCoordinatorRequest

REQUESTS = 3
ASKED_S = 0.1


@pytest.mark.parametrize("seed", range(8))
def test_no_request_overtakes_one_that_is_lost_with_its_connection(seed: int) -> None:
    """The broker hears nothing for a while, which may be longer than a client waits for a connection."""
    heard, lost = list[Recorder](), set[int]()

    async def broker(ports: Ports) -> None:
        ports.network.listen(("broker", 1), lambda socket: accept(socket, heard))
        await forever()

    async def client(ports: Ports) -> None:
        links = ClusterLinks(ports, {0: ("broker", 1)}, History(), "client")
        await asyncio.sleep(ASKED_S)
        flight = Flight()
        await asyncio.gather(*[asyncio.create_task(ask(links, number, flight)) for number in range(REQUESTS)])
        await forever()

    async def ask(links: ClusterLinks, number: int, flight: Flight) -> None:
        try:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[f"group-{number}"])
            await links.call(0, request, 4, flight=flight)
        except Unreachable:
            lost.add(number)

    world = world_of(seed, broker=broker, client=client)
    world.fabric.change_cut([("client", "broker")], 1)
    world.run_for(ASKED_S + CONNECT_TIMEOUT_S * random.Random(seed).uniform(0.5, 1.5))
    world.fabric.change_cut([("client", "broker")], -1)
    world.run_for(3)
    got = b"".join(recorder.got for recorder in heard)
    arrived = [number for number in range(REQUESTS) if f"group-{number}".encode() in got]
    assert arrived == list(range(len(arrived)))
    assert lost == set(range(REQUESTS))  # this broker answers nothing
    world.close()


def accept(socket: Socket, heard: list[Recorder]) -> None:
    recorder = Recorder()
    recorder.attach(socket)
    heard.append(recorder)
