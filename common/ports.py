"""The outside world as small protocols: network, disk, clocks and randomness.

`common.machine` implements them over the real machine, the simulator over virtual time. Product code gets a
`Ports` value through its constructors and imports no `socket`, `time`, `random`, `os.urandom` or `open` itself.

A socket's callbacks never run inside a call on that socket. `File.fsync`, `Disk.sync_directory`, `Disk.open` of many
files, and reads of bytes that are not `File.in_memory` belong in `asyncio.to_thread`; everything else may run on the
event loop. Timers and sleeps come from the running event loop, whose time the simulator owns.
"""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

Address = tuple[str, int]
Buffer = bytes | bytearray | memoryview


class Socket(Protocol):
    """One non-blocking TCP connection. Readiness is level-triggered, as with `loop.add_reader`."""

    @property
    def peer(self) -> Address: ...

    def recv_into(self, view: memoryview) -> int:
        """Bytes received into `view`; 0 at the end of the stream.

        Raises BlockingIOError when nothing has arrived, OSError when the connection is broken.
        """
        ...

    def send(self, data: Buffer, more: bool = False) -> int:
        """Bytes taken, at least 1. `more`: further bytes follow at once (MSG_MORE).

        Raises BlockingIOError when the send buffer is full, OSError when the connection is broken. Bytes that were not
        taken must come first in the next call, because over TLS a part of them may be under way already.
        """
        ...

    def sendfile(self, file: File, position: int, length: int) -> int:
        """As `send`, straight from `file`; 0 when the file ends before `position`."""
        ...

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        """Call back while bytes, the end of the stream or an error can be read; None stops it."""
        ...

    def on_writable(self, callback: Callable[[], None] | None) -> None: ...

    def close(self) -> None:
        """Close gracefully; bytes in the kernel's send buffer are still sent. Idempotent."""
        ...

    def abort(self) -> None:
        """Close at once with a reset. Idempotent."""
        ...

    def secure(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> SecureSocket:
        """TLS over this connection, which the returned socket owns from here on. Callbacks have to be set again."""
        ...


class Wants(Enum):
    """The readiness that a handshake waits for."""

    NOTHING = "nothing"
    READ = "read"
    WRITE = "write"


class SecureSocket(Socket, Protocol):
    """A connection with TLS, usable for bytes once `handshake` has returned NOTHING."""

    def handshake(self) -> Wants:
        """Continue the handshake. Raises OSError (an ssl.SSLError) when it has failed; the peer has got an alert."""
        ...

    @property
    def server_name(self) -> str | None:
        """The server name in the client's hello; None without one, and on the client's side."""
        ...

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The peer's verified certificate in the form of `ssl.SSLSocket.getpeercert`; None without one."""
        ...

    @property
    def cipher(self) -> tuple[str, str]:
        """The negotiated suite and protocol version."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """The bound address; a port of 0 has become a real one."""
        ...

    def pause(self) -> None:
        """Accept nothing until `resume`; clients wait in the kernel's backlog. Idempotent."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class Network(Protocol):
    def listen(self, address: Address, accepted: Callable[[Socket], None]) -> Listener:
        """Raises OSError when the address cannot be bound."""
        ...

    async def connect(self, address: Address) -> Socket:
        """Raises OSError when refused or unreachable. Needs a timeout, because a cut network never answers."""
        ...


@dataclass(slots=True)
class FileIdentity:
    """Equal while an open file is the same and unchanged in bytes, length, names and owner.

    Times are nanoseconds since the epoch. `age_ns`, of the last change, is not compared; while it is less than the
    system's tick, another change may leave no trace.
    """

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    age_ns: int = field(compare=False)


class File(Protocol):
    """An open file, read and written by position."""

    def pread(self, size: int, position: int) -> bytes: ...

    def pread_into(self, view: memoryview, position: int) -> int:
        """Fill `view`; returns the bytes read, fewer where the file ends."""
        ...

    def pread_now(self, size: int, position: int) -> bytes | None:
        """As `pread`, but None where it might wait for the device or the file ends."""
        ...

    def in_memory(self, size: int, position: int) -> int:
        """How many of `size` bytes from `position` on can be read without waiting for the device, by samples; all where
        the system does not report it. Bytes beyond the end count as present."""
        ...

    def pwrite(self, data: Buffer, position: int) -> int:
        """Bytes written, possibly fewer than given. Raises OSError (ENOSPC, EIO)."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def identity(self) -> FileIdentity: ...

    def fsync(self) -> None:
        """Blocks for the device: never on the event loop."""
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """A file system below one root; paths are relative, with `/` between names."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Raises FileNotFoundError unless the file exists or `create` is set."""
        ...

    def exists(self, path: str) -> bool: ...

    def list(self, directory: str) -> list[str]:
        """Names in `directory`, sorted; raises FileNotFoundError when there is no such directory."""
        ...

    def file_size(self, path: str) -> int: ...

    def make_directory(self, path: str) -> None:
        """With its parents; no error when it exists."""
        ...

    def rename(self, source: str, target: str) -> None:
        """A file or a directory, atomically."""
        ...

    def remove(self, path: str) -> None:
        """One file."""
        ...

    def remove_tree(self, path: str) -> None:
        """A directory with its contents."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in `path` durable. Blocks for the device."""
        ...

    def free_bytes(self) -> int: ...

    def size_bytes(self) -> int:
        """Of the whole device, without what is reserved for others: as `df` counts it."""
        ...

    def cache_identity(self) -> str:
        """A value that is unchanged while no unsynced write can have been lost; "" when unknown.

        The page cache survives a killed process, but no restart of the machine.
        """
        ...


class Clock(Protocol):
    def monotonic(self) -> float:
        """Seconds, for durations; the same time base as the event loop's `time()`."""
        ...

    def wall_ms(self) -> int:
        """Milliseconds since the Unix epoch, for records and retention only."""
        ...


def _uncounted() -> float:
    return 0.0


def _never() -> int:
    return 0


def _without_others() -> None:
    return


@dataclass(frozen=True, slots=True)
class Ports:
    """The world of one node."""

    network: Network
    disk: Disk
    clock: Clock
    random: random.Random
    cpu_s: Callable[[], float] = _uncounted
    """Seconds of CPU time that this process has used; constant where it is not counted."""
    thread_cpu_s: Callable[[], float] = _uncounted
    """Likewise of the calling thread."""
    displaced: Callable[[], int] = _never
    """How often the kernel preempted this thread."""
    offer: Callable[[], None] = _without_others
    """Lets other processes run first that wait for this thread's processor."""
