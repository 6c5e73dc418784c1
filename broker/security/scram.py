"""The server's side of one SCRAM-SHA-256 or SCRAM-SHA-512 exchange (RFC 5802, RFC 7677). No I/O.

An unknown user goes through the same steps as a known one with a wrong password, with a salt that is the same each time
and on each broker. There is no channel binding. As in Apache Kafka, names and passwords are compared as UTF-8 bytes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable

from broker.security.exchange import Authenticated, AuthenticationFailed, Step
from kraft.image.credentials import ScramCredential
from kraft.records import ScramMechanism

HASHES = {ScramMechanism.SHA_256: "sha256", ScramMechanism.SHA_512: "sha512"}
NONCE_BYTES = 24
NAME_CHARACTERS_MAX = 1_000
MESSAGE_BYTES_MAX = 8_192

Lookup = Callable[[str, ScramMechanism], ScramCredential]
"""Returns the verifier of a user, or a decoy for an unknown one; see `credentials.Credentials`."""

# gs2-header, then the bare message: the authorization id is optional, extensions may follow.
_FIRST = re.compile(r"(?:n|y),(?:a=([^,]*))?,n=([^,]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,(.+))?")
_FINAL = re.compile(r"c=([A-Za-z0-9+/=]+),r=([\x21-\x2b\x2d-\x7e]+)(?:,.+)?,p=([A-Za-z0-9+/=]+)")


class ScramExchange:
    """Two client messages, two responses. `nonce` is the server's, new for each exchange."""

    def __init__(self, mechanism: ScramMechanism, lookup: Lookup, nonce: bytes) -> None:
        self._mechanism = mechanism
        self._hash = HASHES[mechanism]
        self._lookup = lookup
        self._nonce = base64.b64encode(nonce).decode()
        self._user = ""
        self._header = self._first_bare = self._server_first = self._whole_nonce = ""
        self._credential: ScramCredential | None = None

    def step(self, data: bytes) -> Step:
        """Raises AuthenticationFailed."""
        if len(data) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed("malformed message")
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise AuthenticationFailed("malformed message") from error
        return self._first(text) if self._credential is None else self._final(text)

    def _first(self, text: str) -> bytes:
        match = _FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("malformed message")
        authorization, name, nonce, extensions = match.groups()
        if extensions and ("m=" in extensions or "tokenauth=" in extensions):
            raise AuthenticationFailed("unsupported extension")
        user = _plain_name(name)
        if authorization and _plain_name(authorization) != user:
            raise AuthenticationFailed("another authorization id")
        self._user = user
        credential = self._credential = self._lookup(user, self._mechanism)
        self._header = text[: match.start(2) - 2]
        self._first_bare = text[len(self._header) :]
        self._whole_nonce = nonce + self._nonce
        salt = base64.b64encode(credential.salt).decode()
        self._server_first = f"r={self._whole_nonce},s={salt},i={credential.iterations}"
        return self._server_first.encode()

    def _final(self, text: str) -> Authenticated:
        match, credential = _FINAL.fullmatch(text), self._credential
        if match is None or credential is None:
            raise AuthenticationFailed("malformed message")
        binding, nonce, proof_text = match.groups()
        try:
            bound, proof = base64.b64decode(binding, validate=True), base64.b64decode(proof_text, validate=True)
        except binascii.Error as error:
            raise AuthenticationFailed("malformed message") from error
        # librdkafka before 2.6.1 sends its own part twice; as in Apache Kafka, only the end must be the server's nonce.
        if bound != self._header.encode() or not hmac.compare_digest(nonce[-len(self._nonce) :], self._nonce):
            raise AuthenticationFailed("replayed or altered message")
        without_proof = text[: text.rindex(",p=")]
        signed = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, signed, self._hash)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=False))
        fits = len(proof) == len(signature)
        right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        if not (fits and right):
            raise AuthenticationFailed("invalid credentials")
        verifier = base64.b64encode(hmac.digest(credential.server_key, signed, self._hash))
        return Authenticated(self._user, b"v=" + verifier)


def _plain_name(text: str) -> str:
    """`=2C` and `=3D` stand for the comma and the equals sign."""
    if len(text) > NAME_CHARACTERS_MAX or text.replace("=2C", "").replace("=3D", "").count("="):
        raise AuthenticationFailed("malformed message")
    return text.replace("=2C", ",").replace("=3D", "=")
