"""A disk whose page cache can be emptied, and that tells of reads on the event loop that would wait for the device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from common.machine_disk import MachineDisk, MachineFile
from common.ports import Address, File, Listener, Network, Ports, Socket
from tests.virtual_time import lab_ports

BLOCK_BYTES = 64 << 10


class PageCache:
    """What is evicted of all disks that it makes, by path and block, until a thread reads it."""

    def __init__(self) -> None:
        self.evicted: set[tuple[str, int]] = set()
        self.waits: list[str] = []  # paths that the loop read although they were evicted
        self._loop_thread = threading.get_ident()

    def ports(self, root: Path) -> Ports:
        """As `lab_ports`, over this cache."""
        plain = lab_ports(root)
        return replace(plain, disk=ColdDisk(root, self), network=cast(Network, _ColdNetwork(plain.network)))

    def evict(self, *paths: str, blocks: int = 64) -> None:
        self.evicted.update((path, block) for path in paths for block in range(blocks))

    def read(self, path: str, size: int, position: int) -> None:
        blocks = {(path, at) for at in range(position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES + 1)}
        if threading.get_ident() == self._loop_thread and blocks & self.evicted:
            self.waits.append(path)
        self.evicted -= blocks


class ColdDisk(MachineDisk):
    def __init__(self, root: Path, cache: PageCache) -> None:
        super().__init__(root)
        self._cache = cache

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        return _ColdFile(super().open(path, create=create).fd, self._cache, f"{self.root}/{path}")


class _ColdFile(MachineFile):
    __slots__ = ("_cache", "_path")

    def __init__(self, fd: int, cache: PageCache, path: str) -> None:
        super().__init__(fd)
        self._cache = cache
        self._path = path

    def read(self, size: int, position: int) -> None:
        self._cache.read(self._path, size, position)

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position) if self.in_memory(size, position) >= size else None

    def in_memory(self, size: int, position: int) -> int:
        for at in range(position // BLOCK_BYTES, (position + size - 1) // BLOCK_BYTES + 1):
            if (self._path, at) in self._cache.evicted:
                return max(at * BLOCK_BYTES - position, 0)
        return size

    def pread(self, size: int, position: int) -> bytes:
        self.read(size, position)
        return super().pread(size, position)

    def pread_into(self, view: memoryview, position: int) -> int:
        self.read(len(view), position)
        return super().pread_into(view, position)


class _ColdNetwork:
    """A network whose accepted sockets take files from the cache."""

    def __init__(self, plain: Network) -> None:
        self._plain = plain
        self.connect = plain.connect

    def listen(self, address: Address, accepted: Callable[[Socket], None]) -> Listener:
        return self._plain.listen(address, lambda socket: accepted(cast(Socket, _ColdSocket(socket))))


class _ColdSocket:
    def __init__(self, plain: Socket) -> None:
        self._plain = plain

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)

    def sendfile(self, file: File, position: int, length: int) -> int:
        length = min(length, BLOCK_BYTES)  # as much as a socket takes at once
        if isinstance(file, _ColdFile):
            file.read(length, position)
        return self._plain.sendfile(file, position, length)
