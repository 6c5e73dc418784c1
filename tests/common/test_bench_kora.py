"""`python -m bench.kora`: rows that follow from what was measured, and what measures them apart from the clusters."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import bench.kora.quotas as week
from bench.kora.__main__ import measure, show
from bench.kora.evidence import ALL, RESULTS, Evidence, Row, keep, kept, row_of, span
from bench.kora.load import NEAR, greatest_rate, line_through
from bench.kora.random_requests import Client, Offered
from bench.kora.suite import SUITE
from kraft.quotas.shares import even_share
from kraft.quotas.split_quota import SplitRules
from kraft.quotas.what_if import Policy, TenantReplay

FIGURES: dict[str, dict[str, Any]] = {
    "load": {
        shape: {"line": {"r_squared": 0.97, "error_max": 0.05, "p99_growth": 40.0}}
        for shape in ("tiny", "1 MB", "fan-out")
    },
    "quotas": {
        ALL: {
            "policies": {
                "static": {"tenants": 1_000, "within_budget": 0.99, "unfair_s_total": 6_000.0},
                "lazy": {"tenants": 1_000, "within_budget": 0.999, "unfair_s_total": 60.0},
            }
        }
    },
    "cells": {
        ALL: {
            "rows": [
                {"together": {"cluster_load": 0.8}, "cells": {"cluster_load": 0.56}, "cluster_load_ratio": 0.7},
                {"together": {"cluster_load": 0.8}, "cells": {"cluster_load": 0.8}, "cluster_load_ratio": 1.0},
            ]
        }
    },
    "request_costs": {
        ALL: {kind: {"line": {"request_us": 40, "partition_us": 9, "r_squared": 0.99}} for kind in ("produce", "fetch")}
    },
    "expansion": {
        "tiered": {"local_share": 0.05, "seconds": 2.0, "share": 1.0},
        "untiered": {"local_share": 1.0, "seconds": 50.0, "share": 1.0},
    },
    "balance": {
        ALL: {
            "rows": [
                {"load_before": 1.6, "load_after": 1.1, "p99_ms_worst_before": 3.0, "p99_ms_worst_after": 1.0},
                {"load_before": 1.5, "load_after": 1.0, "p99_ms_worst_before": 2.0, "p99_ms_worst_after": 1.0},
            ]
        }
    },
    "slow_broker": {
        "without": {"stalled": {"p99_ms": 400.0}},
        "with": {"normal": {"p99_ms": 6.0}, "put_aside": {"p99_ms": 9.0}, "put_aside_after_s": 20.0, "failed": 0},
    },
    "stuck_disk": {
        "without": {"gap_s": 60.0, "lost": 0, "doubled": 0, "reordered": 0},
        "with": {"gap_s": 11.0, "lost": 0, "doubled": 0, "reordered": 0},
    },
}
MISSES: list[tuple[str, tuple[str | int, ...], float]] = [
    ("load", ("1 MB", "line", "r_squared"), 0.94),
    ("load", ("fan-out", "line", "error_max"), 0.11),
    ("quotas", (ALL, "policies", "lazy", "within_budget"), 0.998),
    ("cells", (ALL, "rows", 0, "cluster_load_ratio"), 0.74),
    ("request_costs", (ALL, "fetch", "line", "r_squared"), 0.8),
    ("expansion", ("tiered", "seconds"), 3.0),
    ("expansion", ("untiered", "share"), 0.8),
    ("balance", (ALL, "rows", 0, "load_after"), 1.16),
    ("balance", (ALL, "rows", 1, "load_before"), 1.49),
    ("slow_broker", ("with", "put_aside", "p99_ms"), 9.1),
    ("slow_broker", ("with", "failed"), 1),
    ("stuck_disk", ("with", "gap_s"), 15.1),
    ("stuck_disk", ("without", "lost"), 1),
]


@pytest.mark.parametrize("name", FIGURES)
def test_a_row_meets_its_goal(name: str) -> None:
    row = row_of(SUITE[name], FIGURES[name])
    assert row.met and row.goal and row.seen


@pytest.mark.parametrize(("name", "where", "value"), MISSES, ids=[f"{name}-{where[-1]}" for name, where, _ in MISSES])
def test_a_row_misses_its_goal_by_one_figure(name: str, where: tuple[str | int, ...], value: float) -> None:
    parts = json.loads(json.dumps(FIGURES[name]))
    inner: Any = parts
    for step in where[:-1]:
        inner = inner[step]
    inner[where[-1]] = value
    assert not row_of(SUITE[name], parts).met


def test_a_broker_that_was_never_put_aside_is_a_miss() -> None:
    parts = FIGURES["slow_broker"] | {"with": {"normal": {"p99_ms": 6.0}, "stalled": {"p99_ms": 400.0}}}
    row = row_of(SUITE["slow_broker"], parts)
    assert not row.met and "not put aside" in row.seen


def test_a_row_of_which_parts_are_missing_has_met_nothing() -> None:
    row = row_of(SUITE["expansion"], {"tiered": FIGURES["expansion"]["tiered"]})
    assert row == Row("expansion", "", "not measured: untiered", met=False)


@pytest.mark.parametrize("name", [name for name in SUITE if (RESULTS / f"{name}.json").exists()])
def test_a_row_can_be_told_of_what_is_committed(name: str) -> None:
    assert row_of(SUITE[name], kept(name)).seen


def test_every_committed_result_is_of_a_row() -> None:
    assert {path.stem for path in RESULTS.glob("*.json")} <= set(SUITE)


def test_parts_are_saved_one_by_one_and_the_plot_is_drawn_of_all(tmp_path: Path) -> None:
    drawn: list[tuple[Any, Path]] = []
    evidence = Evidence(
        "two",
        1,
        {"one": lambda: {"value": 1}, "other": lambda: {"value": 2}},
        lambda parts: Row("", "", str(sum(part["value"] for part in parts.values())), "3", met=False),
        lambda parts, path: drawn.append((dict(parts), path)),
    )
    console = Console(quiet=True)
    measure(evidence, ["one"], console, tmp_path)
    assert kept("two", tmp_path) == {"one": {"value": 1}} and not drawn
    measure(evidence, ["other"], console, tmp_path)
    assert drawn == [({"one": {"value": 1}, "other": {"value": 2}}, tmp_path / "two.png")]
    assert keep("two", "one", {"value": 5}, tmp_path)["other"] == {"value": 2}
    assert show([evidence], console, tmp_path) == ["two"]


def test_a_span_is_told_from_the_least_to_the_greatest() -> None:
    assert span([1.0, 3.0, 2.0], ".1f") == "1.0 to 3.0"
    assert span([1.04, 1.0], ".1f") == "1.0"


# -- load


@pytest.mark.parametrize("guess", [10.0, 900.0, 1_000.0, 50_000.0])
def test_the_capacity_is_the_greatest_rate_that_is_kept_up_with(guess: float) -> None:
    failed_once = set[float]()

    def keeps_up(rate: float) -> bool:
        """The first try of each rate meets a stall."""
        if rate not in failed_once:
            failed_once.add(rate)
            return False
        return rate <= 1_000.0

    assert 1_000.0 / NEAR <= greatest_rate(keeps_up, guess) <= 1_000.0


def test_errors_are_told_from_the_rate_that_was_reached() -> None:
    steps = [{"reached": 100.0 * n, "load": 0.1 * n, "p99_ms": float(n)} for n in range(1, 10)]
    steps[4]["load"] += 0.2
    line = line_through(steps, 1_000.0)
    assert line["error_max"] == pytest.approx(0.2)
    assert line["p99_growth"] == 9.0
    assert 0.9 < line["r_squared"] < 1
    assert line["from_line_max"] < 0.2


@pytest.fixture
def answering() -> Iterator[tuple[str, int]]:
    """A server that answers each frame of 4 bytes with the same, and keeps every connection until it is closed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve(peer: socket.socket) -> None:
        with peer:
            while data := peer.recv(65_536):
                peer.sendall(data)

    def accept() -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,)).start()

    thread = threading.Thread(target=accept)
    thread.start()
    yield listener.getsockname()
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_what_is_offered_is_counted_and_answered(answering: tuple[str, int]) -> None:
    client = Client(answering, [b"\0\0\0\4abcd"])
    try:
        one = client.offer(500.0, 0.5, random.Random(1))
        client.settle()
    finally:
        client.close()
    assert one.due == len(one.lateness) > 100
    assert 0 < len(one.latencies) <= one.due
    assert all(late >= 0 for late in one.lateness)
    assert one.seconds >= 0.5


