"""Which partitions a broker reports as lacking replicas: not those that a reassignment gives more (KIP-352)."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.node_metrics import register_in_sync
from broker.partitions.replica_set import ReplicaSet, ReviewResult
from common.metrics import Metrics
from kraft.records import PartitionChangeRecord
from tests.broker.replication_lab import TOPIC_ID, Lab, LabBroker, eventually

pytestmark = pytest.mark.virtual_time


def shown(broker: LabBroker) -> tuple[float, float]:
    """How many led partitions are under-replicated, and how many are below `min.insync.replicas`."""
    metrics = Metrics()
    register_in_sync(metrics, broker.plane.partitions, broker.plane.isr_changes)
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    found = {line.split()[0]: float(line.split()[1]) for line in lines}
    return found["tidelog_under_replicated_partitions"], found["tidelog_under_min_isr_partitions"]


@pytest.mark.parametrize(
    ("isr", "settled", "outlook"),
    [
        ((0, 1, 2), 3, ReviewResult.MOVING),
        ((0, 1, 3), 3, ReviewResult.MOVING),
        ((0, 1), 3, ReviewResult.QUIET),
        ((0, 1, 2), 4, ReviewResult.QUIET),
        ((0,), 3, ReviewResult.STARVED),
        ((0, 1, 2, 3), 3, ReviewResult.SETTLED),
    ],
)
def test_as_many_as_there_were_before_a_reassignment_are_enough(
    isr: tuple[int, ...], settled: int, outlook: ReviewResult
) -> None:
    replicas = ReplicaSet(0, (0, 1, 2, 3), isr, 0, 2, 0.0, settled)
    assert replicas.outlook is outlook
    assert replicas.is_under_replicated is (outlook in (ReviewResult.QUIET, ReviewResult.STARVED))


async def test_a_move_is_not_under_replicated_and_a_lost_replica_is(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        hosted, partition = lab[0].plane.partitions, lab[0].partition
        await lab[2].stop()
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1, 2), adding=(2,)))
        assert partition in hosted.unsettled_partitions
        assert shown(lab[0]) == (0, 0)
        await eventually(lambda: partition in hosted.quiet_partitions)
        assert shown(lab[0]) == (0, 0)
        await lab[1].stop()
        lab.controller.elect(0, isr=(0,))
        assert partition in hosted.unsettled_partitions
        assert shown(lab[0])[0] == 1
        await eventually(lambda: partition in hosted.quiet_partitions)
        assert shown(lab[0])[0] == 1
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0,), adding=()))
        await eventually(lambda: partition not in hosted.quiet_partitions)
        assert shown(lab[0]) == (0, 0)


async def test_a_replica_that_is_gone_is_missing_also_when_all_is_quiet(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        hosted, partition = lab[0].plane.partitions, lab[0].partition
        await lab[2].stop()
        lab.controller.elect(0, isr=(0, 1))
        await eventually(lambda: partition in hosted.quiet_partitions)
        assert shown(lab[0]) == (1, 0)
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, adding=(2,)))
        assert shown(lab[0]) == (0, 0)
        await eventually(lambda: partition in hosted.quiet_moves)
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, adding=()))
        await eventually(lambda: partition in hosted.quiet_partitions)
        assert shown(lab[0]) == (1, 0)
