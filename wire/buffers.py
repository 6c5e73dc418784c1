"""Receive buffers that connections borrow, and the budget for all bytes of requests that a node holds."""

from __future__ import annotations

from collections.abc import Callable

BUFFER_BYTES = 256 << 10
KEPT_BYTES_MAX = 32 << 20
HELD_BYTES_MAX = 256 << 20  # queued.max.request.bytes


class BufferPool:
    """Receive buffers by size class, the one used last handed out first, and the count of held request bytes.

    Held are: frames that are half received and requests whose handlers still work (see `Connection.reply_later`).
    Once `held_bytes_max` is reached, connections that want more wait in a line; its head alone may go over the
    limit, by one frame, so that two half-received frames can never wait for each other.
    """

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX, kept_bytes_max: int = KEPT_BYTES_MAX) -> None: ...

    def take(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes; what is in it is anyone's old data."""
        raise NotImplementedError

    def give(self, buffer: bytearray) -> None:
        """Return a buffer. The caller keeps no view of it."""
        raise NotImplementedError

    def hold(self, count: int) -> None:
        """Count `count` bytes as held (negative: free them) and let waiters on that now fit."""
        raise NotImplementedError

    def wait(self, resume: Callable[[], None]) -> None:
        """Call `resume` once there is room again, in order of asking."""
        raise NotImplementedError
