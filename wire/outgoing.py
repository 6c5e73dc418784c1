"""A connection's send queue: bytes and regions of files in order, sent with one call per turn if the socket takes all.

Regions up to `PREAD_BYTES_MAX` are read and sent with the bytes around them; longer ones use sendfile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from common.invariants import check
from common.ports import Buffer, File, Socket

PREAD_BYTES_MAX = 64 << 10
GATHER_BYTES_MAX = 256 << 10
_BYTES = (bytes, bytearray, memoryview)
LOOK_BYTES_MAX = 1 << 20  # how far ahead a region is checked for being in memory


class FileRegion(Protocol):
    """A range of one file. Optional methods:

    `release()`: called once, when it is sent or given up. `in_memory(at, size)`: how many of `size` bytes from `at` on
    can be sent without waiting for a device. `bring_in(at)`: load more of them into memory. `is_intact()`: checked
    before any byte is sent. `cut_short()`: called when the bytes cannot be read; returns the file's name.
    """

    @property
    def file(self) -> File: ...

    @property
    def position(self) -> int: ...

    @property
    def length(self) -> int: ...


Part = bytes | bytearray | FileRegion


class Replies(Protocol):
    """A connection's replies, in the order of its requests."""

    def answered(self, reply: Reply) -> None:
        """The reply's parts are there."""
        ...


class Reply:
    """The place of one answer in its connection's order. Answer it once."""

    __slots__ = ("_replies", "held", "parts")

    def __init__(self, replies: Replies, held: int) -> None:
        self._replies = replies
        self.held = held
        self.parts: list[Part] | None = None

    def send(self, parts: list[Part]) -> None:
        """Send the answer: a whole frame, or no part if none is due (acks=0). If the connection has closed, regions are
        released and nothing is sent."""
        check(self.parts is None, "a request is answered once")
        self.parts = parts
        self._replies.answered(self)

    def drop(self) -> None:
        """Release the regions of an answer that is not sent."""
        for part in self.parts or ():
            release(part)


class BytesWanted(Protocol):
    """A load of a region's bytes into memory, under way."""

    def call(self, owner: object, callback: Callable[[], None]) -> None:
        """Call back once, when they are loaded."""
        ...


class RegionCutShort(Exception):
    """A file could not be read to its region's end, so its frame cannot be completed."""


def release(part: object) -> None:
    """Release a region, which is not read again."""
    method = getattr(part, "release", None)
    if method is not None and not isinstance(part, _BYTES):
        method()


def _cut_short(region: FileRegion, reason: str) -> RegionCutShort:
    method = getattr(region, "cut_short", None)
    return RegionCutShort(reason if method is None else f"{method()}: {reason}")


def _check_intact(region: FileRegion) -> None:
    method = getattr(region, "is_intact", None)
    if method is not None and not method():
        raise _cut_short(region, "it was altered")


def _read(region: FileRegion) -> bytes:
    _check_intact(region)
    try:
        data = region.file.pread(region.length, region.position)
    except OSError as error:  # the disk's, not the socket's
        raise _cut_short(region, str(error)) from error
    if len(data) != region.length:
        raise _cut_short(region, f"{len(data)} of {region.length} bytes")
    return data


def _ready(region: FileRegion, at: int, size: int) -> int:
    """How many of `size` bytes from `at` on may be sent on the loop."""
    method = getattr(region, "in_memory", None)
    return size if method is None else method(at, size)


