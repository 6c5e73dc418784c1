"""The raw sockets of the proxy.

The proxy works below the ports of `common.ports`, because it needs descriptors: OpenSSL reads and writes them itself,
hellos are peeked at, and listeners outlive the processes that accept on them. Only this file makes or prepares sockets.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from common.ports import Address
from proxy.server_tls import Places, ServerContext

RawSocket: TypeAlias = socket.socket  # one that listens
LISTEN_BACKLOG = 4_096
FULL = (BlockingIOError, InterruptedError, ssl.SSLWantWriteError, ssl.SSLWantReadError)
_DEFERRALS_S = (63, 31, 15, 7, 3, 1)  # the kernel counts retransmissions, and rounds up to one of these
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(socket.socket):
    """A connected socket, with TLS on its descriptor after `accept_tls` or `begin_tls`.

    `tls` has `read`, `write`, `do_handshake` and `shutdown`. It is a `ServerTls` or the object inside an
    `ssl.SSLSocket`, because that wrapper's checks, system calls and second socket cost as much as the TLS of a small
    request. `read` raises SSLEOFError for an end without close_notify, unless the context ignores it.
    """

    __slots__ = ("tls",)

    def __init__(self, family: int, fd: int | None = None) -> None:
        super().__init__(family, socket.SOCK_STREAM, 0, fd)
        self.tls: Any = None
        self.setblocking(False)

    def accept_tls(self, context: ServerContext, places: Places) -> None:
        """Begin TLS as the server. Raises OSError, ValueError."""
        self.tls = context.accept(self, places)

    def begin_tls(self, context: ssl.SSLContext, server_name: str) -> None:
        """Begin TLS as the client of `server_name`. Raises OSError, ValueError."""
        name = server_name.encode("idna").decode("ascii")
        self.tls = context._wrap_socket(self, False, name)  # type: ignore[attr-defined]

    def close(self) -> None:
        """Ends TLS too, because another connection may get the descriptor at once."""
        self.tls = None
        super().close()


class Readiness(Protocol):
    """Level-triggered callbacks for readable and writable descriptors: the event loop itself."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> object: ...
    def remove_reader(self, fd: int, /) -> object: ...
    def add_writer(self, fd: int, callback: Callable[[], object], /) -> object: ...
    def remove_writer(self, fd: int, /) -> object: ...


def listen(address: Address, count: int) -> list[RawSocket]:
    """`count` sockets on one port (0: any free one), over which the kernel spreads connections. Raises OSError."""
    host, port = address
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made: list[RawSocket] = []
    try:
        for _ in range(count):
            one = socket.socket(family, socket.SOCK_STREAM)
            made.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((host, port))
            port = one.getsockname()[1]
            one.listen(LISTEN_BACKLOG)
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


def prepare_listener(sock: RawSocket, opening_timeout_s: float) -> int:
    """Make the socket non-blocking, with TCP_NODELAY, which accepted sockets inherit. The kernel reports a connection
    once its first bytes are there, or after the returned seconds: at most half of `opening_timeout_s`."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    seconds = next((seconds for seconds in _DEFERRALS_S if 2 * seconds <= opening_timeout_s), 0)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, seconds)
    return seconds


def accept(sock: RawSocket) -> tuple[Connection, Address] | None:
    """Accept one connection; None when none waits or it has ended already. Raises OutOfFiles."""
    try:
        fd, peer = sock._accept()  # type: ignore[attr-defined]  # `accept` without its own socket object
    except (BlockingIOError, InterruptedError, ConnectionError):
        return None
    except OSError as error:
        if error.errno in _OUT_OF_FILES:
            raise OutOfFiles from error
        return None
    return Connection(socket.AF_INET if len(peer) == 2 else socket.AF_INET6, fd), (peer[0], peer[1])


class OutOfFiles(Exception):
    """The system has no descriptor or memory for one more connection."""


def bound_address(sock: RawSocket) -> Address | None:
    """The address of a listener; None when it listens on every one."""
    address = local_address(sock)
    return None if address[0] in ("0.0.0.0", "::") else address


def local_address(sock: RawSocket) -> Address:
    name = sock.getsockname()
    return name[0], name[1]


def peer_host(sock: Connection) -> str | None:
    """The other side's address; None when the connection has ended."""
    try:
        return str(sock.getpeername()[0])
    except OSError:
        return None


def peek(sock: Connection, room: memoryview) -> int:
    """Read into `room`, leaving the bytes in the socket; returns their count. Raises BlockingIOError, OSError."""
    return sock.recv_into(room, len(room), socket.MSG_PEEK)


def wake_at(sock: Connection, count: int) -> None:
    """Make the socket readable only with `count` bytes, because peeked ones would keep it readable."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)


def begin_connect(address: Address) -> Connection:
    """A socket that is connecting to a numeric address, or connected already. Raises OSError."""
    sock = Connection(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        error = sock.connect_ex(address)
        if error not in (0, errno.EINPROGRESS):
            raise OSError(error, os.strerror(error))
    except BaseException:
        sock.close()
        raise
    return sock


def is_connected(sock: Connection) -> bool:
    """Whether a connect has completed. Raises OSError when it failed."""
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, os.strerror(error))
    try:
        sock.getpeername()
    except OSError as problem:
        if problem.errno == errno.ENOTCONN:
            return False
        raise
    return True


def send_ahead(sock: Connection, data: bytes) -> int:
    """Send data that more will follow at once. In the clear the kernel waits up to 0.2 s to put both in one packet,
    because a packet costs as much as a request. Raises as `send`."""
    return sock.send(data, socket.MSG_MORE) if sock.tls is None else int(sock.tls.write(data))


Receive = Callable[[int, memoryview], int]  # (most bytes, destination); raises as `recv_into`


def say_end(sink: Connection) -> bool:
    """Send close_notify over TLS, FIN in the clear. False when both sides have ended or the connection is broken."""
    try:
        if sink.tls is not None:
            sink.tls.shutdown()  # raises one of FULL until the peer has sent its own
            return False
        sink.shutdown(socket.SHUT_WR)
    except FULL:
        return True
    except (OSError, ValueError):
        return False
    return True


def refuse(client: Connection, words: bytes, unread: memoryview) -> None:
    """Send `words` in the clear and close. Pending bytes are read into `unread` first, because unread ones would turn
    the close into a reset, which discards the words."""
    with contextlib.suppress(OSError, ValueError):
        if client.tls is not None:
            client.close()  # OpenSSL has sent its alert
            return
        client.recv_into(unread)
        if words:
            client.send(words)
        client.shutdown(socket.SHUT_WR)
    client.close()


def reset(client: Connection) -> None:
    """Close as the host of a process that is gone does. Some clients try again after that, but take an end before the
    first answer for a wrong configuration."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
