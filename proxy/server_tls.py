"""TLS with clients, on the descriptor of a connection: by the OpenSSL that the package cryptography brings, or `ssl`'s.

`ssl` uses the machine's OpenSSL, which is usually years older. The newer one encrypts AES-GCM about twice as fast, and
encryption is most of a proxy's work, but it needs 24 kB per connection instead of 17. So a process limits how many
connections use the newer one; the older one serves the rest. pyOpenSSL makes the newer one's contexts. Its connections
check and copy with every call, which costs as much as the TLS of a small request, so this module calls the library
below them and raises the errors of `ssl`.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
import sys
from typing import Any, NoReturn

from common.certificate_files import in_memory, load_chain, private_key_in

# Only OpenSSL's configuration, which is read once at loading, sets the number of tickets. Kafka clients keep their
# connections for hours, so tickets would cost each handshake something and save nothing.
_CONFIGURATION = """openssl_conf = openssl
[openssl]
ssl_conf = ssl
[ssl]
system_default = tls
[tls]
NumTickets = 0
"""
_LIBRARY = "cryptography.hazmat.bindings._rust"

if _LIBRARY not in sys.modules and "OPENSSL_CONF" not in os.environ:
    with in_memory(_CONFIGURATION) as path:
        os.environ["OPENSSL_CONF"] = path
        try:
            from cryptography.hazmat.bindings.openssl.binding import Binding
        finally:
            del os.environ["OPENSSL_CONF"]
else:
    from cryptography.hazmat.bindings.openssl.binding import Binding

from cryptography.exceptions import UnsupportedAlgorithm  # noqa: E402  these load the library as well
from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: E402
from OpenSSL import SSL  # noqa: E402

_lib, _ffi = Binding.lib, Binding.ffi
_new, _free, _read, _write, _handshake = (
    _lib.SSL_new,
    _lib.SSL_free,
    _lib.SSL_read,
    _lib.SSL_write,
    _lib.SSL_do_handshake,
)
_get_error, _pointer_to, _owned = _lib.SSL_get_error, _ffi.from_buffer, _ffi.gc

_OPTIONS = SSL.OP_NO_RENEGOTIATION | SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION | ssl.OP_IGNORE_UNEXPECTED_EOF
_RELEASE_BUFFERS = 0x10  # SSL_MODE_RELEASE_BUFFERS of OpenSSL's ssl.h: an idle connection keeps none
_GO_ON = 0x4  # SSL_MODE_AUTO_RETRY, cleared: a client that sends only key updates would hold the loop in one call
_ONE_RECORD_PER_WRITE = 0x1  # SSL_MODE_ENABLE_PARTIAL_WRITE, which pyOpenSSL sets
_SUITES_OF_1_2 = "@SECLEVEL=2:ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:!aNULL:!eNULL:!SHA1:!AESCCM"


class Places:
    """Limits how many connections of a process use the newer OpenSSL. A connection gives its place back when freed."""

    __slots__ = ("most", "taken")

    def __init__(self, most: int) -> None:
        self.most, self.taken = most, 0

    def take(self, context: Any) -> Any:
        """A connection's TLS state, which holds a place until it is freed. Raises OSError."""
        made = _new(context)
        if made == _ffi.NULL:
            raise OSError(errno.ENOMEM, "no memory for TLS")
        self.taken += 1
        return _owned(made, self._give_back)

    def _give_back(self, tls: Any) -> None:
        _free(tls)
        self.taken -= 1


class ServerContext:
    """A server's certificate chain and key (PEM, without a password) for TLS 1.2 and later.

    An end without close_notify is no error, because many clients close that way and frames have lengths.
    Raises ValueError with a readable text, or ssl.SSLError, when the certificate or its key does not fit.
    """

    __slots__ = ("_lean", "_quick")

    def __init__(self, certificates: str, key: str) -> None:
        found = private_key_in(key)
        if found is None:
            raise ValueError("no private key in it")
        self._quick = _quick_context(certificates, found)
        self._lean = _lean_context(certificates, found)

    def accept(self, sock: socket.socket, places: Places) -> Any:
        """A `ServerTls`, or the object inside an `ssl.SSLSocket`: same methods. The caller keeps the descriptor.

        Raises OSError, ValueError.
        """
        if places.taken < places.most:
            return ServerTls(self._quick._context, sock.fileno(), places)
        return self._lean._wrap_socket(sock, True, None)  # type: ignore[attr-defined]


