"""The host names of tenants: one label below the domain, so that one wildcard certificate covers them all.

`<tenant>.<domain>` leads to any broker of the tenant's cell, `b<id>-<tenant>.<domain>` to that broker. A tenant's id
is `lkc-` and six letters or digits, so a broker's label is never a tenant's.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

DOMAIN_CHARACTERS_MAX = 200  # a broker's label of at most 22 and a dot come before it, and a name ends at 253
NAMES_MAX = 4_096  # parsed names in the cache; clients ask for the same ones again
BROKER_ID_MAX = (1 << 31) - 1
_LABEL = re.compile(r"(?:b(0|[1-9][0-9]{0,9})-)?(lkc-[a-z0-9]{6})", re.ASCII)
_DOMAIN_LABEL = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)", re.ASCII)


class HostName(NamedTuple):
    """The tenant that a client asks for, and the broker; None is any."""

    tenant: str
    broker: int | None


@lru_cache(maxsize=NAMES_MAX)
def parse_host(name: str, domain: str) -> HostName | None:
    """None unless `name` is a tenant's name below `domain`. Case does not matter, as in DNS."""
    label, dot, rest = name.lower().partition(".")
    if not dot or rest != domain.lower() or not name.isascii():
        return None
    match = _LABEL.fullmatch(label)
    if match is None:
        return None
    broker = None if match[1] is None else int(match[1])
    if broker is not None and broker > BROKER_ID_MAX:
        return None
    return HostName(match[2], broker)


def bootstrap_host(tenant: str, domain: str) -> str:
    return f"{tenant}.{domain}"


def broker_host(broker: int, tenant: str, domain: str) -> str:
    return f"b{broker}-{tenant}.{domain}"


def is_domain(text: str) -> bool:
    """Whether `text` may be the domain of tenants' names: lower case, no dot at either end, no address."""
    labels = text.split(".")
    return (
        len(text) <= DOMAIN_CHARACTERS_MAX
        and all(_DOMAIN_LABEL.fullmatch(label) for label in labels)
        and not labels[-1].isdigit()
    )
