"""`tidelog produce` and `tidelog consume` on a running cluster: every record comes back, whatever ends the commands."""

from __future__ import annotations

import json
import os
import pty
import random
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from kafka.admin import KafkaAdminClient

from bench.embedded import EmbeddedCluster

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]


def line(cluster: EmbeddedCluster, *words: str) -> list[str]:
    return [sys.executable, "-m", "tidelog", *words, "--bootstrap", cluster.bootstrap]


def tidelog(cluster: EmbeddedCluster, *words: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(line(cluster, *words), input=given, capture_output=True, check=False, timeout=120)


def done(cluster: EmbeddedCluster, *words: str, given: bytes = b"") -> bytes:
    """Its output; nothing on standard error, which is no terminal."""
    ended = tidelog(cluster, *words, given=given)
    assert (ended.returncode, ended.stderr) == (0, b"")
    return ended.stdout


@pytest.fixture
def topic(cluster: EmbeddedCluster) -> str:
    name = f"rc-{uuid.uuid4().hex[:8]}"
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(",")) as admin:
        # its records have times of long ago, which the broker would delete at its next look
        topic = {"num_partitions": 2, "replication_factor": 3, "configs": {"retention.ms": "-1"}}
        admin.create_topics({name: topic}, wait_for_metadata=True)
    return name


def committed(cluster: EmbeddedCluster, group: str) -> int:
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(",")) as admin:
        return sum(row.offset for row in admin.list_group_offsets({group: None})[group].values())


def hostile(seed: int) -> dict[str, object]:
    """A record of random bytes and texts, null and empty ones among them."""
    drawn = random.Random(seed)
    fields: dict[str, object] = {"partition": seed % 2, "timestamp": drawn.randrange(1_700_000_000_000)}
    for name in ("key", "value"):
        kind = drawn.randrange(4)
        kinds: list[dict[str, object]] = [
            {name: None},
            {name: ""},
            {name: "".join(chr(drawn.choice([0, 9, 10, 13, 27, 65, 0x9B, 0x202E, 0x1F600])) for _ in range(9))},
            {f"{name}_base64": "/wAKDQ=="},
        ]
        fields |= kinds[kind]
    if drawn.random() < 0.5:
        fields["headers"] = [{"key": "ä\n", "value": ""}, {"key": "ä\n", "value_base64": "/w=="}]
    return fields


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_record_comes_back(cluster: EmbeddedCluster, topic: str, codec: str) -> None:
    records = [hostile(seed) for seed in range(200)]
    lines = b"".join(json.dumps(one).encode() + b"\n" for one in records)
    done(cluster, "produce", topic, "--json", "--compression", codec, given=lines)
    read = done(cluster, "consume", topic, "--exit", "--format", "json")
    back = [{name: item for name, item in json.loads(text).items() if name not in ("topic", "offset")}
            for text in read.splitlines()]  # fmt: skip
    for partition in range(2):
        assert [one for one in back if one["partition"] == partition] == records[partition::2]


def test_lines_with_keys_headers_and_a_bound_of_speed(cluster: EmbeddedCluster, topic: str) -> None:
    words = ("--key-separator", ":", "--header", "from=test", "--partition", "1", "--rate", "1000", "--acks", "1")
    done(cluster, "produce", topic, *words, given=b"a:1\r\nb:\nc:x:y")
    shown = done(cluster, "consume", topic, "--count", "3", "--format", "{partition}:{offset} {key}={value} {headers}")
    assert shown == b"1:0 a=1 from=test\n1:1 b= from=test\n1:2 c=x:y from=test\n"
    assert done(cluster, "consume", topic, "--exit", "--partition", "1", "--from", "2") == b"x:y\n"
    assert done(cluster, "consume", topic, "--exit", "--from", "-1", "--format", "hex") == b"63 783a79\n"
    assert done(cluster, "consume", topic, "--exit", "--from", "latest") == b""


def test_a_line_that_is_no_record_ends_it_by_its_number(cluster: EmbeddedCluster, topic: str) -> None:
    lines = b'{"value": "first"}\n{"value": 1, "ke": 2}\n{"value": "never"}\n'
    for words, kept in ((("--json",), 1), (("--json", "--transaction"), 0), (("--json", "--commit-every", "1"), 1)):
        ended = tidelog(cluster, "produce", topic, *words, given=lines)
        assert (ended.returncode, ended.stdout, ended.stderr.count(b"\n")) == (1, b"", 1)
        assert ended.stderr.startswith(b"tidelog: line 2: unknown field 'ke'")
        assert f"{kept} record".encode() in ended.stderr
    ended = tidelog(cluster, "produce", topic, given=b"small\n" + b"x" * 5_000_000 + b"\n")
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"tidelog: line 2: MESSAGE_TOO_LARGE"), ended.stderr
    shown = done(cluster, "consume", topic, "--exit", "--isolation", "read_committed").splitlines()
    assert sorted(shown) == [b"first", b"first", b"small"]