def test_the_rate_that_was_reached_is_that_of_the_answers() -> None:
    one = Offered(1_000, 2.0, [0.1] * 900, [0.0] * 1_000)
    assert (one.reached, one.answered_share) == (450.0, 0.9)
    assert Offered(0, 2.0, [], []).answered_share == 1.0


# -- quotas

TENANT = 18  # of this seed: throttled under an even split, and unfairly


def dense(tenant: week.Week) -> Any:
    """What `Week.offered` computes for some intervals, for all of them."""
    weights = np.tile(tenant.parts, (week.STEPS, 1))
    for begin, end, part, broker in tenant.hot:
        weights[begin:end] *= 1 - part
        weights[begin:end, broker] += part
    return tenant.load[:, None] * weights


def test_what_brokers_are_offered_is_the_same_for_some_intervals_as_for_all() -> None:
    tenant = week.week(week.SEED, TENANT, 0.5)
    assert len(tenant.hot) > 1
    whole = dense(tenant)
    for share in (0.05, 1 / 6, 0.65):
        at = tenant.above(share)
        assert np.array_equal(tenant.offered(at), whole[at])
        assert set(np.flatnonzero(whole.sum(axis=1) > share)) <= set(at)


def test_an_even_split_throttles_as_in_a_replay() -> None:
    tenant = week.week(week.SEED, TENANT, 0.5)
    one = TenantReplay(Policy.STATIC, week.QUOTA, range(week.BROKERS))
    assert one.bound(0) == even_share(week.QUOTA, week.BROKERS)
    at = tenant.above(1 / week.BROKERS)
    for number, row in zip(at.tolist(), (tenant.offered(at) * week.QUOTA).astype(np.int64).tolist(), strict=True):
        one.pass_interval(number * week.STEP_S, week.STEP_S, dict(enumerate(row)), {})
    assert one.throttled == week.static(tenant)
    assert one.throttled.unfair_s > 0


def test_lazy_replays_leave_out_only_what_cannot_matter() -> None:
    """More intervals around those that are replayed change nothing."""
    tenant, rules = week.week(week.SEED, TENANT, 0.5), SplitRules()
    found = week.replayed(Policy.LAZY, tenant, rules)
    assert found.all_s > 0
    one = TenantReplay(Policy.LAZY, week.QUOTA, range(week.BROKERS), rules)
    more = week.around(week.around(week.near_quota(tenant, rules)))
    for at, row in zip(more.tolist(), (tenant.offered(more) * week.QUOTA).astype(np.int64).tolist(), strict=True):
        one.pass_interval((at + 1) * week.STEP_S, week.STEP_S, dict(enumerate(row)), {})
    assert one.throttled == found


def test_intervals_around_others_end_with_the_week() -> None:
    margin = week.MARGIN_STEPS
    assert week.around(np.array([0, 1])).tolist() == list(range(margin + 2))
    last = week.STEPS - 1
    assert week.around(np.array([last])).tolist() == list(range(last - margin - (last - margin) % 2, week.STEPS))
    assert week.around(np.array([], dtype=np.int64)).tolist() == []
