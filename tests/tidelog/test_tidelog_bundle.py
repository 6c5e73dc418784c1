"""The doctor of a cluster that is hurt, and a bundle in which no secret of it is."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from tests.prepared_command import prepared
from tidelog.doctor.debug_archive import known_secrets, secret_files

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(
        settings={"log.dir.free.bytes.min": "0"}, controllers=1, tls=True, proxies=1, tenants=["demo"]
    ) as running:
        yield running


def test_no_secret_is_in_a_bundle(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    log = cluster.data / "logs" / "broker-0.log"
    secrets = set(known_secrets(secret_files(cluster.data), {}, {}))
    assert len(secrets) > 20, "the cluster's, the tenant's, and the lines of private keys"
    with open(log, "a") as file:  # a node logs none; if one did, the bundle would still hold none
        file.writelines(f"a line with {secret}\n" for secret in secrets)
    out = tmp_path / "bundle.tar.gz"
    done = prepared(["bundle", "--data", str(cluster.data), "--out", str(out)])
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert out.stat().st_mode & 0o777 == 0o600
    with tarfile.open(out) as archive:
        parts = {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()  # type: ignore[union-attr]
            for member in archive.getmembers()
        }
    assert [(secret, name) for secret in secrets for name, text in parts.items() if secret in text] == []
    assert "a line with ***" in parts["logs/broker-0.log"]
    manifest = json.loads(parts["manifest.json"])
    assert (manifest["missing"], done.stderr) == ({}, "")
    assert {f"metrics/{node['node']}.txt" for node in cluster.nodes() if node["role"] != "supervisor"} <= set(parts)
    assert "tidelog_log_flushes_total" in parts["metrics/broker-0.txt"]
    assert json.loads(parts["cluster.json"])["brokers"]
    assert prepared(["bundle", "--data", str(cluster.data), "--out", str(out)]).returncode == 2


def test_the_doctor_sees_a_broker_that_is_gone(cluster: EmbeddedCluster) -> None:
    cluster.command_of("topics", "create", "watched", "--partitions", "3")
    calm = prepared(["doctor", "--data", str(cluster.data), "--seconds", "0", "--json"])
    found = json.loads(calm.stdout)
    assert [row for row in found["findings"] if row["severity"] in ("critical", "unseen")] == [], calm.stdout
    cluster.kill("broker-1")
    cluster.kill("broker-2")
    hurt = prepared(["doctor", "--data", str(cluster.data), "--seconds", "0", "--json"])
    assert hurt.returncode == 4, hurt.stderr
    report = json.loads(hurt.stdout)
    critical = [row["check"] for row in report["findings"] if row["severity"] == "critical"]
    assert report["worst"] == "critical"
    assert "partitions" in critical
    assert all(row["to_do"] for row in report["findings"])
    for node in ("broker-1", "broker-2"):
        cluster.command("start", node)
    unreached = prepared(["doctor", "--bootstrap", "127.0.0.1:1"])
    assert (unreached.returncode, unreached.stdout, unreached.stderr.count("\n")) == (1, "", 1)
