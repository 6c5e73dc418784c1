"""Replicas that a reassignment adds: no partition is under-replicated for their sake."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from console.queries.catalogue import catalogue
from console.queries.topics import topic
from tests.console.fake_cluster import TOPIC_ID, FakeClient, offsets
from wire.messages import (
    DescribeTopicPartitionsResponse,
    ListPartitionReassignmentsResponse,
    MetadataResponse,
)

REPLICAS, ISR = [1, 2, 3], [1, 2]


def cluster(adding: Sequence[int] | None) -> Any:
    """One partition. `adding`: the replicas that a reassignment adds; None if the cluster refuses the question."""

    def metadata(_: Any) -> Any:
        row = MetadataResponse.MetadataResponseTopic
        one = row.MetadataResponsePartition(
            error_code=0, partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=REPLICAS, isr_nodes=ISR,
            offline_replicas=[],
        )  # fmt: skip
        found = row(error_code=0, name="t", topic_id=TOPIC_ID, is_internal=False, partitions=[one])
        return MetadataResponse(throttle_time_ms=0, brokers=[], cluster_id="c", controller_id=1, topics=[found])

    def described(_: Any) -> Any:
        row = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
        one = row.DescribeTopicPartitionsResponsePartition(
            error_code=0, partition_index=0, leader_id=1, leader_epoch=0, replica_nodes=REPLICAS, isr_nodes=ISR,
            eligible_leader_replicas=[], last_known_elr=[], offline_replicas=[],
        )  # fmt: skip
        found = row(error_code=0, name="t", topic_id=TOPIC_ID, is_internal=False, partitions=[one])
        return DescribeTopicPartitionsResponse(throttle_time_ms=0, topics=[found], next_cursor=None)

    def moved(request: Any) -> Any:
        row = ListPartitionReassignmentsResponse.OngoingTopicReassignment
        one = row.OngoingPartitionReassignment(
            partition_index=0, replicas=REPLICAS, adding_replicas=list(adding or ()), removing_replicas=[]
        )
        return ListPartitionReassignmentsResponse(
            throttle_time_ms=0, error_code=31 if adding is None else 0, error_message=None,
            topics=[] if adding is None else [row(name="t", partitions=[one])],
        )  # fmt: skip

    return FakeClient(
        {
            "MetadataRequest": metadata,
            "DescribeTopicPartitionsRequest": described,
            "ListOffsetsRequest": offsets(0, 1),
            "ListPartitionReassignmentsRequest": moved,
        }
    )


@pytest.mark.parametrize(("adding", "is_under"), [([3], False), ([], True), (None, True)])
def test_a_replica_that_is_added_is_not_missed(adding: Sequence[int] | None, is_under: bool) -> None:
    assert catalogue(cluster(adding)).under == is_under
    (line,) = topic(cluster(adding), "t").partitions
    assert line.is_under == is_under
    assert list(line.adding) == list(adding or ())
