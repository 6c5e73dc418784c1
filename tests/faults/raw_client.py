"""A client that may misbehave: a plain socket, frames of any bytes, and what it gets back."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from wire.codec import decode_response, encode_request

PATIENCE_S = 60.0  # ends a test that would hang; no promise of how fast anything is
ASK_AGAIN_S = 0.02
END_OF_STREAM = b""


class RawClient:
    """One connection to `host:port`; every wait ends after PATIENCE_S with TimeoutError."""

    def __init__(self, address: str, *, receive_buffer: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.settimeout(PATIENCE_S)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.connect((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation = 0

    def __enter__(self) -> RawClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def name(self) -> str:
        """As the broker's log names this peer."""
        host, port = self.socket.getsockname()
        return f"{host}:{port}"

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, payload: bytes) -> None:
        self.send(len(payload).to_bytes(4, "big") + payload)

    def receive_frame(self) -> bytes:
        """The next frame's payload. Raises EOFError at the end of the stream."""
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def ask(self, message: Any, version: int) -> Any:
        """The answer to one request of the schemas."""
        self._correlation += 1
        self.send(encode_request(message, version, self._correlation, "raw"))
        correlation, answer = decode_response(message.API_KEY, version, self.receive_frame())
        assert correlation == self._correlation
        return answer

    def is_closed_by_peer(self, within_s: float = PATIENCE_S) -> bool:
        """Whether the broker ends the connection in time; what it still sends is read and dropped."""
        deadline = time.monotonic() + within_s
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        while (left := deadline - time.monotonic()) > 0:
            if not poll.poll(left * 1_000):
                return False
            try:
                if self.socket.recv(65_536) == END_OF_STREAM:
                    return True
            except ConnectionError:
                return True
        return False

    def is_cut_off(self, within_s: float = PATIENCE_S) -> bool:
        """As `is_closed_by_peer`, without reading a byte: an error or hang-up of the socket itself."""
        poll = select.poll()
        poll.register(self.socket, select.POLLRDHUP)
        return bool(poll.poll(within_s * 1_000))

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            received = self.socket.recv(size - len(data))
            if not received:
                raise EOFError(f"{len(data)} of {size} bytes")
            data += received
        return bytes(data)


def closed_quietly(clients: list[RawClient]) -> None:
    for client in clients:
        with contextlib.suppress(OSError):
            client.close()


def wait_until(holds: Callable[[], bool], within_s: float = PATIENCE_S) -> None:
    """Ask again and again, where another process tells no event. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {within_s:g} s")
        time.sleep(ASK_AGAIN_S)
