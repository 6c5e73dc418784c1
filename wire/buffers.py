"""Receive buffers that connections borrow, and a node's budgets for request and reply bytes."""

from __future__ import annotations

from typing import Protocol

from common.node_settings.connections import ConnectionSettings
from wire.traffic import Traffic

BUFFER_BYTES = 256 << 10
LONG_BYTES = 8 << 20  # a buffer of this length or more grows by so much, in place
_GROWTH = bytes(LONG_BYTES)
KEPT_BYTES_MAX = 32 << 20
_DEFAULTS = ConnectionSettings()


class Holder(Protocol):
    def resume_receiving(self) -> None: ...


class BufferPool:
    """Receive buffers by size class, the last used first, and the count of held bytes.

    Held are partly received frames and requests in progress (see `Connection.reply_later`). Over the limit, holders of
    partial frames wait in a queue. Only its head continues, so that two partial frames never wait for each other: the
    limit is exceeded by at most one frame (and by requests in progress).
    """

    def __init__(
        self,
        held_bytes_max: int = _DEFAULTS.queued_max_request_bytes,
        unsent_bytes_max: int = _DEFAULTS.reply_bytes_max,
        kept_bytes_max: int = KEPT_BYTES_MAX,
    ) -> None:
        self._free: dict[int, list[bytearray]] = {}
        self._kept = 0
        self._kept_bytes_max = kept_bytes_max
        self._held_bytes_max = held_bytes_max
        self._unsent_bytes_max = unsent_bytes_max
        self._line: dict[Holder, None] = {}
        self._head: Holder | None = None
        self.held = 0
        self.is_full = False  # held request bytes are over the limit; read for each frame
        self.unsent = 0  # reply bytes in memory that no socket has taken yet
        self.moved = 0  # bytes received and sent since the node began
        self.uncounted = Traffic()  # of the connections that count nowhere else

    @property
    def is_backed_up(self) -> bool:
        """Unsent reply bytes are over the limit."""
        return self.unsent > self._unsent_bytes_max

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes, with arbitrary old content."""
        size = BUFFER_BYTES if size <= BUFFER_BYTES else 1 << (size - 1).bit_length()
        free = self._free.get(size)
        if not free:
            return bytearray(size)
        self._kept -= size
        return free.pop()

    @staticmethod
    def grow(buffer: bytearray, size: int) -> bool:
        """Grow a long buffer in place, towards `size`; False when that is impossible.

        Doubling it would hold the loop for tens of milliseconds, to clear the new memory and copy the old.
        """
        if len(buffer) < LONG_BYTES:
            return False
        try:
            buffer += _GROWTH[: size - len(buffer)] if size - len(buffer) < LONG_BYTES else _GROWTH
        except BufferError:  # a view of it is alive
            return False
        return True

    def give(self, buffer: bytearray) -> None:
        """Return a buffer. The caller keeps no view of it."""
        size = len(buffer)
        if size & (size - 1):
            return  # it grew in place and fits no size class
        if self._kept + size <= self._kept_bytes_max:
            self._kept += size
            self._free.setdefault(size, []).append(buffer)

    def hold(self, count: int) -> None:
        """Count `count` more bytes as held; negative when they are released."""
        self.held += count
        self.is_full = self.held > self._held_bytes_max
        if count < 0:
            self._admit()

    def may_go_on(self, holder: Holder) -> bool:
        """Whether the holder of a partial frame may receive more. If not, it is queued and will be resumed."""
        if not self.is_full:
            self._admit()
            return True
        if self._head is None:
            self._head = holder
        if holder is self._head:
            return True
        self._line[holder] = None
        return False

    def leave(self, holder: Holder) -> None:
        """Remove a holder whose frame is complete or whose connection has ended."""
        self._line.pop(holder, None)
        if holder is self._head:
            self._head = None
        self._admit()

    def _admit(self) -> None:
        """Resume the first in the queue; its next step admits the second if there is room."""
        if self._line and (not self.is_full or self._head is None):
            holder = next(iter(self._line))
            del self._line[holder]
            if self.is_full:
                self._head = holder
            holder.resume_receiving()
