"""The files in `DIR/tenants` of an embedded cluster: each tenant's key and client configurations."""

from __future__ import annotations

from pathlib import Path

from common.settings import SettingError
from tidelog.cluster.client_files import TENANTS_DIRECTORY, TenantAccess, key_file, read_key, write_client_files
from tidelog.cluster.layout import TLS_DIRECTORY, ClusterLayout
from tidelog.cluster.local_names import advice, names_of
from tidelog.shell_words import argument


def parse_names(text: str) -> list[str]:
    """Comma-separated names. Raises SettingError."""
    from kraft.controller.tenants import TENANT_NAME  # noqa: PLC0415  who names none need not wait for it

    names = list(dict.fromkeys(name for name in text.split(",") if name))
    for name in names:
        if not TENANT_NAME.fullmatch(name):
            raise SettingError(f"--tenants: {name!r} is not valid, it must be 1 to 40 of a-z, 0-9 and -")
    return names


def refresh_client_files(root: Path, layout: ClusterLayout) -> None:
    """Write the configurations of every tenant with a key here, for the current port and domain."""
    directory = root / TENANTS_DIRECTORY
    for path in sorted(directory.glob("*.key")) if layout.proxies else []:
        access = access_of(root, layout, path.stem)
        if access is not None:
            write_client_files(directory, access)


def access_of(root: Path, layout: ClusterLayout, name: str) -> TenantAccess | None:
    """None if the tenant has no key here."""
    try:
        key, secret, tenant_id = read_key(key_file(root / TENANTS_DIRECTORY, name))
    except (OSError, ValueError):
        return None
    authority = root / TLS_DIRECTORY / "ca.pem"
    return TenantAccess(name, tenant_id, key, secret, layout.domain, layout.proxy_port, authority)


def tell_tenants(root: Path, layout: ClusterLayout, names: list[str]) -> list[str]:
    """Messages for the user: where each tenant's client configurations are, and what their host names need."""
    lines, hosts = [], []
    for name in names:
        access = access_of(root, layout, name)
        if access is None:
            command = f"tidelog keys create --out FILE {argument(name)}"
            lines.append(f"tenant {name} was there already and has no key here: {command}")
            continue
        files = root / TENANTS_DIRECTORY / f"{name}.{{librdkafka.properties,java.properties,kcat}}"
        lines.append(f"tenant {name}: {access.bootstrap}, {files}")
        hosts += names_of(access.tenant_id, [node.node_id for node in layout.brokers], layout.domain)
    missing = advice(hosts) if hosts else None
    return [*lines, missing] if missing else lines
