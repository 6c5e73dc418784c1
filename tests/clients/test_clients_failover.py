"""A leader dies, is stopped in its tracks, or everything dies at once: nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import statistics
import time
from functools import partial

import pytest

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]

KILLED_MEDIAN_S, KILLED_MOST_S, FROZEN_MOST_S = 1.5, 3.0, 6.0


def clean(outcome: dict[str, object]) -> bool:
    return not (outcome["lost"] or outcome["doubled"] or outcome["reordered"] or outcome["unflushed"])


def test_killed_leaders_cost_no_record_and_little_time() -> None:
    with EmbeddedCluster() as cluster:
        load = SteadyLoad(cluster.bootstrap)
        gaps = []
        try:
            for _ in range(5):
                load.wait_flowing()
                name = f"broker-{load.leader()}"
                gaps.append(load.gap(partial(cluster.kill, name), watch_s=3.5))
                cluster.command("start", name)
        finally:
            outcome = load.finish()
    assert clean(outcome), outcome
    assert statistics.median(gaps) < KILLED_MEDIAN_S, gaps
    assert max(gaps) < KILLED_MOST_S, gaps


def test_a_frozen_leader_is_replaced_and_returns() -> None:
    with EmbeddedCluster() as cluster:
        load = SteadyLoad(cluster.bootstrap)
        try:
            load.wait_flowing()
            leader = load.leader()
            pid = next(node["pid"] for node in cluster.nodes() if node["node"] == f"broker-{leader}")
            try:
                gap = load.gap(lambda: os.kill(pid, signal.SIGSTOP), watch_s=6.5)
            finally:
                os.kill(pid, signal.SIGCONT)
            load.wait_flowing()
        finally:
            outcome = load.finish()
    assert clean(outcome), outcome
    assert gap < FROZEN_MOST_S


def test_everything_killed_at_once_comes_back_with_all_that_was_acknowledged() -> None:
    with EmbeddedCluster() as cluster:
        load = SteadyLoad(cluster.bootstrap)
        try:
            load.wait_flowing()
            for node in cluster.nodes():
                os.kill(node["pid"], signal.SIGKILL)
            acknowledged = len(load.acknowledged)
            deadline = time.monotonic() + 60
            while len(load.acknowledged) <= acknowledged + 500 and time.monotonic() < deadline:
                time.sleep(0.1)  # the load is what is awaited; the nodes start again by themselves
            load.wait_flowing()
        finally:
            outcome = load.finish()
    assert clean(outcome), outcome
