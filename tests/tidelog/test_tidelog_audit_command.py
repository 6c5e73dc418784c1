"""`tidelog audit` as an operator uses it: of a cluster that lives, and from its object store alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.embedded import EmbeddedCluster
from tests.tidelog.test_tidelog_tier_rebuild import TIERED, create, produce, succeeded, tidelog, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

SETTINGS = {
    "log.retention.check.interval.ms": "500",
    "tidelog.tier.interval.ms": "100",
    "tidelog.tier.export.interval.ms": "1000",
}
KINDS = {"topic_created", "config_changed", "tier_segment_changed", "log_start_moved"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, settings=dict(SETTINGS), data=tmp_path / "data", controllers=1) as cluster:
        yield cluster


def events(*words: str) -> list[dict[str, Any]]:
    done = tidelog("audit", "--json", *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_it_lists_what_happened_to_a_topic(cluster: EmbeddedCluster) -> None:
    here = ("--data", str(cluster.data))
    create(cluster, "flights", *TIERED)
    create(cluster, "other")
    produce(cluster.bootstrap, "flights", 6_000)
    succeeded("topics", "alter", "flights", "--config", "retention.ms=1", *here)
    moved = wait_for(lambda: events("--topic", "flights", "--kind", "log_start_moved", *here))
    assert {event["topic"] for event in moved} == {"flights"}
    assert all(event["after"]["log_start_offset"] > event["before"]["log_start_offset"] for event in moved)

    def of_all_sources() -> list[dict[str, Any]]:
        found = events("--topic", "flights", *here)
        return found if {event["event"] for event in found} >= KINDS else []

    told = wait_for(of_all_sources)
    assert {event["topic"] for event in told} == {"flights"}, "those of the tier have its name, too"
    assert [event["wall_ms"] for event in told] == sorted(event["wall_ms"] for event in told)
    of_one = events("--topic", "flights", "--partition", "1", *here)
    assert {event.get("partition", -1) for event in of_one} == {1, -1}
    last = told[-1]["wall_ms"]
    assert all(event["wall_ms"] >= last for event in events("--since", str(last), *here))
    live = events("--live", "--topic", "flights", "--kind", "log_start_moved", *here)
    assert {event["source"] for event in live} == {"broker"}
    assert live[: len(moved)] == moved

    shown = tidelog("audit", "--topic", "flights", "--most", "2", *here).stdout
    assert "earlier events are left out" in shown
    for words, reason in (
        (("--partition", "1"), "--partition needs --topic"),
        (("--kind", "log_moved"), "log_moved is no kind of event"),
        (("--since", "yesterday"), "--since is a time like"),
        (("--live", "--tier", "file:///nowhere"), "give one of --live and --tier"),
        (("--cluster", "x"), "--cluster needs --tier"),
        (("--tier", "file:///no/such/place"), "--tier: file:///no/such/place: there is no such directory"),
    ):
        done = tidelog("audit", *words, *here)
        assert (done.returncode, reason in done.stderr) == (2, True), done.stderr

    assert_internal_topics_are_asked_for(here)

    store = f"file://{cluster.data / 'tier'}"
    for where in (here, ("--live", *here), ("--tier", store)):
        done = tidelog("audit", "--topic", "fligths", *where)
        assert (done.returncode, "no event of a topic fligths" in done.stderr) == (1, True), done.stderr
    assert events("--topic", "other", "--kind", "log_start_moved", *here) == [], "it is there, and this never happened"
    assert {event["event"] for event in events("--tier", store, "--topic", "flights")} >= KINDS
    damaged = next((cluster.data / "tier").glob("*/audit/metadata/*/*/*.events"))
    damaged.write_bytes(b"no events")
    done = tidelog("audit", "--tier", store)
    assert done.returncode == 1
    assert damaged.name in done.stderr


def assert_internal_topics_are_asked_for(here: Sequence[str]) -> None:
    def lists(*words: str) -> str:
        return tidelog(*words, *here).stdout

    internal = [row["topic"] for row in json.loads(lists("topics", "list", "--json")) if row["internal"]]
    assert "__tier_state" in internal
    for words in (("topics", "list"), ("audit",)):
        shown, everything = lists(*words), lists(*words, "--internal")
        assert "flights" in shown and "--internal shows them" in shown
        assert not any(name in shown for name in internal) and "--internal shows them" not in everything
        assert all(name in everything for name in internal)
    brokers = json.loads(lists("brokers", "list", "--json"))
    assert all(0 < row["internal_replicas"] < row["replicas"] for row in brokers)
    assert f"{sum(row['internal_replicas'] for row in brokers)} replicas of internal" in lists("brokers", "list")
