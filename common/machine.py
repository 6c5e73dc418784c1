"""The ports of `common.ports` over the real machine: raw sockets under `add_reader`, `os.pread` and `os.pwrite`.

Sockets are raw, because one `recv` into the caller's buffer and `sendfile` from the page cache cost less than any
asyncio transport, and no library keeps a reference to a reused buffer.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import resource
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

from common.machine_disk import MachineDisk, MachineFile
from common.ports import Address, Buffer, File, Ports, Wants

LISTEN_BACKLOG = 1024
ACCEPTS_PER_WAKEUP_MAX = 64
ACCEPT_PAUSE_S = 0.2
_RESET_ON_CLOSE = b"\1\0\0\0\0\0\0\0"  # struct linger {on, 0 s}
RECORD_BYTES = 16 << 10  # the most that one record of TLS carries
RECORDS_AT_ONCE_MAX = 128  # of any size, so that a peer with tiny ones does not hold the loop
TRIES, PATIENCE_MIN, PATIENCE_MAX = 8, 2, 64  # see MachineSecureSocket.recv_into
SECURE_SEND_BYTES = 64 << 10  # per write to OpenSSL: a blocked write is repeated whole
SECURE_FILE_BYTES = 128 << 10  # read at once for encryption
_OUT_OF_DESCRIPTORS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class _Descriptor:
    """Readiness callbacks and closing of one non-blocking socket of the running loop."""

    __slots__ = ("_fd", "_loop", "_reading", "_socket", "_writing", "peer")

    def __init__(self, raw: socket.socket, peer: Address) -> None:
        self._socket = raw
        self._fd = raw.fileno()
        self._loop = asyncio.get_running_loop()
        self._reading = self._writing = False
        self.peer = peer

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        if self._fd < 0:
            return
        if callback is not None:
            self._reading = True
            self._loop.add_reader(self._fd, callback)
        elif self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        if self._fd < 0:
            return
        if callback is not None:
            self._writing = True
            self._loop.add_writer(self._fd, callback)
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def close(self) -> None:
        self.on_readable(None)
        self.on_writable(None)
        self._fd = -1
        self._socket.close()

    def abort(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        _Descriptor.close(self)


class MachineSocket(_Descriptor):
    """`common.ports.Socket` over a non-blocking socket of the running loop."""

    __slots__ = ("recv_into",)

    def __init__(self, raw: socket.socket, peer: Address) -> None:
        raw.setblocking(False)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(raw, peer)
        self.recv_into = raw.recv_into

    def send(self, data: Buffer, more: bool = False) -> int:
        return self._socket.send(data, socket.MSG_MORE if more else 0)

    def sendfile(self, file: File, position: int, length: int) -> int:
        if not isinstance(file, MachineFile):
            raise TypeError("sendfile needs a file of this machine")
        return os.sendfile(self._fd, file.fd, position, length)

    def secure(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> MachineSecureSocket:
        self.on_readable(None)
        self.on_writable(None)
        if context.sslsocket_class is not _NamedSocket:
            context.sslsocket_class = _NamedSocket
            if server_side:
                context.sni_callback = _note_server_name
        wrapped = context.wrap_socket(
            self._socket, server_side=server_side, server_hostname=server_hostname, do_handshake_on_connect=False
        )
        self._fd = -1
        return MachineSecureSocket(cast(_NamedSocket, wrapped), self.peer)


class _NamedSocket(ssl.SSLSocket):
    """Keeps the server name of a client's hello, which the library reports only in a callback."""

    server_name: str | None = None


def _note_server_name(connection: object, name: str | None, _: ssl.SSLContext) -> None:
    if isinstance(connection, _NamedSocket):
        connection.server_name = name


