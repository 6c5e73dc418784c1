"""A tenant's groups move with it from cell to cell under load, through the proxy: a stock client's commits are all
there, and only brokers of the tenant's cell coordinate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import private_hosts
from bench.embedded import EmbeddedCluster
from tidelog.admin.library_client import AdminClient
from tidelog.cluster.client_files import read_key
from tidelog.cluster.local_names import names_of
from wire.messages import FindCoordinatorRequest

BROKERS, DOMAIN, TOPIC = 4, "tidelog.localhost", "moving"
COMMITS = 20
STOPPED_MOST_S = 20.0

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("failover")]


@pytest.fixture
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {"group.initial.rebalance.delay.ms": "100", "log.dir.free.bytes.min": "0"}
    with EmbeddedCluster(BROKERS, settings, controllers=1, cells=2, proxies=1, tenants=("demo",)) as running:
        yield running


@pytest.fixture
def names(cluster: EmbeddedCluster, tmp_path: Path) -> Path | None:
    if private_hosts.names_resolve():
        return None
    reason = private_hosts.problem()
    assert reason is None, reason
    hosts = private_hosts.new_file(tmp_path)
    tenant = read_key(cluster.tenant_file("demo", "key"))[2]
    private_hosts.add(hosts, names_of(tenant, range(BROKERS), DOMAIN))
    return hosts


def rows(cluster: EmbeddedCluster, *command: str) -> Any:
    return json.loads(cluster.command_of(*command, "--json"))


def coordinator_of(cluster: EmbeddedCluster, group: str) -> int:
    """As an operator is told; -1 while there is none."""
    client = AdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        (found,) = client.send(FindCoordinatorRequest(key_type=0, coordinator_keys=[group])).coordinators
    finally:
        client.close()
    return int(found.node_id)


def test_groups_go_where_their_tenant_goes(cluster: EmbeddedCluster, names: Path | None) -> None:
    cells = {row["cell"]: [one["broker"] for one in row["brokers"]] for row in rows(cluster, "cells", "list")}
    tenant = rows(cluster, "tenants", "describe", "demo")
    words = [sys.executable, "-m", "tests.clients.tenant_programs", "committing"]
    words += [str(cluster.tenant_file("demo")), TOPIC, str(COMMITS)]
    words = words if names is None else private_hosts.inside(names, words)
    group = f"{tenant['id']}_g-{TOPIC}"
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stdout.readline() == "flowing\n"
        assert coordinator_of(cluster, group) in cells[tenant["cell"]]
        home = tenant["cell"]
        for to in [*(cell for cell in cells if cell != home), home, *(cell for cell in cells if cell != home)]:
            row = rows(cluster, "tenants", "move", "demo", "--cell", to)
            assert (row["cell"], row["state"]) == (to, "active")
            assert coordinator_of(cluster, group) in cells[to]
        last = to
        told, _ = client.communicate("enough\n", timeout=120)
    seen = json.loads(told.splitlines()[-1])
    assert client.returncode == 0
    assert seen["committed"] == seen["acknowledged"], seen
    assert not seen["behind"], seen
    assert seen["commits"] > 2 * COMMITS, seen
    assert seen["coordinators"][0] in cells[home]
    assert seen["coordinators"][1] in cells[last]
    assert seen["longest_s"] < STOPPED_MOST_S, seen
    listed = {row["cell"]: row for row in rows(cluster, "cells", "list")}
    assert listed[last]["broker_load"] > 0
    assert all(row["load"] >= max(row["broker_load"], row["bandwidth_share"]) for row in listed.values())
    owned = {cell: row["ranges"] for cell, row in listed.items()}
    described = rows(cluster, "topics", "describe", "__consumer_offsets")["partitions"]
    for cell, (held,) in owned.items():
        mine = described[held["first"] : held["first"] + held["count"]]
        assert {replica for row in mine for replica in row["replicas"]} == set(cells[cell])
