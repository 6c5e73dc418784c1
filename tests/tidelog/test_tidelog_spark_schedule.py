"""`tidelog.spark.schedule` in a running cluster: the active controller starts jobs, and they do not outlive it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from tests.spark_offload.tier_builder import TierBuilder, plain_batches
from tests.tidelog.test_tidelog_tier_rebuild import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


def logged(cluster: EmbeddedCluster, words: str) -> dict[str, list[str]]:
    """Lines with these words, by controller."""
    found = {}
    for file in sorted((cluster.data / "logs").glob("controller-*.log")):
        lines = [line for line in file.read_text().splitlines() if words in line]
        if lines:
            found[file.stem] = lines
    return found


def processes_with(words: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and words.encode() in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_jobs_come_from_the_active_controller(tmp_path: Path) -> None:
    settings = {"tidelog.spark.schedule": "every 2s: read --topic nosuch --count"}
    with EmbeddedCluster(brokers=1, controllers=3, settings=settings, data=tmp_path / "data") as cluster:
        first = wait_for(lambda: logged(cluster, "a scheduled job failed"))
        assert len(first) == 1
        ((active, lines),) = first.items()
        assert " exit=2 " in lines[0]
        assert "nosuch" in lines[0]
        cluster.kill(active)
        others = wait_for(lambda: logged(cluster, "a scheduled job failed").keys() - {active})
        assert len(others) == 1


def test_a_job_goes_with_its_controller(tmp_path: Path) -> None:
    tier = TierBuilder(tmp_path / "elsewhere")
    partition = tier.partition("words")
    partition.add(plain_batches(0, 20))
    partition.publish()
    job = f"read --tier {tier.uri} --cluster-id {tier.tier.cluster_id} --topic words --count"
    settings = {"tidelog.spark.schedule": f"every 2s: {job}"}
    with EmbeddedCluster(brokers=1, controllers=1, settings=settings, data=tmp_path / "data") as cluster:
        child = f"owned_job spark read --tier file://{cluster.data.resolve()}"
        wait_for(lambda: processes_with(child))
        cluster.kill("controller-0")
        wait_for(lambda: not processes_with(child))