def _quick_context(certificates: str, key: str) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(SSL.TLS1_2_VERSION)
    context.set_options(_OPTIONS | SSL.OP_CIPHER_SERVER_PREFERENCE)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.clear_mode(_ONE_RECORD_PER_WRITE | _GO_ON)
    context.set_mode(_RELEASE_BUFFERS)
    context.set_cipher_list(_SUITES_OF_1_2.encode())
    try:
        with in_memory(certificates) as path:
            context.use_certificate_chain_file(path)
        context.use_privatekey(_private_key(key))
        context.check_privatekey()
    except SSL.Error as error:
        raise ValueError(_words(error)) from error
    except TypeError:  # from pyOpenSSL, for a key that cannot sign
        raise ValueError("its private key is of a kind that no server has") from None
    return context


def _lean_context(certificates: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= _OPTIONS
    context.num_tickets = 0
    context.set_ciphers(_SUITES_OF_1_2)
    load_chain(context, certificates, key, "")
    return context


class ServerTls:
    """The server's side of one non-blocking connection. Its methods are those of the object inside an SSLSocket."""

    __slots__ = ("_ssl",)

    def __init__(self, context: Any, fd: int, places: Places) -> None:
        self._ssl = places.take(context)
        _lib.SSL_set_fd(self._ssl, fd)
        _lib.SSL_set_accept_state(self._ssl)

    def do_handshake(self) -> None:
        """Raises ssl.SSLWantReadError, ssl.SSLWantWriteError, OSError."""
        result = _handshake(self._ssl)
        if result != 1:
            self._fail(result)

    def read(self, size: int, room: memoryview) -> int:
        """Up to `size` bytes of one record into `room`; 0 at the end. Raises as `do_handshake`."""
        result: int = _read(self._ssl, _pointer_to(room), size)
        if result > 0:
            return result
        try:
            self._fail(result)
        except ssl.SSLZeroReturnError:
            return 0

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data`. After an error the same bytes have to be written again. Raises as `do_handshake`."""
        result: int = _write(self._ssl, _pointer_to(data), len(data))
        if result <= 0:
            self._fail(result)
        return result

    def shutdown(self) -> None:
        """Send close_notify. Raises ssl.SSLWantReadError until the client has sent its own."""
        result = _lib.SSL_shutdown(self._ssl)
        if result == 0:
            raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "no close_notify yet")
        if result < 0:
            self._fail(result)

    def version(self) -> str:
        """For example TLSv1.3."""
        return bytes(_ffi.string(_lib.SSL_get_version(self._ssl))).decode()

    def _fail(self, result: int) -> NoReturn:
        number = _ffi.errno  # of the call that failed
        kind = _get_error(self._ssl, result)
        if kind == _lib.SSL_ERROR_WANT_READ:
            raise ssl.SSLWantReadError(kind, "want read")
        if kind == _lib.SSL_ERROR_WANT_WRITE:
            raise ssl.SSLWantWriteError(kind, "want write")
        if kind == _lib.SSL_ERROR_ZERO_RETURN:
            raise _with_reason(ssl.SSLZeroReturnError, kind, "ended by the client")
        code = _lib.ERR_get_error()
        words = _lib.ERR_reason_error_string(code) if code else _ffi.NULL
        _lib.ERR_clear_error()  # otherwise the next call would report it
        if kind == _lib.SSL_ERROR_SYSCALL:
            if number:
                raise OSError(number, os.strerror(number))
            raise _with_reason(ssl.SSLEOFError, kind, "an end without close_notify")
        reason = "TLS failure" if words == _ffi.NULL else bytes(_ffi.string(words)).decode()
        raise _with_reason(ssl.SSLError, kind, reason)


def _with_reason(error: type[ssl.SSLError], kind: int, words: str) -> ssl.SSLError:
    """The error with the attribute `reason`, which `ssl` sets on its own errors."""
    made = error(kind, words)
    made.reason = words
    return made


def _private_key(text: str) -> Any:
    try:
        return load_pem_private_key(text.encode(), None)
    except TypeError:
        raise ValueError("its private key has a password") from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError("its private key does not load") from None


def _words(error: SSL.Error) -> str:
    found = error.args[0] if error.args else []
    return found[-1][2] if found and found[-1][2] else "no certificate in it"
