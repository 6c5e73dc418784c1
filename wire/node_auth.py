"""Mutual proof of the cluster secret between nodes, before any byte of Kafka's protocol.

    initiator -> acceptor   hello: magic, initiator's nonce
    acceptor -> initiator   challenge: acceptor's nonce, HMAC-SHA256 over (acceptor, cluster, both nonces)
    initiator -> acceptor   proof: HMAC-SHA256 over (initiator, cluster, both nonces)

Each message is a frame (4-byte length) of a fixed size. The role in the HMAC stops reflection, the nonces replay.
The acceptor proves itself first, so an impostor of it learns nothing that the initiator would not tell anyone.
"""

from __future__ import annotations

import random

HELLO_BYTES = 40
CHALLENGE_BYTES = 64
PROOF_BYTES = 32


class AuthenticationFailed(Exception):
    """The peer does not know the secret, belongs to another cluster, or speaks something else."""


class Initiator:
    """The connecting side. `cluster` binds the proof to a cluster's name; both sides must give the same."""

    def __init__(self, secret: bytes, cluster: str, rng: random.Random) -> None: ...

    def hello(self) -> bytes:
        raise NotImplementedError

    def prove(self, challenge: bytes) -> bytes:
        """The proof for a `challenge` that holds. Raises AuthenticationFailed."""
        raise NotImplementedError


class Acceptor:
    """The accepting side: `challenge` once, then `verify` once."""

    def __init__(self, secret: bytes, cluster: str, rng: random.Random) -> None: ...

    def challenge(self, hello: bytes) -> bytes:
        """Raises AuthenticationFailed."""
        raise NotImplementedError

    def verify(self, proof: bytes) -> None:
        """Raises AuthenticationFailed."""
        raise NotImplementedError
