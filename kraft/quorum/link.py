"""One connection between two voters: frames over a socket of `common.ports`, authenticated after the handshake.

A frame is its length in 4 bytes, then, after the handshake, a MAC, then the payload. An empty payload is a keep-alive.
Before the end of the handshake a frame has at most 256 bytes; a peer that sends more is disconnected.

A MAC costs a millisecond per megabyte or more, and a frame may have 4 MiB. So a large frame is sealed in pieces, one in
each turn of the loop, and sent from where it is; and the MAC of a frame that arrives grows with each piece of it.
"""

from __future__ import annotations

import hmac
import struct
from collections import deque
from collections.abc import Callable
from typing import Protocol

from common.errors import MalformedFrame
from common.ports import Socket
from kraft.quorum.handshake import HANDSHAKE_FRAME_BYTES_MAX, MAC_BYTES, HandshakeFailed, Mac, Session

FRAME_BYTES_MAX = 64 << 20
SEALED_BYTES = 256 << 10
"""What one `flush` seals at most, beside the small frames before it; the rest follows in later turns of the loop."""
COPIED_BYTES_MAX = 16 << 10
"""Larger parts are sent by a call of their own, smaller ones are gathered."""

_LENGTH = struct.Struct("<I")
_PAYLOAD_AT = _LENGTH.size + MAC_BYTES


class Handshake(Protocol):
    session: Session | None

    def opening(self) -> bytes | None: ...

    def receive(self, frame: bytes) -> bytes | None: ...


