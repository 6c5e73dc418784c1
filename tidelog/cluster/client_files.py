"""Configurations for a tenant's clients: librdkafka's properties, Java's, and a command line for kcat.

They contain the key's secret, so only their owner can read them; kcat gets a file too, because a command line is
visible to all users.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from common.host_names import bootstrap_host
from tidelog.credentials import write_private

TENANTS_DIRECTORY = "tenants"
MECHANISM = "SCRAM-SHA-256"
LIBRDKAFKA, JAVA, KCAT, KEY = "librdkafka.properties", "java.properties", "kcat", "key"
_KEY_FIELDS = ("key", "secret", "tenant_id")


@dataclass(frozen=True, slots=True)
class TenantAccess:
    """The values for a client of `tenant` (its name); `port` is the proxies', `authority` the PEM file to trust."""

    tenant: str
    tenant_id: str
    key: str
    secret: str
    domain: str
    port: int
    authority: Path

    @property
    def bootstrap(self) -> str:
        return f"{bootstrap_host(self.tenant_id, self.domain)}:{self.port}"


def key_file(directory: Path, tenant: str) -> Path:
    """The file as `tidelog keys create --out` writes it."""
    return directory / f"{tenant}.{KEY}"


def read_key(path: Path) -> tuple[str, str, str]:
    """Key, secret and the tenant's id. Raises OSError, and ValueError for an invalid file."""
    fields = dict(line.partition("=")[::2] for line in path.read_text().splitlines())
    if not all(fields.get(name) for name in _KEY_FIELDS):
        raise ValueError(f"{path} does not hold a key")
    return fields["key"], fields["secret"], fields["tenant_id"]


def write_client_files(directory: Path, access: TenantAccess) -> list[Path]:
    """Replace the files, each atomically, mode 0600."""
    properties = directory / f"{access.tenant}.{LIBRDKAFKA}"
    kcat = shlex.join(["kcat", "-F", str(properties)])
    texts = {
        LIBRDKAFKA: librdkafka_text(access),
        JAVA: java_text(access),
        KCAT: f'# sh FILE -L, or any other words of kcat\nexec {kcat} "$@"\n',
    }
    written = []
    for suffix, text in texts.items():
        path = directory / f"{access.tenant}.{suffix}"
        _replace_private(path, text)
        written.append(path)
    return written


def librdkafka_text(access: TenantAccess) -> str:
    return _properties(
        {
            "bootstrap.servers": access.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.username": access.key,
            "sasl.password": access.secret,
            "ssl.ca.location": str(access.authority),
        }
    )


def java_text(access: TenantAccess) -> str:
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return _properties(
        {
            "bootstrap.servers": access.bootstrap,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": f'{login} required username="{access.key}" password="{access.secret}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(access.authority),
        }
    )


def _properties(values: dict[str, str]) -> str:
    return "".join(f"{name}={value}\n" for name, value in values.items())


def _replace_private(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    write_private(temporary, text)
    os.replace(temporary, path)
