"""`tidelog keys create | list | renew | revoke`: a tenant's API keys. A secret is shown once, and kept nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from common.errors import ProtocolError
from tidelog.admin.admin_client import CommandOptions
from tidelog.admin.tenant_admin import NewKey, tenant_admin
from tidelog.command_group import CommandGroup
from tidelog.credentials import write_private
from tidelog.output import EXIT_USAGE, fail, show, show_one

app = CommandGroup("API keys: create, list, renew, revoke.")

Tenant = Annotated[str, typer.Argument(help="The tenant's name or id.", metavar="TENANT")]
Key = Annotated[str, typer.Argument(help="The key's id.", metavar="KEY")]
Out = Annotated[
    Path | None, typer.Option("--out", help="Write key and secret into this new file, mode 0600, and not out here.")
]


@app.command()
def create(
    tenant: Tenant,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="admin, read:PREFIX or write:PREFIX (of topics, groups, transactional ids), "
                     "read or write for all of them; several may be given.", metavar="ROLE"),
    ] = None,
    description: Annotated[str, typer.Option(help="For people.")] = "",
    out: Out = None,
    *,
    options: CommandOptions,
) -> None:  # fmt: skip
    """Create a key; without --role it may do everything that its tenant may."""
    _check_out(out)
    _check_roles(role or [])
    with tenant_admin(options) as admin:
        made = admin.create_key(tenant, role or ["admin"], description)
        if out is not None:
            try:
                _write(out, made)
            except OSError as error:
                admin.delete_key(made.id)
                fail(f"{out}: {error.strerror}; the key was taken back")
    _show(made, out, options.as_json)


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Argument(help="Of one tenant, by name or id.", metavar="TENANT")] = None,
    *,
    options: CommandOptions,
) -> None:
    """Keys with their roles; never a secret."""
    with tenant_admin(options) as admin:
        rows = admin.keys(tenant)
    show(rows, as_json=options.as_json, columns=["key", "tenant", "roles", "usable", "description"], empty="no keys")


@app.command()
def renew(key: Key, out: Out = None, *, options: CommandOptions) -> None:
    """Give a key a new secret, which replaces the old one; roles and ACLs stay."""
    _check_out(out)
    with tenant_admin(options) as admin:
        (row,) = admin.keys(None, [key])
        made = admin.renew_key(row["tenant_id"], key)
    if out is not None:
        try:
            _write(out, made)
        except OSError as error:
            fail(f"{out}: {error.strerror}; the key's new secret is lost: renew it again")
    _show(made, out, options.as_json)


@app.command()
def revoke(
    keys: Annotated[list[str], typer.Argument(help="Ids of keys.", metavar="KEY…")], options: CommandOptions
) -> None:
    """Delete keys, with their ACLs."""
    with tenant_admin(options) as admin:
        for key in keys:
            admin.delete_key(key)
    if options.as_json:
        print(json.dumps([{"key": key, "state": "revoked"} for key in keys]))


def _check_roles(roles: list[str]) -> None:
    from kraft.controller.api_keys import parse_role  # noqa: PLC0415  only needed to create a key

    try:
        for role in roles:
            parse_role(role)
    except ProtocolError as error:
        fail(f"--role {error.message}", EXIT_USAGE)


def _check_out(out: Path | None) -> None:
    if out is not None and (out.exists() or not out.parent.is_dir()):
        fail(f"--out {out}: it must be a new file in a directory that exists", EXIT_USAGE)


def _write(out: Path, made: NewKey) -> None:
    write_private(out, f"key={made.id}\nsecret={made.secret}\ntenant_id={made.tenant_id}\n")


def _show(made: NewKey, out: Path | None, as_json: bool) -> None:
    shown = {"key": made.id, "tenant_id": made.tenant_id}
    shown |= {"secret": made.secret} if out is None else {"file": str(out)}
    show_one(shown, as_json=as_json)
