"""Metadata of named topics names a broker that died for one session timeout more, and one that was shut down no
longer."""

from __future__ import annotations

import asyncio

import pytest

from broker.handlers.metadata import MetadataConfig, MetadataHandler
from broker.lost_brokers import LostBrokers
from kraft.batches import MetadataRecord
from kraft.image.delta import MetadataDelta
from kraft.records import BrokerRegistrationChangeRecord, Endpoint, RegisterBrokerRecord, UnregisterBrokerRecord
from tests.broker.broker_world import BrokerWorld, context, reply_over_the_wire
from wire.messages import MetadataRequest

pytestmark = pytest.mark.virtual_time

SESSION_S = 3.0
ONE = ["a"]


class Scene:
    def __init__(self) -> None:
        self.world = BrokerWorld()
        self.lost = LostBrokers(SESSION_S, asyncio.get_running_loop().time)

    def replay(self, *records: MetadataRecord) -> None:
        delta = MetadataDelta(self.world.image)
        delta.replay_all(records)
        self.world.replay(*records)
        self.lost.metadata_changed(delta, self.world.image)

    def change(self, broker: int, *, fenced: bool | None = None, stopping: bool | None = None) -> None:
        epoch = self.world.image.brokers[broker].epoch
        self.replay(BrokerRegistrationChangeRecord(broker, epoch, fenced, in_controlled_shutdown=stopping))

    def register(self, broker: int) -> None:
        endpoints = (Endpoint("PLAINTEXT", f"host-{broker}", 9092 + broker),)
        self.replay(RegisterBrokerRecord(broker, b"again" + bytes(11), endpoints, None))

    async def named(self, topics: list[str] | None = ONE) -> list[int]:
        handler = MetadataHandler(
            self.world.forwarder, self.world.internal_topics, MetadataConfig(0), is_lost=self.lost.is_recent
        )
        ctx = context("Metadata", 12)
        asked = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        answer = reply_over_the_wire(ctx, await handler.metadata(ctx, MetadataRequest(topics=asked)))
        assert answer.controller_id in (0, 1, 2)
        assert not self.world.image.brokers[answer.controller_id].fenced
        return [broker.node_id for broker in answer.brokers]


async def test_a_broker_that_died_is_named_for_one_session_timeout() -> None:
    scene = Scene()
    scene.change(0, fenced=True)
    assert await scene.named() == [0, 1, 2]
    await asyncio.sleep(SESSION_S - 0.01)
    assert await scene.named() == [0, 1, 2]
    await asyncio.sleep(0.02)
    assert await scene.named() == [1, 2]
    scene.change(0, fenced=False)
    assert await scene.named() == [0, 1, 2]


@pytest.mark.parametrize("topics", [None, []])
async def test_administrators_see_live_brokers_alone(topics: list[str] | None) -> None:
    scene = Scene()
    scene.change(0, fenced=True)
    assert await scene.named(topics) == [1, 2]


async def test_a_broker_that_registers_again_in_time_stays_named() -> None:
    scene = Scene()
    scene.change(2, fenced=True)
    await asyncio.sleep(1)
    scene.register(2)
    assert await scene.named() == [0, 1, 2]
    scene.change(2, fenced=False)
    await asyncio.sleep(2 * SESSION_S)
    assert await scene.named() == [0, 1, 2]


async def test_a_broker_that_is_replaced_before_it_was_fenced_stays_named() -> None:
    scene = Scene()
    scene.register(2)
    assert scene.world.image.brokers[2].fenced
    assert await scene.named() == [0, 1, 2]


async def test_a_broker_that_was_shut_down_or_removed_goes_at_once() -> None:
    scene = Scene()
    scene.change(1, stopping=True)
    assert await scene.named() == [0, 1, 2]
    scene.change(1, fenced=True, stopping=False)
    assert await scene.named() == [0, 2]
    scene.change(2, fenced=True)
    assert await scene.named() == [0, 2]
    scene.replay(UnregisterBrokerRecord(2, scene.world.image.brokers[2].epoch))
    assert await scene.named() == [0]


async def test_a_broker_that_was_fenced_before_this_one_looked_is_not_named() -> None:
    scene = Scene()
    scene.world.set_fenced(2, True)
    scene.register(2)
    assert await scene.named() == [0, 1]
