"""Logging in by the library's mechanisms, against our broker's side and against servers that only pose as one."""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl import get_sasl_mechanism, register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism

from broker.security.exchange import Authenticated, AuthenticationFailed
from broker.security.plain import PlainExchange
from broker.security.scram import ScramExchange
from kraft.image.credentials import ScramCredential
from kraft.records import ScramMechanism
from tidelog.admin.client_login import LoginFailed, begin, use_in_library
from tidelog.admin.command_config import OAUTHBEARER, PLAIN, SCRAM, Login
from tidelog.credentials import MECHANISM_NAMES, verifiers

NUMBERS = {name: ScramMechanism(number) for name, number in MECHANISM_NAMES.items()}
words = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)


class Users:
    """Knows one of them."""

    def __init__(self, mechanism: str, user: str, password: str) -> None:
        verifier = next(one for one in verifiers(password) if one.mechanism == MECHANISM_NAMES[mechanism])
        self.mechanism, self.user = NUMBERS[mechanism], user
        self.credential = ScramCredential(verifier.salt, verifier.stored_key, verifier.server_key, verifier.iterations)

    def lookup(self, name: str, mechanism: ScramMechanism) -> ScramCredential:
        assert (name, mechanism) == (self.user, self.mechanism)
        return self.credential

    def any_of(self, user: str) -> tuple[ScramMechanism, ScramCredential]:
        return self.mechanism, self.lookup(user, self.mechanism)


@given(st.sampled_from(SCRAM), words, words, words)
def test_the_broker_takes_the_right_password_and_no_other(mechanism: str, user: str, password: str, typed: str) -> None:
    """Names with a comma or an equals sign among them, which the exchange quotes."""
    users = Users(mechanism, user, password)
    other, client = ScramExchange(users.mechanism, users.lookup, bytes(range(24))), begin(Login(mechanism, user, typed))
    challenge = other.step(client.auth_bytes())
    assert isinstance(challenge, bytes)
    client.receive(challenge)
    proof = client.auth_bytes()
    assert not client.is_done()
    if typed == password:
        done = other.step(proof)
        assert isinstance(done, Authenticated)
        client.receive(done.answer)
        assert client.is_done() and client.is_authenticated()
    else:
        with pytest.raises(AuthenticationFailed):
            other.step(proof)


@given(words, words)
def test_the_broker_takes_the_same_by_plain(user: str, password: str) -> None:
    client = begin(Login(PLAIN, user, password))
    check = PlainExchange(Users(SCRAM[0], user, password)).step(client.auth_bytes())
    assert callable(check)
    done = check()
    assert isinstance(done, Authenticated) and done.user == user
    client.receive(done.answer)
    assert client.is_done() and client.is_authenticated()


def first_message(client: SaslMechanism, iterations: str = "4096", more: str = "more") -> bytes:
    """What a server answers that takes part in the exchange."""
    nonce = bytes(client.auth_bytes()).rpartition(b"r=")[2].decode()
    return f"r={nonce}{more},s=c2FsdHNhbHQ=,i={iterations}".encode()


def scram() -> SaslMechanism:
    return begin(Login("SCRAM-SHA-256", "user", "pencil"))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (lambda sound: b"r=x" + sound[2:], "another exchange"),
        (lambda sound: sound.replace(b"4096", b"4095"), "4095 iterations"),
        (lambda sound: sound.replace(b"4096", b"1"), "1 iterations"),
        (lambda sound: sound + b",i=1", "malformed"),  # the library would use the last of them
        (lambda sound: sound.replace(b"4096", b"\xd9\xa4"), "malformed"),
        (lambda sound: sound.replace(b"4096", b"99999999"), "malformed"),
        (lambda sound: sound.replace(b"c2F", b"c2"), "malformed"),
        (lambda sound: b"e=other-error", "malformed"),
        (lambda sound: b"\xff,i=4096", "malformed"),
        (lambda sound: b"", "malformed"),
    ],
)
def test_a_first_message_that_gets_no_proof(changed: Callable[[bytes], bytes], reason: str) -> None:
    client = scram()
    with pytest.raises(LoginFailed, match=reason):
        client.receive(changed(first_message(client)))
    assert not client.is_done()


@given(st.binary(max_size=40) | st.binary(min_size=32, max_size=32).map(lambda raw: b"v=" + base64.b64encode(raw)))
def test_a_server_without_the_verifier_is_found_out(message: bytes) -> None:
    client = scram()
    client.receive(first_message(client))
    with pytest.raises(LoginFailed, match="signature"):
        client.receive(message)
    assert not client.is_authenticated()


def test_a_token_that_is_not_taken_is_no_login() -> None:
    client = begin(Login(OAUTHBEARER, "", "eyJ.eyJ.sig"))
    assert client.auth_bytes() == b"n,,\x01auth=Bearer eyJ.eyJ.sig\x01\x01"
    client.receive(b'{"status":"invalid_token"}')
    assert not client.is_done() and client.auth_bytes() == b"\x01"


def test_an_answer_to_a_token_that_is_no_text_is_no_login() -> None:
    client = begin(Login(OAUTHBEARER, "", "eyJ.eyJ.sig"))
    with pytest.raises(LoginFailed, match="malformed"):
        client.receive(b"\xff")
    assert not client.is_authenticated()


def test_the_library_logs_in_so_and_is_told_no_secret() -> None:
    mechanism = "SCRAM-SHA-512"
    before = get_sasl_mechanism(mechanism)
    try:
        use_in_library(Login(mechanism, "a=b", "pencil"))
        made = get_sasl_mechanism(mechanism)(host="there", sasl_mechanism=mechanism, sasl_plain_password=None)
        assert made.auth_bytes().startswith(b"n,,n=a=3Db,r=")
    finally:
        register_sasl_mechanism(mechanism, before, overwrite=True)
