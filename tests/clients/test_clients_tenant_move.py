"""A live tenant moves to another cell by command while a stock client writes: nothing acknowledged is lost, and its
old brokers keep nothing; a broker of a cell cannot be drained into another cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from bench.failover import SteadyLoad

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]

GAP_MOST_S = 3.0


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=4, controllers=1, cells=2) as running:
        yield running


def brokers_by_cell(cluster: EmbeddedCluster) -> dict[str, list[int]]:
    rows = json.loads(cluster.command_of("cells", "list", "--json"))
    return {row["cell"]: [broker["broker"] for broker in row["brokers"]] for row in rows}


def replicas_of(cluster: EmbeddedCluster, topic: str) -> list[int]:
    described = json.loads(cluster.command_of("topics", "describe", topic, "--json"))
    return sorted({replica for row in described["partitions"] for replica in row["replicas"]})


def logs_of(cluster: EmbeddedCluster, topic: str) -> list[int]:
    """The brokers that have a directory of the topic's partition 0."""
    found = Path(cluster.data).glob(f"broker-*/{topic}-0")
    return sorted(int(path.parent.name.removeprefix("broker-")) for path in found)


def moved(cluster: EmbeddedCluster, cell: str) -> None:
    row = json.loads(cluster.command_of("tenants", "move", "demo", "--cell", cell, "--json"))
    assert (row["cell"], row["state"]) == (cell, "active")


def test_a_tenant_moves_back_and_forth_under_load(cluster: EmbeddedCluster) -> None:
    cells = brokers_by_cell(cluster)
    assert sorted(map(len, cells.values())) == [2, 2]
    tenant = json.loads(cluster.command_of("tenants", "create", "demo", "--json"))
    load = SteadyLoad(cluster.bootstrap, f"{tenant['id']}_t", replicas=2)
    gaps = []
    try:
        home = tenant["cell"]
        assert replicas_of(cluster, load.topic) == cells[home]
        for cell in [*(other for other in cells if other != home), home]:
            load.wait_flowing()
            gaps.append(load.gap(lambda to=cell: moved(cluster, to), watch_s=1.0))  # type: ignore[misc]
            assert replicas_of(cluster, load.topic) == cells[cell]
            assert logs_of(cluster, load.topic) == cells[cell]
            row = json.loads(cluster.command_of("tenants", "describe", "demo", "--json"))
            assert (row["cell"], row["state"], row["partitions_to_move"]) == (cell, "active", 0)
        with pytest.raises(RuntimeError, match="no other broker in its cell"):
            cluster.command_of("brokers", "drain", str(cells[home][0]))
        load.wait_flowing()
    finally:
        outcome = load.finish()
    assert not (outcome["lost"] or outcome["doubled"] or outcome["reordered"] or outcome["unflushed"]), outcome
    assert max(gaps) < GAP_MOST_S, gaps