class MachineSecureSocket(_Descriptor):
    """`common.ports.SecureSocket`: OpenSSL reads and writes the descriptor itself.

    No readiness event announces bytes that it has decrypted already, or an end that it read behind a record. A call on
    the next turn of the loop does.
    """

    __slots__ = ("_announcing", "_callback", "_ending", "_patience", "_short_ends", "_tls", "_tries_left")

    def __init__(self, tls: _NamedSocket, peer: Address) -> None:
        super().__init__(tls, peer)
        self._tls = tls
        self._callback: Callable[[], None] | None = None
        self._announcing = False
        self._ending: OSError | bool | None = None  # True for the end of the stream
        self._tries_left = self._short_ends = 0
        self._patience = PATIENCE_MIN

    def handshake(self) -> Wants:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return Wants.READ
        except ssl.SSLWantWriteError:
            return Wants.WRITE
        except OSError:
            with contextlib.suppress(OSError):  # unread bytes would turn the close into a reset, which drops the alert
                socket.socket.recv(self._tls, RECORD_BYTES)
            raise
        return Wants.NOTHING

    @property
    def server_name(self) -> str | None:
        return self._tls.server_name

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        return self._tls.getpeercert() or None

    @property
    def cipher(self) -> tuple[str, str]:
        found = self._tls.cipher()
        return (found[0], self._tls.version() or "") if found is not None else ("", "")

    def recv_into(self, view: memoryview) -> int:
        """Receive as many records as fit. A short one ends the burst, so that a small request costs one read. From
        clients that send many short ones in a row it goes on until none is left."""
        if self._ending is not None:
            return self._end()
        read, size = self._tls.read, len(view)
        try:
            count = more = cast(int, read(size, view))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise BlockingIOError from None
        records = 1
        while count < size and more and records < RECORDS_AT_ONCE_MAX:
            if more < RECORD_BYTES and not self._is_worth_a_try():
                break
            try:
                more = cast(int, read(size - count, view[count:]))
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                if more < RECORD_BYTES:
                    self._tried(False)
                break
            except OSError as error:
                self._ending = error
                break
            if more:
                self._tried(True)
            else:
                self._ending = True
            count += more
            records += 1
        if self._has_more:
            self._announce_soon()
        return count

    def _is_worth_a_try(self) -> bool:
        """Whether to try for another record after a short one: always while that succeeded lately, otherwise less and
        less often."""
        if self._tries_left:
            return True
        self._short_ends += 1
        return self._short_ends >= self._patience

    def _tried(self, found: bool) -> None:
        if found:
            self._tries_left, self._patience = TRIES, PATIENCE_MIN
        elif self._tries_left:
            self._tries_left -= 1
        else:
            self._short_ends, self._patience = 0, min(2 * self._patience, PATIENCE_MAX)

    def _end(self) -> int:
        if isinstance(self._ending, OSError):
            raise self._ending
        return 0

    @property
    def _has_more(self) -> bool:
        return self._ending is not None or self._tls.pending() > 0

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        super().on_readable(callback)
        self._callback = callback
        if callback is not None and self._fd >= 0 and self._has_more:
            self._announce_soon()

    def _announce_soon(self) -> None:
        if not self._announcing and self._callback is not None:
            self._announcing = True
            self._loop.call_soon(self._announce)

    def _announce(self) -> None:
        self._announcing = False
        if self._callback is not None and self._fd >= 0 and self._has_more:
            self._callback()
            if self._fd >= 0 and self._has_more:
                self._announce_soon()

    def send(self, data: Buffer, more: bool = False) -> int:
        taken, size = 0, len(data)
        write = self._tls.send
        try:
            if size <= SECURE_SEND_BYTES:
                return write(data)
            with memoryview(data) as view:
                while taken < size:
                    taken += write(view[taken : taken + SECURE_SEND_BYTES])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            if not taken:
                raise BlockingIOError from None
        return taken

    def sendfile(self, file: File, position: int, length: int) -> int:
        """Bytes that the socket did not take are read again, so that a stalled reader costs no memory."""
        data = file.pread(min(length, SECURE_FILE_BYTES), position)
        return self.send(data) if data else 0

    def close(self) -> None:
        if self._fd >= 0:
            with contextlib.suppress(OSError, ValueError):
                self._tls.unwrap()  # sends close_notify and does not wait for the peer's
        self._callback = None
        super().close()

    def abort(self) -> None:
        self._callback = None
        super().abort()

    def secure(
        self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None
    ) -> MachineSecureSocket:
        raise TypeError("this connection has TLS already")


class MachineListener:
    def __init__(self, raw: socket.socket, accepted: Callable[[MachineSocket], None]) -> None:
        self._socket = raw
        self._accepted = accepted
        self._loop = asyncio.get_running_loop()
        self._closed = self._paused = self._starved = False
        name = raw.getsockname()
        self.address: Address = (name[0], name[1])
        self._loop.add_reader(raw.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_WAKEUP_MAX):
            if self._closed or self._paused:
                return
            try:
                raw, peer = self._socket.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _OUT_OF_DESCRIPTORS:  # a level-triggered listener would spin on it
                    self._starved = True
                    self._loop.remove_reader(self._socket.fileno())
                    self._loop.call_later(ACCEPT_PAUSE_S, self._try_again)
                return
            try:
                self._accepted(MachineSocket(raw, (peer[0], peer[1])))
            except OSError:  # it has ended already
                raw.close()

    def _try_again(self) -> None:
        self._starved = False
        self._watch()

    def _watch(self) -> None:
        if not (self._closed or self._paused or self._starved):
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def pause(self) -> None:
        if not (self._closed or self._paused):
            self._paused = True
            self._loop.remove_reader(self._socket.fileno())

    def resume(self) -> None:
        if self._paused:
            self._paused = False
            self._watch()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()


class MachineNetwork:
    def listen(self, address: Address, accepted: Callable[[MachineSocket], None]) -> MachineListener:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            raw = socket.create_server(address, family=family, backlog=LISTEN_BACKLOG)
        except socket.gaierror:
            raise
        except OSError as error:  # without the library's own text, because callers have a better one
            raise OSError(error.errno, os.strerror(error.errno or 0)) from error
        raw.setblocking(False)
        return MachineListener(raw, accepted)

    async def connect(self, address: Address) -> MachineSocket:
        loop = asyncio.get_running_loop()
        host, port = address
        family = int(socket.AF_INET)
        try:
            socket.inet_pton(socket.AF_INET, host)
        except OSError:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, host = int(found[0][0]), str(found[0][4][0])
        raw = socket.socket(family)
        raw.setblocking(False)
        try:
            await loop.sock_connect(raw, (host, port))
        except BaseException:
            raw.close()
            raise
        return MachineSocket(raw, address)


class MachineClock:
    """Has the same base as the loop's time, exactly on the stock loop, on uvloop to within a turn."""

    monotonic = staticmethod(time.monotonic)

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def displaced() -> int:
    """How often the kernel preempted this thread."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def machine_ports(root: Path) -> Ports:
    """The real world of a node whose files lie below `root`. Call it in the node's own process."""
    return Ports(
        MachineNetwork(),
        MachineDisk(root),
        MachineClock(),
        machine_random(),
        time.process_time,
        time.thread_time,
        displaced,
        os.sched_yield,
    )


def machine_random() -> random.Random:
    """A freshly seeded random source."""
    return random.Random(os.urandom(32))
