"""`tidelog spark erase` against a running cluster, whose leader is killed meanwhile: the bytes are nowhere any more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from bench.embedded import EmbeddedCluster
from tests.tidelog.test_tidelog_tier_rebuild import create, read_all, tidelog, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SETTINGS = {
    "tidelog.tier.roll.ms": "1500",
    "tidelog.tier.interval.ms": "100",
    "tidelog.tier.proposals.interval.ms": "200",
    "tidelog.tier.export.interval.ms": "1000",
    "tidelog.tier.erase.grace.ms": "1000",
    "log.retention.check.interval.ms": "1000",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
RECORDS, SECRET_EVERY = 4_000, 40
SECRET = b"the address of somebody who wants to be forgotten"
KEY = b"somebody"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=3, settings=dict(SETTINGS), data=tmp_path / "data", controllers=1) as cluster:
        yield cluster


def produce(cluster: EmbeddedCluster, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), acks="all")
    for number in range(count):
        is_theirs = number % SECRET_EVERY == 0
        key, value = (KEY, SECRET) if is_theirs else (b"%d" % number, os.urandom(400))
        producer.send("people", key=key, value=value, partition=number // 7 % 2)
    producer.flush()
    producer.close()


def files_with(cluster: EmbeddedCluster, data: bytes) -> list[Path]:
    found = []
    for path in cluster.data.rglob("*"):
        try:
            if path.is_file() and data in path.read_bytes():
                found.append(path)
        except FileNotFoundError:  # it went meanwhile
            continue
    return found


def leader_of(cluster: EmbeddedCluster, topic: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        (description,) = admin.describe_topics([topic])
        return int(next(one["leader_id"] for one in description["partitions"] if one["partition_index"] == 0))
    finally:
        admin.close()


def test_a_key_leaves_the_cluster_while_a_leader_dies(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    create(cluster, "people", "remote.storage.enable=true", "segment.bytes=262144", "local.retention.bytes=600000")
    produce(cluster, RECORDS)
    before = read_all(cluster.bootstrap, "people")
    assert len(before) == RECORDS
    assert files_with(cluster, SECRET)
    keys = tmp_path / "keys"
    keys.write_bytes(KEY + b"\nnobody\n")
    tier = (cluster.data / "tier").resolve()
    wait_for(lambda: list(tier.glob("*/_/people-*/*/manifest/*")))
    leader = leader_of(cluster, "people")
    line = [sys.executable, "-m", "tidelog", "spark", "erase", "--tier", tier.as_uri(), "--topic", "people"]
    line += ["--key-file", str(keys), "--wait", "120", "--wait-gone", "60", "--json"]
    job = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for(lambda: list(tier.glob("*/proposals/*.erase")), 120)
    cluster.kill(f"broker-{leader}")
    out, err = job.communicate(timeout=400)
    assert job.returncode == 0, err + out
    report = json.loads(out)
    theirs = [row for row in before if row[3] == KEY]
    assert report["records_erased"] == len(theirs) == RECORDS // SECRET_EVERY
    assert [row["proven"] for row in report["partitions"]] == [True, True]
    assert (report["keys"], report["keys_found"]) == (2, 1)
    assert not report["held"]
    assert read_all(cluster.bootstrap, "people") == [row for row in before if row[3] != KEY]
    cluster.command("start", f"broker-{leader}")
    wait_for(lambda: not files_with(cluster, SECRET), 90)  # every replica, the tier, caches and logs
    assert "somebody" not in out + err
    verified = tidelog("spark", "verify", "--tier", tier.as_uri(), "--topic", "people", "--deep", "--json")
    assert verified.returncode == 0, verified.stderr + verified.stdout
    produce(cluster, SECRET_EVERY)  # the topic lives, and the key may come back
    assert len(read_all(cluster.bootstrap, "people")) == RECORDS - len(theirs) + SECRET_EVERY
