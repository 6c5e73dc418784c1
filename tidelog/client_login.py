"""Logging in by SASL as a client: the mechanisms, sans-I/O, for our own knock and for the admin client's library."""

from __future__ import annotations

import secrets
from typing import Any, Protocol

from tidelog.command_config import PLAIN, Login
from tidelog.scram_client import HASHES, LoginFailed, ScramClient

NONCE_BYTES = 24


class Exchange(Protocol):
    """One login."""

    def step(self, received: bytes | None) -> bytes | None:
        """What to send, first for None and then for each answer; None when the server has proved what it must.

        Raises LoginFailed.
        """


class PlainExchange:
    def __init__(self, login: Login) -> None:
        self._message = f"\0{login.user}\0{login.secret}".encode()

    def step(self, received: bytes | None) -> bytes | None:
        return self._message if received is None else None


class TokenExchange:
    """A server that does not take the token says why, and is answered with a lone byte before it fails (RFC 7628)."""

    def __init__(self, login: Login) -> None:
        self._message = f"n,,\x01auth=Bearer {login.secret}\x01\x01".encode()

    def step(self, received: bytes | None) -> bytes | None:
        if received is None:
            return self._message
        return b"\x01" if received else None


class ScramExchange:
    def __init__(self, login: Login) -> None:
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        self._client = ScramClient(login.mechanism, login.user, login.secret, nonce)
        self._steps = 0

    def step(self, received: bytes | None) -> bytes | None:
        self._steps += 1
        if received is None:
            return self._client.first()
        if self._steps == 2:
            return self._client.final(received)
        self._client.check(received)
        return None


def begin(login: Login) -> Exchange:
    if login.mechanism in HASHES:
        return ScramExchange(login)
    return PlainExchange(login) if login.mechanism == PLAIN else TokenExchange(login)


def use_in_library(login: Login) -> None:
    """Let the admin client's library log in by our exchange. Its own configuration, which it logs, has no secret then,
    and the server's signature is compared here."""
    from kafka.errors import SaslAuthenticationFailedError  # noqa: PLC0415
    from kafka.net.sasl import register_sasl_mechanism  # noqa: PLC0415
    from kafka.net.sasl.abc import SaslMechanism  # noqa: PLC0415

    class Mechanism(SaslMechanism):  # type: ignore[misc]
        def __init__(self, **_: Any) -> None:
            self._exchange = begin(login)
            self._next = self._exchange.step(None)

        def auth_bytes(self) -> bytes:
            return self._next or b""

        def receive(self, auth_bytes: bytes) -> None:
            try:
                self._next = self._exchange.step(auth_bytes)
            except LoginFailed as error:
                raise SaslAuthenticationFailedError(str(error)) from None

        def is_done(self) -> bool:
            return self._next is None

        def is_authenticated(self) -> bool:
            return self._next is None

        def auth_details(self) -> str:
            return f"Authenticated by {login.mechanism}"

    register_sasl_mechanism(login.mechanism, Mechanism, overwrite=True)
