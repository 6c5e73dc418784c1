"""Settings of nodes, topics and the cluster as what a log obeys."""

from __future__ import annotations

import pytest

from broker.partitions.log_settings import LogSettings
from kraft.image.delta import MetadataDelta
from kraft.records import ConfigRecord, ResourceType
from tests.kraft.images import with_brokers
from wire.server import ServerLimits

HOUR_MS, MINUTE_MS = 3_600_000, 60_000


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({"log.retention.hours": 2}, 2 * HOUR_MS),
        ({"log.retention.hours": 2, "log.retention.minutes": 3}, 3 * MINUTE_MS),
        ({"log.retention.hours": 2, "log.retention.minutes": -1}, 2 * HOUR_MS),
        ({"log.retention.hours": 2, "log.retention.minutes": 3, "log.retention.ms": 4}, 4),
        ({"log.retention.hours": 2, "log.retention.ms": -1}, -1),
    ],
)
def test_the_finest_unit_of_retention_that_is_given_counts(given: dict[str, int], retention_ms: int) -> None:
    """As in Apache Kafka, whose server.properties come with hours."""
    assert LogSettings(0, given).config_of(with_brokers(1), "t").retention_ms == retention_ms


def test_what_no_override_says_stays_as_the_broker_started_with_it() -> None:
    """Its connections fit the open files that it may have: no setting lifts that bound, `max.connections` included."""
    delta = MetadataDelta(with_brokers(1))
    delta.replay(ConfigRecord(ResourceType.BROKER, "", "max.connections.per.ip", "5"))
    delta.replay(ConfigRecord(ResourceType.BROKER, "", "max.connections", "900"))
    started_with = ServerLimits(connections_max=200, files_max=300, unauthenticated_max=7)
    limits = LogSettings(0, {}).under(delta.image(), started_with)
    assert limits == ServerLimits(connections_max=900, files_max=300, unauthenticated_max=7, connections_per_ip_max=5)
