"""SCRAM-SHA-256 and SCRAM-SHA-512, the client's side of one exchange (RFC 5802, RFC 7677). Sans-I/O.

The server proves that it has the user's verifier too: an exchange that it ends without the right signature has failed,
whatever else it says. There is no channel binding. Names and passwords are bytes of UTF-8, as with Apache Kafka.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4_096, 1_000_000  # fewer give a password away to a false server
MESSAGE_BYTES_MAX = 8_192
_HEADER = "n,,"
_FIRST = re.compile(r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([1-9][0-9]{0,8})(?:,.+)?")
_FINAL = re.compile(r"v=([A-Za-z0-9+/=]+)(?:,.+)?")


class LoginFailed(Exception):
    """The login failed; the text says why, and holds no secret."""


class ScramClient:
    """`first`, then `final` with the server's first message, then `check` with its last. `nonce` is drawn for
    each exchange, of printable characters without a comma."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        self._hash = HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        self._first_bare = f"n={user.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._signature: bytes | None = None

    def first(self) -> bytes:
        return f"{_HEADER}{self._first_bare}".encode()

    def final(self, received: bytes) -> bytes:
        """The proof that this side knows the password. Raises LoginFailed for a server that asks for a weak one, or
        that answers another exchange."""
        text = _text(received)
        match = _FIRST.fullmatch(text)
        if match is None:
            raise LoginFailed("the server's first message is malformed")
        nonce, salt_text, iterations = match[1], match[2], int(match[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise LoginFailed("the server answers another exchange")
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise LoginFailed(
                f"the server asks for {iterations} iterations, not {ITERATIONS_MIN} to {ITERATIONS_MAX:d}"
            )
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, _decoded(salt_text), iterations)
        without_proof = f"c={base64.b64encode(_HEADER.encode()).decode()},r={nonce}"
        signed = f"{self._first_bare},{text},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        stored_key = hashlib.new(self._hash, client_key).digest()
        mask = hmac.digest(stored_key, signed, self._hash)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        self._signature = hmac.digest(hmac.digest(salted, b"Server Key", self._hash), signed, self._hash)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, received: bytes) -> None:
        """Raises LoginFailed for a server that does not know the user's verifier."""
        match = _FINAL.fullmatch(_text(received))
        if match is None or self._signature is None:
            raise LoginFailed("the server's last message is malformed")
        if not hmac.compare_digest(_decoded(match[1]), self._signature):
            raise LoginFailed("the server does not know this user: its signature is wrong")


def _text(received: bytes) -> str:
    if len(received) > MESSAGE_BYTES_MAX:
        raise LoginFailed("the server's message is too long")
    try:
        return received.decode()
    except UnicodeDecodeError as error:
        raise LoginFailed("the server's message is malformed") from error


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise LoginFailed("the server's message is malformed") from error
