"""A trial connection to a listener, which finds out why a command cannot use it.

The admin client's library retries and reports only that there was no answer. Here each cause has its own message: no
listener, no TLS, an untrusted certificate, a mechanism that is not offered, a wrong password.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
from typing import TypeVar

from common.errors import ErrorCode, MalformedFrame, error_name
from common.settings import SettingError
from tidelog.admin.bootstrap_addresses import Address, parse_bootstrap
from tidelog.admin.client_login import LoginFailed, begin
from tidelog.admin.command_config import ClientSecurity, Login
from wire.codec import decode_response, encode_request
from wire.messages import MetadataRequest, Request, SaslAuthenticateRequest, SaslHandshakeRequest

R = TypeVar("R")

TIMEOUT_S = 10.0
FRAME_BYTES_MAX = 1 << 20
CLIENT_ID = "tidelog"
METADATA_VERSION, HANDSHAKE_VERSION, AUTHENTICATE_VERSION = 1, 1, 1
STEPS_MAX = 4


class Refusal(Exception):
    """The listener cannot be used; the text says why."""


class Absent(Refusal):
    """No broker answers at the address; another one may."""


class Silent(Absent):
    """The address takes connections and does not answer: a broker that hangs, or no broker."""


def probe(bootstrap: str, security: ClientSecurity, timeout_s: float = TIMEOUT_S) -> None:
    """Check that the first address that answers admits this client. Raises Refusal."""
    absent: Absent | None = None
    try:
        addresses = parse_bootstrap(bootstrap)
    except SettingError as error:
        raise Refusal(str(error)) from None
    for address in addresses:
        try:
            _probe_at(address, security, timeout_s)
            return
        except Absent as error:
            absent = absent or error
    assert absent is not None
    raise absent


def _probe_at(address: Address, security: ClientSecurity, timeout_s: float) -> None:
    where = f"the listener at {address[0]}:{address[1]}"
    try:
        plain = socket.create_connection(address, timeout_s)
    except OSError as error:
        raise Absent(f"no broker answers at {address[0]}:{address[1]}: {error.strerror or error}") from None
    with plain, contextlib.closing(_secured(plain, address[0], where, security.context)) as sock:
        try:
            if security.login is None:
                ask(sock, MetadataRequest(topics=[]), METADATA_VERSION)
            else:
                log_in(sock, where, security.login)
        except TimeoutError:
            raise Silent(f"{where} does not answer within {timeout_s:g} s") from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise Refusal(f"{where} {_ended(security)}") from None
        except ssl.SSLError as error:
            raise Refusal(f"{where} {_alert(error)}") from None
        except (OSError, EOFError, MalformedFrame):
            raise Refusal(f"{where} {_ended(security)}") from None


def _secured(plain: socket.socket, host: str, where: str, context: ssl.SSLContext | None) -> socket.socket:
    if context is None:
        return plain
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise Refusal(
            f"{where}: its certificate is not trusted, {error.verify_message.rstrip('.')} (ssl.truststore.location)"
        ) from None
    except TimeoutError:
        raise Silent(f"{where} does not answer a TLS handshake; security.protocol may not be its own") from None
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError, EOFError):
        raise Refusal(f"{where} ended the TLS handshake; it may be one without TLS (security.protocol)") from None
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG"):
            raise Refusal(f"{where} speaks no TLS (security.protocol)") from None
        raise Refusal(f"{where} {_alert(error)}") from None
    except OSError as error:
        raise Refusal(f"{where} ended the TLS handshake: {error.strerror or error}") from None


def _alert(error: ssl.SSLError) -> str:
    reason = (error.reason or "TLS failure").removeprefix("TLSV13_").removeprefix("TLSV1_").removeprefix("SSLV3_")
    if "CERTIFICATE" in reason:
        return f"does not take this client's certificate, or wants one (ssl.keystore.location): {reason}"
    return f"ended TLS: {reason}"


def _ended(security: ClientSecurity) -> str:
    """Why a listener ends the connection at the first request."""
    if security.login is not None:
        return f"ended the login; it may be one without SASL or with another security.protocol than {security.protocol}"
    return f"ended the connection; it may want another security.protocol than {security.protocol}"


def log_in(sock: socket.socket, where: str, login: Login) -> None:
    answer = ask(sock, SaslHandshakeRequest(mechanism=login.mechanism), HANDSHAKE_VERSION)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(answer.mechanisms) or "none"
        raise Refusal(f"{where} does not offer {login.mechanism}; sasl.mechanism may be one of: {offered}")
    if answer.error_code:
        raise Refusal(f"{where} takes no SASL login (security.protocol): {error_name(answer.error_code)}")
    try:
        _authenticate(sock, login)
    except LoginFailed as error:
        who = f" as {login.user}" if login.user else ""
        raise Refusal(f"{where}: cannot log in{who} with {login.mechanism}: {error.reason}") from None


def _authenticate(sock: socket.socket, login: Login) -> None:
    """Raises LoginFailed."""
    mechanism = begin(login)
    for _ in range(STEPS_MAX):
        reply = ask(sock, SaslAuthenticateRequest(auth_bytes=mechanism.auth_bytes()), AUTHENTICATE_VERSION)
        if reply.error_code:
            raise LoginFailed(" ".join((reply.error_message or error_name(reply.error_code)).split()))
        mechanism.receive(bytes(reply.auth_bytes))
        if mechanism.is_done():
            break
    if not mechanism.is_authenticated():
        raise LoginFailed("the server does not confirm it")


def ask(sock: socket.socket, request: Request[R], version: int) -> R:
    """The response. Raises EOFError if the connection ends, MalformedFrame for an invalid one."""
    sock.sendall(encode_request(request, version, 0, CLIENT_ID))
    (size,) = struct.unpack(">i", _exactly(sock, 4))
    if not 4 <= size <= FRAME_BYTES_MAX:
        raise MalformedFrame("response size")
    response: R = decode_response(request.API_KEY, version, _exactly(sock, size))[1]
    return response


def _exactly(sock: socket.socket, size: int) -> bytes:
    got = bytearray()
    while len(got) < size:
        data = sock.recv(size - len(got))
        if not data:
            raise EOFError
        got += data
    return bytes(got)
