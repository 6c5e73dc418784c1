"""What a broker reports of verifications: read from the store at times, and never in the way of the rest."""

from __future__ import annotations

import asyncio

import pytest

from broker.tier.verified import FRESH_S, LastVerifications
from object_store.errors import StoreUnavailable
from object_store.store import ObjectInfo
from tests.object_store.memory_store import MemoryStore
from tests.tiering.tier_world import ROOT, WorldClock
from tiering.bucket.verified import Run, keep_verification

pytestmark = pytest.mark.virtual_time


class CountingStore(MemoryStore):
    """`trouble`: the store does not answer, or hangs."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.trouble = 0, ""

    async def head(self, key: str) -> ObjectInfo:
        self.asked += 1
        if self.trouble == "hangs":
            await asyncio.get_running_loop().create_future()
        if self.trouble:
            raise StoreUnavailable(self.name, "head", key, self.trouble)
        return await super().head(key)


def run(ended_ms: int) -> Run:
    return Run(began_ms=ended_ms - 1, ended_ms=ended_ms)


async def test_however_many_ask_the_store_is_read_once_in_a_while() -> None:
    store, clock = CountingStore(), WorldClock()
    verified = LastVerifications(store, ROOT, clock)
    assert await asyncio.gather(*(verified.known() for _ in range(5))) == [None] * 5
    assert store.asked == 1
    await keep_verification(store, ROOT, run(5), [])
    assert await verified.known() is None
    clock.now_s += FRESH_S
    found = await verified.known()
    assert (found, store.asked) == (verified.last, 2)
    assert found is not None
    assert found.last == run(5)


async def test_what_was_read_stays_while_the_store_does_not_answer() -> None:
    store, clock = CountingStore(), WorldClock()
    await keep_verification(store, ROOT, run(5), [])
    verified = LastVerifications(store, ROOT, clock)
    known = await verified.known()
    assert known is not None
    for trouble in ("no route", "hangs"):
        store.trouble = trouble
        clock.now_s += FRESH_S
        assert await verified.known() == known
    store.trouble = ""
    await store.put(ROOT.verified_file, b"{")
    clock.now_s += FRESH_S
    assert await verified.known() == known
    await store.delete([ROOT.verified_file])
    clock.now_s += FRESH_S
    assert await verified.known() is None
