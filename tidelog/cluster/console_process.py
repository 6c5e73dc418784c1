"""The console beside an embedded cluster: what it is started with, and its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidelog.cluster.embedded_place import HOST
from tidelog.cluster.layout import TLS_DIRECTORY, ClusterLayout

DEFAULT_PORT = 8080


def console_line(given: Mapping[str, Any]) -> list[str]:
    """The command of a console; `console.__main__.Given` says what it is given."""
    return [sys.executable, "-m", "console", json.dumps(given)]


def console_environment(own: Mapping[str, str]) -> dict[str, str]:
    """`own` with few memory arenas: each thread that asks a cluster would leave what it has freed in one of its own."""
    return {"MALLOC_ARENA_MAX": "2", **own}


def given_of(
    bootstrap: str, properties: Mapping[str, str], tenants: str, port: int, *, host: str = HOST, **more: Any
) -> dict[str, Any]:
    """`more` are further fields of `console.__main__.Given`."""
    return {
        "bootstrap": bootstrap,
        "properties": dict(properties),
        "tenants": tenants,
        "host": host,
        "port": port,
        **more,
    }


def embedded_place(layout: ClusterLayout, root: Path, properties: Mapping[str, str]) -> tuple[str, dict[str, str], str]:
    """The addresses of a cluster on this machine, the properties of its clients, and DOMAIN:PORT of its proxies if it
    has any. It is its listener without TLS, or the one with TLS if `properties` ask for it."""
    has_tls = properties.get("security.protocol", "").upper().endswith("SSL")
    nodes = [f"localhost:{one.tls_port}" if has_tls else f"{HOST}:{one.port}" for one in layout.brokers]
    trusted = {"ssl.truststore.location": str((root / TLS_DIRECTORY / "ca.pem").resolve())} if layout.tls else {}
    tenants = f"{layout.domain}:{layout.proxy_port}" if layout.proxies else ""
    return ",".join(nodes), trusted | dict(properties), tenants


class ConsoleProcess:
    """Ends with the supervisor, whose pipe is its standard input; what it says is in `log`."""

    def __init__(self, layout: ClusterLayout, root: Path, port: int, log: Path, life: int) -> None:
        given = given_of(*embedded_place(layout, root, {}), port, ends_with_input=True)
        line: Sequence[str] = console_line(given)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                line, stdin=life, stdout=out, stderr=out, start_new_session=True, env=console_environment(os.environ)
            )

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()

    def reap(self) -> None:
        """After a child of this process has ended."""
        self._process.poll()
