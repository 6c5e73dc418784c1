"""SASL login as a client: kafka-python's mechanisms, for our own first connection and for its admin client.

Two rules of SCRAM that the library lacks are added: names are quoted (RFC 5802), and a server must request enough
iterations (RFC 7677), because with few the password is easily guessed from the proof.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from kafka.errors import SaslAuthenticationFailedError
from kafka.net.sasl import register_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.oauth import AbstractTokenProvider, SaslMechanismOAuth
from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import SaslMechanismScram

from tidelog.admin.command_config import MECHANISMS, OAUTHBEARER, PLAIN, Login

ITERATIONS_MIN = 4_096
_ITERATIONS = re.compile(rb"(?:^|,)i=([^,]*)")


class LoginFailed(SaslAuthenticationFailedError):  # type: ignore[misc]
    """The login failed; the text says why, and holds no secret."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class _Scram(SaslMechanismScram):  # type: ignore[misc]
    """Fails unless the server proves that it has the user's verifier too."""

    def __init__(self, login: Login) -> None:
        user = login.user.replace("=", "=3D").replace(",", "=2C")
        super().__init__(sasl_mechanism=login.mechanism, sasl_plain_username=user, sasl_plain_password=login.secret)
        self._has_answered = False

    def receive(self, received: bytes) -> None:
        """Raises LoginFailed."""
        if self._has_answered:
            try:
                super().receive(received)
            except (ValueError, KeyError):
                raise LoginFailed("the server does not know this user: its signature is wrong") from None
            return
        _check_iterations(received)
        try:
            super().receive(received)
        except (ValueError, KeyError):
            raise LoginFailed("the server's first message is malformed, or answers another exchange") from None
        self._has_answered = True


class _OAuth(SaslMechanismOAuth):  # type: ignore[misc]
    def receive(self, received: bytes) -> None:
        """Raises LoginFailed."""
        try:
            super().receive(received)
        except UnicodeDecodeError:
            raise LoginFailed("the server's answer to the token is malformed") from None


class _Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token

    def token(self) -> str:
        return self._token


def begin(login: Login) -> SaslMechanism:
    """One login. Send `auth_bytes`, and pass each response to `receive`, until `is_done`; then `is_authenticated` says
    whether it has succeeded."""
    if login.mechanism == PLAIN:
        return SaslMechanismPlain(sasl_plain_username=login.user, sasl_plain_password=login.secret)
    if login.mechanism == OAUTHBEARER:
        return _OAuth(sasl_oauth_token_provider=_Token(login.secret))
    return _Scram(login)


def use_in_library(login: Login) -> None:
    """Make the admin client log in this way. Its own configuration, which it logs, then has no secret."""

    def made(**_: Any) -> SaslMechanism:
        return begin(login)

    register_sasl_mechanism(login.mechanism, made, overwrite=True)


class LibraryLogins:
    """Logins of many clients in one process. The library knows one way for each mechanism, so a client's user name is
    the number of its login here."""

    def __init__(self) -> None:
        self._kept: dict[str, Login] = {}
        self._numbers = itertools.count()
        for mechanism in MECHANISMS:
            register_sasl_mechanism(mechanism, self._begun, overwrite=True)

    def keep(self, login: Login) -> str:
        """What a client gets as `sasl_plain_username`."""
        number = str(next(self._numbers))
        self._kept[number] = login
        return number

    def forget(self, number: str) -> None:
        """Its client has closed."""
        self._kept.pop(number, None)

    def _begun(self, *, sasl_plain_username: str, **_: Any) -> SaslMechanism:
        login = self._kept.get(sasl_plain_username)
        if login is None:
            raise LoginFailed("the session has ended")
        return begin(login)


def _check_iterations(first_message: bytes) -> None:
    found = _ITERATIONS.findall(first_message)
    if len(found) != 1 or not re.fullmatch(rb"[0-9]{1,9}", found[0]):
        raise LoginFailed("the server's first message is malformed")
    if int(found[0]) < ITERATIONS_MIN:
        raise LoginFailed(f"the server asks for {int(found[0])} iterations, fewer than {ITERATIONS_MIN}")
