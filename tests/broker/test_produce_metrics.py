"""What a broker counts of requests: by API, how long Produce takes, and which requests fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from common.errors import ErrorCode
from common.metrics import Metrics
from tests.broker.replication_lab import Lab, LabBroker, batch, eventually, produce

pytestmark = pytest.mark.virtual_time


def shown(broker: LabBroker) -> dict[tuple[str, str], float]:
    """Values by name and by the one label that is not a bucket's."""
    metrics = Metrics()
    broker.dispatcher.register(metrics)
    broker.plane.produce.register(metrics)
    return {
        (sample.name, next((value for name, value in sample.labels.items() if name != "le"), "")): sample.value
        for family in text_string_to_metric_families(metrics.text().decode())
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


async def test_requests_are_counted_by_api_and_failures_by_their_first_error(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        for acks in (-1, 1):
            assert (await produce(client, batch(b"v"), acks=acks)).error_code == 0
        for acks, topic in ((-1, "missing"), (7, "flights")):
            assert (await produce(client, batch(b"v"), acks=acks, topic=topic)).error_code != 0
        found = shown(lab[0])
        assert found["tidelog_api_requests_total", "Produce"] == 4
        assert found["tidelog_requests_total", ""] >= 4
        assert found["tidelog_produce_latency_seconds_count", ""] == 4
        failures = {error: value for (name, error), value in found.items() if name == "tidelog_produce_failures_total"}
        assert failures == {
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION.name: 1,
            ErrorCode.INVALID_REQUIRED_ACKS.name: 1,
        }


async def test_a_request_that_waits_for_a_follower_takes_as_long_as_it(tmp_path: Path) -> None:
    async with Lab(tmp_path, replica_lag_time_max_ms=60_000) as lab:
        lab.controller.create_topic((0, 1), min_insync_replicas="2")
        client = await lab[0].connect()
        assert (await produce(client, batch(b"v"))).error_code == 0
        before = shown(lab[0])["tidelog_produce_latency_seconds_sum", ""]
        lab[1].pause_fetching()
        row = await produce(client, batch(b"v"), timeout_ms=2_000)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        found = shown(lab[0])
        assert 2 <= found["tidelog_produce_latency_seconds_sum", ""] - before < 4
        assert found["tidelog_produce_failures_total", "REQUEST_TIMED_OUT"] == 1


async def test_replicas_that_leave_and_return_to_the_isr_are_counted(tmp_path: Path) -> None:
    async with Lab(tmp_path, replica_lag_time_max_ms=500) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        changes = lab[0].plane.isr_changes
        assert (await produce(client, batch(b"v"))).error_code == 0
        lab[1].pause_fetching()
        assert (await produce(client, batch(b"v"), acks=1)).error_code == 0
        await eventually(lambda: (changes.shrinks, changes.expansions) == (1, 0), timeout_s=30)
        lab[1].resume_fetching()
        await eventually(lambda: (changes.shrinks, changes.expansions) == (1, 1), timeout_s=30)


@pytest.mark.parametrize(("acks", "readings"), [(1, 1), (-1, 2)])
async def test_a_request_is_timed_from_its_frame_by_one_reading_of_the_clock(
    tmp_path: Path, acks: int, readings: int
) -> None:
    """A request that waits has a second one, for what its response costs the client."""
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"v"), acks=-1)).error_code == 0
        handler, now, times = lab[0].plane.produce, lab[0].plane.produce.now, list[float]()

        def reading() -> float:
            times.append(now())
            return times[-1]

        handler.now = reading
        before = shown(lab[0])["tidelog_produce_latency_seconds_sum", ""]
        assert (await produce(client, batch(b"v"), acks=acks)).error_code == 0
        assert len(times) == readings
        assert shown(lab[0])["tidelog_produce_latency_seconds_sum", ""] >= before
