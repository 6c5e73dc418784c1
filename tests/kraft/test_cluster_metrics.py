"""Metrics of the whole cluster: what the image says, at a price that does not grow with its partitions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from common.metrics import Metrics
from kraft.controller.node_metrics import VOTER_SILENCE_S, register_cluster, voters_reached
from kraft.image.delta import replayed
from kraft.image.metadata import MetadataImage
from kraft.quorum.follower_progress import FollowerState
from kraft.records import NO_LEADER, PartitionChangeRecord
from tests.common.call_count import counted_calls
from tests.kraft.test_controller_pieces import topic_id, with_partitions


def page(image: MetadataImage) -> dict[str, float]:
    metrics = Metrics()
    node: Any = SimpleNamespace(image=image, liveness=SimpleNamespace(fenced_count=0))
    register_cluster(metrics, node)
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in (line.split() for line in lines)}


def test_the_cluster_is_as_its_image() -> None:
    image = with_partitions(2, 6)
    whole = page(image)
    assert (whole["tidelog_topics"], whole["tidelog_cluster_partitions"], whole["tidelog_brokers"]) == (2, 12, 3)
    short = [partition for partition in image.topics.partitions() if len(partition.isr) < len(partition.replicas)]
    assert whole["tidelog_cluster_under_replicated_partitions"] == len(short)
    assert whole["tidelog_cluster_offline_partitions"] == 0
    lost = replayed(image, [PartitionChangeRecord(topic_id(0), index, leader=NO_LEADER) for index in (0, 1)])
    found = page(lost)
    assert (found["tidelog_cluster_offline_partitions"], found["tidelog_cluster_partitions"]) == (2, 12)


def test_a_partition_that_gets_replicas_is_under_replicated_by_those_that_it_had() -> None:
    def found(isr: tuple[int, ...], adding: tuple[int, ...]) -> float:
        moved = PartitionChangeRecord(topic_id(0), 0, replicas=(0, 1, 2, 3), adding=adding, removing=(0,), isr=isr)
        return page(replayed(image, [moved]))["tidelog_cluster_under_replicated_partitions"]

    image = with_partitions(1, 6)
    assert found((0, 1, 2), ()) == 1
    assert found((0, 1, 2), (3,)) == 0
    assert found((0, 1), (3,)) == 1
    assert found((0, 1, 2, 3), (3,)) == 0


def test_a_scrape_of_a_large_cluster_calls_no_more_than_that_of_a_small_one() -> None:
    counts = []
    for image in (with_partitions(1, 5), with_partitions(20, 200)):
        page(image)
        with counted_calls() as count:
            page(image)
        counts.append(count.calls)
    assert counts[1] < 1.1 * counts[0]


def test_voters_count_that_have_answered_lately() -> None:
    def follower(answered_s: float | None) -> FollowerState:
        return FollowerState(1, answered_s, None)

    silences = {1: follower(0.1), 2: follower(VOTER_SILENCE_S + 1), 3: follower(None)}
    node: Any = SimpleNamespace(
        driver=SimpleNamespace(is_active=True), quorum=SimpleNamespace(followers=lambda: silences)
    )
    assert voters_reached(node) == 2
    node.driver.is_active = False
    assert voters_reached(node) == 0
