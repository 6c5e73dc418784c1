"""All that the product sees of the outside world: network, disk, clocks and chance, as small protocols.

`common.machine` implements them over the real machine, the simulator over virtual time. Product code gets a
`Ports` value through its constructors and imports no `socket`, `time`, `random`, `os.urandom` or `open` itself.

Rules: callbacks of a socket never run inside a call on that socket; `File.fsync`, `Disk.sync_directory`, `Disk.open` of
many files, and reads of what `File.in_memory` does not find there belong in `asyncio.to_thread`, everything else here
may run on the event loop.
Timers and sleeps come from the running event loop, whose time the simulator owns.
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

        Raises BlockingIOError when nothing is there, OSError when the connection is broken.
        """
        ...

    def send(self, data: Buffer, more: bool = False) -> int:
        """Bytes taken, at least 1. `more` says that further bytes follow at once (MSG_MORE).

        Raises BlockingIOError when the send buffer is full, OSError when the connection is broken. What was given and
        not taken must come first in the next call: over TLS a part of it may be under way already.
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
        """Close in order; unsent bytes that the kernel holds still leave. Idempotent."""
        ...

    def abort(self) -> None:
        """Close at once with a reset. Idempotent."""
        ...

    def secure(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> SecureSocket:
        """TLS over this connection, which is the returned socket's from here on.

        Nothing may have been received beyond what was asked for; the callbacks are none until they are set again.
        """
        ...


class Wants(Enum):
    """What a handshake waits for."""

    NOTHING = "nothing"
    READ = "read"
    WRITE = "write"


class SecureSocket(Socket, Protocol):
    """A connection with TLS. Use it for bytes only once `handshake` has wanted nothing."""

    def handshake(self) -> Wants:
        """Go on with the handshake. Raises OSError (an ssl.SSLError) when it has failed; the peer was told why."""
        ...

    @property
    def server_name(self) -> str | None:
        """What the client's hello asked for, as it stood there; None without it, and on the client's side."""
        ...

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The verified certificate of the peer as `ssl.SSLSocket.getpeercert` tells it; None when it showed none."""
        ...

    @property
    def cipher(self) -> tuple[str, str]:
        """The suite and the protocol version that were agreed on."""
        ...


class Listener(Protocol):
    @property
    def address(self) -> Address:
        """The bound address; a port of 0 has become a real one."""
        ...

    def pause(self) -> None:
        """Accept nothing until `resume`; who connects waits in the system's queue, as far as it goes. Idempotent."""
        ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


class Network(Protocol):
    def listen(self, address: Address, accepted: Callable[[Socket], None]) -> Listener:
        """Raises OSError when the address cannot be bound."""
        ...

    async def connect(self, address: Address) -> Socket:
        """Raises OSError when refused or unreachable. Give it a timeout: a cut network never answers."""
        ...


@dataclass(slots=True)
class FileIdentity:
    """Equal as long as an open file is the same and nobody changed it: its bytes, its length, its names or its owner.

    Times are nanoseconds since the Unix epoch. `age_ns`, of the last change, does not count; while it is less than
    the system's tick another change may leave no trace.
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
        """Bytes read into `view`, as many as it takes; fewer where the file ends."""
        ...

    def pread_now(self, size: int, position: int) -> bytes | None:
        """As `pread`, without waiting for the device; None where that might be, or the file ends."""
        ...

    def in_memory(self, size: int, position: int) -> int:
        """How many of `size` bytes from `position` on can be read without waiting for the device, as far as samples
        tell; all of them where the system does not say. Bytes behind the end count as there."""
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
        """A directory with all that is in it."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names in `path` durable. Blocks for the device."""
        ...

    def free_bytes(self) -> int: ...

    def cache_identity(self) -> str:
        """The same for as long as nothing that was written can have been lost for want of an fsync; "" when unknown.

        A killed process leaves the page cache behind, a restart of the machine does not.
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


@dataclass(frozen=True, slots=True)
class Ports:
    """The world of one node."""

    network: Network
    disk: Disk
    clock: Clock
    random: random.Random
    cpu_s: Callable[[], float] = _uncounted
    """Seconds of a processor's time that this process has used; it stands still where nobody counts them."""
    displaced: Callable[[], int] = _never
    """How often the kernel has taken the processor from this thread to give it to others."""
