"""A rebuilt cluster of two cells: a tenant's topics lie in the tenant's cell again, whatever brokers there are now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from kraft.image.snapshot import decode_snapshot
from tests.tidelog.test_tidelog_tier_rebuild import (
    SETTINGS,
    TIERED,
    create,
    kill_all,
    rebuild,
    succeeded,
    tidelog,
    wait_exported,
)

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]


@pytest.fixture
def old(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    """Brokers 0 and 1 are cell a, 2 and 3 cell b."""
    with EmbeddedCluster(4, SETTINGS | {"log.dir.free.bytes.min": "0"}, tmp_path / "old", 1, cells=2) as cluster:
        yield cluster


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "new"
    tidelog("down", "--data", str(tmp_path / "new"))


def test_tenants_come_back_in_their_cells(old: EmbeddedCluster, new: Path, tmp_path: Path) -> None:
    homes = {"a": {0, 1}, "b": {2, 3}}
    ids = {
        cell: json.loads(old.command_of("tenants", "create", f"of-{cell}", "--cell", cell, "--json"))["id"]
        for cell in homes
    }
    topics = {cell: f"{tenant}_flights" for cell, tenant in ids.items()}
    for topic in topics.values():
        create(old, topic, *TIERED)
    wait_exported(old, dict.fromkeys(topics.values(), 0))
    kill_all(old)

    def placed(*brokers: str) -> dict[str, set[int]]:
        """By cell where its tenant's topic comes to lie, on brokers that are named so."""
        file, tier = tmp_path / "rebuild.metadata", (old.data / "tier").as_uri()
        named = [word for broker in brokers for word in ("--broker", broker)]
        report = succeeded("tier", "rebuild", "--tier", tier, "--out", str(file), "--no-wait", *named)
        told = [sentence for sentence in report["not_there"] if sentence.startswith("cell ")]
        image = decode_snapshot(file.read_bytes())
        found = {
            cell: {replica for one in image.topics.by_name[topic].partitions.values() for replica in one.replicas}
            for cell, topic in topics.items()
        }
        assert [cell for cell in sorted(homes) if any(f"cell {cell} has no broker" in one for one in told)] == [
            cell for cell in sorted(homes) if brokers and not any(one.endswith(f":{cell}") for one in brokers)
        ]
        return found

    assert placed() == homes, "the brokers of old"
    assert placed("7:x:b", "8:x:a", "9:y:b") == {"a": {8}, "b": {7, 9}}
    assert placed("7:x:b", "9:y:b")["a"] <= {7, 9}
    report = rebuild(old, new, "--brokers", "4", "--cells", "2")
    assert [sentence for sentence in report["not_there"] if sentence.startswith("cell ")] == []
    for cell, topic in topics.items():
        partitions = succeeded("topics", "describe", topic, "--data", str(new))["partitions"]
        assert {replica for one in partitions for replica in one["replicas"]} == homes[cell]
        assert all(one["leader"] in homes[cell] for one in partitions)
