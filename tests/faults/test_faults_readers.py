"""Clients that ask and do not read, and crowds that connect and do nothing: bounded memory, and an end to it."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.embedded import EmbeddedCluster
from tests.faults.raw_client import RawClient, closed_quietly
from tests.faults.watched_node import (
    MIB,
    WatchedNode,
    bystander,
    fetch_request,
    make_topic,
    produce,
    some_batch,
)
from wire.codec import encode_request
from wire.messages import ApiVersionsRequest, MetadataRequest

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300), pytest.mark.xdist_group("faults")]

HALF_OPEN = 3_000
SCARCE_DESCRIPTORS = 400
SILENT = 12
REPLY_BYTES_ALL = 8 * MIB
SLACK_BYTES = 24 * MIB


def send_what_it_takes(client: RawClient, data: bytes, *, times: int) -> None:
    """Until the broker reads no more of it."""
    client.socket.settimeout(0.2)
    with contextlib.suppress(TimeoutError, ConnectionError):
        for _ in range(times):
            client.send(data)


def test_a_client_that_never_reads_its_replies_is_closed_after_the_stall_time(node: WatchedNode) -> None:
    node.forget_peak()
    before = node.resident_bytes()
    request = encode_request(ApiVersionsRequest(), 0, 1, "raw")
    with bystander(node), node.connect(receive_buffer=4_096) as client:
        send_what_it_takes(client, request * 1_000, times=5_000)
        assert client.is_cut_off()
        assert "reads no replies" in node.one_line_about(client.name)["reason"]
    assert node.peak_bytes() < before + SLACK_BYTES


def test_fetched_files_that_nobody_reads_are_not_held_in_memory(node: WatchedNode) -> None:
    with node.connect() as writer:
        topic = make_topic(writer)
        for _ in range(20):
            assert produce(writer, topic, some_batch(bytes(MIB))).error_code == 0
    node.forget_peak()
    before = node.resident_bytes()
    request = encode_request(fetch_request(topic), 11, 1, "raw")
    clients = [node.connect(receive_buffer=4_096) for _ in range(30)]
    try:
        with bystander(node):
            for client in clients:
                client.send(request * 50)
            for client in clients:
                assert client.is_cut_off()
        for client in clients:
            assert "reads no replies" in node.one_line_about(client.name)["reason"]
        assert node.peak_bytes() < before + SLACK_BYTES
    finally:
        closed_quietly(clients)


def test_many_silent_readers_share_one_budget(node: WatchedNode) -> None:
    """Each of them may have its own bound unsent, but not all of them together; all lose their connections."""
    with node.connect() as client:
        topic = make_topic(client, partitions=300)
    node.forget_peak()
    before = node.resident_bytes()
    request = encode_request(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), 1, 1, "raw")
    clients = [node.connect(receive_buffer=4_096) for _ in range(SILENT)]
    try:
        with bystander(node, slowest_s=4.0):
            for client in clients:
                send_what_it_takes(client, request * 20, times=100)
            for client in clients:
                assert client.is_cut_off()
        assert node.peak_bytes() < before + REPLY_BYTES_ALL + SLACK_BYTES
    finally:
        closed_quietly(clients)


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = HALF_OPEN + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} open files are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_descriptors")
def test_thousands_of_half_open_connections_cost_next_to_nothing(node: WatchedNode) -> None:
    before = node.resident_bytes()
    clients: list[RawClient] = []
    try:
        with bystander(node) as other:
            for number in range(HALF_OPEN):
                clients.append(node.connect())
                if number % 3 == 1:
                    clients[-1].send(b"\0")  # the first byte of a length
                elif number % 3 == 2:
                    clients[-1].send(b"\0\0\1\0" + bytes(200))  # half a frame
        assert other.rounds
        assert node.resident_bytes() - before < HALF_OPEN * 6_000
        with bystander(node):
            pass
    finally:
        closed_quietly(clients)


class ScarceCluster(EmbeddedCluster):
    """Its processes may open few files."""

    def command(self, *words: str) -> str:
        if words[0] != "up":
            return super().command(*words)
        line = [sys.executable, "-m", "tidelog", words[0], "--data", str(self.data), *words[1:]]
        limited = ["sh", "-c", f'ulimit -n {SCARCE_DESCRIPTORS}; exec "$@"', "sh", *line]
        return subprocess.run(limited, capture_output=True, text=True, timeout=60, check=True).stdout


def test_connections_cannot_take_the_descriptors_that_the_logs_need(tmp_path: Path) -> None:
    """A crowd larger than the limit of open files: late comers are turned away, the logs still open their files."""
    cluster = ScarceCluster(brokers=1, controllers=1, data=tmp_path / "d", settings={"log.dir.free.bytes.min": "0"})
    clients: list[RawClient] = []
    with cluster:
        node = WatchedNode(cluster)
        try:
            with node.connect() as worker:
                topic = make_topic(worker)
                assert produce(worker, topic, some_batch()).error_code == 0
                for _ in range(SCARCE_DESCRIPTORS + 100):
                    with contextlib.suppress(OSError):
                        clients.append(node.connect())
                for _ in range(10):
                    topic = make_topic(worker)  # a new log opens new files
                    assert produce(worker, topic, some_batch()).error_code == 0
            assert node.is_same_process
            assert not node.complaints()
            closed_quietly(clients)
            with bystander(node):
                pass
            assert any("refused" in line["event"] for line in node.log_lines())
        finally:
            closed_quietly(clients)
