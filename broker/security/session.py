"""What a broker knows of one connection's client: who it is, and what it may do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from msgspec import Struct, field

from broker.security.authorizer import Access
from common.pacing import Lane

ANONYMOUS = "User:ANONYMOUS"
NODE_PRINCIPAL = "User:NODE"


class ClosedListener(Protocol):
    """Something that waits on behalf of a connection."""

    def connection_closed(self) -> None:
        """Its answer is not needed any more: the connection has closed."""
        ...


class ClientSession(Struct):
    """What is known of a connection for as long as it lives; one per connection, shared by its requests.

    `internal` is true only after the node handshake: nothing else makes a peer a node. `tenant` is the logical
    cluster of the credentials, None on an operator listener. `access` is None where everybody may do everything;
    `login` is the connection's on a SASL listener, which alone sets the three together.
    """

    listener: str
    internal: bool
    client_host: str
    connection: Any
    principal: str = ANONYMOUS
    tenant: str | None = None
    closed_listeners: dict[ClosedListener, None] = field(default_factory=dict)

    fetch_session: ClosedListener | None = None
    reader: int = 0  # see `reader_number`; 0 before it is needed
    access: Access | None = None
    login: ClosedListener | None = None
    pause_ms: int = 0  # what its next answer tells it to wait, for having come too fast

    @property
    def lane(self) -> Lane:
        """Whose turns its long work takes: a client's as a whole, however many connections it has."""
        client = self.tenant if self.tenant is not None else (self.principal, self.client_host)
        return Lane(client, id(self))

    @property
    def topic_prefix(self) -> bytes:
        """What the tenant's topics' names begin with, nothing for others."""
        return b"" if self.tenant is None else f"{self.tenant}_".encode()

    def reader_number(self, numbers: Iterator[int]) -> int:
        """A number for those who have to tell readers apart, the next one when it is first asked for."""
        if not self.reader:
            self.reader = next(numbers)
        return self.reader

    def begin_login(self, login: ClosedListener) -> None:
        """On a listener with SASL: `login` decides whose the connection is."""
        self.login = login
        self.closed_listeners[login] = None

    def belong_to(self, principal: str, tenant: str | None, access: Access | None) -> None:
        """The connection is this principal's from now on, with these rights."""
        self.principal = principal
        self.tenant = tenant
        self.access = access

    def owe_pause(self, pause_ms: int) -> None:
        """The next answer with room for it tells the client to wait at least so long."""
        self.pause_ms = max(self.pause_ms, pause_ms)

    def take_pause(self) -> int:
        """The pause that is owed; it is owed no longer."""
        pause_ms, self.pause_ms = self.pause_ms, 0
        return pause_ms

    def adopt(self, fetch_session: ClosedListener) -> None:
        """The fetch session that this connection used last; the one before, if another, is not expected back."""
        before, self.fetch_session = self.fetch_session, fetch_session
        if before is not None and before is not fetch_session:
            before.connection_closed()

    def closed(self) -> None:
        """The connection is gone."""
        for listener in list(self.closed_listeners):
            listener.connection_closed()
        self.closed_listeners.clear()
        if self.fetch_session is not None:
            self.fetch_session.connection_closed()
            self.fetch_session = None
