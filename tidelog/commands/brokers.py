"""`tidelog brokers list | add | drain | remove | health | demote | promote`: a cluster that grows, shrinks without
losing a replica, and puts sick brokers aside."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.errors import ErrorCode
from common.settings import LONG_MAX
from kraft.balancer.evacuation import PlacedPartition
from tidelog.admin import broker_health
from tidelog.admin.admin_client import ClusterOptions, CommandConfig, CommandOptions, Data, admin_client, error_text
from tidelog.admin.balance_admin import ADD, CANCEL, DRAIN, BalanceAdmin
from tidelog.admin.internal_topics import Internal, say_hidden
from tidelog.admin.replica_moves import Refused, ReplicaMoves
from tidelog.admin.usage_admin import described
from tidelog.cluster.embedded_place import DEFAULT_DATA
from tidelog.cluster.layout import load_layout
from tidelog.command_group import CommandGroup
from tidelog.commands.cluster import START_TIMEOUT_S, ask_supervisor
from tidelog.output import Json, fail, show

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

app = CommandGroup("Brokers: list, add, drain, remove, and their health.")
LOOK_S = 0.5
FENCED_WITHIN_S = 30.0
SETTING = -1

Id = Annotated[int, typer.Argument(help="The broker's id.", metavar="ID")]
Throttle = Annotated[
    int,
    typer.Option(
        min=0, max=LONG_MAX, help="Bytes a second that each broker sends and fetches for the moves; 0 is without bound."
    ),
]


@app.command("list")
def list_brokers(internal: Internal = False, *, options: CommandOptions) -> None:
    """Every registered broker with what it holds and leads, and its load from 0 to 1."""
    with _cluster(options) as (client, moves):
        rows = _rows(client, moves)
        loads = {row["broker"]: row["load"] for row in described(client, tenants=False, partitions=False)[1]}
    for row in rows:
        row["load"] = loads.get(row["broker"])
    hidden = 0
    if not (internal or options.as_json):
        hidden = sum(row["internal_replicas"] for row in rows)
        for row in rows:
            row["replicas"] -= row["internal_replicas"]
            row["leads"] -= row["internal_leads"]
    columns = ["broker", "address", "rack", "state", "load", "replicas", "leads"]
    show(rows, as_json=options.as_json, columns=columns, empty="no brokers")
    say_hidden(hidden, "replica of an internal topic is", "replicas of internal topics are")


@app.command()
def add(
    data: Data = DEFAULT_DATA,
    command_config: CommandConfig = None,
    fill: Annotated[
        bool,
        typer.Option(
            "--fill/--empty",
            help="Have the controllers move replicas and leaderships to it now, or leave that to the balancer's next "
            "look; `tidelog balance pause` keeps it empty.",
        ),
    ] = True,
    *,
    as_json: Json = False,
) -> None:
    """Start one more broker in an embedded cluster, with the next id and ports; it stays part of the cluster.

    The controllers move replicas to it, the busiest first, until it has its share of the load; `tidelog balance status`
    shows how far they are. For a broker that you started otherwise: `tidelog balance add ID`.
    """
    answer = ask_supervisor(data, {"do": "add"}, START_TIMEOUT_S)
    node = answer["node"]
    if fill:
        with _cluster(ClusterOptions(None, command_config, data)) as (client, _moves):
            BalanceAdmin(client).alter(ADD, [node["id"]])
    show([node], as_json=as_json, columns=["node", "role", "id", "pid", "state", "listeners"])


@app.command()
def drain(
    broker: Id,
    throttle: Annotated[
        int,
        typer.Option(
            min=-1,
            max=LONG_MAX,
            help="Bytes a second that each broker sends and fetches for the moves; 0 is without bound, -1 the "
            "setting's number.",
        ),
    ] = SETTING,
    at_once: Annotated[
        int, typer.Option(min=0, help="Partitions that move at the same time; 0 is the setting's number.")
    ] = 0,
    cancel: Annotated[bool, typer.Option("--cancel", help="Undo running moves, and accept replicas again.")] = False,
    wait: Annotated[bool, typer.Option(help="Until all have moved.")] = True,
    *,
    options: CommandOptions,
) -> None:
    """Move every replica off a broker, which then can be stopped and removed. The controllers do it: an interrupted
    command only stops watching."""
    with _cluster(options) as (client, moves):
        balance = BalanceAdmin(client)
        if all(row["broker"] != broker for row in _rows(client, moves)):
            fail(f"there is no broker {broker}")
        if cancel:
            _cancel(balance, moves, broker, as_json=options.as_json)
            return
        (operation,) = balance.alter(DRAIN, [broker], moves_max=at_once, bytes_per_second=throttle)
        if not wait:
            _shown(broker, "draining", 0, options.as_json)
            return
        try:
            ended = balance.wait(operation, _pause, _progress(broker))
        except KeyboardInterrupt:
            fail(f"interrupted; the controllers go on. `tidelog brokers drain {broker}` watches again, --cancel undoes")
        state = "drained" if ended["state"] == "done" else ended["state"]
        _shown(broker, state, ended["moves_done"], options.as_json)


def _cancel(balance: BalanceAdmin, moves: ReplicaMoves, broker: int, *, as_json: bool) -> None:
    """Cancel the drain that runs, or accept replicas again after one that has ended."""
    running = [one for one in balance.status()["operations"] if one["kind"] == "drain" and broker in one["brokers"]]
    undone = sum(one["moves_running"] for one in running)
    for one in running:
        balance.alter(CANCEL, operation=one["id"])
        balance.wait(one["id"], _pause, _progress(broker))
    if not running:
        moves.cordon(broker, False)
    _shown(broker, "cancelled", undone, as_json)


@app.command()
def remove(broker: Id, options: CommandOptions) -> None:
    """Unregister a drained broker. In an embedded cluster it is stopped first, and forgotten; its directory stays."""
    with _cluster(options) as (client, moves):
        held = len(_holding(moves, broker))
        if held:
            fail(f"broker {broker} still has {held} replicas; `tidelog brokers drain {broker}` moves them off")
        rows = {row["broker"]: row for row in _rows(client, moves)}
    data = options.data
    layout = load_layout(data) if options.bootstrap is None else None
    node = next((n for n in layout.brokers if n.node_id == broker), None) if layout is not None else None
    if broker not in rows and node is None:
        fail(f"there is no broker {broker}")
    if len(rows) == 1 and broker in rows:
        fail(f"broker {broker} is the only one")
    if layout is not None and node is not None:
        ask_supervisor(data, {"do": "stop", "node": node.name}, START_TIMEOUT_S)
    with _cluster(options, without=broker) as (client, moves):
        _unregister(client, moves, broker)
    if node is not None:
        ask_supervisor(data, {"do": "forget", "node": node.name}, START_TIMEOUT_S)
    _shown(broker, "removed", 0, options.as_json)


@app.command()
def health(options: CommandOptions) -> None:
    """The health of every broker, with why it is put aside, and what the controller sees of it now."""
    with _cluster(options) as (client, _moves):
        _show_health(broker_health.described(client), options.as_json)


@app.command()
def demote(
    broker: Id,
    force: Annotated[bool, typer.Option("--force", help="Also while another broker is put aside.")] = False,
    *,
    options: CommandOptions,
) -> None:
    """Take all leaderships off a broker that others can take. It stays in sync; only `promote` ends it."""
    with _cluster(options) as (client, _moves):
        _show_health(broker_health.demoted(client, broker, force), options.as_json)


@app.command()
def promote(broker: Id, options: CommandOptions) -> None:
    """Let a broker lead and be in sync again, also if the controller put it aside.

    Leaderships return to it step by step.
    """
    with _cluster(options) as (client, _moves):
        _show_health(broker_health.promoted(client, broker), options.as_json)


def _show_health(found: broker_health.Found, as_json: bool) -> None:
    if as_json:
        print(json.dumps(found.as_json()))
        return
    columns = ["broker", "state", "cause", "since", "leads", "score", "acks_ms", "peers_ms", "evidence"]
    show(found.rows, as_json=False, columns=columns, empty="no brokers")
    if not found.is_automatic:
        print("the controller puts no broker aside by itself", file=sys.stderr)
    elif found.is_dry_run:
        print("the controller only logs what it would put aside: tidelog.health.dry.run is set", file=sys.stderr)
    if found.fail_safe:
        print(f"nothing is done: {found.fail_safe}", file=sys.stderr)


# watching and asking the cluster -----------------------------------------------------------------------------


def _holding(moves: ReplicaMoves, broker: int) -> list[PlacedPartition]:
    return [partition for partition in moves.partitions() if broker in partition.replicas]


def _progress(broker: int) -> Callable[[dict[str, Any], str | None], None]:
    def tell(row: dict[str, Any], waits: str | None) -> None:
        left = f"broker {broker}: {row['replicas_left']} replicas left, {row['moves_running']} moving"
        print(f"{left}; {waits}" if waits and not row["moves_running"] else left, file=sys.stderr, flush=True)

    return tell


def _pause() -> None:
    time.sleep(LOOK_S)


@contextmanager
def _cluster(cluster: ClusterOptions, without: int | None = None) -> Iterator[tuple[AdminClient, ReplicaMoves]]:
    with admin_client(cluster, without=without) as client:
        try:
            yield client, ReplicaMoves(client)
        except Refused as error:
            fail(str(error))


def _rows(client: AdminClient, moves: ReplicaMoves) -> list[dict[str, Any]]:
    brokers = sorted(client.describe_cluster()["brokers"], key=lambda row: int(row["broker_id"]))
    alive = [row["broker_id"] for row in brokers if not row["is_fenced"]]
    cordoned = moves.cordoned(alive)
    holds: Counter[int] = Counter()
    leads: Counter[int] = Counter()
    internal_holds: Counter[int] = Counter()
    internal_leads: Counter[int] = Counter()
    for topic in client.describe_topics():
        for partition in topic["partitions"]:
            holds.update(partition["replica_nodes"])
            leads[partition["leader_id"]] += 1
            if topic["is_internal"]:
                internal_holds.update(partition["replica_nodes"])
                internal_leads[partition["leader_id"]] += 1
    return [
        {
            "broker": row["broker_id"],
            "address": f"{row['host']}:{row['port']}",
            "rack": row["rack"],
            "state": "fenced" if row["is_fenced"] else "draining" if row["broker_id"] in cordoned else "running",
            "replicas": holds[row["broker_id"]],
            "leads": leads[row["broker_id"]],
            "internal_replicas": internal_holds[row["broker_id"]],  # of those above
            "internal_leads": internal_leads[row["broker_id"]],
        }
        for row in brokers
    ]


def _unregister(client: AdminClient, moves: ReplicaMoves, broker: int) -> None:
    """Unregister the broker after it is fenced; a running broker would only register again."""
    from wire.messages import UnregisterBrokerRequest  # noqa: PLC0415

    deadline = time.monotonic() + FENCED_WITHIN_S
    while any(row["broker"] == broker and row["state"] != "fenced" for row in _rows(client, moves)):
        if time.monotonic() > deadline:
            fail(f"broker {broker} still runs; stop it first")
        _pause()
    response = client.send(UnregisterBrokerRequest(broker_id=broker))
    if response.error_code not in (ErrorCode.NONE, ErrorCode.BROKER_ID_NOT_REGISTERED):
        row = {"error_code": response.error_code, "error_message": response.error_message}
        fail(f"broker {broker}: {error_text(row)}")


def _shown(broker: int, state: str, moved: int, as_json: bool) -> None:
    row = {"broker": broker, "state": state, "moved": moved}
    if as_json:
        print(json.dumps(row))
    else:
        show([row], as_json=False, columns=["broker", "state", "moved"])
