"""An embedded Tidelog cluster for a demonstration or a measurement: started, asked and stopped by its command."""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

START_TIMEOUT_S = 120
BROKERS_MAX = 16
PROXY_PORT_OFFSET = 1_000


class EmbeddedCluster:
    """`tidelog up --detach` in a directory of its own, gone with the block."""

    stopped: ClassVar[Callable[[EmbeddedCluster], None]] = staticmethod(lambda cluster: None)
    """Called with each cluster that has been stopped, before its directory goes."""
    run_command: ClassVar[Callable[[Sequence[str], float], subprocess.CompletedProcess[str]]]
    """Runs `tidelog …`, with a limit in seconds."""

    def __init__(
        self,
        brokers: int = 3,
        settings: dict[str, str] | None = None,
        data: Path | None = None,
        controllers: int | None = None,
        *,
        tls: bool = False,
        proxies: int = 0,
        tenants: Sequence[str] = (),
        cells: int | None = None,
    ) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="tidelog-") if data is None else None
        self.data = data if data is not None else Path(str(self._temporary and self._temporary.name)) / "data"
        self._sizes = ["--brokers", str(brokers)] + (["--controllers", str(controllers)] if controllers else [])
        self._options = ["--tls"] if tls else []
        self._options += ["--proxies", str(proxies)] if proxies else []
        self._options += ["--tenants", ",".join(tenants)] if tenants else []
        self._options += ["--cells", str(cells)] if cells else []
        self.settings = dict(settings or {})
        self.port = free_ports(brokers)
        self.bootstrap = ""

    def __enter__(self) -> EmbeddedCluster:
        try:
            self.up()
        except BaseException:  # nodes that are not ready yet run as well
            with suppress(RuntimeError):  # or none does
                self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.command("down")
            EmbeddedCluster.stopped(self)
        finally:
            if self._temporary is not None:
                self._temporary.cleanup()

    def up(self) -> None:
        """Start, or start again on the same data."""
        sets = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        out = self.command("up", *self._sizes, "--port", str(self.port), "--detach", *self._options, *sets)
        self.bootstrap = out.strip().removeprefix("ready bootstrap=")

    def command(self, *words: str) -> str:
        """Standard output of `tidelog …`; RuntimeError with its words when it fails."""
        return self._run([words[0], "--data", str(self.data), *words[1:]])

    def _run(self, words: list[str]) -> str:
        done = EmbeddedCluster.run_command(words, START_TIMEOUT_S)
        if done.returncode:
            raise RuntimeError(f"tidelog {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def command_of(self, group: str, *words: str) -> str:
        """As `command`, for the commands of a group: `tidelog topics …`."""
        return self._run([group, *words, "--data", str(self.data)])

    def kill(self, node: str) -> None:
        """SIGKILL; the node stays down until `tidelog start`."""
        self.command("kill", node)

    @property
    def secure_bootstrap(self) -> str:
        """The brokers' SSL listeners, by a name that their certificates are for."""
        return ",".join(
            row["listeners"]["SSL"].replace("127.0.0.1", "localhost") for row in self.nodes() if row["role"] == "broker"
        )

    def tenant_file(self, tenant: str, suffix: str = "librdkafka.properties") -> Path:
        """What `tidelog up --tenants` made for clients of a tenant."""
        return self.data / "tenants" / f"{tenant}.{suffix}"

    def nodes(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self.command("ps", "--json"))
        return rows


def run_command(words: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tidelog", *words]
    return subprocess.run(line, capture_output=True, text=True, timeout=timeout_s, check=False)


EmbeddedCluster.run_command = staticmethod(run_command)


def held_loops(data: Path) -> list[str]:
    """The lines of a cluster's logs about callbacks that held a node's event loop."""
    lines: list[str] = []
    for log in sorted((data / "logs").glob("*.log")):
        lines.extend(line for line in log.read_text(errors="replace").splitlines() if "the event loop was held" in line)
    return lines


def free_ports(count: int) -> int:
    """The first of `count` neighbouring ports that nothing listens on, nor on that of proxies."""
    for _ in range(1_000):
        first = random.randrange(20_000, 30_000)
        if all(_is_free(first + i) for i in (*range(max(count, BROKERS_MAX)), PROXY_PORT_OFFSET)):
            return first
    raise RuntimeError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
