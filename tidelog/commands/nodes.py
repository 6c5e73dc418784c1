"""`tidelog broker | controller | proxy --config FILE`: one node in the foreground."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import SettingError, read_properties
from tidelog.commands.cluster import parse_assignments
from tidelog.nodes.node_imports import import_node
from tidelog.output import EXIT_USAGE, fail

Config = Annotated[Path | None, typer.Option("--config", help="A properties file.", metavar="FILE")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting, NAME=VALUE.", metavar="NAME=VALUE")]


def broker(config: Config = None, set_: Set = None) -> None:
    """Run one broker in the foreground until SIGINT or SIGTERM."""
    _run("broker", config, set_ or [])


def controller(config: Config = None, set_: Set = None) -> None:
    """Run one controller in the foreground until SIGINT or SIGTERM."""
    _run("controller", config, set_ or [])


def proxy(config: Config = None, set_: Set = None) -> None:
    """Run one proxy in the foreground until SIGINT or SIGTERM; SIGHUP reads certificates, SIGUSR1 replaces workers."""
    _run("proxy", config, set_ or [])


def _run(role: str, config: Path | None, assignments: list[str]) -> None:
    import_node(role)  # only here: other commands do not need a node's code

    def read() -> dict[str, str]:
        given = read_properties(config.read_text()) if config else {}
        given |= NODE_SETTINGS.from_environment(os.environ)
        return given | parse_assignments(assignments)

    try:
        given = read()
        _check(role, given)
    except SettingError as error:
        fail(f"{config}: {error}" if config and str(error).startswith("line ") else str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{config}: {error.strerror}", EXIT_USAGE)
    except UnicodeDecodeError:
        fail(f"{config}: this is no text in UTF-8", EXIT_USAGE)
    if role == "proxy":
        from tidelog.nodes.proxy_process import run_proxy  # noqa: PLC0415

        raise typer.Exit(run_proxy(given, reread=read))
    from tidelog.nodes.node_process import run_node  # noqa: PLC0415

    raise typer.Exit(run_node(role, given))


def _check(role: str, given: Mapping[str, str]) -> None:
    """Check everything that a node of this role needs to start. Raises SettingError."""
    if role == "broker":
        from tidelog.configuration.node_config import broker_config  # noqa: PLC0415

        broker_config(given)
    elif role == "proxy":
        from tidelog.configuration.proxy_config import proxy_config  # noqa: PLC0415

        proxy_config(given)
    else:
        from tidelog.configuration.controller_config import controller_config  # noqa: PLC0415

        controller_config(given)
