"""kcat, where it is installed: produce to a new topic, consume as a group, list."""

from __future__ import annotations

import json
import shutil
import subprocess
import uuid

import pytest

from bench.embedded import EmbeddedCluster

KCAT = shutil.which("kcat") or shutil.which("kafkacat")
pytestmark = [
    pytest.mark.processes,
    pytest.mark.timeout(300),
    pytest.mark.skipif(KCAT is None, reason="kcat is not installed here, so it was not run"),
]


def kcat(*arguments: str, feed: str = "") -> str:
    assert KCAT is not None
    done = subprocess.run([KCAT, *arguments], input=feed, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kcat_produces_consumes_in_a_group_and_lists(cluster: EmbeddedCluster) -> None:
    topic, brokers = f"kcat-{uuid.uuid4().hex[:8]}", ("-b", cluster.bootstrap)
    lines = [f"line {number}" for number in range(100)]
    kcat(*brokers, "-P", "-t", topic, feed="\n".join(lines) + "\n")
    group = ("-G", f"g-{topic}", "-c", "100", "-X", "auto.offset.reset=earliest", topic)
    assert sorted(kcat(*brokers, *group).splitlines()) == sorted(lines)
    listed = json.loads(kcat(*brokers, "-L", "-J"))
    assert len(listed["brokers"]) == 3
    assert topic in {row["topic"] for row in listed["topics"]}
