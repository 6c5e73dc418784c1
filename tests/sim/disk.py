"""A disk with a page cache over durable state, as `common.ports.Disk`.

A killed process leaves the cache. A power loss keeps what was synced and a random part of the rest: whole writes
kept, dropped or torn, and changes of names up to some point in their order, as a journaling file system does. A file's
bytes and its name become durable apart: `fsync` does not promise the name.

A device can be full, refuse (EIO), be slow or stuck, and it can kill its node at its n-th operation from now, which is
how a process dies in the middle of a callback.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator

from common.ports import Buffer, File, FileIdentity
from tests.sim.loop import MS, FilesRaced, Scheduler, SimLoop

SECTOR_BYTES = 512
SYNC_NS = (100_000, 2_000_000)
READ_NS = (100_000, 10_000_000)
EVICTED_CHANCE = 0.1
STUCK_WRITE_NS = (5 * MS, 60 * MS)  # a write into the page cache while the device behind it is stuck
FREE_BYTES = 1 << 40
SETTLED_NS = 1_000_000_000  # each change of a file leaves a trace here


class FileNode:
    """A file's bytes, cached and durable."""

    __slots__ = ("cached", "changes", "cold_below", "durable", "number", "unflushed")

    def __init__(self, number: int) -> None:
        self.number = number
        self.changes = 0
        self.cold_below = 0  # what lies before was evicted from the page cache
        self.cached = bytearray()
        self.durable = bytearray()
        self.unflushed: list[tuple[int, bytes | None]] = []  # position and data; None is a truncation

    def write(self, position: int, data: bytes | None) -> None:
        self.changes += 1
        apply(self.cached, position, data)
        self.unflushed.append((position, data))

    def flush(self) -> None:
        for position, data in self.unflushed:
            apply(self.durable, position, data)
        self.unflushed.clear()


class Directory:
    __slots__ = ("changes", "durable", "names")

    def __init__(self) -> None:
        self.changes = 0  # of names
        self.names: dict[str, FileNode | Directory] = {}
        self.durable: dict[str, FileNode | Directory] = {}

    def set_name(self, name: str, entry: FileNode | Directory | None) -> None:
        self.changes += 1
        set_name(self.names, name, entry)


Entry = FileNode | Directory
Keeps = Callable[[str, int, bytes | None], bool]
"""Whether a loss of power keeps this write: path, position, bytes; without bytes it is a truncation."""
Change = tuple[Directory, str, Entry | None]


def apply(content: bytearray, position: int, data: bytes | None) -> None:
    if data is None and len(content) > position:
        del content[position:]
        return
    if position > len(content):
        content.extend(bytes(position - len(content)))
    if data is not None:
        content[position : position + len(data)] = data


