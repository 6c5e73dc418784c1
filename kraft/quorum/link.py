"""One connection between two voters: frames over a socket of `common.ports`, authenticated after the handshake.

A frame is its length in 4 bytes, then, after the handshake, a MAC, then the payload. An empty payload is a keep-alive.
Before the end of the handshake a frame has at most 256 bytes; a peer that sends more is disconnected.
"""

from __future__ import annotations

import hmac
import struct
from collections.abc import Callable
from typing import Protocol

from common.errors import MalformedFrame
from common.ports import Socket
from kraft.quorum.handshake import HANDSHAKE_FRAME_BYTES_MAX, MAC_BYTES, HandshakeFailed, Session

FRAME_BYTES_MAX = 64 << 20

_LENGTH = struct.Struct("<I")


class Handshake(Protocol):
    session: Session | None

    def opening(self) -> bytes | None: ...

    def receive(self, frame: bytes) -> bytes | None: ...


class Link:
    """`opened` is called when the peer has authenticated, then `received` for each payload. `closed` is called once,
    with the reason, when the connection fails in any state; that may be within `flush`."""

    def __init__(
        self,
        socket: Socket,
        handshake: Handshake,
        scratch: memoryview,
        now: Callable[[], float],
        *,
        unsent_bytes_max: int,
        opened: Callable[[Link, Session], None],
        received: Callable[[Link, bytes], None],
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
        self._output: list[bytes] = []
        self._unsent = memoryview(b"")
        self.unsent_bytes = 0
        self.is_open = True
        self.last_heard = self.last_sent = self.began = now()
        opening = handshake.opening()
        if opening is not None:
            self._output.append(_LENGTH.pack(len(opening)) + opening)
        socket.on_readable(self._readable)
        socket.on_writable(self._flush_opening)

    @property
    def session(self) -> Session | None:
        return self._session

    def excuse_silence(self) -> None:
        """Count the peer as heard now: this process was stalled, so its messages may be unread."""
        self.last_heard = self._now()

    def send(self, payload: bytes) -> None:
        """Queue for the next `flush`. If the queue is full, the link is closed: the peer does not read."""
        if not self.is_open or self._session is None:
            return
        mac = self._session.sending.mac(payload)
        self._output += (_LENGTH.pack(MAC_BYTES + len(payload)) + mac, payload)
        self.unsent_bytes += MAC_BYTES + len(payload)
        self.last_sent = self._now()

    def flush(self) -> None:
        if not self.is_open or not (self._output or self._unsent):
            return
        if self.unsent_bytes > self._unsent_bytes_max:
            self.fail("the peer does not read")
            return
        if self._output:
            self._unsent = memoryview(b"".join((self._unsent, *self._output)))
            self._output.clear()
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            self._socket.on_writable(self.flush)
        except OSError as error:
            self.fail(str(error))
            return
        else:
            self._socket.on_writable(None)
        self.unsent_bytes = len(self._unsent)

    def _flush_opening(self) -> None:
        self._socket.on_writable(None)
        self.flush()

    def fail(self, reason: str) -> None:
        """Reset the connection; `closed` runs before this returns."""
        if self.is_open:
            self.is_open = False
            self._output.clear()
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
            if end > len(data):
                break
            self._take_frame(bytes(memoryview(data)[at + _LENGTH.size : end]))
            at = end
        if at:
            del data[:at]

    def _take_frame(self, frame: bytes) -> None:
        session = self._session
        if session is None:
            self._take_handshake(frame)
            return
        payload = frame[MAC_BYTES:]
        if not hmac.compare_digest(frame[:MAC_BYTES], session.receiving.mac(payload)):
            raise MalformedFrame("a frame that the peer did not seal")
        if payload:
            self._received(self, payload)

    def _take_handshake(self, frame: bytes) -> None:
        answer = self._handshake.receive(frame)
        if answer is not None:
            self._output.append(_LENGTH.pack(len(answer)) + answer)
            self.flush()
        if self._handshake.session is not None and self.is_open:
            self._session = self._handshake.session
            self._opened(self, self._session)
