"""`tidelog balance record` and `plan --model`: a cluster as lines, and plans without one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kraft.balancer.recorded import RecordedStanding, read
from tidelog.admin.balance_admin import BalanceAdmin
from tidelog.admin.cluster_recording import Gathered, recorded
from tidelog.admin.replica_moves import Moving
from tidelog.commands.balance import app
from wire.messages import ListBalanceMovesResponse

TENANT = "lkc-abc123"
IDS = {"orders": "00000000-0000-4000-8000-00000000000a", "__consumer_offsets": "00000000-0000-4000-8000-00000000000b"}


def topic(name: str, *partitions: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {"partition_index": number, "leader_id": 0, "replica_nodes": [0], "isr_nodes": [0], "offline_replicas": []}
        | row
        for number, row in enumerate(partitions)
    ]
    return {"name": name, "topic_id": IDS.get(name, "00000000-0000-4000-8000-00000000000c"), "partitions": rows}


def cell(name: str, *brokers: int, **fields: object) -> dict[str, Any]:
    rows = [{"broker": broker, "rack": f"r{broker}", "state": "running", "replicas": 1} for broker in brokers]
    limits: dict[str, Any] = {"replicas_max": 4_000 * len(brokers), "bandwidth_per_broker": 9_000_000}
    return {"cell": name, "brokers": rows, "ranges": [], **limits, **fields}


def gathered(**fields: Any) -> Gathered:
    usage = [
        {
            "broker": broker,
            "load": (0.5, 0.125)[broker],
            "disk_used_bytes": 5,
            "disk_size_bytes": 100,
            "partitions": [{"topic": "orders", "partition": 0, "in_rate": 6.0, "out_rate": None, "load": None}],
            "topics": [{"topic": "", "in_rate": 4.0, "out_rate": 2.0}],
        }
        for broker in (0, 1)
    ]
    found: dict[str, Any] = {
        "known": True,
        "usage": usage,
        "cells": [cell("default", 0, 1)],
        "tenants": [],
        "health": {0: "healthy", 1: "healthy"},
        "cordoned": [],
        "topics": [topic("orders", {"replica_nodes": [0, 1], "isr_nodes": [0, 1]})],
        "running": {},
        "sizes": {("orders", 0, 0): 7},
    }
    return Gathered(**(found | fields))


def test_brokers_are_recorded_with_their_limits_and_reports() -> None:
    found = read(recorded(gathered(), 5))
    assert (found.head.time_ms, found.head.known, list(found.brokers)) == (5, True, [0, 1])
    one = found.brokers[1]
    assert (one.cell, one.rack, one.standing, one.load) == ("default", "r1", RecordedStanding.LIVE, 0.125)
    assert (one.disk_used_bytes, one.disk_size_bytes, one.bandwidth, one.replicas_max) == (5, 100, 9e6, 4_000)
    assert (one.partitions[0].in_rate, one.partitions[0].out_rate, one.topics[0].topic) == (6.0, None, "")


def test_a_broker_stands_as_the_controller_sees_it() -> None:
    cells = [cell("a", 0, 1), cell("b", 2, 3)]
    cells[0]["brokers"][0]["state"] = "fenced"
    found = read(recorded(gathered(cells=cells, health={1: "slow", 2: "healthy"}, cordoned=[2])))
    standings = {number: one.standing.value for number, one in found.brokers.items()}
    assert standings == {0: "apart", 1: "apart", 2: "closed", 3: "live"}
    assert found.brokers[3].load is None  # it has not reported


def test_what_moves_or_is_not_in_sync_stays() -> None:
    rows: list[dict[str, Any]] = [
        {"replica_nodes": [0, 1], "isr_nodes": [0, 1]},
        {"replica_nodes": [0, 1], "isr_nodes": [0]},
        {"replica_nodes": [0, 1], "isr_nodes": [0], "offline_replicas": [1]},
        {"leader_id": -1, "isr_nodes": []},
        {"replica_nodes": [1, 2, 0], "isr_nodes": [0, 1]},
    ]
    running = {("orders", 4): Moving((1, 2, 0), (2,), (0,))}
    found = read(recorded(gathered(topics=[topic("orders", *rows)], running=running))).topics["orders"]
    assert [row.stays for row in found.partitions] == [False, True, False, True, True]
    assert found.partitions[4].replicas == (1, 2)  # as they will be
    assert found.partitions[0].local_bytes == (7, None)


@pytest.mark.parametrize(
    ("state", "target", "expected"), [("active", None, ("east", False)), ("moving", "west", ("west", True))]
)
def test_a_tenants_topic_belongs_to_its_cell(state: str, target: str | None, expected: tuple[str, bool]) -> None:
    name = f"{TENANT}_orders"
    tenants = [{"id": TENANT, "cell": "east", "target_cell": target, "state": state}]
    (row,) = read(recorded(gathered(topics=[topic(name, {})], tenants=tenants))).topics[name].partitions
    assert (row.cell, row.stays) == expected


def test_a_cells_range_belongs_to_it() -> None:
    name = "__consumer_offsets"
    cells = [
        cell("east", 0, ranges=[{"topic": name, "first": 0, "count": 2}]),
        cell("west", 1, ranges=[{"topic": name, "first": 2, "count": 1}]),
    ]
    found = read(recorded(gathered(topics=[topic(name, {}, {}, {}, {})], cells=cells))).topics[name]
    assert [row.cell for row in found.partitions] == ["east", "east", "west", None]


def lines_of(count: int) -> list[str]:
    """Broker 0 has everything."""
    topics = [topic("orders", *({} for _ in range(count)))]
    sizes = {("orders", number, 0): 1_000_000 for number in range(count)}
    usage = [{"broker": broker, "disk_size_bytes": 10**12, "disk_used_bytes": 0} for broker in (0, 1)]
    return recorded(gathered(topics=topics, sizes=sizes, usage=usage))


def test_a_plan_for_a_record_shows_what_moves_and_why(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    path.write_text("\n".join(lines_of(8)))
    shown = CliRunner().invoke(app, ["plan", "--model", str(path), "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert (found["known"], found["cut_short"]) == (True, False)
    moves = [(move["topic"], move["replicas_before"], move["replicas_after"], move["goal"]) for move in found["moves"]]
    assert moves == [("orders", [0], [1], "replicas")] * 3  # five and three are near enough to four
    assert {move["bytes_to_copy"] for move in found["moves"]} == {1_000_000}
    assert next(row for row in found["goals"] if row["goal"] == "replicas")["after"] == 1.25
    table = CliRunner().invoke(app, ["plan", "--model", str(path), "--moves", "2"], env={"COLUMNS": "300"})
    assert table.stdout.count("orders") == 2


def test_the_measures_of_a_plan_are_shown_with_two_digits(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    path.write_text("\n".join(lines_of(7)))
    words = ["plan", "--model", str(path), "--moves", "1"]
    exact = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert any(len(str(row["after"])) > 6 for row in exact["goals"]), "no measure here needs to be rounded"
    table = CliRunner().invoke(app, words, env={"COLUMNS": "300"})
    assert re.search(r"\d\.\d\d\b", table.stdout) and not re.search(r"\d\.\d{3}", table.stdout), table.stdout


@pytest.mark.parametrize(("left", "shown"), [(-1, None), (0, 0), (7, 7)])
def test_replicas_left_are_those_of_a_drain_alone(left: int, shown: int | None) -> None:
    operation = ListBalanceMovesResponse.ListedOperation(
        id=4,
        kind="drain",
        brokers=[1],
        state="running",
        reason="",
        requested_by="",
        begun_ms=1,
        ended_ms=0,
        moves_max=1,
        bytes_per_second=1,
        moves_begun=1,
        moves_done=0,
        moves_running=1,
        bytes_to_copy=9,
        replicas_left=left,
    )
    response = ListBalanceMovesResponse(error_code=0, error_message=None, operations=[operation], moves=[])
    client: Any = SimpleNamespace(send=lambda request: response)
    (row,), _ = BalanceAdmin(client).history()
    assert row["replicas_left"] == shown


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        ("{\n", (), "line 1"),
        ("", (), "no line of the cluster"),
        (None, (), "does not exist"),
        ("\n".join(lines_of(1)), ("--toward", "5"), "it has no broker 5"),
    ],
)
def test_what_is_no_record_ends_the_command(
    text: str | None, words: tuple[str, ...], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.jsonl"
    if text is not None:
        path.write_text(text)
    shown = CliRunner().invoke(app, ["plan", "--model", str(path), *words], env={"COLUMNS": "300"})
    assert shown.exit_code == 2
    assert says in shown.stderr


def test_a_record_of_brokers_that_had_not_reported_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cluster.jsonl"
    path.write_text("\n".join(recorded(gathered(known=False))))
    shown = CliRunner().invoke(app, ["plan", "--model", str(path)])
    assert shown.exit_code == 0
    assert "had not" not in shown.stdout
    assert "not all brokers had reported" in shown.stderr
