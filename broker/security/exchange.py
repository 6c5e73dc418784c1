"""One SASL exchange: client messages in, server messages out, until it has succeeded or failed."""

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
    """A successful exchange: the principal, the last message to the client, and when the authentication expires."""

    user: str
    answer: bytes = b""
    expires_ms: int | None = None
    """Milliseconds since the epoch."""


Step = bytes | Authenticated | Callable[[], "Authenticated"]
"""A challenge, the end, or slow work to be run off the event loop, which may also raise AuthenticationFailed."""


class Exchange(Protocol):
    def step(self, data: bytes) -> Step:
        """Handle the client's next message. Raises AuthenticationFailed."""
        ...
