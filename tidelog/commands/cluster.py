"""`tidelog up | down | ps | kill | stop | start`: a whole cluster on this machine."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from common.node_settings.catalogue import NODE_SETTINGS
from common.settings import SettingError
from common.topic_settings import TOPIC_SETTINGS
from tidelog.cluster import control
from tidelog.cluster.console_process import DEFAULT_PORT
from tidelog.cluster.embedded_place import DEFAULT_DATA
from tidelog.cluster.layout import (
    ClusterLayout,
    PortTaken,
    chosen_store,
    is_free,
    load_layout,
    prepare_layout,
)
from tidelog.cluster.words import LOGS, ready_lines, stopped_line, stopping_line
from tidelog.configuration.settings_check import check_settings
from tidelog.output import EXIT_USAGE, Json, fail, show

TIER_URI = "tidelog.tier.uri"
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 90.0

Data = Annotated[Path, typer.Option("--data", help="The directory of the cluster.", metavar="DIR")]
OWN_SETTINGS = frozenset(
    [
        "node.id",
        "process.roles",
        "log.dirs",
        "listeners",
        "advertised.listeners",
        "inter.broker.listener.name",
        "controller.quorum.voters",
        "tidelog.quorum.voters",
        "tidelog.cluster.secret.file",
        "tidelog.metrics.listener",
    ]
)


def up(
    data: Data = DEFAULT_DATA,
    brokers: Annotated[int | None, typer.Option(help="How many brokers; 3 for a new cluster.")] = None,
    controllers: Annotated[int | None, typer.Option(help="How many controllers; 3 for a new cluster.")] = None,
    proxies: Annotated[int | None, typer.Option(help="How many proxies, all at the port + 1000; 0.")] = None,
    tenants: Annotated[
        str | None,
        typer.Option(
            "--tenants",
            help="Tenants to make where they do not exist; keys and ready client configurations go to DIR/tenants.",
            metavar="NAME,…",
        ),
    ] = None,
    cells: Annotated[
        int | None, typer.Option(help="Into how many cells a new cluster's brokers are divided, a few each.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Broker i listens on this port + i; 9092.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A setting, NAME=VALUE.", metavar="NAME=VALUE")
    ] = None,
    tier: Annotated[
        str | None, typer.Option("--tier", help="The object store of the tier; DIR/tier.", metavar="URI")
    ] = None,
    tls: Annotated[
        bool,
        typer.Option("--tls", help="TLS between nodes, and a listener SSL on brokers; certificates in DIR/tls."),
    ] = False,
    console: Annotated[bool, typer.Option("--console", help="Serve the console, a web page, too.")] = False,
    console_port: Annotated[
        int, typer.Option("--console-port", min=1, max=65_535, help="The console's port.")
    ] = DEFAULT_PORT,
    detach: Annotated[bool, typer.Option("--detach", help="Return when the cluster is ready; it stays up.")] = False,
) -> None:
    """Run a whole cluster on this machine until SIGINT or SIGTERM, one process per node."""
    root = prepare_cluster(data, brokers, controllers, port, set_ or [], tier, tls=tls, proxies=proxies, cells=cells)
    names = _tenant_names(root, tenants)
    page = console_port if console else None
    if not detach:
        sys.stdout.flush()
        # until the supervisor can receive them
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        # a supervisor that holds nothing but what nodes need
        os.execv(sys.executable, supervisor_line(root, names, 1, page))
    print(start_detached(root, names, page), flush=True)
    for line in ready_lines(root, require_layout(root), detached=True, console_port=page):
        print(line, file=sys.stderr, flush=True)
    if names:
        from tidelog.cluster.embedded_tenants import tell_tenants  # noqa: PLC0415

        for line in tell_tenants(root, require_layout(root), names):
            print(line, file=sys.stderr, flush=True)


def prepare_cluster(
    data: Path,
    brokers: int | None,
    controllers: int | None,
    port: int | None,
    assignments: list[str],
    tier: str | None,
    *,
    tls: bool = False,
    proxies: int | None = None,
    cells: int | None = None,
) -> Path:
    """The directory of a cluster that is ready to start; ends the command otherwise."""
    try:
        settings = NODE_SETTINGS.from_environment(os.environ) | parse_assignments(assignments)
        if tier is not None:
            settings[TIER_URI] = tier
        for name in settings:
            if name in OWN_SETTINGS:
                raise SettingError(f"{name}: `tidelog up` gives each node its own value, it cannot be set here")
        check_settings(settings)
        root = data.resolve()
        if _running(root):
            fail(f"a cluster is running in {data} already")
        _check_store(root, settings)
        prepare_layout(root, brokers, controllers, port, settings, is_free, tls=tls, proxies=proxies, cells=cells)
    except SettingError as error:
        fail(str(error), EXIT_USAGE)
    except PortTaken as error:
        fail(str(error))
    except OSError as error:
        fail(f"{data}: {error.strerror}")
    (root / LOGS).mkdir(exist_ok=True)
    return root


def _check_store(root: Path, settings: dict[str, str]) -> None:
    """Ends the command if the chosen store does not answer; then nothing of the cluster has changed."""
    uri = settings[TIER_URI] if TIER_URI in settings else chosen_store(root)
    if not uri:
        return  # the cluster's own directory, which its nodes create
    from tidelog.cluster.store_check import store_trouble  # noqa: PLC0415  heavy, and most clusters here need none of it

    if trouble := store_trouble(uri):
        fail(f"{trouble}; --tier names another one")


def _tenant_names(root: Path, text: str | None) -> list[str]:
    """The tenants of `--tenants`; the client configurations of all tenants follow the cluster's port."""
    from tidelog.cluster.embedded_tenants import parse_names, refresh_client_files  # noqa: PLC0415

    layout = require_layout(root)
    try:
        names = parse_names(text) if text else []
        refresh_client_files(root, layout)
    except SettingError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}")
    if names and not layout.proxies:
        fail("--tenants: tenants are reached through proxies, so --proxies must be 1 or more", EXIT_USAGE)
    return names


