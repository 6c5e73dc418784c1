"""Who leads partitions, and what their leaders say of their offsets. Partitions without an answer are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby, islice
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from tidelog.admin.transaction_doctor import Place

if TYPE_CHECKING:
    from kafka.errors import KafkaError

    from tidelog.admin.library_client import AdminClient
    from wire.messages import ListOffsetsResponse, Request

PARTITIONS_AT_ONCE = 1_000  # of one request
LATEST, EARLIEST = -1, -2
ANY_EPOCH = -1
T = TypeVar("T")


def leaders_of(client: AdminClient, topics: Iterable[str] | None) -> dict[Place, int]:
    """Of these topics or of all. Raises KafkaError. The library's own question also asks what the user may do with each
    topic, and makes dictionaries of the answer."""
    from wire.messages import MetadataRequest  # noqa: PLC0415

    asked = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
    answer = client.send(MetadataRequest(topics=asked, allow_auto_topic_creation=False))
    return {
        Place(topic.name or "", one.partition_index): one.leader_id
        for topic in answer.topics
        if not topic.error_code
        for one in topic.partitions
    }


def by_leader(leaders: Mapping[Place, int]) -> dict[int, list[Place]]:
    found: dict[int, list[Place]] = {}
    for place, leader in sorted(leaders.items()):
        if leader >= 0:
            found.setdefault(leader, []).append(place)
    return found


def offsets_of(
    client: AdminClient, leaders: Mapping[Place, int], timestamp: int, isolation: int = 0
) -> dict[Place, int]:
    """The first offset from a time on, EARLIEST, or LATEST: high watermarks, with isolation level 1 last stable
    offsets. -1 for a time after the last record. All leaders are asked at once. Raises KafkaError."""
    return offsets_in(client.send_all(offset_requests(leaders, timestamp, isolation)))


def offset_requests(
    leaders: Mapping[Place, int],
    timestamp: int,
    isolation: int = 0,
    epochs: Mapping[Place, int] = MappingProxyType({}),
) -> list[tuple[Request[ListOffsetsResponse], int | None]]:
    """To each leader; `offsets_in` reads the answers. `epochs`: leader epochs in which alone they may answer."""
    from wire.messages import ListOffsetsRequest  # noqa: PLC0415

    row = ListOffsetsRequest.ListOffsetsTopic
    found: list[tuple[Request[ListOffsetsResponse], int | None]] = []
    for leader, places in by_leader(leaders).items():
        for some in portions(places, PARTITIONS_AT_ONCE):
            topics = [
                row(
                    name=name,
                    partitions=[
                        row.ListOffsetsPartition(
                            partition_index=place.partition,
                            current_leader_epoch=epochs.get(place, ANY_EPOCH),
                            timestamp=timestamp,
                        )
                        for place in of
                    ],
                )
                for name, of in groupby(some, key=lambda place: place.topic)
            ]
            request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=topics, timeout_ms=5_000)
            found.append((request, leader))
    return found


def offsets_in(answers: Iterable[ListOffsetsResponse | KafkaError]) -> dict[Place, int]:
    """Raises KafkaError if a leader has not answered."""
    found: dict[Place, int] = {}
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
        found |= {
            Place(topic.name, one.partition_index): one.offset
            for topic in answer.topics
            for one in topic.partitions
            if not one.error_code
        }
    return found


def portions(rows: Iterable[T], most: int) -> Iterator[list[T]]:
    rest = iter(rows)
    while some := list(islice(rest, most)):
        yield some
