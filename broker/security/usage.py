"""What clients use of one broker, counted for each tenant, and for all clients of operators' listeners together.

A session holds its tenant's counters from its login on, so that a request costs some additions and no look-up. Other
nodes' connections are not counted. All counters only grow, from 0 when the broker starts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from enum import StrEnum

from wire.traffic import Traffic


class ThrottleReason(StrEnum):
    """Why a client has to wait: a quota of its user or client id; it creates or deletes partitions too fast, or
    connects too fast; the disk fills up; its tenant's share of a quota is used up; the broker is at its limit."""

    CLIENT_QUOTA = "client_quota"
    PARTITION_MUTATIONS = "partition_mutations"
    CONNECTION_RATE = "connection_rate"
    DISK = "disk"
    SHARE = "share"
    PRESSURE = "pressure"


NODES = "nodes"
"""The first part of the lane group of another node's session, see `ClientSession.lane`."""


class Usage(Traffic):
    """The counters of one tenant. `busy_s` is time of the event loop, `throttled_ms` by reason."""

    __slots__ = ("_reported", "attempts", "busy_s", "closed", "opened", "requests", "throttled_ms")

    def __init__(self) -> None:
        super().__init__()
        self.requests = 0
        self.busy_s = 0.0
        self.attempts = 0
        self.opened = 0
        self.closed = 0
        self.throttled_ms: dict[ThrottleReason, int] = {}
        self._reported = 0

    @property
    def connections(self) -> int:
        """Open ones."""
        return self.opened - self.closed

    @property
    def marker(self) -> int:
        """Grows with every request, connection and byte: while it is the same, nothing was used."""
        return self.received + self.sent + self.requests + self.attempts + self.opened + self.closed

    @property
    def is_reported(self) -> bool:
        """Whether nothing was used since a controller took these counters."""
        return self._reported == self.marker

    def reported(self, marker: int) -> None:
        """A controller has taken the counters as they were at `marker`."""
        self._reported = marker

    def add(self, other: Usage) -> None:
        """Add the counters of another one."""
        self.received += other.received
        self.sent += other.sent
        self.requests += other.requests
        self.busy_s += other.busy_s
        self.attempts += other.attempts
        self.opened += other.opened
        self.closed += other.closed
        for reason, pause_ms in other.throttled_ms.items():
            self.throttled(reason, pause_ms)

    def served(self, seconds: float) -> None:
        """A request was taken, and held the loop for so long."""
        self.requests += 1
        self.busy_s += seconds

    def spent(self, seconds: float) -> None:
        """A request that was taken before has held the loop for so long."""
        self.busy_s += seconds

    def attempted(self) -> None:
        """A connection was made; it may fail to log in."""
        self.attempts += 1

    def connection_opened(self) -> None:
        self.opened += 1

    def connection_closed(self) -> None:
        self.closed += 1

    def throttled(self, reason: ThrottleReason, pause_ms: int) -> None:
        """A client has to wait for so long."""
        self.throttled_ms[reason] = self.throttled_ms.get(reason, 0) + pause_ms


class UsageBook:
    """The counters of every tenant that has used this broker, until the tenant is deleted."""

    def __init__(self) -> None:
        self.operators = Usage()
        self.forgotten = Usage()
        """Of the tenants that were deleted."""
        self._of_tenant: dict[str, Usage] = {}

    def of(self, tenant: str | None) -> Usage:
        """The counters of a tenant, or of operators' clients. Ask for tenants that exist alone: they are kept."""
        if tenant is None:
            return self.operators
        usage = self._of_tenant.get(tenant)
        if usage is None:
            usage = self._of_tenant[tenant] = Usage()
        return usage

    def get(self, tenant: str) -> Usage | None:
        return self._of_tenant.get(tenant)

    def spent(self, group: Hashable, seconds: float) -> None:
        """Work in a client's lane has held the loop for so long; `group` is the lane's, see `ClientSession.lane`."""
        if isinstance(group, str):
            usage = self._of_tenant.get(group)
            if usage is not None:
                usage.spent(seconds)
        elif not isinstance(group, tuple) or group[0] != NODES:
            self.operators.spent(seconds)

    def forget(self, tenant: str) -> None:
        """The tenant was deleted."""
        usage = self._of_tenant.pop(tenant, None)
        if usage is not None:
            self.forgotten.add(usage)

    def tenants(self) -> Iterator[str]:
        """The ids of all tenants with counters."""
        return iter(self._of_tenant)

    def __len__(self) -> int:
        return len(self._of_tenant)
