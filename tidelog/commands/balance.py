"""`tidelog balance status | plan | record | run | add | pause | resume | cancel | history | explain`: loads levelled by
the controllers, and why."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from common.settings import INT_MAX, LONG_MAX
from tidelog.admin.admin_client import ClusterOptions, CommandOptions, admin_client
from tidelog.admin.balance_admin import ADD, ALL, CANCEL, PAUSE, RESUME, RUN, BalanceAdmin
from tidelog.admin.replica_moves import Refused
from tidelog.command_group import CommandGroup
from tidelog.output import EXIT_USAGE, fail, show

app = CommandGroup("Balance: status, plan, record, run, add, pause, resume, cancel, history, explain.")
LOOK_S = 0.5
NOT_KNOWN = "not all brokers have reported what they do yet"
NOT_KNOWN_THEN = "not all brokers had reported what they do when this was recorded"
OPERATION_COLUMNS = ["id", "kind", "brokers", "state", "reason", "moves_done", "moves_running", "replicas_left"]
MOVE_COLUMNS = ["number", "begun", "topic", "partition", "replicas", "goal", "source", "target", "outcome"]
PLAN_COLUMNS = ["topic", "partition", "replicas", "goal", "source", "target", "agreed", "bytes_to_copy"]

Operation = Annotated[int, typer.Option("--operation", min=ALL, max=LONG_MAX, help="Only this one.", metavar="ID")]
Brokers = Annotated[list[int], typer.Argument(help="Their ids.", metavar="ID…")]
Wait = Annotated[bool, typer.Option(help="Until it has ended.")]
MovesMax = Annotated[int, typer.Option("--at-once", min=0, help="Partitions that move at a time; 0: the setting's.")]
Throttle = Annotated[
    int,
    typer.Option(
        min=-1, max=LONG_MAX, help="Bytes a second of each broker; 0 is without bound, -1 the setting's number."
    ),
]


@app.command()
def status(options: CommandOptions) -> None:
    """What the balancer does now, and what it waits for."""
    with _balance(options) as balance:
        found = balance.status()
    if options.as_json:
        print(json.dumps(found))
        return
    begins = "is off: it begins nothing by itself" if not found["enabled"] else "is on"
    begins = "only logs what it would begin" if found["enabled"] and found["dry_run"] else begins
    print(f"the balancer {begins}")
    if found["waits"]:
        print(f"waits: {found['waits']}")
    for one in found["uneven"]:
        print(f"uneven: {one['goal']} of broker {one['broker_id']}, in {one['looks']} looks")
    _show_cells(found["cells"])
    show(found["operations"], as_json=False, columns=OPERATION_COLUMNS, empty="no operation runs")
    if found["running"]:
        show(list(map(_shown, found["running"])), as_json=False, columns=MOVE_COLUMNS)


@app.command()
def plan(
    toward: Annotated[
        list[int] | None, typer.Option("--toward", help="Fill this broker; may be given often.", metavar="ID")
    ] = None,
    most: Annotated[int, typer.Option("--moves", min=0, help="At most so many moves.")] = 100,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="Plan for a file of `tidelog balance record`; no cluster is asked.",
            metavar="FILE",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    *,
    options: CommandOptions,
) -> None:
    """What would move if the balancer ran now, and why; nothing moves."""
    if model is not None:
        found = _planned_for(model, toward or (), most)
    else:
        with _balance(options) as balance:
            found = balance.plan(toward or (), most)
    if options.as_json:
        print(json.dumps(found))
        return
    if not found["known"]:
        print(NOT_KNOWN if model is None else NOT_KNOWN_THEN, file=sys.stderr)
    columns = ["goal", "before", "after", "bound", "moves", "broken", "why_not"]
    show(list(map(_measured, found["goals"])), as_json=False, columns=columns)
    show(list(map(_shown, found["moves"])), as_json=False, columns=PLAN_COLUMNS, empty="nothing would move")
    _show_cells(found["cells"])


@app.command()
def record(
    out: Annotated[Path, typer.Option("--out", help="Write this file.", metavar="FILE")], options: CommandOptions
) -> None:
    """Keep the cluster as the balancer sees it, one JSON object a line, for `plan --model`."""
    from tidelog.admin.cluster_recording import gathered, recorded  # noqa: PLC0415  only this needs the planner

    with admin_client(options) as client:
        try:
            lines = recorded(gathered(client))
        except Refused as error:
            fail(str(error))
    try:
        out.write_text("".join(f"{line}\n" for line in lines))
    except OSError as error:
        fail(str(error))
    show([{"file": str(out), "lines": len(lines)}], as_json=options.as_json, columns=["file", "lines"])


@app.command()
def run(at_once: MovesMax = 0, throttle: Throttle = -1, wait: Wait = True, *, options: CommandOptions) -> None:
    """Balance now."""
    _begin(options, RUN, (), at_once, throttle, wait)


@app.command()
def add(
    brokers: Brokers, at_once: MovesMax = 0, throttle: Throttle = -1, wait: Wait = True, *, options: CommandOptions
) -> None:
    """Move replicas and leaderships to these brokers, the busiest first, until they have their share."""
    _begin(options, ADD, brokers, at_once, throttle, wait)


@app.command()
def pause(operation: Operation = ALL, *, options: CommandOptions) -> None:
    """Begin no more moves; those that run go on. Without an operation the balancer pauses too."""
    _alter(options, PAUSE, operation)


@app.command()
def resume(operation: Operation = ALL, *, options: CommandOptions) -> None:
    """Go on with what was paused."""
    _alter(options, RESUME, operation)


@app.command()
def cancel(operation: Operation = ALL, *, options: CommandOptions) -> None:
    """End operations; replicas whose moves run return to where they were."""
    _alter(options, CANCEL, operation)


@app.command()
def history(
    operation: Operation = ALL,
    limit: Annotated[int, typer.Option(min=0, help="At most so many moves, the newest.")] = 100,
    *,
    options: CommandOptions,
) -> None:
    """Operations and moves, the newest last. Older ones: `tidelog audit`."""
    with _balance(options) as balance:
        operations, moves = balance.history(operation, limit=limit)
    if options.as_json:
        print(json.dumps({"operations": operations, "moves": moves}))
        return
    show(list(map(_dated, operations)), as_json=False, columns=["begun", *OPERATION_COLUMNS], empty="no operations")
    show(list(map(_shown, moves)), as_json=False, columns=MOVE_COLUMNS, empty="no moves")


@app.command()
def explain(
    partition: Annotated[str, typer.Argument(help="A topic, or a partition such as orders-3.", metavar="TOPIC[-N]")],
    options: CommandOptions,
) -> None:
    """Why the balancer has moved a topic or partition."""
    topic, _, number = partition.rpartition("-")
    is_one = bool(topic) and number.isascii() and number.isdigit() and int(number) <= INT_MAX
    with _balance(options) as balance:
        found = balance.history(topic=topic, partition=int(number))[1] if is_one else []
        found = found or balance.history(topic=partition)[1]
        operations = {row["id"]: row for row in balance.history(limit=0)[0]}
        if not found and not balance.has_topic(*({partition, topic} if is_one else {partition})):
            fail(f"there is no topic {partition}, and the balancer has moved none of that name of late")
    for move in found:
        of = operations.get(move["operation"], {})
        move["kind"], move["requested_by"] = of.get("kind", ""), of.get("requested_by", "")
    if options.as_json:
        print(json.dumps(found))
        return
    if not found:
        print(f"the balancer has not moved {partition} of late; `tidelog audit` has what is older")
    for move in found:
        print(_sentence(move))


# -----------------------------------------------------------------------------------------------------------


@contextmanager
def _balance(cluster: ClusterOptions) -> Iterator[BalanceAdmin]:
    with admin_client(cluster) as client:
        try:
            yield BalanceAdmin(client)
        except Refused as error:
            fail(str(error))


def _planned_for(model: Path, toward: Sequence[int], most: int) -> dict[str, Any]:
    from tidelog.admin.recorded_plan import UnusableRecord, plan_of  # noqa: PLC0415  only this needs the planner

    try:
        with model.open("rb") as file:
            return plan_of(file, toward, most)
    except (OSError, UnusableRecord) as error:
        fail(f"{model}: {error}", EXIT_USAGE)


def _begin(options: CommandOptions, act: int, brokers: Any, at_once: int, throttle: int, wait: bool) -> None:
    if act == ADD and not brokers:
        fail("name the brokers to fill", EXIT_USAGE)
    with _balance(options) as balance:
        (operation,) = balance.alter(act, brokers, moves_max=at_once, bytes_per_second=throttle)
        if wait:
            try:
                balance.wait(operation, _pause, _progress)
            except KeyboardInterrupt:
                fail(f"interrupted; operation {operation} goes on. `tidelog balance cancel` undoes what runs")
        (row,), _moves = balance.history(operation, limit=0)
    show([row], as_json=options.as_json, columns=OPERATION_COLUMNS)


def _alter(options: CommandOptions, act: int, operation: int) -> None:
    with _balance(options) as balance:
        changed = balance.alter(act, operation=operation)
        rows = [row for row in balance.history(limit=0)[0] if row["id"] in changed]
    show(rows, as_json=options.as_json, columns=OPERATION_COLUMNS, empty="no operation changed")


def _progress(row: dict[str, Any], waits: str | None) -> None:
    text = f"operation {row['id']}: {row['moves_done']} moves done, {row['moves_running']} running"
    print(f"{text}; {waits}" if waits else text, file=sys.stderr, flush=True)


def _pause() -> None:
    time.sleep(LOOK_S)


def _time(ms: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(ms / 1000))


def _dated(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"begun": _time(row["begun_ms"])}


def _measured(goal: dict[str, Any]) -> dict[str, Any]:
    """A goal in columns: its measure is a ratio."""
    return goal | {name: f"{goal[name]:.2f}" for name in ("before", "after", "bound")}


def _shown(move: dict[str, Any]) -> dict[str, Any]:
    """A move in columns."""
    row = move | {
        "replicas": f"{_ids(move['replicas_before'])} -> {_ids(move['replicas_after'])}",
        "source": f"{move['source_before']:.2f} -> {move['source_after']:.2f}",
        "target": f"{move['target_before']:.2f} -> {move['target_after']:.2f}",
    }
    return row | ({"begun": _time(move["begun_ms"])} if "begun_ms" in move else {})


def _sentence(move: dict[str, Any]) -> str:
    before, after = move["replicas_before"], move["replicas_after"]
    what = "leadership" if set(before) == set(after) else "replicas"
    who = move["requested_by"] or "the balancer"
    text = (
        f"{_time(move['begun_ms'])} {move['topic']}-{move['partition']}: {what} {_ids(before)} -> {_ids(after)}, "
        f"{move['outcome']}\n  for {move['goal']}: the giving broker {move['source_before']:.2f} -> "
        f"{move['source_after']:.2f}, the taking one {move['target_before']:.2f} -> {move['target_after']:.2f}\n"
        f"  because {move['reason'] or 'an operation runs'}; operation {move['operation']} by {who}"
    )
    return text + (f"\n  agreed: {', '.join(move['agreed'])}" if move["agreed"] else "")


def _show_cells(sentences: list[str]) -> None:
    for sentence in sentences:
        print(f"overloaded: {sentence}")


def _ids(brokers: list[int]) -> str:
    return ",".join(map(str, brokers))
