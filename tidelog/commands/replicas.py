"""`tidelog topics reassign | elect`: moving a topic's replicas, and giving its leadership back."""

from __future__ import annotations

import sys
import time
from typing import Annotated, Any

import typer

from common.settings import INT_MAX
from kraft.balancer.evacuation import PlacedPartition
from tidelog.admin.admin_client import CommandOptions, admin_client
from tidelog.admin.replica_moves import Key, Moving, Refused, ReplicaMoves, Rounds
from tidelog.commands.brokers import LOOK_S, Throttle
from tidelog.output import EXIT_USAGE, fail, show
from tidelog.shell_words import argument

PREFERRED, UNCLEAN = 0, 1
Partitions = Annotated[
    list[int] | None, typer.Option("--partition", help="Only this partition; may be given often.", metavar="N")
]


def reassign(
    name: str,
    to: Annotated[
        str | None,
        typer.Option(help="The brokers of the replicas; each partition prefers the next of them.", metavar="ID,…"),
    ] = None,
    partition: Partitions = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Undo the moves that run.")] = False,
    throttle: Throttle = 0,
    wait: Annotated[bool, typer.Option(help="Until all have moved.")] = True,
    *,
    options: CommandOptions,
) -> None:
    """Move a topic's replicas to other brokers. Without --to or --cancel: what moves now."""
    if to is not None and cancel:
        fail("--to or --cancel, not both", EXIT_USAGE)
    if throttle and not wait:
        fail("--throttle needs --wait, because the command removes the throttle at its end", EXIT_USAGE)
    brokers = broker_ids(to) if to is not None else ()
    with admin_client(options) as client:
        moves = ReplicaMoves(client)
        try:
            wanted = _wanted(moves, name, partition, brokers)
            keys = [(move.topic, move.partition) for move in wanted]
            if cancel:
                moves.cancel([key for key in moves.running() if key in keys])
            elif to is not None and wait:
                _move(moves, name, wanted, throttle)
            elif to is not None:
                moves.begin(wanted)
            rows = _rows(moves, name, keys)
        except Refused as error:
            fail(str(error))
    show(rows, as_json=options.as_json, columns=["partition", "replicas", "adding", "removing"])


def elect(
    name: str,
    partition: Partitions = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Any live replica where there is no leader; may lose records.")
    ] = False,
    *,
    options: CommandOptions,
) -> None:
    """Give leadership back to the preferred replicas, the first of each partition's list."""
    from kafka.errors import for_code  # noqa: PLC0415

    with admin_client(options) as client:
        try:
            wanted = _wanted(ReplicaMoves(client), name, partition, ())
        except Refused as error:
            fail(str(error))
        asked = {name: [move.partition for move in wanted]}
        response = client.elect_leaders(UNCLEAN if unclean else PREFERRED, asked, raise_errors=False)
        if response.error_code:
            fail(f"{name}: {for_code(response.error_code).message}")
        rows = [
            {
                "partition": row.partition_id,
                "result": str(for_code(row.error_code).message) if row.error_code else "elected",
            }
            for topic in response.replica_election_results
            for row in topic.partition_result
        ]
    show(sorted(rows, key=lambda row: int(row["partition"])), as_json=options.as_json, columns=["partition", "result"])


def broker_ids(text: str) -> tuple[int, ...]:
    """The brokers of `--to`; ends the command if it is no list of ids."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() for part in parts):
        fail(f"--to {text!r}: it must be a list of broker ids", EXIT_USAGE)
    found = tuple(map(int, parts))
    if max(found) > INT_MAX:
        fail(f"--to {text!r}: a broker's id is 0 to {INT_MAX}", EXIT_USAGE)
    return found


def _wanted(moves: ReplicaMoves, name: str, only: list[int] | None, brokers: tuple[int, ...]) -> list[PlacedPartition]:
    """The topic's partitions placed on `brokers` in turn, with the preferred leaders spread."""
    present = moves.partitions([name])
    if only is not None:
        missing = sorted(set(only) - {found.partition for found in present})
        if missing:
            fail(f"{name} has no partition {missing[0]}")
        present = [found for found in present if found.partition in only]
    if not brokers:
        return present
    return [
        found._replace(replicas=brokers[found.partition % len(brokers) :] + brokers[: found.partition % len(brokers)])
        for found in present
    ]


def _move(moves: ReplicaMoves, name: str, wanted: list[PlacedPartition], throttle: int) -> None:
    keys = {(move.topic, move.partition): None for move in wanted}

    def mine(key: Key, _moving: Moving) -> bool:
        return key in keys

    def tell(_left: int, running: int) -> None:
        print(f"{name}: {running} partitions moving", file=sys.stderr, flush=True)

    try:
        Rounds(moves, len(wanted), throttle, lambda: time.sleep(LOOK_S), tell).run(wanted, mine)
    except KeyboardInterrupt:
        fail(f"interrupted; the moves go on. `tidelog topics reassign --cancel {argument(name)}` undoes them")
    if throttle:
        moves.lift_throttles([name])


def _rows(moves: ReplicaMoves, name: str, keys: list[Key]) -> list[dict[str, Any]]:
    running = moves.running()
    rows = []
    for found in moves.partitions([name]):
        key = (found.topic, found.partition)
        moving = running.get(key)
        if key in keys:
            rows.append(
                {
                    "partition": found.partition,
                    "replicas": list(found.replicas),
                    "adding": list(moving.adding) if moving else [],
                    "removing": list(moving.removing) if moving else [],
                }
            )
    return rows