class Link:
    """`opened` is called when the peer has authenticated, then `received` for each payload, which it may not keep.
    `closed` is called once, with the reason, when the connection fails in any state; that may be within `flush`."""

    def __init__(
        self,
        socket: Socket,
        handshake: Handshake,
        scratch: memoryview,
        now: Callable[[], float],
        *,
        unsent_bytes_max: int,
        opened: Callable[[Link, Session], None],
        received: Callable[[Link, memoryview], None],
        closed: Callable[[Link, str], None],
    ) -> None:
        self._socket = socket
        self._handshake = handshake
        self._scratch = scratch  # shared by the links of one loop: bytes are copied out before the next link reads
        self._now = now
        self._unsent_bytes_max = unsent_bytes_max
        self._opened, self._received, self._closed = opened, received, closed
        self._session: Session | None = None
        self._input = bytearray()
        self._arriving: Mac | None = None  # of the frame at the beginning of the input, if a part of it has come
        self._arrived = 0  # the end of what that MAC has taken
        self._queue: deque[tuple[bytes, ...]] = deque()  # payloads that are not sealed yet, in parts
        self._sealing: Mac | None = None  # of the first one in the queue
        self._sealed_parts = self._sealed = 0  # whole parts of it that this MAC has taken, and bytes of the next one
        self._output: list[bytes] = []  # small parts of what is sealed, to be sent together
        self._unsent: deque[memoryview] = deque()  # before `_output`
        self.unsent_bytes = 0
        self.is_open = True
        self.last_heard = self.last_sent = self.began = now()
        opening = handshake.opening()
        if opening is not None:
            self._reply(opening)
        socket.on_readable(self._readable)
        socket.on_writable(self._flush_opening)

    @property
    def session(self) -> Session | None:
        return self._session

    def excuse_silence(self) -> None:
        """Count the peer as heard now: this process was stalled, so its messages may be unread."""
        self.last_heard = self._now()

    def send(self, *parts: bytes) -> None:
        """Queue a payload, which may come in parts, for the next `flush`. If the queue is full, the link is closed: the
        peer does not read."""
        if not self.is_open or self._session is None:
            return
        self._queue.append(parts)
        self.unsent_bytes += _PAYLOAD_AT + sum(map(len, parts))
        self.last_sent = self._now()

    def flush(self) -> None:
        """Seal and send; what is left follows when the socket takes more, in later turns of the loop."""
        if not self.is_open or not (self._queue or self._output or self._unsent):
            return
        if self.unsent_bytes > self._unsent_bytes_max:
            self.fail("the peer does not read")
            return
        if self._session is not None:
            self._seal(self._session)
        self._gather()
        try:
            while self._unsent:
                self._write()
        except BlockingIOError:
            self._socket.on_writable(self.flush)
        except OSError as error:
            self.fail(str(error))
        else:
            self._socket.on_writable(self.flush if self._queue else None)

    def _seal(self, session: Session) -> None:
        left = SEALED_BYTES
        while self._queue and left > 0:
            parts = self._queue[0]
            if self._sealing is None:
                self._sealing, self._sealed_parts, self._sealed = session.sending.begin(), 0, 0
            while self._sealed_parts < len(parts) and left > 0:
                part = parts[self._sealed_parts]
                piece = memoryview(part)[self._sealed : self._sealed + left]
                self._sealing.update(piece)
                self._sealed += len(piece)
                left -= max(len(piece), 1)
                if self._sealed == len(part):
                    self._sealed_parts, self._sealed = self._sealed_parts + 1, 0
            if self._sealed_parts < len(parts):
                return
            self._queue.popleft()
            self._output.append(_LENGTH.pack(MAC_BYTES + sum(map(len, parts))) + self._sealing.digest())
            self._sealing = None
            for part in parts:
                self._put(part)

    def _put(self, part: bytes) -> None:
        if len(part) <= COPIED_BYTES_MAX:
            self._output.append(part)
        else:
            self._gather()
            self._unsent.append(memoryview(part))

    def _gather(self) -> None:
        if self._output:
            self._unsent.append(memoryview(b"".join(self._output)))
            self._output.clear()

    def _write(self) -> None:
        """Raises errors of the socket."""
        part = self._unsent[0]
        sent = self._socket.send(part)
        self.unsent_bytes -= sent
        if sent < len(part):
            self._unsent[0] = part[sent:]
        else:
            self._unsent.popleft()

    def _flush_opening(self) -> None:
        self._socket.on_writable(None)
        self.flush()

    def fail(self, reason: str) -> None:
        """Reset the connection; `closed` runs before this returns."""
        if self.is_open:
            self.is_open = False
            self._output.clear()
            self._queue.clear()
            self._unsent.clear()
            self._socket.abort()
            self._closed(self, reason)

    def close(self) -> None:
        """Close in order, without calling `closed`; flushed data still arrives."""
        if self.is_open:
            self.is_open = False
            self._socket.close()

    def _readable(self) -> None:
        if not self.is_open:
            return
        # An unauthenticated peer gets no more memory than a handshake needs.
        scratch = self._scratch if self._session is not None else self._scratch[: 2 * HANDSHAKE_FRAME_BYTES_MAX]
        try:
            size = self._socket.recv_into(scratch)
        except BlockingIOError:
            return
        except OSError as error:
            self.fail(str(error))
            return
        if size == 0:
            self.fail("closed by the peer")
            return
        self._input += scratch[:size]  # the rest, if any, in a later turn of the loop
        self.last_heard = self._now()
        try:
            self._take_frames()
        except (HandshakeFailed, MalformedFrame) as error:
            self.fail(str(error))

    def _take_frames(self) -> None:
        at = 0
        data = self._input
        while self.is_open and len(data) - at >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(data, at)
            if size > (FRAME_BYTES_MAX if self._session else HANDSHAKE_FRAME_BYTES_MAX):
                raise MalformedFrame(f"a frame of {size} bytes")
            end = at + _LENGTH.size + size
            session = self._session
            if session is not None:
                if size < MAC_BYTES:
                    raise MalformedFrame("a frame that the peer did not seal")
                self._hash_arrived(session, at, min(end, len(data)))
            if end > len(data):
                break
            if session is None:
                self._take_handshake(bytes(data[at + _LENGTH.size : end]))
            else:
                self._take_frame(at, end)
            at = end
        if at:
            del data[:at]

    def _hash_arrived(self, session: Session, at: int, end: int) -> None:
        """Take what has arrived of the frame at `at` into its MAC."""
        if self._arriving is None:
            self._arriving, self._arrived = session.receiving.begin(), _PAYLOAD_AT
        if at + self._arrived < end:
            with memoryview(self._input) as view:
                self._arriving.update(view[at + self._arrived : end])
            self._arrived = end - at

    def _take_frame(self, at: int, end: int) -> None:
        arriving, self._arriving = self._arriving, None
        with memoryview(self._input) as view:
            mac = bytes(view[at + _LENGTH.size : at + _PAYLOAD_AT])
            if arriving is None or not hmac.compare_digest(mac, arriving.digest()):
                raise MalformedFrame("a frame that the peer did not seal")
            with view[at + _PAYLOAD_AT : end] as payload:
                if payload:
                    self._received(self, payload)

    def _take_handshake(self, frame: bytes) -> None:
        answer = self._handshake.receive(frame)
        if answer is not None:
            self._reply(answer)
            self.flush()
        if self._handshake.session is not None and self.is_open:
            self._session = self._handshake.session
            self._opened(self, self._session)

    def _reply(self, frame: bytes) -> None:
        """A frame of the handshake."""
        self._output.append(_LENGTH.pack(len(frame)) + frame)
        self.unsent_bytes += _LENGTH.size + len(frame)