def require_layout(root: Path) -> ClusterLayout:
    layout = load_layout(root)
    if layout is None:
        fail(f"there is no cluster in {root}")
    return layout


def supervisor_line(
    root: Path, tenants: Sequence[str] = (), out: int = 1, console_port: int | None = None
) -> list[str]:
    words = [sys.executable, "-m", "tidelog.cluster.supervisor", str(root), ",".join(tenants), str(out)]
    return words if console_port is None else [*words, str(console_port)]


def start_detached(root: Path, tenants: Sequence[str] = (), console_port: int | None = None) -> str:
    """Start the cluster so that it outlives this command; returns its ready line. Ends the command if it does not
    start."""
    read, write = os.pipe()
    with open(root / LOGS / "supervisor.log", "ab") as log:
        process = subprocess.Popen(
            supervisor_line(root, tenants, write, console_port),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(write,),
            start_new_session=True,
        )
    os.close(write)
    line, deadline = b"", time.monotonic() + START_TIMEOUT_S
    poll = select.poll()  # select() takes no descriptor above 1023
    poll.register(read, select.POLLIN)
    while not line.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            process.terminate()
            fail(f"the cluster was not ready within {START_TIMEOUT_S:g} s; see {root / LOGS}")
        received = os.read(read, 4096)
        if not received:
            fail(f"the cluster did not start; see {root / LOGS}")
        line += received
    text = line.decode().rstrip("\n")
    if text.startswith("failed "):
        fail(f"{text.removeprefix('failed ')}; the cluster stops")
    return text


def down(data: Data = DEFAULT_DATA) -> None:
    """Stop the cluster of a directory: brokers hand over their leadership first."""
    layout = load_layout(data)
    if layout is not None and _running(data.resolve()):
        print(stopping_line(layout), file=sys.stderr, flush=True)
    ask_supervisor(data, {"do": "down"}, STOP_TIMEOUT_S)
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while _running(data.resolve()) and time.monotonic() < deadline:
        time.sleep(0.02)
    print(stopped_line(data.resolve()), file=sys.stderr, flush=True)


def ps(data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """A row per node: process, state, addresses, and why it does not serve or has ended."""
    answer = ask_supervisor(data, {"do": "ps"}, 10.0)
    columns = ["node", "role", "id", "pid", "state", "listeners", "metrics", "dir"]
    show(answer["nodes"], as_json=as_json, columns=columns)
    if not as_json:
        for node in answer["nodes"]:
            if node["reason"]:
                print(f"{node['node']} does not serve: {node['reason']}")


def kill(node: str, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """End a node with SIGKILL; it stays down until `start`."""
    _node_command("kill", node, data, as_json)


def stop(node: str, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Stop a node in order; it stays down until `start`."""
    _node_command("stop", node, data, as_json)


def start(node: str, data: Data = DEFAULT_DATA, as_json: Json = False) -> None:
    """Start a node that was killed or stopped, on the same directory and ports."""
    _node_command("start", node, data, as_json)


def _node_command(action: str, node: str, data: Path, as_json: bool) -> None:
    answer = ask_supervisor(data, {"do": action, "node": node}, START_TIMEOUT_S)
    show([answer["node"]], as_json=as_json, columns=["node", "role", "id", "pid", "state"])


def ask_supervisor(data: Path, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """The answer of the supervisor in `data`; ends the command if there is none, or if it is an error."""
    try:
        answer = control.ask(data.resolve(), request, timeout_s)
    except (control.ClusterDown, FileNotFoundError, NotADirectoryError):
        fail(f"no cluster is running in {data}")
    except TimeoutError:
        fail(f"the supervisor of {data} did not answer within {timeout_s:g} s")
    if not answer["ok"]:
        fail(answer["error"])
    return answer


def _running(root: Path) -> bool:
    try:
        return bool(control.ask(root, {"do": "ps"}, 5.0)["ok"])
    except (control.ClusterDown, OSError):
        return False


def parse_assignments(texts: list[str]) -> dict[str, str]:
    """NAME=VALUE pairs; a name that is no node setting is refused by name."""
    found: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator:
            raise SettingError(f"--set {text!r}: it must be NAME=VALUE")
        if name in TOPIC_SETTINGS and name not in NODE_SETTINGS:
            synonyms = TOPIC_SETTINGS[name].synonyms
            hint = f"; its default for all topics is {synonyms[0]}" if synonyms else ""
            raise SettingError(f"{name}: this is a setting of topics{hint}")
        NODE_SETTINGS[name].parse(value)
        found[name] = value
    return found