class Device:
    """What outlives the process; one per node name."""

    def __init__(self, scheduler: Scheduler, rng: random.Random) -> None:
        self.scheduler, self.random = scheduler, rng
        self.root = Directory()
        self.files_made = 0
        self.journal: list[list[Change]] = []  # changes of names not yet durable; one item is atomic
        self.error: int | None = None  # the errno that every write and sync meets
        self.full = False
        self.power_losses = 0
        self.stuck = False
        self.slow_factor = 1
        self.sync_count = 0
        self.blocking_sync_count = 0  # on a loop, where a thread was due
        self.cold_read_count = 0  # in threads, of what was evicted
        self.pages = random.Random(rng.getstate()[1][0])  # draws nothing from the device's own
        self.kill_countdown: int | None = None
        self.kill: Callable[[], None] | None = None

    # -- what operations go through

    def operate(self, loop: SimLoop, *, sync: bool = False, grows: bool = False) -> None:
        """Before each operation that changes something: the node may die here, or the device refuse."""
        loop.check_alive()
        if self.kill_countdown is not None:
            self.kill_countdown -= 1
            if self.kill_countdown <= 0 and self.kill is not None:
                self.kill_countdown = None
                self.kill()
                loop.check_alive()
        if sync:
            self.sync_count += 1
            if self.scheduler.in_thread is not loop:
                self.blocking_sync_count += 1
            loop.stall(self.random.randint(*SYNC_NS) * self.slow_factor)
        elif self.stuck and self.scheduler.in_thread is not loop:
            loop.stall(self.random.randint(*STUCK_WRITE_NS))
        if self.error is not None:
            raise OSError(self.error, os.strerror(self.error))
        if grows and self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def evict(self, node: FileNode) -> None:
        """Whoever asks what is in memory finds, now and then, that it is not."""
        if self.pages.random() < EVICTED_CHANCE:
            node.cold_below = len(node.cached)

    def read(self, loop: SimLoop, node: FileNode, position: int) -> None:
        """What was evicted comes from the device: whoever reads it waits."""
        if position < node.cold_below:
            node.cold_below = 0
            loop.stall(self.pages.randint(*READ_NS) * self.slow_factor)
            self.cold_read_count += self.scheduler.in_thread is loop

    def note_change(self, loop: SimLoop, directory: Directory, name: str, path: str) -> None:
        """A file's name or bytes change, by a node."""
        race = loop.file_races.changed((directory, name), path, loop.now_ns())
        if race is not None:
            self.scheduler.fail(FilesRaced(f"{loop.name}: {race}"))

    def new_file(self) -> FileNode:
        self.files_made += 1
        return FileNode(self.files_made)

    def alter(self, path: str, position: int, data: bytes | None) -> None:
        """A fault: somebody who is no node writes into a file in place, or cuts it off where `data` is None."""
        node = self.find(path)
        if not isinstance(node, FileNode):
            raise FileNotFoundError(errno.ENOENT, path)
        node.write(position, data)

    def change(self, *changes: Change) -> None:
        for directory, name, entry in changes:
            directory.set_name(name, entry)
        self.journal.append(list(changes))

    def persist_directory(self, directory: Directory) -> None:
        """The journal is ordered: all that came before the last change of this directory becomes durable too."""
        last = max((i for i, item in enumerate(self.journal) if any(c[0] is directory for c in item)), default=-1)
        self._persist(last + 1)

    def _persist(self, count: int) -> None:
        for item in self.journal[:count]:
            for directory, name, entry in item:
                set_name(directory.durable, name, entry)
        del self.journal[:count]

    def lose_power(self, keeps: Keeps | None = None) -> str:
        """Returns a sentence for the trace. `keeps` decides instead of chance; then all changes of names are kept."""
        self.power_losses += 1
        rng = self.random
        if keeps is not None:
            self._persist(len(self.journal))
            return self._lose_writes(keeps)
        self._persist(rng.randint(0, len(self.journal)))
        dropped_names, dropped, torn = len(self.journal), 0, 0
        self.journal.clear()
        for directory in list(walk_directories(self.root)):
            directory.names = dict(directory.durable)
        for node in walk_files(self.root):
            keep_chance = rng.choice((0.0, 0.5, 0.9))
            for position, data in node.unflushed:
                if rng.random() >= keep_chance:
                    dropped += 1
                    continue
                if data and rng.random() < 0.3:  # torn: whole sectors, or any prefix
                    torn += 1
                    size = rng.randrange(len(data) + 1)
                    data = data[: size - size % SECTOR_BYTES if rng.random() < 0.5 else size]
                apply(node.durable, position, data)
            node.unflushed.clear()
            node.cached = bytearray(node.durable)
            node.cold_below = len(node.cached)
        return f"{dropped} writes dropped, {torn} torn, {dropped_names} changes of names dropped"

    def _lose_writes(self, keeps: Keeps) -> str:
        dropped = 0
        for path, node in named_files(self.root):
            kept = [(position, data) for position, data in node.unflushed if keeps(path, position, data)]
            dropped += len(node.unflushed) - len(kept)
            for position, data in kept:
                apply(node.durable, position, data)
            node.unflushed.clear()
            node.cached = bytearray(node.durable)
            node.cold_below = len(node.cached)
        return f"{dropped} writes dropped"

    def find(self, path: str) -> Entry | None:
        entry: Entry = self.root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(entry, Directory) or name not in entry.names:
                return None
            entry = entry.names[name]
        return entry

    def parent(self, path: str) -> tuple[Directory, str]:
        head, _, name = path.rstrip("/").rpartition("/")
        directory = self.find(head)
        if not isinstance(directory, Directory) or not name:
            raise FileNotFoundError(errno.ENOENT, path)
        return directory, name


def set_name(names: dict[str, Entry], name: str, entry: Entry | None) -> None:
    if entry is None:
        names.pop(name, None)
    else:
        names[name] = entry


def walk_directories(directory: Directory) -> Iterator[Directory]:
    """Those reachable by durable names, from the top: where a power loss leaves one."""
    yield directory
    for entry in list(directory.durable.values()):
        if isinstance(entry, Directory):
            yield from walk_directories(entry)


def walk_files(directory: Directory) -> Iterator[FileNode]:
    for entry in directory.names.values():
        if isinstance(entry, Directory):
            yield from walk_files(entry)
        else:
            yield entry


def named_files(directory: Directory, path: str = "") -> Iterator[tuple[str, FileNode]]:
    for name, entry in directory.names.items():
        if isinstance(entry, Directory):
            yield from named_files(entry, f"{path}{name}/")
        else:
            yield path + name, entry


