"""Mutual proof of the cluster secret between nodes, before any byte of Kafka's protocol.

    initiator -> acceptor   hello: magic, initiator's nonce
    acceptor -> initiator   challenge: acceptor's nonce, HMAC-SHA256 over (acceptor, cluster, both nonces)
    initiator -> acceptor   proof: HMAC-SHA256 over (initiator, cluster, both nonces)

Each message is a frame (4-byte length) of a fixed size. The role in the HMAC stops reflection, the nonces replay.
The acceptor proves itself first; the initiator answers only a valid proof.
"""

from __future__ import annotations

import hashlib
import hmac
import random

SECRET_BYTES_MIN = 16
MAGIC = b"TIDENODE"
NONCE_BYTES = 32
DIGEST_BYTES = 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
CHALLENGE_BYTES = NONCE_BYTES + DIGEST_BYTES
PROOF_BYTES = DIGEST_BYTES

_INITIATOR, _ACCEPTOR, _NONCE = b"initiator", b"acceptor", b"nonce"


class AuthenticationFailed(Exception):
    """The peer does not know the secret, belongs to another cluster, or speaks another protocol."""


def _digest(secret: bytes, role: bytes, *fields: bytes) -> bytes:
    """HMAC-SHA256 over length-prefixed fields, so that no two lists of fields give the same bytes."""
    message = b"".join(len(field).to_bytes(4, "big") + field for field in (role, *fields))
    return hmac.new(secret, message, hashlib.sha256).digest()


class _Party:
    def __init__(self, secret: bytes, cluster: str, rng: random.Random) -> None:
        if len(secret) < SECRET_BYTES_MIN:
            raise ValueError(f"the cluster secret is shorter than {SECRET_BYTES_MIN} bytes")
        self._secret = secret
        self._cluster = cluster.encode()
        # Keyed with the secret, so that earlier nonces do not allow to predict the next.
        self._nonce = _digest(secret, _NONCE, rng.randbytes(NONCE_BYTES))


class Initiator(_Party):
    """The connecting side. `cluster` binds the proof to a cluster's name; both sides must give the same.

    Raises ValueError for a secret under `SECRET_BYTES_MIN`.
    """

    def hello(self) -> bytes:
        return MAGIC + self._nonce

    def prove(self, challenge: bytes) -> bytes:
        """The proof for a valid `challenge`. Raises AuthenticationFailed."""
        if len(challenge) != CHALLENGE_BYTES:
            raise AuthenticationFailed("challenge of the wrong size")
        nonce, digest = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        expected = _digest(self._secret, _ACCEPTOR, self._cluster, self._nonce, nonce)
        if not hmac.compare_digest(digest, expected):
            raise AuthenticationFailed("the acceptor does not know this cluster's secret")
        return _digest(self._secret, _INITIATOR, self._cluster, self._nonce, nonce)


class Acceptor(_Party):
    """The accepting side: `challenge` once, then `verify` once. Raises ValueError as `Initiator` does."""

    def __init__(self, secret: bytes, cluster: str, rng: random.Random) -> None:
        super().__init__(secret, cluster, rng)
        self._expected: bytes | None = None

    @property
    def is_challenging(self) -> bool:
        return self._expected is not None

    def challenge(self, hello: bytes) -> bytes:
        """Raises AuthenticationFailed."""
        if len(hello) != HELLO_BYTES or not hello.startswith(MAGIC):
            raise AuthenticationFailed("no hello of a node")
        nonce = hello[len(MAGIC) :]
        self._expected = _digest(self._secret, _INITIATOR, self._cluster, nonce, self._nonce)
        return self._nonce + _digest(self._secret, _ACCEPTOR, self._cluster, nonce, self._nonce)

    def verify(self, proof: bytes) -> None:
        """Raises AuthenticationFailed."""
        expected, self._expected = self._expected, None
        if expected is None or not hmac.compare_digest(proof, expected):
            raise AuthenticationFailed("the initiator does not know this cluster's secret")
