"""Messages of `tidelog up` and `tidelog down` on standard error: where things are and what to do next."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tidelog.cluster.embedded_place import DEFAULT_DATA, HOST
from tidelog.cluster.layout import ClusterLayout

LOGS = "logs"


def ready_lines(root: Path, layout: ClusterLayout, *, detached: bool, console_port: int | None = None) -> list[str]:
    """For a cluster that serves: files, metrics, a first command, and how to stop it."""
    command, where = command_name(), data_option(root)
    stop = f"{command} down{where}"
    lines = {
        "data": f"{root}  (kept: the next `up` there goes on with it)",
        "logs": str(root / LOGS / "NODE.log"),
        "metrics": f"http://{HOST}:PORT/metrics with PORT {_metrics(layout)}",
        "next": f"{command} topics create words --partitions 3{where}",
        "": f"{command} ps{where}",
        "stop": stop if detached else f"Ctrl-C, or {stop}",
    }
    if console_port is not None:
        lines = {"console": f"http://{HOST}:{console_port}", **lines}
    return [f"{name:8} {text}" for name, text in lines.items()]


def stopping_line(layout: ClusterLayout) -> str:
    first = "proxies wait for their clients, then " if layout.proxies else ""
    return f"stopping: {first}brokers hand over their leadership, then the controllers stop"


def stopped_line(root: Path) -> str:
    return f"stopped; the data stays in {root}, `{command_name()} up{data_option(root)}` starts it again"


def command_name() -> str:
    """`tidelog`, or its path if the shell would not find it."""
    own = Path(sys.executable).parent / "tidelog"
    if not own.exists():
        return "tidelog"
    found = shutil.which("tidelog")
    if found is not None and Path(found).resolve() == own.resolve():
        return "tidelog"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


def data_option(root: Path) -> str:
    """` --data DIR` as commands need it from the current directory, "" if it is the default directory."""
    if root == Path.cwd().resolve() / DEFAULT_DATA:
        return ""
    return f" --data {root.relative_to(Path.cwd()) if root.is_relative_to(Path.cwd()) else root}"


def _metrics(layout: ClusterLayout) -> str:
    """The ports of all nodes, consecutive ones as a range."""
    return ", ".join(
        f"{_span([node.metrics_port for node in nodes])} ({kind})"
        for kind, nodes in (
            ("brokers", layout.brokers),
            ("controllers", layout.controllers),
            ("proxies", layout.proxies),
        )
        if nodes
    )


def _span(ports: list[int]) -> str:
    if len(ports) > 2 and ports == list(range(ports[0], ports[0] + len(ports))):
        return f"{ports[0]} to {ports[-1]}"
    return ", ".join(map(str, ports))
