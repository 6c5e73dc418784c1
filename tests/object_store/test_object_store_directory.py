"""What is particular to a directory: crashes, leftovers, other processes, odd files, faults of the disk."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from common.machine_disk import MachineDisk
from object_store import directory_files
from object_store.blocking import BlockingStore
from object_store.directory_store import DirectoryStore
from object_store.errors import (
    InvalidKey,
    ObjectExists,
    ObjectMissing,
    ObjectTruncated,
    StoreDenied,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from object_store.file_copying import SystemCalls
from object_store.opening import open_store
from object_store.store import FileRange
from tests.object_store.conftest import LIMITS
from tests.object_store.test_object_store_pure import Bytes

UNFINISHED = ".unfinished"


@pytest.fixture
async def store(tmp_path: Path) -> DirectoryStore:
    opened = DirectoryStore(str(tmp_path / "root"), LIMITS)
    await opened.open()
    return opened


class HangingBytes(Bytes):
    """A file whose reads `hang` until they `go`, as those of a network file system may."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.hangs, self.go = threading.Event(), threading.Event()

    def pread(self, size: int, position: int) -> bytes:
        self.hangs.set()
        assert self.go.wait(10)
        return super().pread(size, position)

    def whole(self) -> list[FileRange]:
        return [FileRange(self, 0, len(self.data))]


def unfinished(root: Path) -> list[str]:
    return sorted(name for name in os.listdir(root / UNFINISHED) if name != directory_files.LOCK_NAME)


async def test_the_root_is_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreDenied, match="no such directory"):
        await open_store(f"file://{tmp_path}/none", LIMITS, create=False)
    store = await open_store(f"file://{tmp_path}/made/deep", LIMITS)
    await store.put("a", b"x")
    assert (tmp_path / "made/deep/a").read_bytes() == b"x"
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.get("a")


async def test_an_unmounted_root_is_not_an_empty_one(store: DirectoryStore, tmp_path: Path) -> None:
    await store.put("a/b", b"x")
    (tmp_path / "root").rename(tmp_path / "elsewhere")
    (tmp_path / "root").mkdir()  # the mount point
    for call in (
        store.get("a/b"), store.head("a/b"), store.delete(["a/b"]), store.list_names(""), store.put("a/b", b"y"),
        anext(aiter(store.list(""))), store.copy("a/b", "c"), store.replace("a/b", b"y", None),
    ):  # fmt: skip
        with pytest.raises(StoreUnavailable, match="gone"):
            await call
    assert os.listdir(tmp_path / "root") == []


async def test_no_object_is_seen_before_it_is_whole(tmp_path: Path) -> None:
    hangs, go = threading.Event(), threading.Event()

    def held(fd: int) -> None:
        hangs.set()
        assert go.wait(10)
        os.fsync(fd)

    store = DirectoryStore(str(tmp_path / "root"), LIMITS, SystemCalls(fsync=held))
    await store.open()
    put = asyncio.create_task(store.put("key", b"x" * 100_000))
    await asyncio.to_thread(hangs.wait, 10)
    assert len(unfinished(tmp_path / "root")) == 1
    assert [info async for info in store.list("")] == []
    with pytest.raises(ObjectMissing):
        await store.get("key")
    go.set()
    await put
    assert unfinished(tmp_path / "root") == []
    assert len(await store.get("key")) == 100_000


