"""What clients of an embedded cluster's tenants are configured with, and the host names that they need."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from bench import private_hosts
from bench.embedded import EmbeddedCluster
from tidelog.cluster.local_names import names_of

QUIET = {"log_level": "2"}
"""librdkafka reports a lost connection and makes it again; a program here counts what is lost in the end."""


def client_configuration(file: Path) -> dict[str, str]:
    """A properties file as librdkafka takes it."""
    lines = (line.partition("=") for line in file.read_text().splitlines() if line)
    return {name: value for name, _, value in lines}


def client_of(cluster: EmbeddedCluster, tenant: str) -> dict[str, str]:
    return client_configuration(cluster.tenant_file(tenant)) | QUIET


def name_hosts(hosts: Path | None, clients: Iterable[dict[str, str]], brokers: int) -> None:
    """Make the tenants' host names resolve, if the program has a hosts file of its own (`private_hosts.enter`)."""
    if hosts is None:
        return
    for client in clients:
        tenant_id, _, domain = client["bootstrap.servers"].rpartition(":")[0].partition(".")
        private_hosts.add(hosts, names_of(tenant_id, range(brokers), domain))
