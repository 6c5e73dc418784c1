"""Mutual proof of the cluster's secret between two voters, bound to who they are and what they want. No I/O.

    acceptor -> dialer   challenge: nonce
    dialer -> acceptor   hello: version, purpose, from, to, cluster id, nonce, HMAC over all so far
    acceptor -> dialer   welcome: cluster id, HMAC over all so far

Both sides derive a key per direction from the whole exchange; each later frame carries a MAC over its number and its
bytes, so that a party between the two cannot add, change, repeat or leave out one.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import struct
from collections.abc import Collection
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from common.identifiers import UUID_BYTES, ZERO_UUID, uuid_text

VERSION = 1
NONCE_BYTES = 32
PROOF_BYTES = 32
MAC_BYTES = 16
HANDSHAKE_FRAME_BYTES_MAX = 256
SECRET_BYTES_MIN = 16

_HELLO = struct.Struct(f"<BBqq{UUID_BYTES}s{NONCE_BYTES}s")
_COUNTER = struct.Struct("<Q")


class Purpose(IntEnum):
    RAFT = 1
    PROBE = 2  # one question of a voter that has not joined yet


class HandshakeFailed(Exception):
    """The peer does not know the secret, is not a voter, belongs to another cluster, or speaks another protocol."""


class Identity(Struct, frozen=True):
    """A voter's claimed identity. A cluster id of zeros: not known yet."""

    node_id: int
    cluster_id: bytes
    secret: bytes


class Mac(Protocol):
    """Takes a payload in pieces; MAC_BYTES in the end."""

    def update(self, piece: bytes | memoryview, /) -> None: ...

    def digest(self) -> bytes: ...


class Seal:
    """Authenticates the frames of one direction."""

    __slots__ = ("_key", "_number")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def begin(self) -> Mac:
        """The MAC of the next frame, before its payload."""
        mac = hashlib.blake2b(_COUNTER.pack(self._number), key=self._key, digest_size=MAC_BYTES)
        self._number += 1
        return mac


class Session(Struct):
    """The result of a finished handshake."""

    peer: int
    purpose: Purpose
    cluster_id: bytes  # the peer's
    sending: Seal
    receiving: Seal


class Dialer:
    def __init__(self, identity: Identity, peer: int, purpose: Purpose, rng: random.Random) -> None:
        self._identity = identity
        self._peer = peer
        self._purpose = purpose
        self._nonce = rng.randbytes(NONCE_BYTES)
        self._transcript = b""
        self.session: Session | None = None

    def opening(self) -> bytes | None:
        return None

    def receive(self, frame: bytes) -> bytes | None:
        """The answer to a frame of the acceptor, if one is needed; `session` is set at the end."""
        if not self._transcript:
            if len(frame) != NONCE_BYTES:
                raise HandshakeFailed("not a challenge")
            me = self._identity
            hello = _HELLO.pack(VERSION, self._purpose, me.node_id, self._peer, me.cluster_id, self._nonce)
            self._transcript = frame + hello
            return hello + _prove(me.secret, b"dialer", self._transcript)
        if len(frame) != UUID_BYTES + PROOF_BYTES:
            raise HandshakeFailed("not a welcome")
        cluster_id, proof = frame[:UUID_BYTES], frame[UUID_BYTES:]
        self._transcript += cluster_id
        if not hmac.compare_digest(proof, _prove(self._identity.secret, b"acceptor", self._transcript)):
            raise HandshakeFailed("the welcome is not signed with the cluster's secret")
        _check_cluster(self._identity.cluster_id, cluster_id)
        secret = self._identity.secret
        sending, receiving = (
            _seal(secret, b"to acceptor", self._transcript),
            _seal(secret, b"to dialer", self._transcript),
        )
        self.session = Session(self._peer, self._purpose, cluster_id, sending, receiving)
        return None


class Acceptor:
    """`peers`: allowed dialers; `purposes`: allowed purposes."""

    def __init__(
        self, identity: Identity, peers: Collection[int], purposes: Collection[Purpose], rng: random.Random
    ) -> None:
        self._identity = identity
        self._peers = peers
        self._purposes = purposes
        self._challenge = rng.randbytes(NONCE_BYTES)
        self.session: Session | None = None

    def opening(self) -> bytes | None:
        return self._challenge

    def receive(self, frame: bytes) -> bytes | None:
        """The welcome in answer to the dialer's hello; then `session` is set."""
        if self.session is not None or len(frame) != _HELLO.size + PROOF_BYTES:
            raise HandshakeFailed("not a hello")
        hello, proof = frame[: _HELLO.size], frame[_HELLO.size :]
        transcript = self._challenge + hello
        me = self._identity
        if not hmac.compare_digest(proof, _prove(me.secret, b"dialer", transcript)):
            raise HandshakeFailed("the hello is not signed with the cluster's secret")
        version, purpose, peer, to, cluster_id, _ = _HELLO.unpack(hello)
        if version != VERSION:
            raise HandshakeFailed(f"the hello has version {version}")
        if to != me.node_id:
            raise HandshakeFailed(f"the hello is for node {to}, and this is node {me.node_id}")
        if peer not in self._peers:
            raise HandshakeFailed(f"node {peer} is no other voter")
        if purpose not in self._purposes:
            raise HandshakeFailed(f"purpose {purpose} of node {peer} is not served, or not yet")
        _check_cluster(me.cluster_id, cluster_id)
        transcript += me.cluster_id
        sending = _seal(me.secret, b"to dialer", transcript)
        receiving = _seal(me.secret, b"to acceptor", transcript)
        self.session = Session(peer, Purpose(purpose), cluster_id, sending, receiving)
        return me.cluster_id + _prove(me.secret, b"acceptor", transcript)


def _prove(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, b"tidelog quorum " + label + b"\0" + transcript, "sha256")


def _seal(secret: bytes, label: bytes, transcript: bytes) -> Seal:
    return Seal(_prove(secret, label, transcript))


def _check_cluster(mine: bytes, theirs: bytes) -> None:
    if ZERO_UUID not in (mine, theirs) and mine != theirs:
        raise HandshakeFailed(f"the peer belongs to cluster {uuid_text(theirs)}, and this is {uuid_text(mine)}")
