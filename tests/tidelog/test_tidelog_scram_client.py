"""The client's side of SCRAM, against the published exchange and against our broker's side."""

from __future__ import annotations

import base64
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.security.exchange import Authenticated, AuthenticationFailed
from broker.security.scram import ScramExchange
from kraft.image.credentials import ScramCredential
from kraft.records import ScramMechanism
from tidelog.credentials import MECHANISM_NAMES, verifiers
from tidelog.scram_client import LoginFailed, ScramClient

NUMBERS = {name: ScramMechanism(number) for name, number in MECHANISM_NAMES.items()}
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


def pencil() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)


def test_the_exchange_of_rfc_7677() -> None:
    client = pencil()
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert client.final(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    client.check(SERVER_FINAL)


def server(mechanism: str, user: str, password: str) -> ScramExchange:
    verifier = next(one for one in verifiers(password) if one.mechanism == MECHANISM_NAMES[mechanism])
    credential = ScramCredential(verifier.salt, verifier.stored_key, verifier.server_key, verifier.iterations)

    def lookup(name: str, _: ScramMechanism) -> ScramCredential:
        assert name == user
        return credential

    return ScramExchange(NUMBERS[mechanism], lookup, bytes(range(24)))


@given(st.sampled_from(sorted(MECHANISM_NAMES)), words, words, words)
def test_the_broker_takes_the_right_password_and_no_other(mechanism: str, user: str, password: str, typed: str) -> None:
    other, client = server(mechanism, user, password), ScramClient(mechanism, user, typed, "n0nce")
    challenge = other.step(client.first())
    assert isinstance(challenge, bytes)
    proof = client.final(challenge)
    if typed == password:
        done = other.step(proof)
        assert isinstance(done, Authenticated)
        client.check(done.answer)
    else:
        with pytest.raises(AuthenticationFailed):
            other.step(proof)


@given(st.integers(0, 31), st.integers(1, 255))
def test_a_server_without_the_verifier_is_found_out(at: int, change: int) -> None:
    client = pencil()
    client.final(SERVER_FIRST)
    signature = bytearray(base64.b64decode(SERVER_FINAL[2:]))
    signature[at] ^= change
    with pytest.raises(LoginFailed, match="signature"):
        client.check(b"v=" + base64.b64encode(signature))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (SERVER_FIRST.replace(b"r=rO", b"r=xO"), "another exchange"),
        (re.sub(rb"r=[^,]+", b"r=rOprNGfwEbeRWgbNEkqO", SERVER_FIRST), "another exchange"),
        (SERVER_FIRST.replace(b"4096", b"4095"), "4095 iterations"),
        (SERVER_FIRST.replace(b"4096", b"99999999"), "99999999 iterations"),
        (SERVER_FIRST.replace(b"W22", b"W2"), "malformed"),
        (b"m=extension," + SERVER_FIRST, "malformed"),
        (b"e=other-error", "malformed"),
        (b"\xff", "malformed"),
        (b"", "malformed"),
        (SERVER_FIRST + b"," + bytes(10_000), "too long"),
    ],
)
def test_a_first_message_that_gets_no_proof(message: bytes, reason: str) -> None:
    client = pencil()
    client.first()
    with pytest.raises(LoginFailed, match=reason):
        client.final(message)


@pytest.mark.parametrize("message", [b"e=invalid-proof", b"v=", b"", b"v=AAAA"])
def test_a_last_message_that_proves_nothing(message: bytes) -> None:
    client = pencil()
    client.final(SERVER_FIRST)
    with pytest.raises(LoginFailed):
        client.check(message)


def test_nothing_is_proved_before_the_first_message() -> None:
    with pytest.raises(LoginFailed):
        pencil().check(SERVER_FINAL)
