"""Tenants of an embedded cluster, created once, each with a key.

`python -m tidelog.admin.tenant_making DIR NAME…` runs beside the supervisor when all nodes serve. It leaves existing
tenants unchanged, except for their client configurations, which follow the cluster's port and domain. A marker
distinguishes a tenant whose creation was interrupted from one that another client has created.
"""

from __future__ import annotations

import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import typer

from tidelog.admin.admin_client import ClusterOptions
from tidelog.admin.tenant_admin import NewKey, TenantAdmin, tenant_admin
from tidelog.cluster.client_files import TENANTS_DIRECTORY, key_file
from tidelog.cluster.embedded_place import HOST
from tidelog.cluster.embedded_tenants import refresh_client_files
from tidelog.cluster.layout import ClusterLayout, load_layout
from tidelog.credentials import write_private
from tidelog.output import fail

DESCRIPTION = "made by tidelog up"
ROUTED_TIMEOUT_S = 20.0
LOOK_S = 0.05
GAUGE = "tidelog_proxy_tenants"


def make_tenants(root: Path, layout: ClusterLayout, names: list[str]) -> None:
    """Ends the command if the cluster rejects one."""
    directory = root / TENANTS_DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    with tenant_admin(ClusterOptions(layout.bootstrap)) as admin:
        known = {row["tenant"]: row for row in admin.tenants()}
        for name in names:
            _make(admin, directory, name, known.get(name))
        count = len(admin.tenants())
    refresh_client_files(root, layout)
    _wait_routed(layout, count)


def _make(admin: TenantAdmin, directory: Path, name: str, known: dict[str, Any] | None) -> None:
    marker, path = directory / f"{name}.unfinished", key_file(directory, name)
    if known is None:
        marker.touch(0o600)
        tenant_id = admin.create_tenant(name, None, {}, (), ()).id
    elif marker.exists():
        tenant_id = known["id"]
        for row in admin.keys(tenant_id):  # whose secret was lost
            if row["description"] == DESCRIPTION:
                admin.delete_key(row["key"])
    else:
        return
    path.unlink(missing_ok=True)  # of a deleted tenant of this name
    _keep(path, admin.create_key(tenant_id, ["admin"], DESCRIPTION))
    marker.unlink()


def _keep(path: Path, made: NewKey) -> None:
    write_private(path, f"key={made.id}\nsecret={made.secret}\ntenant_id={made.tenant_id}\n")


def _wait_routed(layout: ClusterLayout, count: int) -> None:
    """Wait until every proxy knows this number of tenants. A proxy that is down learns them when it starts."""
    deadline = time.monotonic() + ROUTED_TIMEOUT_S
    for node in layout.proxies:
        while _routed(node.metrics_port) < count:
            if time.monotonic() > deadline:
                fail(f"{node.name} does not know the tenants after {ROUTED_TIMEOUT_S:g} s")
            time.sleep(LOOK_S)


def _routed(port: int) -> int:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=5) as page:
            lines = page.read().decode().splitlines()
    except OSError:
        return 0
    return next((int(float(line.split()[1])) for line in lines if line.startswith(f"{GAUGE} ")), 0)


def main(arguments: list[str]) -> int:
    root, names = Path(arguments[0]), arguments[1:]
    layout = load_layout(root)
    if layout is None:
        print(f"tidelog: there is no cluster in {root}", file=sys.stderr)
        return 1
    try:
        make_tenants(root, layout, names)
    except typer.Exit as ended:
        return ended.exit_code
    except OSError as error:
        print(f"tidelog: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
