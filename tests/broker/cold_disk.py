"""A disk whose page cache can be emptied, and that tells of reads on the event loop that would wait for the device."""

from __future__ import annotations

import threading

import pytest

from common.machine import MachineSocket
from common.machine_disk import MachineDisk, MachineFile
from common.ports import File

BLOCK_BYTES = 64 << 10


class ColdDisk:
    """What is evicted of all disks of this process, by path and block, until a thread reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.evicted: set[tuple[str, int]] = set()
        self.waits: list[str] = []  # paths that the loop read although they were evicted
        self._loop_thread = threading.get_ident()
        plain_open, plain_sendfile = MachineDisk.open, MachineSocket.sendfile

        def open_cold(disk: MachineDisk, path: str, *, create: bool = False) -> MachineFile:
            return _ColdFile(plain_open(disk, path, create=create).fd, self, f"{disk.root}/{path}")

        def sendfile(socket: MachineSocket, file: File, position: int, length: int) -> int:
            length = min(length, BLOCK_BYTES)  # as much as a socket takes at once
            if isinstance(file, _ColdFile):
                file.read(length, position)
            return plain_sendfile(socket, file, position, length)

        monkeypatch.setattr(MachineDisk, "open", open_cold)
        monkeypatch.setattr(MachineSocket, "sendfile", sendfile)

    def evict(self, *paths: str, blocks: int = 64) -> None:
        self.evicted.update((path, block) for path in paths for block in range(blocks))


class _ColdFile(MachineFile):
    __slots__ = ("_disk", "_path")

    def __init__(self, fd: int, disk: ColdDisk, path: str) -> None:
        super().__init__(fd)
        self._disk = disk
        self._path = path

    def read(self, size: int, position: int) -> None:
        blocks = {(self._path, at) for at in range(position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES + 1)}
        if threading.get_ident() == self._disk._loop_thread and blocks & self._disk.evicted:
            self._disk.waits.append(self._path)
        self._disk.evicted -= blocks

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position) if self.in_memory(size, position) >= size else None

    def in_memory(self, size: int, position: int) -> int:
        for at in range(position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES + 1):
            if (self._path, at) in self._disk.evicted:
                return max(at * BLOCK_BYTES - position, 0)
        return size

    def pread(self, size: int, position: int) -> bytes:
        self.read(size, position)
        return super().pread(size, position)

    def pread_into(self, view: memoryview, position: int) -> int:
        self.read(len(view), position)
        return super().pread_into(view, position)
