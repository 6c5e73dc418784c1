"""`python -m bench.kora`: rows that follow from what was measured, and what measures them apart from the clusters."""

from __future__ import annotations

import json
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

import bench.kora.quotas as week
from bench.kora.__main__ import draw, measure, show
from bench.kora.evidence import ALL, RESULTS, Evidence, Row, keep, kept, row_of, span
from bench.kora.grid import gathered, p95_ms
from bench.kora.grid_load import latencies
from bench.kora.load import Prober, line_through
from bench.kora.lone_broker import LoneBroker
from bench.kora.random_requests import Client, Offered
from bench.kora.suite import SUITE
from common.loop_load import LoopCounters
from kraft.controller.unfair_time import UnfairTime
from kraft.quotas.shares import even_share
from kraft.quotas.split_quota import SplitRules
from kraft.quotas.what_if import Policy, TenantReplay

FIGURES: dict[str, dict[str, Any]] = {
    "load": {
        shape: {"line": {"r_squared": 0.97, "error_max": 0.05, "p99_growth": 40.0}}
        for shape in ("tiny", "1 MB", "fan-out")
    },
    "grid": {
        ALL: {
            "kafka": "4",
            "cells": [
                {
                    "partitions": partitions,
                    "rate": rate,
                    "tidelog": {"p95_ms": [3.0, 5.0], "missing": 0},
                    "kafka": {"p95_ms": [10.0, 20.0], "missing": 0},
                }
                for partitions in (10, 1_000)
                for rate in (500, 8_000)
            ],
        }
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
            "brokers": 24,
            "rows": [
                {"together": {"cluster_load": 0.8}, "cells": {"cluster_load": 0.56}, "cluster_load_ratio": 0.7},
                {"together": {"cluster_load": 0.8}, "cells": {"cluster_load": 0.8}, "cluster_load_ratio": 1.0},
            ],
        }
    },
    "request_costs": {
        ALL: {"turn_us": 20}
        | {
            kind: {"line": {"request_us": 40, "partition_us": 9, "r_squared": 0.99}}
            for kind in ("produce", "fetch", "replicate", "follow")
        }
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
    ("load", ("tiny", "line", "p99_growth"), 2.0),
    ("grid", (ALL, "cells", 3, "tidelog", "p95_ms", 1), 28.0),
    ("grid", (ALL, "cells", 0, "tidelog", "missing"), 1),
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


MEASURED = [name for name, evidence in SUITE.items() if set(evidence.parts) <= set(kept(name))]


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


@pytest.mark.parametrize("name", MEASURED)
def test_a_row_that_is_measured_has_its_plot_committed_and_shown(name: str, tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "performance.md").read_text()
    assert (RESULTS / f"{name}.png").exists() and f"(../bench/kora/results/{name}.png)" in page
    for part, found in kept(name).items():
        keep(name, part, found, tmp_path)
    draw([SUITE[name]], tmp_path)
    assert (tmp_path / f"{name}.png").stat().st_size > 5_000


# -- grid


def test_a_cell_with_which_only_one_system_keeps_up_is_a_miss_for_the_other_alone() -> None:
    for system, is_met in (("kafka", True), ("tidelog", False)):
        parts = json.loads(json.dumps(FIGURES["grid"]))
        parts[ALL]["cells"][3][system] = {"p95_ms": [9_000.0], "missing": 70}
        assert row_of(SUITE["grid"], parts).met is is_met


def test_records_that_are_missing_count_with_the_time_for_which_they_are() -> None:
    came = [(10, 0.002), (12, 0.003), (3, 0.5)]
    assert latencies(came, range(10, 14), 100, 5.0) == pytest.approx([0.002, 5.0 - 0.11, 0.003, 5.0 - 0.13])


def test_rounds_are_gathered_by_cell() -> None:
    one = {"partitions": 10, "rate": 500, "p95_ms": 3.0, "p99_ms": 4.0, "missing": 0}
    rounds = {"tidelog": [[one], [one | {"p95_ms": 5.0}]], "kafka": [[one | {"missing": 7}], []]}
    first, *others = gathered(rounds)
    assert (p95_ms(first, "tidelog"), p95_ms(first, "kafka")) == (4.0, None)
    assert {p95_ms(cell, "tidelog") for cell in others} == {None}


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


def test_errors_are_told_from_the_rate_that_was_offered() -> None:
    steps = [{"offered": 0.1 * n, "load": 0.1 * n, "p99_ms": float(n)} for n in range(1, 10)]
    steps[4]["load"] += 0.2
    line = line_through(steps)
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


@pytest.fixture
def client(answering: tuple[str, int]) -> Iterator[Client]:
    client = Client(answering, [b"\0\0\0\4abcd"])
    yield client
    client.close()


def test_what_is_offered_is_counted_and_all_of_it_answered(client: Client) -> None:
    one = client.offer(500.0, 0.5, random.Random(1))
    assert len(one.latencies) == len(one.lateness) > 100
    assert 0 < one.in_time <= len(one.latencies)
    assert min(one.latencies) >= 0 and min(one.lateness) >= 0
    assert one.whole_s >= one.seconds >= 0.5


def test_clients_that_wait_for_their_answers_ask_again(client: Client) -> None:
    assert client.in_turns(0.2, 3) * 0.2 > 3


def test_shares_are_of_the_capacity_before_and_counted_against_that_around() -> None:
    class Hastening:
        asked = 0.0

        def in_turns(self, seconds: float, in_flight: int) -> float:
            self.asked += 100.0
            return self.asked

        def offer(self, rate: float, seconds: float, rng: random.Random) -> Offered:
            return Offered(seconds, seconds, int(rate * seconds), [], [])

    class Resting:
        def counters(self) -> LoopCounters:
            return LoopCounters()

        def added_since(self, before: LoopCounters) -> LoopCounters:
            return before

    part = Prober(cast("Client", Hastening()), cast("LoneBroker", Resting())).part(0.5)
    assert (part.rate, part.capacity) == (50.0, 150.0)


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
    for number, row in enumerate((dense(tenant) * week.QUOTA).astype(np.int64).tolist()):
        one.pass_interval(number * week.STEP_S, week.STEP_S, dict(enumerate(row)), {})
    assert one.throttled == week.static(tenant)
    assert one.throttled.unfair_s > 0


def test_who_was_at_its_quota_has_reason_to_wait_for_what_it_used_in_advance() -> None:
    served = np.concatenate([np.full(60, 1.0), np.full(10, 0.35), np.full(3, 0.96), np.full(5, 0.1)])
    controller, quotas = UnfairTime(), (week.QUOTA, 0, 0)
    reasons = [
        controller.is_over("one", quotas, (int(part * week.QUOTA), 0, 0), number * week.STEP_S)
        for number, part in enumerate(served.tolist())
    ]
    assert week.with_reason(served).tolist() == reasons
    assert all(reasons[:60]) and 0 < sum(reasons[60:70]) < 10 and not reasons[-1]


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
