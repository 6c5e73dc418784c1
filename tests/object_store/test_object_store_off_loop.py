"""The private event loop, and the facade that blocks."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from pathlib import Path

import pytest

from common.outlasting import outlast
from object_store.blocking import BlockingStore
from object_store.errors import ObjectMissing, StoreDenied, StoreUnavailable
from object_store.off_loop import OffLoop, OffLoopStopped
from object_store.opening import open_store
from object_store.uri import InvalidStoreUri
from tests.object_store.conftest import LIMITS

LIMIT_S = 20.0


async def test_work_is_done_in_the_other_thread_and_comes_back() -> None:
    off_loop = OffLoop("test")
    here = threading.get_ident()

    async def work() -> tuple[int, int]:
        await asyncio.sleep(0)
        inner = await off_loop.run(other)  # on the private loop already
        return threading.get_ident(), inner

    async def other() -> int:
        return threading.get_ident()

    there, inner = await off_loop.run(work)
    assert there == inner != here
    assert (await off_loop.run(work))[0] == there
    await asyncio.to_thread(off_loop.stop)
    with pytest.raises(OffLoopStopped):
        await off_loop.run(work)


def test_the_thread_of_one_that_is_garbage_ends() -> None:
    """As of a store that a cache drops: its loop has a thread, and descriptors."""
    off_loop, threads = OffLoop("dropped"), set(threading.enumerate())

    async def work() -> None: ...

    off_loop.wait(work)
    (thread,) = set(threading.enumerate()) - threads
    del off_loop
    gc.collect()
    thread.join(LIMIT_S)
    assert not thread.is_alive()


async def test_an_error_comes_without_what_its_frames_hold() -> None:
    off_loop = OffLoop("test")

    class Body:
        pass

    seen: list[weakref.ref[Body]] = []

    async def fail() -> None:
        body = Body()
        seen.append(weakref.ref(body))
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("told") from error

    with pytest.raises(ValueError, match="told") as caught:
        await off_loop.run(fail)
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    await asyncio.to_thread(off_loop.stop)
    gc.collect()
    assert seen[0]() is None


async def test_a_cancelled_caller_waits_for_the_end_of_the_work() -> None:
    off_loop = OffLoop("test")
    started, ended = threading.Event(), threading.Event()

    async def work() -> None:
        try:
            started.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.set()

    task = asyncio.create_task(off_loop.run(work))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
    await asyncio.to_thread(off_loop.stop)


async def test_stopping_ends_what_runs() -> None:
    off_loop = OffLoop("test")
    started = threading.Event()

    async def work() -> None:
        started.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(off_loop.run(work))
    blocked = asyncio.create_task(asyncio.to_thread(off_loop.wait, work))
    await asyncio.to_thread(started.wait, 10)
    await asyncio.sleep(0.05)
    await asyncio.to_thread(off_loop.stop)
    for one in (task, blocked):
        with pytest.raises(OffLoopStopped):
            await one
    off_loop.stop()
    OffLoop("never started").stop()


async def test_work_outlasts_every_cancellation() -> None:
    gate = asyncio.Event()
    asked: list[int] = []
    work = asyncio.ensure_future(gate.wait())
    waiting = asyncio.create_task(outlast(work, lambda: asked.append(1)))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
    await asyncio.sleep(0)
    assert asked == [1] and not waiting.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def use(store: BlockingStore) -> None:
    store.put("t/one", b"1", create_only=True)
    store.put("t/two", b"22")
    assert store.get("t/two", 1, 1) == b"2"
    data, version = store.get_with_version("t/two")
    assert (data, version) == (b"22", store.head("t/two").version)
    assert [info.key for info in store.list("t/")] == ["t/one", "t/two"]
    assert [info.key for info in store.list("", start_after="t/one")] == ["t/two"]
    assert store.list_names("") == ["t/"]
    store.delete(["t/one", "t/two"])
    with pytest.raises(ObjectMissing):
        store.get("t/one")


def test_a_plain_thread_uses_a_directory(tmp_path: Path) -> None:
    with BlockingStore(f"file://{tmp_path}/root", LIMITS, create=True) as store:
        use(store)
    with pytest.raises(StoreUnavailable, match="closed"):
        store.get("t/one")
    store.close()
    threads = set(threading.enumerate())  # one of an earlier store may still be ending
    with pytest.raises(StoreDenied):
        BlockingStore(f"file://{tmp_path}/none", LIMITS)
    with pytest.raises(InvalidStoreUri):
        BlockingStore("none")
    for thread in set(threading.enumerate()) - threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_long_listing_is_held_a_page_at_a_time(tmp_path: Path) -> None:
    for number in range(2500):
        (tmp_path / f"{number:05d}").touch()
    with BlockingStore(f"file://{tmp_path}") as store:
        assert [info.key for info in store.list("")] == [f"{number:05d}" for number in range(2500)]
        assert len([*store.list("", start_after="00499")]) == 2000
        assert next(store.list("")).key == "00000"


async def test_a_plain_thread_uses_s3(s3_uri: str) -> None:
    def all_of_it() -> None:
        with BlockingStore(s3_uri, LIMITS) as store:
            use(store)
            threads = [threading.Thread(target=store.put, args=(f"k/{number}", b"x")) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len([*store.list("k/")]) == 8

    await asyncio.to_thread(all_of_it)


async def test_without_the_extra_package_it_is_said_which(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.split(".")[0] == "aiobotocore" or name.startswith("object_store.s3_"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiobotocore", None)
    with pytest.raises(StoreDenied, match=r"aiobotocore\S* is missing; `make install-s3`.*tidelog\[s3\]"):
        await open_store("s3://bucket")
