"""A broker that stops still receives metadata for a moment: the duties that it has ended do not begin again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.coordination.key_moves import TenantKeyMoves
from broker.coordination.tenant_cleanup import TenantCleanup
from kraft.image.delta import MetadataDelta
from kraft.records import KeysPhase, TenantRecord, TenantState
from tests.broker.broker_world import BrokerWorld

pytestmark = pytest.mark.virtual_time

MOVING = TenantRecord("lkc-aaaaaa", "a", "default", 1, keys_target="cell-2", keys_phase=KeysPhase.COPYING)
DELETED = TenantRecord("lkc-aaaaaa", "a", "default", 1, state=TenantState.DELETING)


def key_moves(_: BrokerWorld) -> TenantKeyMoves:
    return TenantKeyMoves([])


def cleanup(world: BrokerWorld) -> TenantCleanup:
    return TenantCleanup([], lambda: world.image, world, lambda: (0, 7))


@pytest.mark.parametrize(("made", "record"), [(key_moves, MOVING), (cleanup, DELETED)])
@pytest.mark.parametrize("had_begun", [True, False])
async def test_nothing_begins_after_the_stop(made: Any, record: TenantRecord, had_begun: bool) -> None:
    world = BrokerWorld()
    before = len(asyncio.all_tasks())
    duty = made(world)
    delta = MetadataDelta(world.image)
    delta.replay(record)
    world.replay(record)
    if had_begun:
        duty.metadata_changed(delta, world.image)
        assert len(asyncio.all_tasks()) == before + 1
        await asyncio.sleep(1)
    await duty.stop()
    assert len(asyncio.all_tasks()) == before
    duty.metadata_changed(delta, world.image)
    assert len(asyncio.all_tasks()) == before
