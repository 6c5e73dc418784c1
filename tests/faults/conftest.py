"""One small cluster with tight limits, shared by the attacks on one connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.embedded import EmbeddedCluster
from tests.faults.watched_node import MIB, WatchedNode

FRAME_BYTES_MAX = 8 * MIB
HELD_BYTES_MAX = 16 * MIB
INFLATED_BYTES_MAX = 4 * MIB
STALL_S = 1.0
TIGHT = {
    "socket.request.max.bytes": str(FRAME_BYTES_MAX),
    "tidelog.connection.request.bytes.max": str(FRAME_BYTES_MAX),
    "queued.max.request.bytes": str(HELD_BYTES_MAX),
    "tidelog.connection.reply.bytes.max": str(1 * MIB),
    "tidelog.reply.bytes.max": str(8 * MIB),
    "tidelog.connection.stall.ms": str(int(STALL_S * 1_000)),
    "tidelog.inflated.bytes.max": str(INFLATED_BYTES_MAX),
    "message.max.bytes": str(4 * MIB),
    "log.cleaner.backoff.ms": "200",
    "log.dir.free.bytes.min": "0",
    "tidelog.peer.log.lines.max": "1000000",  # a line for each attack is what some tests look at
}


@pytest.fixture(scope="session")
def tight_cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster(brokers=1, controllers=1, settings=TIGHT) as cluster:
        yield cluster


@pytest.fixture
def node(tight_cluster: EmbeddedCluster) -> Iterator[WatchedNode]:
    """Its broker, which outlives every attack in the same process and without a complaint in its log."""
    node = WatchedNode(tight_cluster)
    yield node
    assert node.is_same_process
    assert not node.complaints()
