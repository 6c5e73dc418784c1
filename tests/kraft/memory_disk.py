"""A disk in memory, as `common.ports.Disk`: what was not synced may be lost, and any operation may be the last."""

from __future__ import annotations

import errno
import random

from common.ports import Buffer, FileIdentity


class PowerCut(BaseException):
    """The operation at which the power goes. No Exception: nothing in the node may live on after it."""


class MemoryFile:
    """Bytes as the kernel has them and as the device has them."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk
        self.cached = bytearray()
        self.durable = b""
        self.unsynced: list[tuple[int, bytes | None]] = []  # position and bytes; None cuts there

    def pread(self, size: int, position: int) -> bytes:
        return bytes(self.cached[position : position + size])

    def pread_into(self, view: memoryview, position: int) -> int:
        data = self.pread(len(view), position)
        view[: len(data)] = data
        return len(data)

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position)

    def in_memory(self, size: int, position: int) -> int:
        return size

    def pwrite(self, data: Buffer, position: int) -> int:
        self._disk.operate()
        taken = bytes(data)[: self._disk.write_bytes_max]
        self.unsynced.append((position, taken))
        change(self.cached, position, taken)
        return len(taken)

    def truncate(self, size: int) -> None:
        self._disk.operate()
        self.unsynced.append((size, None))
        change(self.cached, size, None)

    def size(self) -> int:
        return len(self.cached)

    def identity(self) -> FileIdentity:
        raise NotImplementedError

    def fsync(self) -> None:
        self._disk.operate()
        self.durable = bytes(self.cached)
        self.unsynced.clear()

    def close(self) -> None:
        pass

    def lose_power(self, rng: random.Random) -> None:
        content = bytearray(self.durable)
        for position, data in self.unsynced:
            fate = rng.random()
            if fate < 0.4:
                continue
            if fate < 0.7 and data:
                data = data[: rng.randrange(len(data))]
                if data and rng.random() < 0.5:
                    at = rng.randrange(len(data))
                    data = data[:at] + rng.randbytes(1) + data[at + 1 :]
            change(content, position, data)
        self.cached, self.durable = content, bytes(content)
        self.unsynced.clear()


class MemoryDisk:
    """`operations_left` counts down to a PowerCut, `error` is what each operation raises from now on."""

    def __init__(self) -> None:
        self.names: dict[str, MemoryFile] = {}
        self.durable_names: dict[str, MemoryFile] = {}
        self.unsynced_names: list[tuple[str, MemoryFile | None]] = []
        self.operations_left: int | None = None
        self.operations = 0
        self.error: int | None = None
        self.write_bytes_max = 1 << 40

    def cache_identity(self) -> str:
        return ""

    def operate(self) -> None:
        self.operations += 1
        if self.error is not None:
            raise OSError(self.error, errno.errorcode[self.error])
        if self.operations_left is not None:
            self.operations_left -= 1
            if self.operations_left < 0:
                raise PowerCut

    def lose_power(self, rng: random.Random) -> None:
        """Keep what is synced, and by chance some of the rest; changes of names are lost from some point on."""
        for path, file in self.unsynced_names[: rng.randint(0, len(self.unsynced_names))]:
            rename(self.durable_names, path, file)
        self.unsynced_names.clear()
        files = {id(file): file for file in [*self.names.values(), *self.durable_names.values()]}
        for file in files.values():
            file.lose_power(rng)
        self.names = dict(self.durable_names)
        self.operations_left = None

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        if path not in self.names:
            if not create:
                raise FileNotFoundError(path)
            self._change_name(path, MemoryFile(self))
        return self.names[path]

    def exists(self, path: str) -> bool:
        return path in self.names

    def list(self, directory: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.names if path.rpartition("/")[0] == directory)

    def file_size(self, path: str) -> int:
        return self.names[path].size()

    def make_directory(self, path: str) -> None:
        pass

    def rename(self, source: str, target: str) -> None:
        self.operate()
        file = self.names[source]
        self._change_name(target, file)
        self._change_name(source, None)

    def remove(self, path: str) -> None:
        self._change_name(path, None)

    def remove_tree(self, path: str) -> None:
        for name in [name for name in self.names if name.startswith(path + "/")]:
            self._change_name(name, None)

    def sync_directory(self, path: str) -> None:
        self.operate()
        for name, file in self.unsynced_names:
            rename(self.durable_names, name, file)
        self.unsynced_names.clear()

    def free_bytes(self) -> int:
        return 1 << 40

    def size_bytes(self) -> int:
        return 1 << 41

    def _change_name(self, path: str, file: MemoryFile | None) -> None:
        rename(self.names, path, file)
        self.unsynced_names.append((path, file))


def rename(names: dict[str, MemoryFile], path: str, file: MemoryFile | None) -> None:
    if file is None:
        names.pop(path, None)
    else:
        names[path] = file


def change(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None:
        del content[position:]
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data
