"""`tidelog groups reset-offsets | lag`, `topics tail`, `doctor` and completion on a running cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient

from bench.embedded import EmbeddedCluster
from tests.prepared_command import prepared

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def tidelog(cluster: EmbeddedCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return prepared([*words, "--bootstrap", cluster.bootstrap])


def done(cluster: EmbeddedCluster, *words: str) -> str:
    ended = tidelog(cluster, *words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    """With 100 records in each of two partitions, a second apart."""
    name = f"gc-{uuid.uuid4().hex[:8]}"
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(",")) as admin:
        kept = {"num_partitions": 2, "replication_factor": 3, "configs": {"retention.ms": "-1"}}  # records of 2013
        admin.create_topics({name: kept}, wait_for_metadata=True)
    with KafkaProducer(bootstrap_servers=cluster.bootstrap.split(",")) as producer:
        for number in range(200):
            value = b"%d" % number
            producer.send(name, value, partition=number % 2, timestamp_ms=1_372_636_800_000 + number // 2 * 1000)
    return name


def committed(cluster: EmbeddedCluster, group: str) -> dict[int, int]:
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(",")) as admin:
        return {one.partition: row.offset for one, row in admin.list_group_offsets({group: None})[group].items()}


def test_a_group_is_moved_after_it_was_shown(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    group = f"g-{topic}"
    assert len(done(cluster, "consume", topic, "--group", group, "--exit").splitlines()) == 200
    reset = ("groups", "reset-offsets", group)
    shown = json.loads(done(cluster, *reset, "--topic", f"{topic}:1", "--shift-by", "-30", "--json"))
    assert (shown["executed"], shown["reads_again"], shown["skips"]) == (False, 30, 0)
    assert committed(cluster, group) == {0: 100, 1: 100}, "only shown"
    for words, wanted in (
        (("--topic", f"{topic}:1", "--shift-by", "-30"), {0: 100, 1: 70}),
        (("--all-topics", "--to-datetime", "2013-07-01T00:00:20Z"), {0: 20, 1: 20}),
        (("--all-topics", "--to-offset", "7000"), {0: 100, 1: 100}),
        (("--all-topics", "--by-duration", "PT1S"), {0: 100, 1: 100}),
        (("--topic", topic, "--to-earliest"), {0: 0, 1: 0}),
    ):
        done(cluster, *reset, *words, "--execute")
        assert committed(cluster, group) == wanted, words
    kept = tmp_path / "kept.csv"
    kept.write_text(done(cluster, *reset, "--all-topics", "--to-current", "--export"))
    done(cluster, *reset, "--all-topics", "--to-latest", "--execute")
    done(cluster, *reset, "--from-file", str(kept), "--execute")
    assert committed(cluster, group) == {0: 0, 1: 0}


def test_a_group_with_members_is_not_moved(cluster: EmbeddedCluster, topic: str) -> None:
    group = f"g-{topic}"
    words = [sys.executable, "-m", "tidelog", "consume", topic, "--group", group, "--bootstrap", cluster.bootstrap]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as member:
        assert member.stdout is not None
        member.stdout.readline()
        refused = tidelog(cluster, "groups", "reset-offsets", group, "--topic", topic, "--to-latest", "--execute")
        assert (refused.returncode, refused.stderr) == (
            1, f"tidelog: {group} is Stable: offsets can be moved once its members have left\n",
        )  # fmt: skip
        member.terminate()
        member.stdout.read()
        assert member.wait(60) == 0


@pytest.mark.parametrize(
    ("words", "status", "named"),
    [
        (("--to-latest",), 2, "say of which topics"),
        (("--all-topics",), 2, "give one of --to-earliest"),
        (("--all-topics", "--to-latest", "--to-earliest"), 2, "give one of --to-earliest"),
        (("--all-topics", "--by-duration", "1h"), 2, "--by-duration"),
        (("--all-topics", "--to-latest"), 1, "has committed nothing"),
        (("--topic", "absent-topic", "--to-latest"), 1, "there is no topic absent-topic"),
        (("--from-file", "/absent.csv"), 1, "/absent.csv"),
    ],
)
def test_what_cannot_be_moved_is_said_in_a_line(
    cluster: EmbeddedCluster, words: tuple[str, ...], status: int, named: str
) -> None:
    ended = tidelog(cluster, "groups", "reset-offsets", "nobody", *words)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (status, "", 1)
    assert named in ended.stderr


def test_lag_in_records_and_in_time(cluster: EmbeddedCluster, topic: str) -> None:
    group = f"g-{topic}"
    done(cluster, "consume", topic, "--group", group, "--exit")
    done(cluster, "groups", "reset-offsets", group, "--topic", f"{topic}:1", "--to-offset", "40", "--execute")
    rows = json.loads(done(cluster, "groups", "lag", group, "--json"))
    assert [(row["partition"], row["committed"], row["end"], row["lag"]) for row in rows] == [
        (0, 100, 100, 0),
        (1, 40, 100, 60),
    ]
    assert rows[0]["behind_s"] == 0
    assert rows[1]["behind_s"] > 86_400 * 365, "the record at offset 40 is of 2013"
    (total,) = [row for row in json.loads(done(cluster, "groups", "lag", "--json")) if row["group"] == group]
    assert (total["topics"], total["partitions"], total["lag"]) == (1, 2, 60)
    (bare, _) = json.loads(done(cluster, "groups", "lag", group, "--json", "--no-time"))
    assert bare["behind_s"] is None
    absent = tidelog(cluster, "groups", "lag", group, "absent-group")
    assert (absent.returncode, absent.stdout) == (1, "") and "there is no group absent-group" in absent.stderr
    examined = json.loads(tidelog(cluster, "doctor", "--seconds", "0", "--json").stdout)
    (idle,) = [row["what"] for row in examined["findings"] if row["check"] == "groups"]
    assert "no members and unread records" in idle and f"{group} (60)" in idle


def test_the_tail_of_a_topic(cluster: EmbeddedCluster, topic: str) -> None:
    shown = done(cluster, "topics", "tail", topic, "--last", "2", "--count", "4", "--format", "{partition}:{offset}")
    assert sorted(shown.split()) == ["0:98", "0:99", "1:98", "1:99"]


def test_a_shell_completes_names(cluster: EmbeddedCluster, topic: str) -> None:
    done(cluster, "consume", topic, "--group", f"g-{topic}", "--exit")
    bootstrap = f"--bootstrap {cluster.bootstrap}"
    for line, wanted in (
        (f"tidelog {bootstrap[:0]}transac", "transactions"),
        (f"tidelog consume {bootstrap} {topic[:6]}", topic),
        (f"tidelog groups lag {bootstrap} g-{topic[:6]}", f"g-{topic}"),
        (f"tidelog consume --bootstrap 127.0.0.1:1 {topic[:6]}", ""),
    ):
        words = line.split()
        asked = {"_TIDELOG_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
        ended = prepared([], environment=os.environ | asked)
        assert (ended.stdout.split(), ended.stderr) == (wanted.split(), ""), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shells_completion_is_a_program(shell: str) -> None:
    ended = prepared(["completion", shell])
    assert ended.returncode == 0 and "_TIDELOG_COMPLETE=complete_" in ended.stdout
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=ended.stdout, text=True, check=True)
    assert prepared(["completion", "csh"]).returncode == 2
