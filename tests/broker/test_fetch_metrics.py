"""What a broker counts of clients' fetches: how many were answered, and with which errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.errors import ErrorCode
from common.metrics import Metrics
from tests.broker.replication_lab import Lab, LabBroker, batch, fetch, produce, row_of

pytestmark = pytest.mark.virtual_time


def counted(broker: LabBroker) -> tuple[int, dict[str, int]]:
    """Answered fetches, and failures by error."""
    metrics = Metrics()
    broker.plane.fetch.answers.register(metrics)
    families = {family.name: family for family in text_string_to_metric_families(metrics.text().decode())}
    failures = families.get("tidelog_fetch_failures")
    return int(families["tidelog_fetch_responses"].samples[0].value), {
        sample.labels["error"]: int(sample.value) for sample in (failures.samples if failures is not None else ())
    }


@pytest.mark.parametrize("parts_at_once", [100, 1], ids=["ordinary", "long"])
async def test_fetches_are_counted_and_failures_by_their_first_error(tmp_path: Path, parts_at_once: int) -> None:
    async with Lab(tmp_path, count=1, fetch_parts_at_once=parts_at_once) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"v"))).error_code == 0
        assert counted(lab[0]) == (0, {})
        assert row_of(await fetch(client, 0)).error_code == 0
        assert row_of(await fetch(client, 7)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        rows = (await fetch(client, 0, partitions=[(0, 0), (5, 0), (0, 9)])).responses
        errors = [row.error_code for topic in rows for row in topic.partitions]
        assert errors == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE]
        whole = await fetch(client, 0, session_id=77, session_epoch=3)
        assert whole.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        assert counted(lab[0]) == (
            4,
            {
                ErrorCode.OFFSET_OUT_OF_RANGE.name: 1,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name: 1,
                ErrorCode.FETCH_SESSION_ID_NOT_FOUND.name: 1,
            },
        )


async def test_followers_are_not_counted(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"v"))).error_code == 0  # acknowledged by the follower's fetch
        assert counted(lab[0]) == (0, {})