def test_usage_and_absent_topics(cluster: EmbeddedCluster, topic: str) -> None:
    for words, status in (
        (("produce", "absent-topic"), 1),
        (("consume", "absent-topic"), 1),
        (("consume", topic, "--partition", "7"), 1),
        (("consume", topic, "--from", "5"), 1),
        (("consume", topic, "--format", "{nothing}"), 2),
        (("consume", topic, "--group", "g", "--from", "5"), 2),
        (("produce", topic, "--json", "--key-separator", ":"), 2),
        (("produce", topic, "--transaction", "--acks", "0"), 2),
        (("produce", topic, "--transactional-id", ""), 2),
    ):
        ended = tidelog(cluster, *words)
        assert (ended.returncode, ended.stdout) == (status, b""), words
        assert ended.stderr.startswith(b"tidelog: ") and ended.stderr.count(b"\n") == 1, ended.stderr


def test_a_group_goes_on_where_it_was(cluster: EmbeddedCluster, topic: str) -> None:
    done(cluster, "produce", topic, given=b"".join(b"%d\n" % number for number in range(1_000)))
    group = f"g-{topic}"
    first = done(cluster, "consume", topic, "--group", group, "--count", "300").splitlines()
    assert (len(first), committed(cluster, group)) == (300, 300)
    rest = done(cluster, "consume", topic, "--group", group, "--exit").splitlines()
    assert sorted(map(int, first + rest)) == list(range(1_000))


@pytest.mark.parametrize("how", ["interrupted", "reader gone"])
def test_what_was_read_is_committed_however_it_ends(cluster: EmbeddedCluster, topic: str, how: str) -> None:
    group = f"g-{topic}"
    done(cluster, "produce", topic, given=b"one\ntwo\nthree\n")
    words = line(cluster, "consume", topic, "--group", group)
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        assert sorted(process.stdout.readline() for _ in range(3)) == [b"one\n", b"three\n", b"two\n"]
        if how == "interrupted":
            process.send_signal(signal.SIGINT)
        else:
            process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")
    assert committed(cluster, group) == 3


def test_a_full_device_ends_it_in_a_line_and_nothing_is_committed(cluster: EmbeddedCluster, topic: str) -> None:
    group = f"g-{topic}"
    done(cluster, "produce", topic, given=b"one\ntwo\nthree\n")
    with open("/dev/full", "wb") as full:
        words = line(cluster, "consume", topic, "--group", group)
        ended = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (1, b"tidelog: cannot write: No space left on device\n")
    assert committed(cluster, group) == 0


def test_a_record_that_is_too_large_ends_its_transaction_at_once(cluster: EmbeddedCluster, topic: str) -> None:
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(",")) as admin:
        admin.create_topics({f"{topic}-small": {"num_partitions": 1, "replication_factor": 3,
                             "configs": {"max.message.bytes": "2000"}}}, wait_for_metadata=True)  # fmt: skip
    topic = f"{topic}-small"
    lines = b"one\ntwo\nthree\n" + b"x" * 5_000 + b"\nfive\n"
    ended = tidelog(cluster, "produce", topic, "--commit-every", "2", given=lines)
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"tidelog: line 4: ")
    assert ended.stderr.endswith(b"; no open transaction is left, 2 records are committed before\n")
    assert done(cluster, "consume", topic, "--exit", "--isolation", "read_committed") == b"one\ntwo\n"
    many = b"".join(b"%099d\n" % number for number in range(60))  # the library divides them until they fit
    done(cluster, "produce", topic, "--commit-every", "60", given=many)
    read = done(cluster, "consume", topic, "--exit", "--isolation", "read_committed")
    assert read == b"one\ntwo\n" + many


def test_an_interrupted_producer_has_sent_its_lines(cluster: EmbeddedCluster, topic: str) -> None:
    words = line(cluster, "produce", topic)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"whole\nhalf")
        process.stdin.flush()
        assert done(cluster, "consume", topic, "--count", "1") == b"whole\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stderr.read() == b"tidelog: interrupted; 1 record is acknowledged\n"


def test_a_terminal_gets_nothing_that_moves_its_cursor(cluster: EmbeddedCluster, topic: str, tmp_path: Path) -> None:
    done(cluster, "produce", topic, given=b"\x1b]0;title\x07\x1b[2J\xff\n")
    ours, theirs = pty.openpty()
    words = line(cluster, "consume", topic, "--exit")
    with open(tmp_path / "err", "wb") as err:
        ended = subprocess.run(words, stdout=theirs, stderr=err, check=False, timeout=60)
    os.close(theirs)
    assert (ended.returncode, os.read(ours, 1_000)) == (0, b"\\x1b]0;title\\x07\\x1b[2J\\xff\r\n")
    os.close(ours)
    assert done(cluster, "consume", topic, "--exit") == b"\x1b]0;title\x07\x1b[2J\xff\n"