async def test_file_and_directories_are_durable_in_order(tmp_path: Path) -> None:
    steps: list[str] = []
    root = str(tmp_path / "root")

    def fsync(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}").removeprefix(root)
        steps.append("fsync file" if UNFINISHED in path else f"fsync {path or '/'}")
        os.fsync(fd)

    def watched(name: str, call: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def step(source: str, target: str) -> None:
            steps.append(f"{name} {target.removeprefix(root)}")
            call(source, target)

        return step

    calls = SystemCalls(fsync, link=watched("link", os.link), rename=watched("rename", os.rename))
    store = DirectoryStore(root, LIMITS, calls)
    await store.open()
    await store.put("a/b/one", b"x", create_only=True)
    assert steps == ["fsync file", "fsync /", "fsync /a", "link /a/b/one", "fsync /a/b"]
    steps.clear()
    await store.put("a/b/two", b"x")
    assert steps == ["fsync file", "rename /a/b/two", "fsync /a/b"]


async def test_leftovers_of_a_crash_are_swept_by_age(store: DirectoryStore, tmp_path: Path) -> None:
    root = tmp_path / "root"
    await store.replace("key", b"x", None)  # leaves the lock's file
    old, young = root / UNFINISHED / "old", root / UNFINISHED / "young"
    old.write_bytes(b"half")
    young.write_bytes(b"half")
    two_hours_ago = time.time() - 7200
    os.utime(old, (two_hours_ago, two_hours_ago))
    os.utime(root / UNFINISHED / directory_files.LOCK_NAME, (two_hours_ago, two_hours_ago))
    again = DirectoryStore(str(root), LIMITS)
    await again.open()
    assert unfinished(root) == ["young"]
    assert await store.sweep_unfinished(int(time.time() * 1000) + 1000) == 1
    assert unfinished(root) == []
    assert (root / UNFINISHED / directory_files.LOCK_NAME).exists()


async def test_a_failed_put_leaves_nothing(tmp_path: Path) -> None:
    for code, error in [(errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull), (errno.EIO, StoreUnavailable),
                        (errno.EROFS, StoreDenied)]:  # fmt: skip

        def broken(fd: int, code: int = code) -> None:
            raise OSError(code, "broken")

        store = DirectoryStore(str(tmp_path / "root"), LIMITS, SystemCalls(fsync=broken))
        await store.open()
        with pytest.raises(error, match="put 'a/key' in file://"):
            await store.put("a/key", b"x")
        assert unfinished(tmp_path / "root") == []
        assert [info async for info in store.list("")] == []
        await store.close()


async def test_emptied_directories_go_and_come_back(store: DirectoryStore, tmp_path: Path) -> None:
    async def churn(name: str) -> None:
        for turn in range(30):
            await store.put(f"a/b/{name}", str(turn).encode())
            assert await store.get(f"a/b/{name}") == str(turn).encode()
            await store.delete([f"a/b/{name}"])

    await asyncio.gather(*[churn(str(number)) for number in range(4)])
    assert os.listdir(tmp_path / "root") == [UNFINISHED]
    (tmp_path / "root/left/by/a/crash").mkdir(parents=True)
    assert await store.list_names("") == []
    await store.put("left/by/a/crash", b"object", create_only=True)
    assert await store.get("left/by/a/crash") == b"object"


async def test_an_object_is_no_directory(store: DirectoryStore) -> None:
    await store.put("a/b", b"x")
    for create_only in (True, False):
        with pytest.raises(InvalidKey):
            await store.put("a", b"y", create_only=create_only)
        with pytest.raises(InvalidKey):
            await store.put("a/b/c", b"y", create_only=create_only)
    assert [info.key async for info in store.list("")] == ["a/b"]


async def test_links_lead_nowhere(store: DirectoryStore, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "root/link").symlink_to(tmp_path / "secret")
    (tmp_path / "root/way").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "root/pipe")
    for key in ("link", "pipe"):
        with pytest.raises(ObjectMissing):
            await store.get(key)
        with pytest.raises(ObjectMissing):
            await store.head(key)
    assert [info async for info in store.list("")] == []
    assert await store.list_names("") == []


async def test_a_cancelled_put_ends_before_the_caller_closes_the_file(store: DirectoryStore, tmp_path: Path) -> None:
    file = HangingBytes(b"x" * 3_000_000)  # more than is read between two checks for cancellation
    put = asyncio.create_task(store.put("key", file.whole()))
    await asyncio.to_thread(file.hangs.wait, 10)
    for _ in range(3):
        put.cancel()
        await asyncio.sleep(0)
    assert not put.done()
    file.go.set()
    with pytest.raises(asyncio.CancelledError):
        await put
    assert unfinished(tmp_path / "root") == []
    with pytest.raises(ObjectMissing):
        await store.head("key")


@pytest.mark.parametrize("unable", [[], ["copy_file_range"], ["copy_file_range", "sendfile"]])
async def test_bytes_are_copied_whatever_the_kernel_can(tmp_path: Path, unable: list[str]) -> None:
    ways: set[str] = set()

    def way(name: str, call: Callable[[int, int, int, int], int]) -> Callable[[int, int, int, int], int]:
        def copy(*where: int) -> int:
            if name in unable:
                raise OSError(errno.EXDEV, "other file system")
            ways.add(name)
            return call(*where)

        return copy

    calls = SystemCalls(
        sendfile=way("sendfile", os.sendfile), copy_file_range=way("copy_file_range", os.copy_file_range)
    )
    store = DirectoryStore(str(tmp_path / "root"), LIMITS, calls)
    await store.open()
    file = MachineDisk(tmp_path).open("log", create=True)
    data = os.urandom(3_000_000)
    file.pwrite(data, 0)
    await store.put("key", [b"<", FileRange(file, 1000, 2_000_000), FileRange(Bytes(b"0123456789"), 2, 5), b">"])
    assert await store.get("key") == b"<" + data[1000:2_001_000] + b"23456" + b">"
    with pytest.raises(StoreError, match="ends at 3000000"):
        await store.put("short", [FileRange(file, 0, 3_000_001)])
    await store.copy("key", "copy")
    assert (await store.head("copy")).version != (await store.head("key")).version
    assert await store.get("copy") == await store.get("key")
    assert ways == set(["copy_file_range", "sendfile"][len(unable) :][:1])  # inside the kernel where it can
    file.close()


async def test_versions_differ_within_one_tick_of_the_clock(store: DirectoryStore) -> None:
    versions = [(await store.put("key", b"same size")).version for _ in range(50)]
    assert len(set(versions)) == 50