class SimFile:
    __slots__ = ("_closed", "_place", "device", "loop", "node")

    def __init__(self, device: Device, loop: SimLoop, node: FileNode, place: tuple[Directory, str, str]) -> None:
        self.device, self.loop, self.node, self._place = device, loop, node, place
        self._closed = False

    def _check_open(self) -> None:
        self.loop.check_alive()
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def pread(self, size: int, position: int) -> bytes:
        self._check_open()
        self.device.read(self.loop, self.node, position)
        return bytes(memoryview(self.node.cached)[position : position + size])

    def pread_into(self, view: memoryview, position: int) -> int:
        data = self.pread(len(view), position)
        view[: len(data)] = data
        return len(data)

    def pread_now(self, size: int, position: int) -> bytes | None:
        return self.pread(size, position) if self.in_memory(size, position) >= size else None

    def in_memory(self, size: int, position: int) -> int:
        self._check_open()
        self.device.evict(self.node)
        return size if position >= self.node.cold_below else 0

    def pwrite(self, data: Buffer, position: int) -> int:
        self._check_open()
        self.device.operate(self.loop, grows=position + len(data) > len(self.node.cached))
        self.device.note_change(self.loop, *self._place)
        self.node.write(position, bytes(data))
        return len(data)

    def truncate(self, size: int) -> None:
        self._check_open()
        self.device.operate(self.loop)
        self.device.note_change(self.loop, *self._place)
        self.node.write(size, None)

    def size(self) -> int:
        self._check_open()
        return len(self.node.cached)

    def identity(self) -> FileIdentity:
        self._check_open()
        node = self.node
        return FileIdentity(0, node.number, len(node.cached), node.changes, node.changes, SETTLED_NS)

    def fsync(self) -> None:
        self._check_open()
        self.device.operate(self.loop, sync=True)
        self.node.flush()

    def close(self) -> None:
        self.loop.check_alive()
        self._closed = True


class SimDisk:
    def __init__(self, device: Device, loop: SimLoop) -> None:
        self._device, self._loop = device, loop

    def open(self, path: str, *, create: bool = False) -> File:
        self._loop.check_alive()
        directory, name = self._device.parent(path)
        node = directory.names.get(name)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, path)
        if node is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, path)
            self._device.operate(self._loop, grows=True)
            node = self._device.new_file()
            self._device.note_change(self._loop, directory, name, path)
            self._device.change((directory, name, node))
        return SimFile(self._device, self._loop, node, (directory, name, path))

    def cache_identity(self) -> str:
        return str(self._device.power_losses)

    def exists(self, path: str) -> bool:
        self._loop.check_alive()
        return self._device.find(path) is not None

    def list(self, directory: str) -> list[str]:
        return sorted(self._directory(directory).names)

    def _directory(self, path: str) -> Directory:
        self._loop.check_alive()
        entry = self._device.find(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, path)
        if not isinstance(entry, Directory):
            raise NotADirectoryError(errno.ENOTDIR, path)
        return entry

    def file_size(self, path: str) -> int:
        self._loop.check_alive()
        entry = self._device.find(path)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, path)
        return len(entry.cached) if isinstance(entry, FileNode) else 4096

    def make_directory(self, path: str) -> None:
        self._loop.check_alive()
        entry: Entry = self._device.root
        for name in path.split("/"):
            if name in ("", "."):
                continue
            if not isinstance(entry, Directory):
                raise NotADirectoryError(errno.ENOTDIR, path)
            if name not in entry.names:
                self._device.operate(self._loop, grows=True)
                self._device.change((entry, name, Directory()))
            entry = entry.names[name]

    def rename(self, source: str, target: str) -> None:
        self._loop.check_alive()
        from_directory, from_name = self._device.parent(source)
        to_directory, to_name = self._device.parent(target)
        entry = from_directory.names.get(from_name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, source)
        there = to_directory.names.get(to_name)
        if isinstance(there, Directory) and there.names:
            raise OSError(errno.ENOTEMPTY, target)
        self._device.operate(self._loop)
        if isinstance(entry, FileNode):
            self._device.note_change(self._loop, from_directory, from_name, source)
            self._device.note_change(self._loop, to_directory, to_name, target)
        if entry is not there:
            self._device.change((from_directory, from_name, None), (to_directory, to_name, entry))

    def remove(self, path: str) -> None:
        self._loop.check_alive()
        directory, name = self._device.parent(path)
        entry = directory.names.get(name)
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, path)
        if isinstance(entry, Directory):
            raise IsADirectoryError(errno.EISDIR, path)
        self._device.operate(self._loop)
        self._device.note_change(self._loop, directory, name, path)
        self._device.change((directory, name, None))

    def remove_tree(self, path: str) -> None:
        directory = self._directory(path)
        for name in sorted(directory.names):  # one change each: death may come half way
            if isinstance(directory.names[name], Directory):
                self.remove_tree(f"{path}/{name}")
            else:
                self.remove(f"{path}/{name}")
        self._device.operate(self._loop)
        parent, name = self._device.parent(path)
        self._device.change((parent, name, None))

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        self._device.operate(self._loop, sync=True)
        self._device.persist_directory(directory)

    def free_bytes(self) -> int:
        self._loop.check_alive()
        return 0 if self._device.full else FREE_BYTES

    def size_bytes(self) -> int:
        return 2 * FREE_BYTES
