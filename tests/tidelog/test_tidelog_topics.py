"""`tidelog topics describe` names brokers that may lead a partition when its ISR is empty."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest

from bench.embedded import EmbeddedCluster
from tidelog.admin.eligible_leaders import eligible_leaders
from tidelog.admin.library_client import AdminClient
from wire.messages import DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse

TOPIC = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic


class PagedClient:
    """A cluster that answers with the partition at the cursor alone: (ELR, last known ELR) of each."""

    def __init__(self, *partitions: tuple[list[int], list[int]]) -> None:
        self._partitions = partitions

    def send(self, request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
        assert [topic.name for topic in request.topics] == ["t"]
        at = 0 if request.cursor is None else request.cursor.partition_index
        eligible, last_known = self._partitions[at]
        row = TOPIC.DescribeTopicPartitionsResponsePartition(
            partition_index=at, eligible_leader_replicas=eligible, last_known_elr=last_known
        )
        rest = None
        if at + 1 < len(self._partitions):
            rest = DescribeTopicPartitionsResponse.Cursor(topic_name="t", partition_index=at + 1)
        return DescribeTopicPartitionsResponse(topics=[TOPIC(name="t", partitions=[row])], next_cursor=rest)


def test_those_that_stopped_uncleanly_are_named_where_there_are_no_others() -> None:
    client = cast("AdminClient", PagedClient(([], []), ([2, 1], [3]), ([], [3])))
    assert eligible_leaders(client, "t") == {0: [], 1: [2, 1], 2: [3]}


@pytest.mark.processes
@pytest.mark.timeout(300)
def test_the_only_replica_is_named_while_it_is_down() -> None:
    with EmbeddedCluster(brokers=2, controllers=1) as cluster:
        cluster.command_of("topics", "create", "t", "--partitions", "1", "--replicas", "1")
        (before,) = partitions_of(cluster)
        assert (before["isr"], before["eligible"]) == ([before["leader"]], [])
        cluster.command("stop", f"broker-{before['leader']}")
        (after,) = partitions_of(cluster)
        assert (after["leader"], after["isr"], after["eligible"]) == (-1, [], [before["leader"]])


def partitions_of(cluster: EmbeddedCluster) -> list[dict[str, Any]]:
    described: dict[str, Any] = json.loads(cluster.command_of("topics", "describe", "t", "--json"))
    return list(described["partitions"])
