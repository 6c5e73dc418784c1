"""`tidelog certificates make | list`: an authority of the cluster's own, and what it signs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, Json, fail, show

app = CommandGroup("A cluster's own certificates: make, list.")
ROLES = ("node", "proxy", "server", "client")


@app.command()
def make(
    names: Annotated[
        list[str],
        typer.Argument(
            help="NAME, or NAME=HOST,HOST for one that has other host names and addresses than its own name.",
            metavar="NAME[=HOST,…]…",
        ),
    ],
    into: Annotated[Path, typer.Option("--into", help="Gets NAME.pem of each, and ca.pem.", metavar="DIR")],
    authority: Annotated[
        Path | None,
        typer.Option("--authority", help="Where ca.pem and ca.key lie or are made; the same directory.", metavar="DIR"),
    ] = None,
    role: Annotated[str, typer.Option("--role", help="node, proxy, server or client.")] = "node",
) -> None:
    """Create certificates that are missing, have other names, or expire within a month; keep the others.

    A NAME.pem holds key and chain and is what ssl.keystore.location names; ca.pem is for ssl.truststore.location.
    """
    from tidelog.cluster import certificates  # noqa: PLC0415  megabytes that no other command needs

    if role not in ROLES:
        fail(f"--role: {role!r} is not valid, it must be one of {', '.join(ROLES)}", EXIT_USAGE)
    wanted: dict[str, list[str]] = {}
    for text in names:
        name, given, listed = text.partition("=")
        if not name or "/" in name or name == "ca":
            fail(f"{text!r} is not valid, it must be NAME or NAME=HOST,HOST, and NAME not ca", EXIT_USAGE)
        wanted[name] = [host for host in (listed if given else name).split(",") if host]
    try:
        own = certificates.authority(authority or into)
        for name, hosts in wanted.items():
            certificates.certificate(into, f"{name}.pem", own, role, name, [] if role == certificates.CLIENT else hosts)
        if authority is not None and authority.resolve() != into.resolve():
            certificates.write_whole(into / "ca.pem", own.pem, 0o600)
    except certificates.DamagedAuthority as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")


@app.command("list")
def list_certificates(
    directory: Annotated[Path, typer.Argument(help="A directory of PEM files.", metavar="DIR")], as_json: Json = False
) -> None:
    """Every certificate in a directory: for whom it is, and how long it lasts."""
    from tidelog.cluster import certificates  # noqa: PLC0415

    try:
        rows = certificates.describe(directory)
    except OSError as error:
        fail(f"{directory}: {error.strerror}")
    show(rows, as_json=as_json, columns=["file", "name", "role", "hosts", "expires", "days_left"])
