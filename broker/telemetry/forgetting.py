"""Which client is forgotten when there are too many, so that no tenant's clients drive out another's. No I/O.

It is one of the tenant that has most clients. Of these it is one without series, if there is one: it loses nothing but
when it asked last. Of several it is the one that was heard of longest ago. What a step takes does not grow with the
number of clients or tenants.
"""

from __future__ import annotations

from collections import OrderedDict

Key = tuple[str, bytes]
"""Tenant, "" for none, and the client's instance id, as bytes because UUIDs take long to be looked up."""


class _TenantClients:
    """In the order in which they were heard of."""

    __slots__ = ("_with_series", "_without_series")

    def __init__(self) -> None:
        self._with_series: OrderedDict[Key, None] = OrderedDict()
        self._without_series: OrderedDict[Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._with_series) + len(self._without_series)

    def add(self, key: Key, *, has_series: bool) -> None:
        self.discard(key)
        (self._with_series if has_series else self._without_series)[key] = None

    def discard(self, key: Key) -> None:
        self._with_series.pop(key, None)
        self._without_series.pop(key, None)

    def first_but(self, spared: Key) -> Key | None:
        for clients in (self._without_series, self._with_series):
            for key in clients:
                if key != spared:
                    return key
        return None


class ForgettingOrder:
    """Clients by tenant, and tenants by how many clients they have."""

    def __init__(self) -> None:
        self._clients: dict[str, _TenantClients] = {}
        self._tenants: dict[int, OrderedDict[str, None]] = {}  # by number of clients
        self._most = 0

    def heard(self, key: Key, *, has_series: bool) -> None:
        """The client is here, and was heard of just now."""
        tenant = key[0]
        clients = self._clients.setdefault(tenant, _TenantClients())
        before = len(clients)
        clients.add(key, has_series=has_series)
        self._counted(tenant, before, len(clients))

    def forget(self, key: Key) -> None:
        """The client, which was heard of, has gone."""
        tenant = key[0]
        clients = self._clients[tenant]
        before = len(clients)
        clients.discard(key)
        self._counted(tenant, before, len(clients))
        if not clients:
            del self._clients[tenant]

    def next_but(self, spared: Key) -> Key:
        """Whom to forget, but not the client that is heard of now. There are two clients at least."""
        fullest = self._tenants[self._most]
        if spared[0] in fullest:
            found = self._clients[spared[0]].first_but(spared)
            if found is not None:
                return found
        for tenant in fullest:
            if tenant != spared[0]:
                found = self._clients[tenant].first_but(spared)
                if found is not None:
                    return found
        raise ValueError("there is no other client")

    def _counted(self, tenant: str, before: int, after: int) -> None:
        """`before` and `after` differ by one at most, so the largest number is always near."""
        if before == after:
            return
        if before:
            equal = self._tenants[before]
            del equal[tenant]
            if not equal:
                del self._tenants[before]
        if after:
            self._tenants.setdefault(after, OrderedDict())[tenant] = None
        if after > self._most or self._most not in self._tenants:
            self._most = after
