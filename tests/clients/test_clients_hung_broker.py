"""Commands on a cluster of which some addresses take connections and never answer."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bench.embedded import EmbeddedCluster


@pytest.fixture
def addresses(cluster: EmbeddedCluster) -> Iterator[str]:
    """Two that hang, and a broker."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        hung = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
        yield ",".join([*hung, cluster.bootstrap.split(",")[0]])


def run(addresses: str, *words: str, given: str = "") -> str:
    line = [sys.executable, "-m", "tidelog", *words, "--bootstrap", addresses]
    ended = subprocess.run(line, check=False, input=given, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_command_finds_the_broker_that_answers(addresses: str) -> None:
    run(addresses, "topics", "create", "reached", "--partitions", "1")
    for _ in range(2):
        assert "reached" in run(addresses, "topics", "list")
    run(addresses, "produce", "reached", given="a line\n")
    assert run(addresses, "consume", "reached", "--from", "earliest", "--exit") == "a line\n"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("topics", "list", "--bootstrap", "127.0.0.1"), "--bootstrap: 127.0.0.1 is not HOST:PORT"),
        (("topics", "list", "--bootstrap", ","), "--bootstrap: no HOST:PORT is given"),
        (("consume", "t", "--group", "", "--bootstrap", "127.0.0.1:1"), "--group: a name has 1 to 32767 bytes"),
        (
            ("consume", "t", "--group", "g" * 32_768, "--bootstrap", "127.0.0.1:1"),
            "--group: a name has 1 to 32767 bytes",
        ),
    ],
)
def test_what_can_be_no_cluster_or_group_is_bad_usage(words: tuple[str, ...], named: str) -> None:
    ended = subprocess.run([sys.executable, "-m", "tidelog", *words], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (2, 1)
    assert named in ended.stderr
