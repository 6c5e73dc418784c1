"""Checks whether tenants' host names resolve to this machine, and gives the hosts line that makes them.

A system whose name service knows `*.localhost` (RFC 6761; Debian's libnss-myhostname, systemd-resolved) resolves every
name below `tidelog.localhost`. Others need a line in the hosts file, which the user has to write.
"""

from __future__ import annotations

import ipaddress
import queue
import socket
import threading
from collections.abc import Iterable

from common.host_names import bootstrap_host, broker_host

ADDRESS = "127.0.0.1"
WAIT_S = 3.0  # a remote name service may take longer to answer


def names_of(tenant_id: str, brokers: Iterable[int], domain: str) -> list[str]:
    """Every host name that a tenant's clients may get."""
    return [bootstrap_host(tenant_id, domain), *(broker_host(broker, tenant_id, domain) for broker in brokers)]


def resolves(name: str) -> bool:
    """Whether `name` resolves to this machine; False also without an answer for WAIT_S."""
    found: queue.SimpleQueue[bool] = queue.SimpleQueue()
    threading.Thread(target=lambda: found.put(_leads_here(name)), daemon=True).start()
    try:
        return found.get(timeout=WAIT_S)
    except queue.Empty:
        return False


def hosts_line(names: Iterable[str]) -> str:
    return " ".join([ADDRESS, *names])


def advice(names: list[str]) -> str | None:
    """One line for the user, None if all names resolve."""
    if all(resolves(name) for name in names[:1]) and resolves(names[-1]):
        return None
    return f"tenants' host names do not resolve here; this line in /etc/hosts makes them: {hosts_line(names)}"


def _leads_here(name: str) -> bool:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return any(ipaddress.ip_address(str(entry[4][0]).partition("%")[0]).is_loopback for entry in found)
