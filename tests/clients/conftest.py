"""A running cluster of three brokers, one for all tests of a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.embedded import EmbeddedCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[EmbeddedCluster]:
    settings = {
        "group.initial.rebalance.delay.ms": "100",
        "log.dir.free.bytes.min": "0",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with EmbeddedCluster(settings=settings) as running:
        yield running