async def test_replace_waits_for_other_processes_but_not_for_ever(tmp_path: Path) -> None:
    root = tmp_path / "root"
    store = DirectoryStore(str(root), replace(LIMITS, lock_timeout_s=0.1))
    await store.open()
    await store.replace("key", b"1", None)
    with (root / UNFINISHED / directory_files.LOCK_NAME).open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailable, match="lock"):
            await store.replace("other", b"2", None)
        await store.put("third", b"3", create_only=True)
    await store.replace("other", b"2", None)


async def test_a_directory_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path), replace(LIMITS, file_timeout_s=0.05, file_threads=1))
    await store.open()
    file = HangingBytes(b"x")
    put = asyncio.create_task(store.put("key", file.whole()))
    await asyncio.to_thread(file.hangs.wait, 10)
    with pytest.raises(StoreUnavailable, match="no answer within"):
        await store.head("key")
    file.go.set()
    await put
    assert (await store.head("key")).size == 1
    await store.close()


def test_a_plain_thread_waits_no_longer_for_a_directory(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"0123")
    file = HangingBytes(b"x")
    with BlockingStore(f"file://{tmp_path}", replace(LIMITS, file_timeout_s=0.05, file_threads=1)) as store:
        put = threading.Thread(target=store.put, args=("other", file.whole()))
        put.start()
        assert file.hangs.wait(10)
        with pytest.raises(StoreUnavailable, match="no answer within"):
            store.get("key", 1, 2)
        file.go.set()
        put.join(10)
    with BlockingStore(f"file://{tmp_path}") as store:
        assert store.get("key", 1, 2) == b"12"
        with pytest.raises(ObjectTruncated):
            store.get("key", 3, 2)
        with pytest.raises(InvalidKey):
            store.get("../key")


def _create(root: str, number: int, start: multiprocessing.synchronize.Barrier, answers: object) -> None:
    async def run() -> list[int]:
        store = DirectoryStore(root, LIMITS)
        await store.open()
        start.wait()
        won = []
        for turn in range(30):
            try:
                await store.put(f"turn/{turn}", [str(number).encode()], create_only=True)
                won.append(turn)
            except ObjectExists:
                pass
        return won

    answers.put((number, asyncio.run(run())))  # type: ignore[attr-defined]


def test_of_several_processes_one_creates(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(3), context.Queue()
    workers = [context.Process(target=_create, args=(str(tmp_path), number, start, answers)) for number in range(3)]
    for worker in workers:
        worker.start()
    won = dict(answers.get(timeout=30) for _ in workers)
    for worker in workers:
        worker.join(10)
    assert sorted(turn for turns in won.values() for turn in turns) == list(range(30))
    for number, turns in won.items():
        assert all((tmp_path / f"turn/{turn}").read_bytes() == str(number).encode() for turn in turns)


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_put_into_a_file_system_that_hangs_ends_and_makes_no_object_later(
    tmp_path: Path, is_cancelled: bool
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hung(fd: int) -> None:
        hangs.set()
        goes_on.wait(10)
        os.fsync(fd)

    store = DirectoryStore(
        str(tmp_path / "root"), replace(LIMITS, file_silence_s=0.1, file_threads=1), SystemCalls(fsync=hung)
    )
    await store.open()
    file = MachineDisk(tmp_path).open("log", create=True)
    file.pwrite(b"x" * 1000, 0)
    put = asyncio.create_task(store.put("key", [FileRange(file, 0, 1000)]))
    await asyncio.to_thread(hangs.wait, 10)
    if is_cancelled:
        put.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError if is_cancelled else StoreUnavailable) as caught:
            await put
    assert is_cancelled or "the file system hangs" in str(caught.value)
    file.close()
    goes_on.set()
    with pytest.raises(ObjectMissing):  # asked of the only thread, so after the end of that put
        await store.head("key")
    assert unfinished(tmp_path / "root") == []
    await store.put("key", b"again")
    await store.close()


async def test_a_put_that_is_slow_and_gets_on_is_waited_for(tmp_path: Path) -> None:
    def slow(source: int, target: int, count: int, position: int) -> int:
        time.sleep(0.05)  # eight of these are longer than the silence that is allowed, and none of them is
        return os.copy_file_range(source, target, min(count, 1000), position)

    calls = SystemCalls(copy_file_range=slow)
    store = DirectoryStore(str(tmp_path / "root"), replace(LIMITS, file_silence_s=0.1), calls)
    await store.open()
    file = MachineDisk(tmp_path).open("log", create=True)
    file.truncate(8 * 1000)
    assert (await store.put("key", [FileRange(file, 0, 8 * 1000)])).size == 8 * 1000
    file.close()
    await store.close()


async def test_the_end_of_a_store_does_not_wait_for_a_call_that_hangs(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path), replace(LIMITS, file_close_s=0.1))
    await store.open()
    file = HangingBytes(b"x")
    writing = asyncio.create_task(store.put("key", file.whole()))
    assert await asyncio.to_thread(file.hangs.wait, 10)
    async with asyncio.timeout(5):
        await store.close()
    assert not writing.done()
    file.go.set()
    await asyncio.gather(writing, return_exceptions=True)
