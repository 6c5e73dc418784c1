"""All topics in short: one answer of a broker, kept as a line each, so that lists and counts of 10,000 partitions are
cheap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from kafka.errors import KafkaError

from console.queries.reassignments import Added, added_in, reassignments
from tidelog.admin.library_client import AdminClient
from wire.messages import MetadataRequest, MetadataResponse, Request

KEY, FRESH_S, STALE_S = "catalogue", 5.0, 60.0
"""A list of all topics takes a while to read; one that is a minute old is shown, and read again meanwhile."""


class TopicLine(NamedTuple):
    """A topic. `replicas` is the largest number that a partition has; `leaderless` and `under` count partitions."""

    name: str
    topic_id: str
    is_internal: bool
    partitions: int
    replicas: int
    leaderless: int
    under: int


class Catalogue(NamedTuple):
    """`leads`: how many partitions each broker leads; `holds`: how many replicas it has."""

    topics: Sequence[TopicLine]
    leads: Counter[int]
    holds: Counter[int]

    @property
    def partitions(self) -> int:
        return sum(one.partitions for one in self.topics)

    @property
    def leaderless(self) -> int:
        return sum(one.leaderless for one in self.topics)

    @property
    def under(self) -> int:
        return sum(one.under for one in self.topics)


def catalogue(client: AdminClient) -> Catalogue:
    """What the person may see. Raises KafkaError."""
    questions: list[tuple[Request[Any], int | None]] = [
        (MetadataRequest(topics=None, allow_auto_topic_creation=False), None),
        (reassignments(), None),
    ]
    answer, moves = client.send_all(questions)
    if isinstance(answer, KafkaError):
        raise answer
    leads, holds, added = Counter[int](), Counter[int](), added_in(moves)
    lines = [_line(topic, added, leads, holds) for topic in answer.topics if not topic.error_code]
    return Catalogue(sorted(lines), leads, holds)


def _line(
    topic: MetadataResponse.MetadataResponseTopic, added: Added, leads: Counter[int], holds: Counter[int]
) -> TopicLine:
    leaderless = under = most = 0
    name = topic.name or ""
    for row in topic.partitions:
        replicas = row.replica_nodes
        most = max(most, len(replicas))
        holds.update(replicas)
        if row.leader_id < 0:
            leaderless += 1
        else:
            leads[row.leader_id] += 1
        if len(row.isr_nodes) < len(replicas) - len(added.get((name, row.partition_index), ())):
            under += 1
    return TopicLine(name, str(topic.topic_id), bool(topic.is_internal), len(topic.partitions), most, leaderless, under)
