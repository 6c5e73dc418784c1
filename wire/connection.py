"""Connections: bytes in and out, frames, replies in order. Knows nothing about any API.

Receive: a buffer is borrowed when bytes arrive and returned before the turn of the loop ends, so idle connections own
no memory, and a busy loop reuses one cache-warm buffer. A frame is handled in place, synchronously; a handler that
needs its bytes later must copy them. Only a long partial frame keeps its buffer; a short one is copied.
Send: all bytes that one turn of the loop produced for a connection are sent in one call at the turn's end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from struct import Struct

from common.errors import MalformedFrame
from common.invariants import InvariantViolation, check
from common.node_settings.connections import ConnectionSettings
from common.ports import Address, Socket
from wire import pauses
from wire.buffers import BUFFER_BYTES, BufferPool
from wire.identity import PeerIdentity
from wire.listeners import ListenerConfig
from wire.outgoing import Part, RegionCutShort, Reply, SendQueue, release
from wire.silence import Overdue, Quiet
from wire.tick import Tick
from wire.traffic import Traffic
from wire.watch import Watch

RECEIVES_PER_TURN_MAX = 4
TURN_S = 0.005  # frames of one connection hold the loop for about this long, then others come first
SET_ASIDE_BYTES_MAX = 64 << 10
SCARCE_RECEIVE_BYTES = 16 << 10  # per receive while the node's budget is used up
FIRST_GROWTH_BYTES = 2 << 20
FAIR_UNSENT_BYTES = 64 << 10  # each connection may have this much unsent even when the node is over its limit

_LENGTH = Struct(">I")

# (connection, buffer, view of it, start of the frame's payload, its end). MalformedFrame closes the connection.
FrameHandler = Callable[["Connection", bytearray, memoryview, int, int], None]
ClosedHandler = Callable[["Connection"], None]
ViolationHandler = Callable[["Connection", str], None]


class Connection:
    """One connection, of a server or a client.

    `closed` is called exactly once, after the socket is closed, never within the constructor. Before it, `violated` is
    called with a reason for the log when the peer broke the protocol, but not for plain ends and resets. `state`
    belongs to the handler's owner (a session, a principal). `listener` and `identity` are None on a client's side.
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
        limits: ConnectionSettings,
        listener: ListenerConfig | None = None,
        identity: PeerIdentity | None = None,
    ) -> None:
        self.listener = listener
        self.identity = identity
        self.peer: Address = socket.peer
        self.state: object = None
        self.handler = handler
        self.frame_bytes_max = limits.frame_bytes_max
        self.is_closed = False
        self._socket = socket
        self._tick, self._meter = tick, tick.meter
        self._pool, self._traffic = pool, pool.uncounted
        self._served: Callable[[float], None] | None = None
        self._watch = watch
        self._on_closed = closed
        self._on_violation = violated
        self._limits = limits
        self._loop = asyncio.get_running_loop()
        self._buffer: bytearray | None = None
        self._view = memoryview(b"")
        self._start = self._end = self._until = 0  # the last one: the end of the next receive in the buffer
        self._aside = b""  # received bytes without a buffer of their own
        self._frame_bytes_last = BUFFER_BYTES
        self._completed = False  # a frame, since the buffer was last settled
        self._held_receiving = self._held_by_handlers = 0
        self._pending: deque[Reply] = deque()
        self._out = SendQueue()
        self._unsent_counted = 0  # the part of `_out.memory` that the pool counts
        self._bounded_from = min(FAIR_UNSENT_BYTES, limits.unsent_bytes_max)
        self._mutes = self._paused = 0  # the second: bits of `wire.pauses`
        self._working = False  # within a handler's call
        self._writing = self._going_on = self._keeps_buffer = False
        self._active = self._progressed = watch.now
        socket.on_readable(self._readable)
        if limits.idle_s:
            watch.at(watch.now + limits.idle_s, self)

    def belong_to(self, state: object) -> None:
        """Set `state` for the owner."""
        self.state = state

    def count_in(self, traffic: Traffic) -> None:
        """From now on received and sent bytes count in `traffic`."""
        self._traffic = traffic

    def tell_of_frames(self, served: Callable[[float], None]) -> None:
        """From now on call `served` after each frame with the seconds that it held the loop, which the meter knows."""
        self._served = served

    def hand_to(self, handler: FrameHandler, frame_bytes_max: int) -> None:
        """Pass whole frames of at most `frame_bytes_max` bytes to `handler` from now on."""
        self.handler = handler
        self.frame_bytes_max = frame_bytes_max

    # receiving -----------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        if self._buffer is None:
            self._borrow()
        if not self._meter.is_open:  # else what has passed since the last job is this one's: its bytes are received
            self._meter.begin()
        self._work(self._receive)

    def _receive(self) -> None:
        for _ in range(RECEIVES_PER_TURN_MAX):
            space = self._until - self._end
            try:
                received = self._socket.recv_into(self._view[self._end : self._until])
            except BlockingIOError:
                return
            except OSError:
                self.close()
                return
            if not received:
                self.close()
                return
            self._end += received
            self._pool.moved += received
            self._traffic.received += received
            self._frames()
            if received < space or self._paused or self.is_closed or self._end == self._until or self._pool.is_full:
                return

    def _work(self, step: Callable[[], None]) -> None:
        """Run a step that handles frames, then settle the buffer whatever its outcome."""
        self._active = self._watch.now
        self._working = True
        try:
            step()
        except MalformedFrame as error:
            self.close(f"malformed frame: {error}")
        except Exception:
            self.close("its request failed")  # without its reply, later ones would be out of order
            raise
        finally:
            self._working = False
            self._settle()
            if not self._tick.is_scheduled:
                self._tick.end_turn()

    def _borrow(self) -> None:
        """Borrow a buffer, with the bytes that were set aside at its start."""
        have = len(self._aside)
        self._buffer = buffer = self._pool.take(max(self._frame_bytes_last, BUFFER_BYTES if not have else 2 * have))
        self._view = memoryview(buffer)
        self._start, self._end = 0, have
        self._until = BUFFER_BYTES if not self._pool.is_full else have + SCARCE_RECEIVE_BYTES
        if have:
            buffer[:have] = self._aside
            self._aside = b""
            if have >= BUFFER_BYTES:  # frames that came before a pause
                self._until = min(len(buffer), have + BUFFER_BYTES)

    def _frames(self) -> None:
        """Handle every whole frame in the buffer, and make room for the rest of a partial one."""
        buffer, start, end = self._buffer, self._start, self._end
        if buffer is None:
            return
        needed = 4
        held_s = 0.0
        while end - start >= 4:
            needed = 4 + _LENGTH.unpack_from(buffer, start)[0]
            if not 4 < needed <= self.frame_bytes_max + 4:  # a negative length reads as a huge one
                raise MalformedFrame(f"length {needed - 4}, limit {self.frame_bytes_max}")
            if end - start < needed:
                break
            self._start = start + needed
            self._completed = True
            self.handler(self, buffer, self._view, start + 4, start + needed)
            own_s = self._meter.job()
            if self._served is not None:
                self._served(own_s)
            start = self._start
            if end > start:  # more has come already
                held_s += own_s
                if held_s > TURN_S:
                    self._pause(pauses.TURN)
                    self._loop.call_soon(self._resume, pauses.TURN)
            if self._paused or self.is_closed:
                return
        if start == end:
            self._frame_bytes_last = needed if needed > 4 else BUFFER_BYTES
            self._start = self._end = 0
            self._until = BUFFER_BYTES
        elif needed <= BUFFER_BYTES or end - start > SET_ASIDE_BYTES_MAX:
            self._make_room(buffer, start, end, needed)

    def _make_room(self, buffer: bytearray, start: int, end: int, needed: int) -> None:
        """Make room for a partial frame, at most twice its received bytes.

        A long frame is received exactly to its end, so that no bytes of the next one have to be moved.
        """
        have = end - start
        wanted = min(needed, max(FIRST_GROWTH_BYTES, 2 * have))
        if wanted > len(buffer):
            self._view = memoryview(b"")
            if start or not self._pool.grow(buffer, needed):
                self._buffer = self._pool.take(wanted)
                self._buffer[:have] = memoryview(buffer)[start:end]
                self._pool.give(buffer)
                start, end = 0, have
            self._view = memoryview(self._buffer or b"")
        elif start + wanted > len(buffer) or start > len(buffer) // 2:
            buffer[:have] = buffer[start:end]
            start, end = 0, have
        self._start, self._end = start, end
        self._until = min(start + needed, len(self._view)) if needed > BUFFER_BYTES else len(self._view)

    def _settle(self) -> None:
        """Return the buffer unless it holds a long partial frame, and count held bytes."""
        buffer = self._buffer
        if buffer is None:
            return
        have = 0 if self.is_closed else self._end - self._start
        if have or self._held_receiving:
            if self._completed and self._pool.is_full:
                self._pool.leave(self)  # only one frame may go beyond the limit
            self._hold_receiving(have)
        self._completed = False
        if have <= SET_ASIDE_BYTES_MAX or self._paused:
            self._aside = bytes(self._view[self._start : self._end]) if have else b""
            self._view = memoryview(b"")
            self._buffer = None
            self._start = self._end = 0
            if self._keeps_buffer:
                self._keeps_buffer = False
            else:
                self._pool.give(buffer)
        else:
            self._pool.hold(len(buffer) - have)
            self._held_receiving = len(buffer)

    def _hold_receiving(self, held: int) -> None:
        self._pool.hold(held - self._held_receiving)
        self._held_receiving = held
        if not held:
            self._pool.leave(self)
        elif not self._pool.may_go_on(self):
            self._pause(pauses.MEMORY)
        elif self._pool.is_full:
            self._watch.at(self._watch.now + self._limits.stall_s, self)

    def resume_receiving(self) -> None:
        """Called by the pool when it has room again for this connection's partial frame."""
        self._resume(pauses.MEMORY)

    def keep_buffer(self) -> Callable[[], None]:
        """Within a handler's call that mutes this connection: keep the frame in its buffer. The returned function has
        to be called once, when no view of the frame is left."""
        buffer = self._buffer
        check(self._working and bool(self._mutes), "a frame is kept while it is handled")
        if buffer is None:
            raise InvariantViolation("a frame is in a buffer")
        self._keeps_buffer = True
        return partial(self._pool.give, buffer)

    # pausing -------------------------------------------------------------------------------------------------

    def _pause(self, why: int) -> None:
        if not self._paused and not self.is_closed:
            self._socket.on_readable(None)
        self._paused |= why

    def _resume(self, why: int) -> None:
        if self._paused & why:
            self._paused &= ~why
            if not self._paused and not self._going_on and not self.is_closed:
                self._going_on = True
                self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Receive again, after handling frames from before the pause, which no readiness event announces."""
        self._going_on = False
        if self._paused or self.is_closed:
            return
        self._socket.on_readable(self._readable)
        if self._buffer is None and not self._aside:
            return
        if self._buffer is None:
            self._borrow()
        self._meter.begin()
        self._work(self._frames)

    def mute(self) -> None:
        """Handle no further frame until `unmute`; calls nest."""
        self._mutes += 1
        self._pause(pauses.MUTED)

    def unmute(self) -> None:
        self._mutes -= 1
        if not self._mutes:
            self._resume(pauses.MUTED)

    def mute_for(self, delay_s: float) -> None:
        """Mute now and unmute after `delay_s` (throttling: reply first, then this)."""
        self.mute()
        self._loop.call_later(delay_s, self.unmute)

    # replying ------------------------------------------------------------------------------------------------

    def reply(self, parts: list[Part]) -> None:
        """Answer the current request at once, in order behind pending replies."""
        if self._pending:
            self.reply_later().send(parts)
        else:
            self.send(parts)

    def reply_later(self, held_bytes: int = 0) -> Reply:
        """Answer the current request later; the next requests are read meanwhile.

        `held_bytes` count against the limits of this connection and of the node until the reply: the frame's length
        when its decoded form is kept (a handler that awaits), 0 when only a small record of it is. The reply has to be
        sent or skipped even after the connection has closed.
        """
        if self.is_closed:
            return Reply(self, 0)
        reply = Reply(self, held_bytes)
        self._pending.append(reply)
        if len(self._pending) >= self._limits.replies_pending_max:
            self._pause(pauses.REPLIES)
        if held_bytes:
            self._held_by_handlers += held_bytes
            self._pool.hold(held_bytes)
            if self._held_by_handlers > self._limits.held_bytes_max or self._pool.is_full:
                self._pause(pauses.HELD)
        return reply

    def answered(self, reply: Reply) -> None:
        """The reply's parts are ready: they are sent when it is its turn."""
        if reply.held:
            self._pool.hold(-reply.held)
            self._held_by_handlers -= reply.held
            if self._held_by_handlers <= self._limits.held_bytes_max // 2:
                self._resume(pauses.HELD)
        if self.is_closed:
            reply.drop()
            return
        self._out.count(reply.parts or [])
        pending = self._pending
        ready = False
        while pending and (parts := pending[0].parts) is not None:
            pending.popleft()
            self._out.parts += parts
            ready = True
        if len(pending) <= self._limits.replies_pending_max // 2:
            self._resume(pauses.REPLIES)
        if self._out.size > self._bounded_from:
            self._bound_unsent()
        if ready and not self._writing:
            self._tick.flush(self)

    @property
    def unsent_regions(self) -> int:
        """Regions of files in replies that the socket has not taken yet, pending replies included."""
        return self._out.regions

    def send(self, parts: list[Part]) -> None:
        """Queue bytes that are no reply (a client's requests); they leave at the end of this turn."""
        if self.is_closed:
            for part in parts:
                release(part)
            return
        out = self._out
        out.count(parts)
        out.parts += parts
        if out.size > self._bounded_from:
            self._bound_unsent()
        if not self._writing:
            self._tick.flush(self)

    # sending -------------------------------------------------------------------------------------------------

    def _bound_unsent(self) -> None:
        """Report unsent bytes to the pool, and pause or resume accordingly. Skipped for few bytes until the flush."""
        out, pool = self._out, self._pool
        pool.unsent += out.memory - self._unsent_counted
        self._unsent_counted = out.memory
        if out.size > self._limits.unsent_bytes_max or (pool.is_backed_up and out.memory > FAIR_UNSENT_BYTES):
            if not self._paused & pauses.UNSENT:
                self._progressed = self._watch.now
                self._pause(pauses.UNSENT)
                self._watch.at(self._watch.now + self._limits.stall_s, self)
        elif self._paused & pauses.UNSENT and out.size <= self._limits.unsent_bytes_max // 2:
            self._resume(pauses.UNSENT)

    def flush(self) -> None:
        """Send as much as the socket takes, and the rest when it is writable again."""
        if self.is_closed:
            return
        out = self._out
        before = out.size
        try:
            done = out.write(self._socket)
        except RegionCutShort as error:
            self.close(f"a reply's file was cut short: {error}")
            return
        except OSError:
            self.close()
            return
        if out.size != before:
            self._active = self._progressed = self._watch.now
            self._pool.moved += before - out.size
            self._traffic.sent += before - out.size
        if out.size or self._unsent_counted or self._paused:
            self._bound_unsent()
        if out.wanted is not None:
            self._writing = True
            self._socket.on_writable(None)
            out.wanted.call(self, self._bytes_are_there)
        elif done is self._writing:
            self._writing = not done
            self._socket.on_writable(None if done else self.flush)
        if done and self._paused & pauses.CLOSING and not self._pending:
            self.close()

    def _bytes_are_there(self) -> None:
        """Continue sending after a region's bytes were loaded; sending them earlier would have blocked the loop."""
        self._writing = False
        self._progressed = self._watch.now  # the device caused the wait, not the peer
        self._tick.flush(self)

    # ending --------------------------------------------------------------------------------------------------

    def close(self, reason: str | None = None, *, reset: bool = False) -> None:
        """Close at once; unsent replies are dropped, their regions released. A `reason` counts as a violation.

        With `reset` the kernel drops its unsent bytes, which it would otherwise keep for many minutes for a stalled
        reader.
        """
        if self.is_closed:
            return
        self.is_closed = True
        if reset:
            self._socket.abort()
        else:
            self._socket.close()
        self._watch.forget(self)
        self._aside = b""
        if not self._working:
            self._buffer, self._view = None, memoryview(b"")
        self._out.discard()
        for reply in self._pending:
            reply.drop()
        self._pending.clear()
        self._pool.unsent -= self._unsent_counted
        self._unsent_counted = 0
        if self._held_receiving or self._paused & pauses.MEMORY:
            self._pool.hold(-self._held_receiving)
            self._held_receiving = 0
            self._pool.leave(self)
        if reason is not None:
            self._on_violation(self, reason)
        self._on_closed(self)

    def close_after_flush(self) -> None:
        """Stop reading, and close once all replies are sent, or when the peer takes none for the stall time."""
        if self.is_closed:
            return
        self._pause(pauses.CLOSING)
        if not self._out.parts and not self._pending:
            self.close()
            return
        self._progressed = self._watch.now
        self._watch.at(self._watch.now + self._limits.stall_s, self)

    def check(self, now: float) -> float | None:
        """Close when idle or stalled; see `wire.watch`."""
        holds_up = bool(self._held_receiving) and self._pool.is_full
        quiet = Quiet(
            self._active, self._progressed, self._paused, self._out.size, holds_up, is_waiting=bool(self._pending)
        )
        verdict = quiet.looked_at(self._limits, now)
        if not isinstance(verdict, Overdue):
            return verdict
        self.close(verdict.reason, reset=verdict.reset)
        return None
