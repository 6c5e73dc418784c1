"""PLAIN (RFC 4616) against SCRAM verifiers: the server hashes the password as a SCRAM client would. No I/O."""

from __future__ import annotations

import hashlib
import hmac
from typing import Protocol

from broker.security.exchange import Authenticated, AuthenticationFailed, Step
from broker.security.scram import HASHES, NAME_CHARACTERS_MAX
from kraft.image.credentials import ScramCredential
from kraft.records import ScramMechanism

PASSWORD_BYTES_MAX = 4_096


class PlainLookup(Protocol):
    """The verifier that a password is checked against; see `credentials.Credentials`."""

    def any_of(self, user: str) -> tuple[ScramMechanism, ScramCredential]:
        """One of the user's verifiers, or a decoy."""
        ...


class PlainExchange:
    """One message of the client: authorization id, user and password."""

    def __init__(self, lookup: PlainLookup) -> None:
        self._lookup = lookup

    def step(self, data: bytes) -> Step:
        """Check the password, which takes milliseconds. Raises AuthenticationFailed."""
        parts = data.split(b"\0")
        if len(parts) != 3 or not parts[1] or not parts[2] or len(parts[2]) > PASSWORD_BYTES_MAX:
            raise AuthenticationFailed("malformed message")
        try:
            authorization, user, password = parts[0].decode(), parts[1].decode(), parts[2]
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("malformed message") from error
        if len(user) > NAME_CHARACTERS_MAX:
            raise AuthenticationFailed("malformed message")
        if authorization not in ("", user):
            raise AuthenticationFailed("another authorization id")
        mechanism, credential = self._lookup.any_of(user)
        return lambda: _check(user, password, HASHES[mechanism], credential)


def _check(user: str, password: bytes, name: str, credential: ScramCredential) -> Authenticated:
    salted = hashlib.pbkdf2_hmac(name, password, credential.salt, credential.iterations)
    stored_key = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    if not hmac.compare_digest(stored_key, credential.stored_key):
        raise AuthenticationFailed("invalid credentials")
    return Authenticated(user)
