"""Connections: bytes in and out, frames, replies in order. Knows nothing about any API.

Receive: a buffer is borrowed when bytes are there and given back before the loop turns, so idle connections own no
memory. A frame is handled where it lies, synchronously; whoever needs its bytes later must copy them.
Send: everything that one turn of the loop produced for a connection leaves in one call at the turn's end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from common.ports import Address, Socket
from wire.buffers import BufferPool
from wire.listeners import ListenerConfig
from wire.outgoing import Part
from wire.tick import Tick
from wire.watch import Watch

# (connection, buffer, view of it, start of the frame's payload, its end). Raise MalformedFrame to have it closed.
FrameHandler = Callable[["Connection", bytearray, memoryview, int, int], None]
ClosedHandler = Callable[["Connection"], None]
ViolationHandler = Callable[["Connection", str], None]


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of one connection; bytes and seconds. The settings that set them stand beside."""

    frame_bytes_max: int = 100 << 20  # socket.request.max.bytes
    replies_pending_max: int = 128  # tidelog.connection.requests.in.flight.max
    held_bytes_max: int = 32 << 20  # tidelog.connection.request.bytes.max
    unsent_bytes_max: int = 16 << 20  # tidelog.connection.reply.bytes.max
    stall_s: float = 30.0  # tidelog.connection.stall.ms
    idle_s: float = 600.0  # connections.max.idle.ms; 0 for never


class Reply:
    """The place of one answer in its connection's order. Answer it once: `send`, or `skip` for acks=0."""

    __slots__ = ()

    def send(self, parts: list[Part]) -> None:
        """The answer, a whole frame; after the connection has closed its regions are released and nothing is sent."""
        raise NotImplementedError

    def skip(self) -> None:
        """This request gets no answer."""
        raise NotImplementedError


class Connection:
    """One connection, of a server or a client.

    `closed` is called exactly once, after the socket is closed, never within the constructor. `violated` is called
    before it with a reason when the peer broke a rule (log it: one line); plain ends and resets are silent.
    `state` belongs to the handler's owner (a session, a principal). `listener` is None on a client's side.
    """

    def __init__(
        self,
        socket: Socket,
        tick: Tick,
        pool: BufferPool,
        watch: Watch,
        handler: FrameHandler,
        closed: ClosedHandler,
        violated: ViolationHandler,
        limits: ConnectionLimits,
        listener: ListenerConfig | None = None,
    ) -> None:
        self.listener = listener
        self.peer: Address = socket.peer
        self.state: object = None
        self.frame_bytes_max = limits.frame_bytes_max

    @property
    def is_closed(self) -> bool:
        raise NotImplementedError

    def reply(self, parts: list[Part]) -> None:
        """Answer the current request at once, behind whatever still waits."""
        raise NotImplementedError

    def reply_later(self, held_bytes: int = 0) -> Reply:
        """Answer the current request later; the next requests are read meanwhile.

        `held_bytes` counts against the bounds of this connection and of all until the answer: give the frame's
        length when its decoded form is kept (a handler that awaits), 0 when only a small record of it is.
        """
        raise NotImplementedError

    def send(self, parts: list[Part]) -> None:
        """Queue bytes that are no reply (a client's requests); they leave at the end of this turn."""
        raise NotImplementedError

    def mute(self) -> None:
        """Handle no further frame until `unmute`; calls nest."""
        raise NotImplementedError

    def unmute(self) -> None:
        raise NotImplementedError

    def mute_for(self, delay_s: float) -> None:
        """Mute now and unmute after `delay_s` (throttling: reply first, then this)."""
        raise NotImplementedError

    def close(self, reason: str | None = None) -> None:
        """Close at once; unsent replies are dropped, their regions released. A `reason` counts as a violation."""
        raise NotImplementedError

    def close_after_flush(self) -> None:
        """Read no more, and close once all that was sent has left (or the stall limit is over)."""
        raise NotImplementedError
