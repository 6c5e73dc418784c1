"""Brokers outside of the ISR that may lead a partition, which Metadata does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog.admin.library_client import AdminClient

PARTITIONS_AT_ONCE = 2_000  # of one response


def eligible_leaders(client: AdminClient, topic: str) -> dict[int, list[int]]:
    """By partition: those that have every committed record, else those that stopped uncleanly when they had (KIP-966).

    Raises KafkaError.
    """
    from wire.messages import DescribeTopicPartitionsRequest  # noqa: PLC0415

    asked = [DescribeTopicPartitionsRequest.TopicRequest(name=topic)]
    found: dict[int, list[int]] = {}
    cursor: DescribeTopicPartitionsRequest.Cursor | None = None
    while True:
        request = DescribeTopicPartitionsRequest(
            topics=asked, response_partition_limit=PARTITIONS_AT_ONCE, cursor=cursor
        )
        response = client.send(request)
        for row in (row for described in response.topics for row in described.partitions):
            found[row.partition_index] = list(row.eligible_leader_replicas or row.last_known_elr or [])
        rest = response.next_cursor
        if rest is None:
            return found
        cursor = DescribeTopicPartitionsRequest.Cursor(topic_name=rest.topic_name, partition_index=rest.partition_index)
