"""The node handshake as values: who may pass, and nobody else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.node_auth import (
    CHALLENGE_BYTES,
    HELLO_BYTES,
    PROOF_BYTES,
    SECRET_BYTES_MIN,
    Acceptor,
    AuthenticationFailed,
    Initiator,
)

SECRET = b"0123456789abcdef0123456789abcdef"


def parties(
    secrets: tuple[bytes, bytes] = (SECRET, SECRET), clusters: tuple[str, str] = ("c", "c")
) -> tuple[Initiator, Acceptor]:
    return (
        Initiator(secrets[0], clusters[0], random.Random(1)),
        Acceptor(secrets[1], clusters[1], random.Random(2)),
    )


def test_both_sides_with_the_secret_agree() -> None:
    initiator, acceptor = parties()
    hello = initiator.hello()
    challenge = acceptor.challenge(hello)
    proof = initiator.prove(challenge)
    assert (len(hello), len(challenge), len(proof)) == (HELLO_BYTES, CHALLENGE_BYTES, PROOF_BYTES)
    acceptor.verify(proof)


@pytest.mark.parametrize(
    ("secrets", "clusters"),
    [((SECRET, SECRET[:-1] + b"x"), ("c", "c")), ((SECRET, SECRET), ("c", "d")), ((SECRET, SECRET), ("", "c"))],
)
def test_another_secret_or_cluster_fails_on_both_sides(secrets: tuple[bytes, bytes], clusters: tuple[str, str]) -> None:
    initiator, acceptor = parties(secrets, clusters)
    challenge = acceptor.challenge(initiator.hello())
    with pytest.raises(AuthenticationFailed):
        initiator.prove(challenge)
    impostor = Initiator(secrets[0], clusters[0], random.Random(1))
    right = Acceptor(secrets[0], clusters[0], random.Random(2))
    with pytest.raises(AuthenticationFailed):
        acceptor.verify(impostor.prove(right.challenge(impostor.hello())))


def test_a_challenge_cannot_be_reflected_as_a_proof() -> None:
    _, acceptor = parties()
    challenge = acceptor.challenge(Initiator(SECRET, "c", random.Random(1)).hello())
    with pytest.raises(AuthenticationFailed):
        acceptor.verify(challenge[-PROOF_BYTES:])


def test_a_proof_cannot_be_replayed() -> None:
    initiator, acceptor = parties()
    proof = initiator.prove(acceptor.challenge(initiator.hello()))
    acceptor.verify(proof)
    with pytest.raises(AuthenticationFailed):
        acceptor.verify(proof)
    later = Acceptor(SECRET, "c", random.Random(3))
    later.challenge(initiator.hello())
    with pytest.raises(AuthenticationFailed):
        later.verify(proof)


def test_nonces_do_not_show_the_random_source() -> None:
    rng = random.Random(5)
    assert rng.randbytes(32) not in Initiator(SECRET, "c", random.Random(5)).hello()
    assert Initiator(SECRET, "c", rng).hello() != Initiator(SECRET, "c", rng).hello()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2), st.integers(0, 10_000), st.integers(1, 255))
def test_any_flipped_byte_fails(message: int, at: int, flip: int) -> None:
    def damaged(data: bytes, index: int) -> bytes:
        if index != message:
            return data
        changed = bytearray(data)
        changed[at % len(data)] ^= flip
        return bytes(changed)

    initiator, acceptor = parties()
    with pytest.raises(AuthenticationFailed):
        acceptor.verify(damaged(initiator.prove(damaged(acceptor.challenge(damaged(initiator.hello(), 0)), 1)), 2))


@given(st.binary(max_size=100))
def test_garbage_is_refused(data: bytes) -> None:
    initiator, acceptor = parties()
    with pytest.raises(AuthenticationFailed):
        acceptor.challenge(data)
    with pytest.raises(AuthenticationFailed):
        initiator.prove(data)
    with pytest.raises(AuthenticationFailed):
        acceptor.verify(data)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(ValueError, match="secret"):
        Initiator(b"x" * (SECRET_BYTES_MIN - 1), "c", random.Random(1))
