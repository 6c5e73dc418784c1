"""A dict by group id with an index by tenant, so that a tenant's entries are found without a scan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from kraft.image.tenants import SEPARATOR, TENANT_ID, tenant_of

Value = TypeVar("Value")
WIDE_LETTER_BYTES = 4  # that each letter of an id takes, at most, if one is not ASCII


def bytes_of_id(name: str) -> int:
    """The memory that its letters take, at most. It is no shorter in UTF-8."""
    return len(name) if name.isascii() else WIDE_LETTER_BYTES * len(name)


def each_once(prefixes: Iterable[str], *holders: Callable[[str], list[str]]) -> Iterator[str | None]:
    """Ids with one of the prefixes that any holder has; None for each duplicate."""
    known: dict[str, None] = {}
    for prefix in prefixes:
        for holder in holders:
            for group_id in holder(prefix):
                if group_id in known:
                    yield None
                else:
                    known[group_id] = None
                    yield group_id


class ByTenant(dict[str, Value]):
    """A dict by internal group id. Use only the mutating methods defined here, which keep the index."""

    __slots__ = ("_of_tenant", "_operators_bytes", "_tenants_bytes", "_tenants_ids", "all_id_bytes")

    def __init__(self) -> None:
        super().__init__()
        self._of_tenant: dict[str, dict[str, None]] = {}
        self._tenants_ids = 0  # of all tenants together
        self._tenants_bytes: dict[str, int] = {}  # of each tenant's ids, as `bytes_of_id` counts them
        self._operators_bytes = 0
        self.all_id_bytes = 0

    def __setitem__(self, group_id: str, value: Value) -> None:
        if group_id not in self:
            tenant, size = tenant_of(group_id), bytes_of_id(group_id)
            self.all_id_bytes += size
            if tenant is None:
                self._operators_bytes += size
            else:
                self._of_tenant.setdefault(tenant, {})[group_id] = None
                self._tenants_ids += 1
                self._tenants_bytes[tenant] = self._tenants_bytes.get(tenant, 0) + size
        super().__setitem__(group_id, value)

    def __delitem__(self, group_id: str) -> None:
        super().__delitem__(group_id)
        tenant, size = tenant_of(group_id), bytes_of_id(group_id)
        self.all_id_bytes -= size
        if tenant is None:
            self._operators_bytes -= size
        else:
            own = self._of_tenant[tenant]
            del own[group_id]
            self._tenants_ids -= 1
            self._tenants_bytes[tenant] -= size
            if not own:
                del self._of_tenant[tenant], self._tenants_bytes[tenant]

    def setdefault(self, group_id: str, default: Any = None) -> Value:
        if group_id not in self:
            self[group_id] = default
        return self[group_id]

    def pop(self, group_id: str, *default: Any) -> Any:
        if group_id not in self and default:
            return default[0]
        value = self[group_id]
        del self[group_id]
        return value

    def count(self, tenant: str | None) -> int:
        """How many ids the tenant has; None stands for the operators."""
        if tenant is None:
            return len(self) - self._tenants_ids
        return len(self._of_tenant.get(tenant, ()))

    def id_bytes(self, tenant: str | None) -> int:
        """What the tenant's ids take, as `bytes_of_id` counts them; None stands for the operators."""
        return self._operators_bytes if tenant is None else self._tenants_bytes.get(tenant, 0)

    def tenants(self) -> list[str]:
        """Those that have ids."""
        return list(self._of_tenant)

    def some_of(self, tenant: str, most: int) -> list[str]:
        """At most `most` of the tenant's ids, whatever their number."""
        return list(islice(self._of_tenant.get(tenant, ()), most))

    def with_prefix(self, prefix: str) -> list[str]:
        """Ids that begin with `prefix`, in insertion order. A tenant's prefix costs only its own ids."""
        if not prefix:
            return list(self)
        if prefix.endswith(SEPARATOR) and TENANT_ID.fullmatch(prefix[: -len(SEPARATOR)]):
            return list(self._of_tenant.get(prefix[: -len(SEPARATOR)], ()))
        return [group_id for group_id in self if group_id.startswith(prefix)]