class SendQueue:
    """Parts that wait for the socket. `size`: all their bytes. `memory`: the bytes that are not in files. `regions`:
    the number of file regions. `wanted`: after an incomplete write the load that the first part waits for, None when
    it waits for the socket.

    A reply's parts are counted when the reply is built, not when they are added to `parts`: an earlier request's reply
    may still be pending.
    """

    __slots__ = ("_region_ready", "_region_sent", "memory", "parts", "regions", "size", "wanted")

    def __init__(self) -> None:
        self.parts: deque[Buffer | FileRegion] = deque()
        self._region_sent = 0  # sent bytes of the first part, if that is a region
        self._region_ready = 0  # its end of the bytes found in memory
        self.size = 0
        self.memory = 0
        self.regions = 0
        self.wanted: BytesWanted | None = None

    def count(self, parts: list[Part]) -> None:
        """Add to `size`, `memory` and `regions`."""
        for part in parts:
            if isinstance(part, _BYTES):
                length = len(part)
                self.memory += length
            else:
                length = part.length
                self.regions += 1
            self.size += length

    def write(self, socket: Socket) -> bool:
        """Send until all is sent (True), or until the socket is full or bytes are `wanted` (False).

        Raises OSError, RegionCutShort.
        """
        parts = self.parts
        self.wanted = None
        try:
            while parts:
                first = parts[0]
                if not isinstance(first, _BYTES):
                    if first.length > PREAD_BYTES_MAX:
                        if not self._send_region(socket, first):
                            return False
                        continue
                    if self._is_wanted(first, 0, first.length):
                        return False
                if not self._send_gathered(socket):
                    return False
        except BlockingIOError:
            return False
        return True

    def _is_wanted(self, region: FileRegion, at: int, size: int) -> bool:
        """Whether the region's bytes from `at` on have to be brought into memory first."""
        if _ready(region, at, size) >= size:
            return False
        self.wanted = region.bring_in(at)  # type: ignore[attr-defined]  # it belongs to `in_memory`
        return self.wanted is not None

    def _send_region(self, socket: Socket, region: FileRegion) -> bool:
        """Whether all of it is sent."""
        _check_intact(region)
        while (left := region.length - self._region_sent) > 0:
            if self._region_ready <= self._region_sent:
                ready = _ready(region, self._region_sent, min(left, LOOK_BYTES_MAX))
                if not ready and self._is_wanted(region, self._region_sent, 1):
                    return False
                self._region_ready = self._region_sent + (ready or min(left, LOOK_BYTES_MAX))
            ready = self._region_ready - self._region_sent
            sent = socket.sendfile(region.file, region.position + self._region_sent, ready)
            if not sent:
                raise _cut_short(region, f"{self._region_sent} of {region.length} bytes")
            self._region_sent += sent
            self.size -= sent
        self.parts.popleft()
        self._region_sent = self._region_ready = 0
        self.regions -= 1
        release(region)
        return True

    def _send_gathered(self, socket: Socket) -> bool:
        """One send of the bytes and short regions at the front; False when the socket took less."""
        data, more = self._gather()
        try:
            sent = socket.send(data, more) if len(data) else 0
        except BlockingIOError:
            sent = 0
        self.size -= sent
        self.memory -= sent
        if sent == len(data):
            return True
        self.parts.appendleft(memoryview(data)[sent:])
        return False

    def _gather(self) -> tuple[Buffer, bool]:
        """The front of the queue as one buffer, and whether a long region follows it at once.

        A gathered region becomes memory: bytes that the socket does not take stay queued as bytes.
        """
        parts = self.parts
        if len(parts) == 1 and isinstance(only := parts[0], _BYTES):
            parts.popleft()
            return only, False
        gathered: list[Buffer] = []
        size = 0
        more = False
        while parts and size < GATHER_BYTES_MAX:
            part = parts[0]
            if isinstance(part, _BYTES):
                gathered.append(part)
                size += len(part)
            elif part.length > PREAD_BYTES_MAX or (gathered and _ready(part, 0, part.length) < part.length):
                more = True
                break
            else:
                data = _read(part)
                self.memory += len(data)
                gathered.append(data)
                size += len(data)
                self.regions -= 1
                release(part)
            parts.popleft()
        if len(gathered) == 1:
            return gathered[0], more
        return b"".join(gathered), more

    def discard(self) -> None:
        """Drop everything, regions released."""
        while self.parts:
            release(self.parts.popleft())
        self._region_sent = self._region_ready = self.size = self.memory = self.regions = 0
