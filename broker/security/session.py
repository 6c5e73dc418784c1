"""A broker's knowledge of one connection's client: principal, tenant and rights."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Protocol

from msgspec import Struct, field

from broker.security.authorizer import Access
from broker.security.usage import NODES, Usage
from common.pacing import Lane

ANONYMOUS = "User:ANONYMOUS"
NODE_PRINCIPAL = "User:NODE"
SOFTWARE_LENGTH_MAX = 300
UNKNOWN_SOFTWARE = ("unknown", "unknown")


class ClosedListener(Protocol):
    """Something that waits on behalf of a connection."""

    def connection_closed(self) -> None:
        """The connection has closed, so no response is needed."""
        ...


class ClientSession(Struct):
    """The client of one connection, shared by its requests.

    `internal`: true only after the node handshake, which alone identifies a peer as a node. `tenant`: the logical
    cluster of the credentials, None on an operators' listener. `access`: None if everything is allowed. On a SASL
    listener only `login` sets principal, tenant and access.
    """

    listener: str
    internal: bool
    client_host: str
    connection: Any
    principal: str = ANONYMOUS
    tenant: str | None = None
    closed_listeners: dict[ClosedListener, None] = field(default_factory=dict)

    fetch_session: ClosedListener | None = None
    reader: int = 0  # assigned by `reader_number` on first use; 0 before
    access: Access | None = None
    login: ClosedListener | None = None
    pause_ms: int = 0  # throttle time for the next response, because the client connects too fast
    charged: Any = None  # the quotas that its requests are charged to: `broker.quotas.client_throttle.Charged`
    usage: Usage = field(default_factory=Usage)  # its own until `grant`
    is_granted: bool = False
    software: tuple[str, str] = UNKNOWN_SOFTWARE  # name and version, as the client said in ApiVersions
    topic_prefix: bytes = b""
    """Of the tenant's topic names; empty for others."""

    def __post_init__(self) -> None:
        self._be_of(self.tenant)

    def _be_of(self, tenant: str | None) -> None:
        self.tenant = tenant
        self.topic_prefix = b"" if tenant is None else f"{tenant}_".encode()

    @property
    def lane(self) -> Lane:
        """The client whose turns long work takes: all connections of a tenant, or of a user on a host, count as one."""
        client: Hashable = self.tenant
        if client is None:
            client = (NODES if self.internal else self.principal, self.client_host)
        return Lane(client, id(self))

    @property
    def client_port(self) -> int:
        """0 if it is not known."""
        connection = self.connection
        if connection is None:
            return 0
        address = connection.peer if connection.identity is None else connection.identity.client_address
        return int(address[1])

    def introduce(self, name: str, version: str) -> None:
        """The client has named its software. Long names are cut."""
        self.software = name[:SOFTWARE_LENGTH_MAX], version[:SOFTWARE_LENGTH_MAX]

    def reader_number(self, numbers: Iterator[int]) -> int:
        """A number that distinguishes readers, taken from `numbers` on first use."""
        if not self.reader:
            self.reader = next(numbers)
        return self.reader

    def begin_login(self, login: ClosedListener) -> None:
        """On a SASL listener: `login` decides to whom the connection belongs."""
        self.login = login
        self.closed_listeners[login] = None

    def belong_to(self, principal: str, tenant: str | None, access: Access | None) -> None:
        """From now on the connection belongs to this principal, with these rights."""
        self.principal = principal
        self._be_of(tenant)
        self.access = access
        self.charged = None

    def grant(self, usage: Usage) -> None:
        """What the connection uses from now on counts in `usage`; again after a further login."""
        if self.is_granted:
            return
        self.is_granted = True
        self.usage = usage
        self.connection.count_in(usage)
        self.connection.tell_of_frames(usage.served)
        usage.connection_opened()

    def charge_to(self, charged: object) -> None:
        """Charge further requests to these quotas, until they change."""
        self.charged = charged

    def count_in(self, usage: Usage) -> None:
        """Count what further requests use in `usage`, which stands for the present one. Bytes count where they did."""
        if usage is not self.usage:
            self.usage = usage
            self.connection.tell_of_frames(usage.served)

    def owe_pause(self, pause_ms: int) -> None:
        """Add a throttle time of at least `pause_ms` to the next response that has a field for one."""
        self.pause_ms = max(self.pause_ms, pause_ms)

    def take_pause(self) -> int:
        """Return the throttle time that is due, and clear it."""
        pause_ms, self.pause_ms = self.pause_ms, 0
        return pause_ms

    def adopt(self, fetch_session: ClosedListener) -> None:
        """Set the fetch session that this connection used last. A different earlier one is treated as abandoned."""
        before, self.fetch_session = self.fetch_session, fetch_session
        if before is not None and before is not fetch_session:
            before.connection_closed()

    def closed(self) -> None:
        """The connection has closed."""
        if self.is_granted:
            self.is_granted = False
            self.usage.connection_closed()
        for listener in list(self.closed_listeners):
            listener.connection_closed()
        self.closed_listeners.clear()
        if self.fetch_session is not None:
            self.fetch_session.connection_closed()
            self.fetch_session = None
