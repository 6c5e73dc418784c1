"""One SASL exchange: messages in, answers out, until somebody is known or it has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"


class AuthenticationFailed(Exception):
    """The cause, without secrets, for logs and metrics. Clients get the same error for all causes."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class Authenticated(NamedTuple):
    """The end of an exchange: the principal, the last message to the client, and when the authentication expires."""

    user: str
    answer: bytes = b""
    expires_ms: int | None = None
    """Milliseconds since the epoch."""


Step = bytes | Authenticated | Callable[[], "Authenticated"]
"""A challenge, the end, or work that takes its time and is to be done off the event loop; it may raise
AuthenticationFailed too."""


class Exchange(Protocol):
    def step(self, data: bytes) -> Step:
        """The client's next message. Raises AuthenticationFailed."""
        ...
