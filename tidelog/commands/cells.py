"""`tidelog cells list | create | describe | alter`: the parts of a cluster that tenants live in."""

from __future__ import annotations

from typing import Annotated

import typer

from tidelog.admin.admin_client import CommandOptions
from tidelog.admin.tenant_admin import tenant_admin
from tidelog.command_group import CommandGroup
from tidelog.commands.tenants import LimitOptions, parse_limits
from tidelog.output import show, show_one

app = CommandGroup("Cells: list, create, describe, alter.")

Cell = Annotated[str, typer.Argument(help="The cell's name.", metavar="CELL")]


@app.command("list")
def list_cells(options: CommandOptions) -> None:
    """Every cell with its load, and why it is full if it is."""
    with tenant_admin(options) as admin:
        rows = admin.cells()
    shown = [row | {"brokers": [broker["broker"] for broker in row["brokers"]]} for row in rows]
    columns = ["cell", "state", "brokers", "load", "broker_load", "replica_share", "bandwidth_share"]
    columns += ["replicas", "replicas_max", "tenants", "tenants_max", "full"]
    show(rows if options.as_json else shown, as_json=options.as_json, columns=columns, empty="no cells")


@app.command()
def create(
    name: Cell,
    closed: Annotated[bool, typer.Option("--closed", help="It takes no tenants yet.")] = False,
    limit: LimitOptions = None,
    *,
    options: CommandOptions,
) -> None:
    """Say of a cell what it may hold. Brokers join it by their setting tidelog.cell, before or after."""
    with tenant_admin(options) as admin:
        admin.alter_cell(name, parse_limits(limit), is_open=not closed, must_be_new=True)
        (row,) = admin.cells([name])
    show_one(row, as_json=options.as_json)


@app.command()
def describe(name: Cell, options: CommandOptions) -> None:
    """One cell: its brokers and what they hold, its limits and tenants."""
    with tenant_admin(options) as admin:
        (row,) = admin.cells([name])
    if options.as_json:
        show_one(row, as_json=True)
        return
    brokers = row.pop("brokers")
    row["ranges"] = [f"{held['topic']} {held['first']}-{held['first'] + held['count'] - 1}" for held in row["ranges"]]
    show_one(row, as_json=False)
    show(brokers, as_json=False, columns=["broker", "rack", "state", "replicas"], empty="no brokers")


@app.command()
def alter(
    name: Cell,
    is_open: Annotated[bool | None, typer.Option("--open/--closed", help="Whether it takes more tenants.")] = None,
    limit: LimitOptions = None,
    *,
    options: CommandOptions,
) -> None:
    """Open or close a cell for more tenants, or change its limits (replicas.per.broker.max, tenants.max,
    bandwidth.per.broker)."""
    with tenant_admin(options) as admin:
        admin.alter_cell(name, parse_limits(limit), is_open=is_open)
        (row,) = admin.cells([name])
    show_one(row, as_json=options.as_json)
