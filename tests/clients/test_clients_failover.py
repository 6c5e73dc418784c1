"""A leader dies, is stopped in its tracks, or everything dies at once: nothing acknowledged is lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]

KILLS = 5
FLOWS = 500  # records that must be acknowledged
PATIENCE_S = 60.0
NEVER_MS = "600000"  # longer than any test waits


def clean(outcome: dict[str, object]) -> bool:
    return not (outcome["lost"] or outcome["doubled"] or outcome["reordered"] or outcome["unflushed"])


def wait_for_more(load: SteadyLoad) -> None:
    """Until records are acknowledged that were not when this was called."""
    acknowledged, deadline = len(load.acknowledged), time.monotonic() + PATIENCE_S
    while len(load.acknowledged) < acknowledged + FLOWS:
        assert time.monotonic() < deadline, "nothing is acknowledged any more"
        time.sleep(0.1)


def test_killed_leaders_cost_no_record_and_their_sessions_are_not_waited_for() -> None:
    with EmbeddedCluster(settings={"broker.session.timeout.ms": NEVER_MS}) as cluster:
        load = SteadyLoad(cluster.bootstrap)
        try:
            for _ in range(KILLS):
                load.wait_flowing()
                name = f"broker-{load.leader()}"
                cluster.kill(name)
                wait_for_more(load)
                cluster.command("start", name)
        finally:
            outcome = load.finish()
    assert clean(outcome), outcome


def test_a_frozen_leader_is_replaced_and_returns() -> None:
    with EmbeddedCluster() as cluster:
        load = SteadyLoad(cluster.bootstrap)
        try:
            load.wait_flowing()
            leader = load.leader()
            pid = next(node["pid"] for node in cluster.nodes() if node["node"] == f"broker-{leader}")
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_for_more(load)
            finally:
                os.kill(pid, signal.SIGCONT)
            wait_for_more(load)
        finally:
            outcome = load.finish()
    assert clean(outcome), outcome


def test_everything_killed_at_once_comes_back_with_all_that_was_acknowledged() -> None:
    with EmbeddedCluster() as cluster:
        load = SteadyLoad(cluster.bootstrap)
        try:
            load.wait_flowing()
            for node in cluster.nodes():
                os.kill(node["pid"], signal.SIGKILL)
            wait_for_more(load)  # the nodes start again by themselves
        finally:
            outcome = load.finish()
    assert clean(outcome), outcome
