"""The test doubles do what they say: others' tests lean on them."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from object_store.errors import (
    ObjectExists,
    ObjectTruncated,
    StoreDenied,
    StoreFull,
    StoreUnavailable,
)
from object_store.probe import probe_conditions
from tests.object_store.faulty_store import Faults, FaultyStore
from tests.object_store.memory_store import MemoryStore


@pytest.fixture
async def faulty() -> FaultyStore:
    store = FaultyStore(MemoryStore(), Random(5))
    await store.put("key", b"0123456789")
    return store


async def test_without_faults_it_is_the_store(faulty: FaultyStore) -> None:
    await probe_conditions(faulty, "probe")
    assert await faulty.get("key") == b"0123456789"
    await faulty.copy("key", "other")
    assert [info.key async for info in faulty.list("", start_after="key")] == ["other"]
    assert await faulty.list_names("") == ["key", "other"]
    assert faulty.calls["copy"] == 1


async def test_each_fault(faulty: FaultyStore) -> None:
    for faults, error in [(Faults(down=True), StoreUnavailable), (Faults(denied=True), StoreDenied),
                          (Faults(unavailable=1), StoreUnavailable), (Faults(cut=1), StoreUnavailable),
                          (Faults(truncated=1), ObjectTruncated)]:  # fmt: skip
        faulty.faults = faults
        with pytest.raises(error):
            await faulty.get("key")
    faulty.faults = Faults(full=True)
    with pytest.raises(StoreFull):
        await faulty.put("key", b"x")
    assert await faulty.get("key") == b"0123456789"
    faulty.faults = Faults(altered=1)
    altered = await faulty.get("key")
    assert len(altered) == 10 and sum(a != b for a, b in zip(altered, b"0123456789", strict=True)) == 1
    faulty.faults = Faults(delay_s=0.02)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await faulty.get("key")


async def test_a_lost_answer_was_done(faulty: FaultyStore) -> None:
    faulty.faults = Faults(lost_answer=1)
    with pytest.raises(StoreUnavailable):
        await faulty.put("new", b"x", create_only=True)
    with pytest.raises(StoreUnavailable):
        await faulty.delete(["key"])
    faulty.faults = Faults()
    with pytest.raises(ObjectExists):
        await faulty.put("new", b"x", create_only=True)
    assert [info.key async for info in faulty.list("")] == ["new"]


async def test_a_stale_listing(faulty: FaultyStore) -> None:
    await faulty.remember_listing()
    faulty.faults.stale_listing = True
    await faulty.put("new/object", b"x")
    await faulty.delete(["key"])
    assert [info.key async for info in faulty.list("")] == ["key"]
    assert await faulty.list_names("") == ["key"]
    faulty.faults.stale_listing = False
    assert await faulty.list_names("") == ["new/"]


async def test_hooks_stand_around_the_call(faulty: FaultyStore) -> None:
    seen: list[tuple[str, str, str]] = []

    async def before(operation: str, key: str) -> None:
        seen.append(("before", operation, key))

    async def after(operation: str, key: str) -> None:
        assert "new" in faulty.inner.objects  # type: ignore[attr-defined]
        seen.append(("after", operation, key))

    faulty.before, faulty.after = before, after
    await faulty.put("new", b"x")
    assert seen == [("before", "put", "new"), ("after", "put", "new")]
