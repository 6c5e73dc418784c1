"""`tidelog groups reset-offsets | lag`: where groups are, and moving them. docs/groups.md shows it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Collection
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from common.settings import LONG_MAX
from tidelog.admin.admin_client import ClientOptions, admin_client, client_of, reach
from tidelog.admin.group_descriptions import described_groups
from tidelog.admin.name_completion import group_names, topic_names
from tidelog.admin.replica_moves import Refused
from tidelog.moments import milliseconds
from tidelog.output import EXIT_USAGE, Json, fail, is_terminal, printable, show

if TYPE_CHECKING:
    from tidelog.admin.group_lag import Behind
    from tidelog.admin.library_client import AdminClient
    from tidelog.admin.offset_reset import Move, Target
    from tidelog.admin.transaction_doctor import Place

IDLE = ("Empty", "Dead")
CLEAR = "\x1b[H\x1b[J"
Group = Annotated[str, typer.Argument(autocompletion=group_names)]


def reset_offsets(
    group: Group,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", help="This topic, or these partitions of it.", metavar="TOPIC[:0,1,…]",
                     autocompletion=topic_names),
    ] = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All that the group has committed in.")] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="To the first offset.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="To the end.")] = False,
    to_current: Annotated[bool, typer.Option("--to-current", help="To what is committed, else to the end.")] = False,
    to_offset: Annotated[int | None, typer.Option("--to-offset", max=LONG_MAX, help="To this offset.")] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", min=-LONG_MAX, max=LONG_MAX, help="So many on, or back if negative.")
    ] = None,
    to_datetime: Annotated[
        str | None, typer.Option("--to-datetime", help="To the first record from this time on.", metavar="TIME")
    ] = None,
    by_duration: Annotated[
        str | None, typer.Option("--by-duration", help="So long before now.", metavar="PnDTnHnMnS")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", help="To what it lists: topic,partition,offset.", metavar="CSV")
    ] = None,
    export: Annotated[bool, typer.Option("--export", help="Print the new offsets as such a file.")] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without, only say what would be done.")] = False,
    *,
    as_json: Json = False,
    options: ClientOptions,
) -> None:  # fmt: skip
    """Move a group's committed offsets; its members must have left.

    Shows first what it would read again or skip. An offset outside of its partition becomes the nearer end.
    """
    from tidelog.admin.offset_reset import CURRENT, EARLIEST, LATEST, OFFSET, SHIFT, Target, csv_text  # noqa: PLC0415

    given = [
        Target(EARLIEST) if to_earliest else None,
        Target(LATEST) if to_latest else None,
        Target(CURRENT) if to_current else None,
        None if to_offset is None else Target(OFFSET, to_offset),
        None if shift_by is None else Target(SHIFT, shift_by),
        _moment(to_datetime, by_duration),
        _listed(from_file),
    ]
    targets = [one for one in given if one is not None]
    if len(targets) != 1:
        fail("give one of --to-earliest, --to-latest, --to-current, --to-offset, --shift-by, --to-datetime, "
             "--by-duration and --from-file", EXIT_USAGE)  # fmt: skip
    if (from_file is not None) + all_topics + bool(topic) != 1:
        fail("say of which topics: --topic, --all-topics, or a --from-file that lists them", EXIT_USAGE)
    chosen = _chosen(topic or [])
    with admin_client(options.cluster()) as client:
        state = _states(client, [group])[group]
        moves = _planned(client, group, targets[0], chosen, all_topics)
        if not moves and from_file is not None:
            fail(f"--from-file {from_file}: it lists no offsets")
        if not moves:
            fail(f"{group} has committed nothing: name topics with --topic")
        if execute:
            _execute(client, group, state, moves)
    if export:
        print(csv_text(moves), end="")
        return
    _show_moves(group, moves, as_json=as_json, executed=execute)
    if not execute and state not in IDLE and not as_json:
        print(f"the group is {state}: stop its members before --execute", file=sys.stderr)


def _moment(to_datetime: str | None, by_duration: str | None) -> Target | None:
    from tidelog.admin.offset_reset import TIME, BadReset, Target, parse_duration  # noqa: PLC0415

    if to_datetime is not None and by_duration is not None:
        fail("give one of --to-datetime and --by-duration", EXIT_USAGE)
    if to_datetime is not None:
        return Target(TIME, milliseconds("--to-datetime", to_datetime))
    if by_duration is None:
        return None
    try:
        return Target(TIME, max(0, time.time_ns() // 1_000_000 - parse_duration(by_duration)))
    except BadReset as error:
        fail(str(error), EXIT_USAGE)


def _listed(path: Path | None) -> Target | None:
    from tidelog.admin.offset_reset import LISTED, BadReset, Target, parse_csv  # noqa: PLC0415

    if path is None:
        return None
    try:
        return Target(LISTED, listed=parse_csv(path.read_text()))
    except OSError as error:
        fail(f"--from-file {path}: {error.strerror}")
    except (BadReset, UnicodeDecodeError) as error:
        fail(f"--from-file {path}: {error}")


def _chosen(topics: list[str]) -> list[tuple[str, list[int] | None]]:
    """Each topic with its partitions, None for all of them."""
    from tidelog.admin.offset_reset import BadReset, parse_topic  # noqa: PLC0415

    try:
        return [parse_topic(text) for text in topics]
    except BadReset as error:
        fail(str(error), EXIT_USAGE)


def _planned(
    client: AdminClient, group: str, target: Target, topics: list[tuple[str, list[int] | None]], all_topics: bool
) -> list[Move]:
    """Ends the command if a topic or partition is not there, or does not answer."""
    from tidelog.admin.group_resets import moves_of  # noqa: PLC0415
    from tidelog.admin.offset_reset import BadReset  # noqa: PLC0415

    try:
        return moves_of(client, group, target, topics, all_topics=all_topics)
    except BadReset as error:
        fail(str(error))


def _execute(client: AdminClient, group: str, state: str, moves: list[Move]) -> None:
    from tidelog.admin.group_resets import move  # noqa: PLC0415

    if state not in IDLE:
        fail(f"{group} is {state}: offsets can be moved once its members have left")
    if refused := move(client, group, moves):
        fail("; ".join(refused))


def _show_moves(group: str, moves: list[Move], *, as_json: bool, executed: bool) -> None:
    rows = [
        {
            "topic": move.place.topic,
            "partition": move.place.partition,
            "current": move.current,
            "new": move.new,
            "begin": move.begin,
            "end": move.end,
            "effect": move.effect,
        }
        for move in moves
    ]
    again, skipped = sum(move.reads_again for move in moves), sum(move.skips for move in moves)
    if as_json:
        shown = {"group": group, "executed": executed, "reads_again": again, "skips": skipped, "partitions": rows}
        print(json.dumps(shown))
        return
    show(rows, as_json=False, columns=["topic", "partition", "current", "new", "begin", "end", "effect"])
    if executed:
        print(f"{printable(group)} reads {again} offsets again and skips {skipped}")
    else:
        print(f"{printable(group)} would read {again} offsets again and skip {skipped}; --execute does it")


def lag(
    groups: Annotated[list[str] | None, typer.Argument(help="All groups.", autocompletion=group_names)] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.2, max=3600, help="Seconds between two looks of --watch.")] = 2.0,
    time_: Annotated[
        bool, typer.Option("--time/--no-time", help="Also in time; that reads a record of each partition.")
    ] = True,
    *,
    as_json: Json = False,
    options: ClientOptions,
) -> None:
    """How far groups are behind: in records, and the age of the first one that is not read.

    Of named groups each partition, of all groups a line each.
    """
    from tidelog.admin.group_lag import lags, with_times  # noqa: PLC0415
    from tidelog.streams.topic_clients import consumer_of  # noqa: PLC0415

    where = reach(options.cluster())
    with client_of(where) as client, consumer_of(where, group=None, reset="earliest", committed_only=False) as reader:
        while True:
            names = groups or sorted(row["group_id"] for row in client.list_groups())
            rows = lags(client, names)
            if groups:
                _refuse_absent(client, set(groups) - {row.group for row in rows})
            if time_:
                rows = with_times(reader, rows, time.time_ns() // 1_000_000)
            if watch and not as_json and is_terminal(sys.stdout):
                print(CLEAR, end="")
            _show_lags(rows, by_partition=bool(groups), as_json=as_json)
            if not watch:
                return
            print(end="", flush=True)
            time.sleep(every)


def _refuse_absent(client: AdminClient, groups: Collection[str]) -> None:
    """Groups without committed offsets must have members at least."""
    absent = [name for name, state in _states(client, groups).items() if state == "Dead"]
    if absent:
        fail(f"there is no group {', '.join(sorted(absent))}")


def _states(client: AdminClient, groups: Collection[str]) -> dict[str, str]:
    try:
        return {name: str(row["group_state"]) for name, row in described_groups(client, groups).items()}
    except Refused as error:
        fail(str(error))


def _show_lags(rows: list[Behind], *, by_partition: bool, as_json: bool) -> None:
    if by_partition:
        shown = [
            {"group": row.group, "topic": row.place.topic, "partition": row.place.partition,
             "committed": row.committed, "end": row.end, "lag": row.lag, "behind_s": _seconds(row.behind_ms)}
            for row in rows
        ]  # fmt: skip
        columns = ["group", "topic", "partition", "committed", "end", "lag", "behind_s"]
    else:
        shown = [_total(group, list(of)) for group, of in groupby(rows, key=lambda row: row.group)]
        columns = ["group", "topics", "partitions", "lag", "behind_s"]
    show(shown, as_json=as_json, columns=columns, empty="no committed offsets")


def _total(group: str, rows: list[Behind]) -> dict[str, Any]:
    """One group; its time is that of the partition which is furthest behind."""
    known = [row.lag for row in rows if row.lag is not None]
    times = [row.behind_ms for row in rows if row.behind_ms is not None]
    places: list[Place] = [row.place for row in rows]
    return {
        "group": group,
        "topics": len({place.topic for place in places}),
        "partitions": len(places),
        "lag": sum(known) if known else None,
        "behind_s": _seconds(max(times)) if times else None,
    }


def _seconds(milliseconds_: int | None) -> float | None:
    return None if milliseconds_ is None else round(milliseconds_ / 1000, 1)
