"""All commands of `tidelog`: it runs nodes, runs a whole embedded cluster, administers it, reads and writes records.

Only the module of the command that is given is imported, so that it begins soon.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from tidelog.command_group import CommandGroup
from tidelog.version import VERSION

HANDLES_SIGNALS = frozenset({"produce", "consume", "up", "console", "broker", "controller", "proxy"})
"""Other commands are ended by Ctrl-C like a program without handlers."""
ASKED_BY_SHELL = "_TIDELOG_COMPLETE"
COMMANDS = {
    "up": "cluster.up",
    "init": "init.init",
    "down": "cluster.down",
    "ps": "cluster.ps",
    "kill": "cluster.kill",
    "stop": "cluster.stop",
    "start": "cluster.start",
    "broker": "nodes.broker",
    "controller": "nodes.controller",
    "proxy": "nodes.proxy",
    "produce": "produce.produce",
    "consume": "consume.consume",
    "doctor": "doctor.doctor",
    "bundle": "bundle.bundle",
    "console": "console.console",
    "config": "config.config",
    "audit": "audit.audit",
    "load": "usage.load",
    "completion": "completion.completion",
}
"""Each with its function in `tidelog.commands`."""
GROUPS: dict[str, dict[str, str]] = {
    "topics": {"reassign": "replicas.reassign", "elect": "replicas.elect", "tail": "consume.tail"},
    "groups": {"reset-offsets": "group_offsets.reset_offsets", "lag": "group_offsets.lag"},
    "brokers": {},
    "balance": {},
    "cells": {},
    "tenants": {},
    "usage": {},
    "keys": {},
    "quotas": {
        "list": "client_quotas.list_quotas",
        "describe": "client_quotas.describe",
        "alter": "client_quotas.alter",
        "delete": "client_quotas.delete",
    },
    "users": {},
    "acls": {},
    "certificates": {},
    "transactions": {},
    "tier": {},
    "spark": {},
}
"""Each is `app` of a module of that name, with further commands."""


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"tidelog {VERSION}")
        raise typer.Exit


def begin(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    if context.obj is not None and context.invoked_subcommand not in HANDLES_SIGNALS:
        signal.signal(signal.SIGINT, context.obj)


def application(wanted: str | None = None) -> CommandGroup:
    """With the command of that name alone, or with all."""
    app = CommandGroup("A Kafka-protocol streaming service for many tenants.", name="tidelog")
    app.callback()(begin)
    for name in COMMANDS if wanted is None else COMMANDS.keys() & {wanted}:
        app.command(name)(_function(COMMANDS[name]))
    for name in GROUPS if wanted is None else GROUPS.keys() & {wanted}:
        group: CommandGroup = _function(f"{name}.app")
        present = {one.name for one in group.registered_commands}
        for inner, function in GROUPS[name].items():
            if inner not in present:  # a group is one object of its module, also for a second application
                group.command(inner)(_function(function))
        app.add_typer(group, name=name)
    return app


def _function(place: str) -> Any:
    module, name = place.split(".")
    return getattr(importlib.import_module(f"tidelog.commands.{module}"), name)


def wanted_command(words: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The command that a line names, also one that a shell completes; None if that takes all commands."""
    if ASKED_BY_SHELL in environment:
        words = (environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS") or "").split()
    name = words[1] if len(words) > 1 else ""
    return name if name in COMMANDS or name in GROUPS else None


def run(interrupted: Any) -> None:
    """Run the command of this process; `interrupted` is the handler of Ctrl-C meanwhile."""
    if ASKED_BY_SHELL in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]  # noqa: PLC0415

        completion_init()
    application(wanted_command(sys.argv, os.environ))(obj=interrupted)
