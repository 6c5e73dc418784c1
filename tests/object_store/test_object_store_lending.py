"""Objects that a directory store lends: open files on the caller's own device, in memory where they are to be read."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from common.machine_disk import MachineFile
from object_store.directory_store import DirectoryStore
from object_store.errors import ObjectMissing, StoreUnavailable
from object_store.file_copying import SystemCalls
from tests.object_store.conftest import LIMITS


async def test_an_object_is_lent_on_the_callers_own_device_alone(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "root"), replace(LIMITS, own_directory=str(tmp_path)))
    await store.open()
    await store.put("a/b", b"whole")
    file = await store.lend("a/b")
    assert file is not None
    await store.delete(["a/b"])
    assert file.pread(10, 0) == b"whole"
    file.close()
    with pytest.raises(ObjectMissing):
        await store.lend("a/b")
    await store.put("a/b", b"whole")
    assert os.stat("/proc").st_dev != os.stat(tmp_path).st_dev
    for limits in (LIMITS, replace(LIMITS, own_directory="/proc")):
        stranger = DirectoryStore(str(tmp_path / "root"), limits)
        assert await stranger.lend("a/b") is None
        await stranger.close()
    await store.close()


@pytest.mark.parametrize("can_send", [True, False])
async def test_what_is_lent_to_be_read_at_once_is_in_memory(tmp_path: Path, can_send: bool) -> None:
    """Who reads it is an event loop, which must not wait for a device."""

    def refuse(*_: int) -> int:  # as where only sockets are sent to
        raise OSError(errno.ENOTSOCK, os.strerror(errno.ENOTSOCK))

    calls = SystemCalls() if can_send else SystemCalls(sendfile=refuse)
    store = DirectoryStore(str(tmp_path), replace(LIMITS, own_directory=str(tmp_path)), calls)
    await store.open()
    size, start, length = 24 << 20, 12 << 20, (2 << 20) + 5
    await store.put("a", b"x" * size)

    def is_in_memory(fd: int) -> bool:
        try:
            return os.preadv(fd, [bytearray(length)], start, os.RWF_NOWAIT) == length
        except BlockingIOError:
            return False
        except OSError:
            pytest.skip("the file system cannot tell what is in memory")

    def forget() -> None:
        fd = os.open(tmp_path / "a", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    forget()
    untouched = await store.lend("a")
    assert isinstance(untouched, MachineFile)
    if is_in_memory(untouched.fd):
        pytest.skip("the file system forgets nothing")
    untouched.close()
    forget()
    asked = await store.lend("a", start, length)
    assert isinstance(asked, MachineFile) and is_in_memory(asked.fd)
    asked.close()
    beyond = await store.lend("a", size - 1, length)  # what the object does not have is no reason to refuse it
    assert beyond is not None and beyond.pread(10, size - 1) == b"x"
    beyond.close()
    await store.close()


async def test_a_file_that_is_lent_too_late_is_closed(tmp_path: Path) -> None:
    limits = replace(LIMITS, own_directory=str(tmp_path), file_timeout_s=0.05, file_threads=1)
    hung, sent = threading.Event(), []

    def slow(*where: int) -> int:
        hung.wait(10)
        sent.append(os.sendfile(*where))
        return sent[-1]

    store = DirectoryStore(str(tmp_path), limits, SystemCalls(sendfile=slow))
    await store.open()
    await store.put("a", b"x")
    with pytest.raises(StoreUnavailable, match="no answer within"):
        await store.lend("a", 0, 1)
    hung.set()
    await store.head("a")  # asked of the only thread, so after the end of the loan
    await store.close()
    await asyncio.sleep(0)
    assert sent == [1]
    assert str(tmp_path / "a") not in open_paths()


def open_paths() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return found
