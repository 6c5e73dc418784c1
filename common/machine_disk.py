"""The files of `common.ports` over the real machine: `os.pread`, `os.pwrite`, and their state in the page cache."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path

from common.ports import Buffer, FileIdentity

BOOT_ID = "/proc/sys/kernel/random/boot_id"
_NO_WAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # Linux
_PROBE = (bytearray(1),)
_PROBE_STEP = 64 << 10  # pages come and go in runs of this size; a probe of each costs 16 µs per MB


class MachineFile:
    __slots__ = ("_always_waits", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._always_waits = _NO_WAIT is None  # also learned of file systems, of which those in memory refuse it

    def pread(self, size: int, position: int) -> bytes:
        return os.pread(self.fd, size, position)

    def pread_into(self, view: memoryview, position: int) -> int:
        return os.preadv(self.fd, [view], position)

    def pread_now(self, size: int, position: int) -> bytes | None:
        if self._always_waits or _NO_WAIT is None:
            return os.pread(self.fd, size, position)
        data = bytearray(size)
        try:
            return bytes(data) if os.preadv(self.fd, (data,), position, _NO_WAIT) == size else None
        except BlockingIOError:
            return None
        except OSError as error:  # `pread` raises what is wrong with the disk
            self._always_waits = error.errno == errno.EOPNOTSUPP
            return os.pread(self.fd, size, position)

    def in_memory(self, size: int, position: int) -> int:
        if self._always_waits or _NO_WAIT is None:
            return size
        at, end = position, position + size
        try:
            while at < end:
                if not os.preadv(self.fd, _PROBE, at, _NO_WAIT):
                    return size
                last, at = at, (at // _PROBE_STEP + 1) * _PROBE_STEP
                if at >= end > last + 1:
                    at = end - 1
        except BlockingIOError:
            return at - position
        except OSError as error:
            self._always_waits = error.errno == errno.EOPNOTSUPP
            return size
        return size

    def pwrite(self, data: Buffer, position: int) -> int:
        return os.pwrite(self.fd, data, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def identity(self) -> FileIdentity:
        found = os.fstat(self.fd)
        changed_ns = found.st_ctime_ns
        age_ns = time.time_ns() - changed_ns
        return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, changed_ns, age_ns)

    def fsync(self) -> None:
        os.fdatasync(self.fd)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


class MachineDisk:
    """`common.ports.Disk` below `root`, which is made when it does not exist."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._prefix = str(root) + "/"

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return MachineFile(os.open(self._prefix + path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(self._prefix + path)

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(self._prefix + directory))

    def file_size(self, path: str) -> int:
        return os.stat(self._prefix + path).st_size

    def make_directory(self, path: str) -> None:
        whole = self._prefix + path
        try:
            os.mkdir(whole)  # a third of the cost of makedirs, which checks all parents first
        except (FileExistsError, FileNotFoundError):
            os.makedirs(whole, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(self._prefix + source, self._prefix + target)

    def remove(self, path: str) -> None:
        os.unlink(self._prefix + path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(self._prefix + path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(self._prefix + path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        state = os.statvfs(self._prefix)
        return state.f_bavail * state.f_frsize

    def size_bytes(self) -> int:
        state = os.statvfs(self._prefix)
        return (state.f_blocks - state.f_bfree + state.f_bavail) * state.f_frsize

    def cache_identity(self) -> str:
        try:
            boot = Path(BOOT_ID).read_text().strip()
        except OSError:
            return ""
        return f"{boot}/{os.stat(self._prefix).st_dev}"
