"""All commands of `tidelog`: it runs nodes, runs a whole embedded cluster, administers it."""

from __future__ import annotations

import importlib.metadata
import signal
from typing import Annotated, Any

import typer

from tidelog.command_group import CommandGroup
from tidelog.commands import (
    acls,
    audit,
    balance,
    brokers,
    cells,
    certificates,
    client_quotas,
    cluster,
    config,
    groups,
    keys,
    nodes,
    quotas,
    replicas,
    spark,
    tenants,
    tier,
    topics,
    usage,
    users,
)

app = CommandGroup("A Kafka-protocol streaming service for many tenants.", name="tidelog")
HANDLES_SIGNALS = frozenset({"up", "broker", "controller", "proxy"})
"""Other commands are ended by Ctrl-C like a program without handlers."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tidelog {importlib.metadata.version('tidelog')}")
        raise typer.Exit


@app.callback()
def begin(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.obj is not None and context.invoked_subcommand not in HANDLES_SIGNALS:
        signal.signal(signal.SIGINT, context.obj)


for command in (cluster.up, cluster.down, cluster.ps, cluster.kill, cluster.stop, cluster.start):
    app.command()(command)
app.command()(nodes.broker)
app.command()(nodes.controller)
app.command()(nodes.proxy)
app.command()(config.config)
app.command()(audit.audit)
app.command()(usage.load)
quotas.app.command("list")(client_quotas.list_quotas)
quotas.app.command()(client_quotas.describe)
quotas.app.command()(client_quotas.alter)
quotas.app.command()(client_quotas.delete)
topics.app.command()(replicas.reassign)
topics.app.command()(replicas.elect)
app.add_typer(topics.app, name="topics")
app.add_typer(groups.app, name="groups")
app.add_typer(brokers.app, name="brokers")
app.add_typer(balance.app, name="balance")
app.add_typer(cells.app, name="cells")
app.add_typer(tenants.app, name="tenants")
app.add_typer(usage.app, name="usage")
app.add_typer(keys.app, name="keys")
app.add_typer(quotas.app, name="quotas")
app.add_typer(users.app, name="users")
app.add_typer(acls.app, name="acls")
app.add_typer(certificates.app, name="certificates")
app.add_typer(tier.app, name="tier")
app.add_typer(spark.app, name="spark")


def run(interrupted: Any) -> None:
    """Run the command of this process; `interrupted` is the handler of Ctrl-C meanwhile."""
    app(obj=interrupted)
