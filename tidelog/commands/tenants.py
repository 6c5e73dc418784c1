"""`tidelog tenants create | list | describe | alter | delete | move`: the logical clusters inside this one."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from common.settings import LONG_MAX
from tidelog.admin.admin_client import CommandOptions
from tidelog.admin.tenant_admin import TenantAdmin, tenant_admin
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, fail, show, show_one

app = CommandGroup("Tenants: create, list, describe, alter, delete, move.")
LOOK_S = 0.5
HAND_OVERS = {
    "ids_clearing": "its transactional ids are about to follow, or wait for transactions that lack markers",
    "ids_copying": "its transactional ids are handed over",
    "clearing": "its groups are about to follow, or wait for a transaction that keeps a group's offsets",
    "draining": "no transaction begins to send offsets until none has any: for seconds",
    "holding": "no transaction begins until none has a group's offsets (docs/transactions.md)",
    "copying": "its groups are handed over",
}
"""What the phases of a tenant's hand-over mean to an operator who waits for its move."""

Name = Annotated[str, typer.Argument(help="The tenant's name or id.", metavar="TENANT")]
LimitOptions = Annotated[
    list[str] | None,
    typer.Option("--limit", help="A limit of its own, like partitions.max=500; default removes it.",
                 metavar="NAME=VALUE"),
]  # fmt: skip
Allow = Annotated[
    list[str] | None, typer.Option("--allow", help="A network that may connect; without any, all may.", metavar="CIDR")
]
Deny = Annotated[list[str] | None, typer.Option("--deny", help="A network that may not.", metavar="CIDR")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Return when it is done, or when it has begun.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="1 to 40 lower-case letters, digits and dashes.", metavar="NAME")],
    cell: Annotated[str | None, typer.Option(help="The cell to live in; else the lighter of two is taken.")] = None,
    limit: LimitOptions = None,
    allow: Allow = None,
    deny: Deny = None,
    *,
    options: CommandOptions,
) -> None:
    """Create a tenant. It has no keys yet."""
    with tenant_admin(options) as admin:
        made = admin.create_tenant(name, cell, parse_limits(limit), allow or (), deny or ())
    show_one({"tenant": name, "id": made.id, "cell": made.cell}, as_json=options.as_json)


@app.command("list")
def list_tenants(options: CommandOptions) -> None:
    """Every tenant with what it has."""
    with tenant_admin(options) as admin:
        rows = admin.tenants()
    show(
        rows,
        as_json=options.as_json,
        columns=["tenant", "id", "cell", "state", "topics", "partitions", "keys"],
        empty="no tenants",
    )


@app.command()
def describe(name: Name, options: CommandOptions) -> None:
    """One tenant: where it lives, where it is going, its limits and networks."""
    with tenant_admin(options) as admin:
        (row,) = admin.tenants([name])
    show_one(row, as_json=options.as_json)


@app.command()
def alter(
    name: Name,
    limit: LimitOptions = None,
    allow: Allow = None,
    deny: Deny = None,
    any_network: Annotated[bool, typer.Option("--any-network", help="Remove all network rules.")] = False,
    *,
    options: CommandOptions,
) -> None:
    """Change limits and networks; networks that are given replace all of their kind."""
    if any_network and (allow or deny):
        fail("--any-network cannot go with --allow and --deny", EXIT_USAGE)
    with tenant_admin(options) as admin:
        none: tuple[str, ...] | None = () if any_network else None
        admin.alter_tenant(name, parse_limits(limit), allow or none, deny or none)
        (row,) = admin.tenants([name])
    show_one(row, as_json=options.as_json)


@app.command()
def delete(name: Name, wait: Wait = True, *, options: CommandOptions) -> None:
    """Delete a tenant with its topics, groups, keys and ACLs. Its keys end at once, the rest goes in steps."""
    with tenant_admin(options) as admin:
        (row,) = admin.tenants([name])
        admin.delete_tenant(row["id"])
        if wait:
            _watch(admin, row["id"], "deleting")
    shown = {"tenant": row["tenant"], "id": row["id"], "state": "deleted" if wait else "deleting"}
    show_one(shown, as_json=options.as_json)


@app.command()
def move(
    name: Name,
    cell: Annotated[str | None, typer.Option(help="Where to; else the lighter of two other cells.")] = None,
    wait: Wait = True,
    *,
    options: CommandOptions,
) -> None:
    """Move a live tenant to another cell, a few partitions at a time. The controllers do it; waiting is optional."""
    with tenant_admin(options) as admin:
        (row,) = admin.tenants([name])
        target = admin.move_tenant(row["id"], cell)
        if wait:
            _watch(admin, row["id"], "moving")
        (row,) = admin.tenants([row["id"]])
    shown = {key: row[key] for key in ("tenant", "id", "cell", "state", "target_cell", "partitions_to_move")}
    if wait and row["cell"] != target:
        fail(f"tenant {row['tenant']} is in cell {row['cell']}: the move to {target} was taken back")
    show_one(shown, as_json=options.as_json)


def parse_limits(texts: list[str] | None) -> dict[str, int]:
    """`NAME=VALUE` by name; `default` is -1, which restores the default."""
    limits = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not (value == "default" or (value.isascii() and value.isdigit())):
            fail(f"--limit {text!r}: it must be NAME=NUMBER, or NAME=default", EXIT_USAGE)
        limits[name] = -1 if value == "default" else int(value)
        if limits[name] > LONG_MAX:
            fail(f"--limit {text!r}: a limit is at most {LONG_MAX}", EXIT_USAGE)
    return limits


def _watch(admin: TenantAdmin, tenant_id: str, state: str) -> None:
    """Wait until the tenant leaves that state; shows the progress on standard error."""
    shown: dict[str, Any] = {}
    try:
        while True:
            rows = [row for row in admin.tenants() if row["id"] == tenant_id and row["state"] == state]
            if not rows:
                return
            now = {key: rows[0][key] for key in ("topics", "partitions_to_move", "partitions_moving", "hand_over")}
            if now != shown:
                shown = now
                left = f"{now['topics']} topics" if state == "deleting" else f"{now['partitions_to_move']} partitions"
                waits = f"; {HAND_OVERS[now['hand_over']]}" if now["hand_over"] in HAND_OVERS else ""
                print(f"tenant {rows[0]['tenant']}: {left} left{waits}", file=sys.stderr, flush=True)
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        fail(f"interrupted; the {state} goes on, `tidelog tenants list` shows it")
