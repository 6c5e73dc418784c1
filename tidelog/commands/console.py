"""`tidelog console`: a web page on a cluster. The page is a room of its own; this finds out what to give it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from common.settings import SettingError
from tidelog.admin.admin_client import ClusterOptions
from tidelog.cluster.console_process import DEFAULT_PORT, console_environment, console_line, embedded_place, given_of
from tidelog.cluster.layout import load_layout
from tidelog.output import EXIT_USAGE, fail
from tidelog.streams.registry_options import RegistryOptions


def console(
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Where it listens.")] = DEFAULT_PORT,
    host: Annotated[str, typer.Option("--host", help="The address that it listens on.")] = "127.0.0.1",
    certificate: Annotated[
        Path | None, typer.Option("--certificate", help="Serve HTTPS with this chain.", metavar="PEM")
    ] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="Its key, if it is not in that file.", metavar="PEM")
    ] = None,
    host_name: Annotated[
        list[str] | None, typer.Option("--host-name", help="A name that browsers call it by.", metavar="NAME")
    ] = None,
    tenants: Annotated[
        str, typer.Option("--tenants", help="Where tenants log in: the proxies.", metavar="DOMAIN:PORT")
    ] = "",
    read_only: Annotated[bool, typer.Option("--read-only", help="Show, and change nothing.")] = False,
    *,
    schemas: RegistryOptions,
    options: ClusterOptions,
) -> None:
    """Serve a web page on a cluster until Ctrl-C.

    People log in there as they are known to the brokers, and can do what they may. `--command-config` says how brokers
    are reached (TLS, SASL); a user and a password in it are not used.
    """
    if importlib.util.find_spec("starlette") is None:
        fail("the console's packages are missing: pip install tidelog[console]")
    for path in (certificate, key):
        if path is not None and not path.is_file():
            fail(f"{path}: there is no such file", EXIT_USAGE)
    if key is not None and certificate is None:
        fail("--key needs --certificate", EXIT_USAGE)
    schemas.registry()
    bootstrap, properties, domain = _place(options)
    given = given_of(
        bootstrap,
        properties,
        tenants or domain,
        port,
        host=host,
        hosts=host_name or [],
        certificate=str(certificate or ""),
        key=str(key or ""),
        read_only=read_only,
        schema_registry=schemas.schema_registry,
        schema_registry_config=str(schemas.schema_registry_config or ""),
    )
    sys.stdout.flush()
    os.execve(sys.executable, console_line(given), console_environment(os.environ))


def _place(options: ClusterOptions) -> tuple[str, dict[str, str], str]:
    """The cluster's addresses, the properties of its clients, and DOMAIN:PORT of its proxies if it has any."""
    from tidelog.admin.command_config import read_listener  # noqa: PLC0415

    try:
        properties: dict[str, str] = {}
        if options.command_config is not None:
            properties = read_listener(options.command_config)
        if options.bootstrap is not None:
            return options.bootstrap, properties, ""
        layout = load_layout(options.data)
    except SettingError as error:
        fail(str(error), EXIT_USAGE)
    if layout is None:
        fail(f"there is no cluster in {options.data}; name one with --data DIR or --bootstrap HOST:PORT", EXIT_USAGE)
    return embedded_place(layout, options.data, properties)
