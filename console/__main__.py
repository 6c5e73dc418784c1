"""`python -m console`: what `tidelog console` becomes. Its one argument is the options, as JSON."""

from __future__ import annotations

import ipaddress
import logging
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvicorn

from console.application import application
from console.login.credentials import Reachable
from console.login.door import ClusterDoor
from console.options import ConsoleOptions
from console.queries.registry_schemas import RegistrySchemas
from console.web.connection import BoundedConnection
from console.web.guard import LOOPBACK
from tidelog.admin.client_login import LibraryLogins
from tidelog.nodes.logs import configure_logs
from tidelog.streams.registry_place import ask_at
from tidelog.streams.schema_registry import SchemaRegistry

KEEP_ALIVE_S, STOP_S = 30, 5
BACKLOG = 128


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """The options of the command; `hosts` besides those of the loopback addresses. `ends_with_input`: the console ends
    when its standard input does."""

    bootstrap: str
    properties: dict[str, str]
    tenants: str
    host: str
    port: int
    hosts: list[str] = []
    certificate: str = ""
    key: str = ""
    read_only: bool = False
    schema_registry: str = ""
    schema_registry_config: str = ""
    ends_with_input: bool = False


def main(words: Sequence[str]) -> None:
    given = msgspec.json.decode(words[0], type=Given)
    options = ConsoleOptions(
        Reachable(given.bootstrap, given.properties, given.tenants),
        host=given.host,
        port=given.port,
        hosts=allowed_hosts(given.host, given.hosts),
        certificate=given.certificate,
        key=given.key,
        read_only=given.read_only,
    )
    configure_logs("info", "console")
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what is wrong stands on the page
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)
    if given.ends_with_input:
        threading.Thread(target=_end_with_input, daemon=True).start()
    scheme = "https" if options.has_tls else "http"
    print(f"console {scheme}://{_shown(options.host)}:{options.port}", flush=True)
    uvicorn.run(
        application(options, ClusterDoor(options.where, LibraryLogins()), schemas_of(given)),
        host=options.host,
        port=options.port,
        http=BoundedConnection,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ssl_certfile=options.certificate or None,
        ssl_keyfile=options.key or options.certificate or None,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_S,
        backlog=BACKLOG,
        lifespan="on",
        ws="none",
    )


def schemas_of(given: Given) -> RegistrySchemas | None:
    """The login is in the file alone, which others of the machine cannot read as they can a command. Raises
    SettingError."""
    config = Path(given.schema_registry_config) if given.schema_registry_config else None
    ask = ask_at(given.schema_registry, config)
    return None if ask is None else RegistrySchemas(lambda number: SchemaRegistry(ask).schema(number))


def _end_with_input() -> None:
    """The pipe does not block, and its other end writes nothing into it."""
    select.select([0], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def allowed_hosts(host: str, named: Sequence[str]) -> frozenset[str]:
    """The names of loopback, those that are given, and the machine's own if others reach it."""
    own = frozenset[str]() if is_loopback(host) else frozenset({socket.gethostname().lower()})
    return LOOPBACK | own | {one.lower() for one in named}


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


if __name__ == "__main__":
    main(sys.argv[1:])
