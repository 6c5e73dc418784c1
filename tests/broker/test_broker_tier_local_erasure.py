"""A disk after an erasure: nothing that was asked for is forgotten."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from broker.tier.erasing import LocalErasure


@pytest.mark.parametrize("turns", range(12))
async def test_what_is_asked_as_a_drop_ends_is_done(turns: int) -> None:
    """In whichever turn of the loop, counted from the last look of the task before."""
    waiting, looked = [1], asyncio.Event()

    def drop_erased(now_ms: int) -> int:
        if waiting:
            return waiting.pop()
        looked.set()
        return 0

    async def flush_closed() -> int:
        for _ in range(3):
            await asyncio.sleep(0)
        return 0

    log = SimpleNamespace(closed=False, recovery_point=0, flush_closed=flush_closed)
    partition: Any = type("Replica", (), {})()
    partition.log, partition.erased_end_offset, partition.drop_erased = log, 0, drop_erased
    erasure = LocalErasure(SimpleNamespace(wall_ms=lambda: 0))
    erasure.begin(partition)
    async with asyncio.timeout(30):
        await looked.wait()
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.append(1)
    looked.clear()
    erasure.begin(partition)
    async with asyncio.timeout(30):
        await looked.wait()
    assert not waiting
    await erasure.stop()
