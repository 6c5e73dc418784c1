"""`tidelog bundle`: a debug archive, with secrets masked. docs/doctor.md says what is in it."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tidelog.admin.admin_client import ClusterOptions, client_of, reach
from tidelog.output import EXIT_USAGE, fail

STAMP = "%Y%m%dT%H%M%SZ"


def bundle(
    out: Annotated[
        Path | None, typer.Option("--out", help="A new file; tidelog-bundle-TIME.tar.gz.", metavar="FILE")
    ] = None,
    logs: Annotated[
        Path | None, typer.Option("--logs", help="Where NODE.log files lie; DIR/logs.", metavar="DIR")
    ] = None,
    metrics: Annotated[
        list[str] | None, typer.Option("--metrics", help="A node's; those of DIR.", metavar="HOST:PORT")
    ] = None,
    *,
    cluster: ClusterOptions,
) -> None:
    """Put what helps to find a fault into one archive: what nodes tell, settings, ends of logs, metrics.

    Secrets are masked, and there are no records in it. Names of topics, groups, users and hosts are.
    """
    from tidelog.cluster.embedded_place import HOST  # noqa: PLC0415
    from tidelog.cluster.layout import TLS_DIRECTORY, load_layout  # noqa: PLC0415
    from tidelog.doctor import debug_archive  # noqa: PLC0415
    from tidelog.doctor.secret_mask import SecretMask  # noqa: PLC0415

    stamp = time.strftime(STAMP, time.gmtime())
    path = out or Path(f"tidelog-bundle-{stamp}.tar.gz")
    if path.exists():
        fail(f"--out {path}: it is there already", EXIT_USAGE)
    where = reach(cluster)
    layout = load_layout(cluster.data) if cluster.bootstrap is None else None
    files = debug_archive.secret_files(cluster.data) if layout is not None else []
    files += [cluster.command_config] if cluster.command_config is not None else []
    settings = layout.settings if layout is not None else {}
    secrets = set(debug_archive.known_secrets(files, settings, os.environ))
    if where.security.login is not None:
        secrets.add(where.security.login.secret)
    archive = debug_archive.DebugArchive(SecretMask(secrets))
    addresses = {one.replace(":", "-"): one for one in metrics or []}
    if layout is not None:
        addresses |= {node.name: f"{HOST}:{node.metrics_port}" for node in layout.nodes}
        archive.add("settings.json", lambda: settings)
    with client_of(where) as client:
        debug_archive.add_cluster(archive, client, where, cluster.data / TLS_DIRECTORY if layout is not None else None)
    debug_archive.add_metrics(archive, addresses)
    if logs is not None or layout is not None:
        debug_archive.add_logs(archive, logs or cluster.data / "logs")
    manifest = {"tidelog": importlib.metadata.version("tidelog"), "made": stamp, "bootstrap": where.bootstrap}
    try:
        archive.write(path, f"tidelog-bundle-{stamp}", manifest)
    except OSError as error:
        fail(f"--out {path}: {error.strerror}")
    for name, reason in archive.missing.items():
        print(f"without {name}: {reason}", file=sys.stderr)
    print(path)
