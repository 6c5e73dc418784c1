"""Writes one record, as a producer with acks=all does."""

from __future__ import annotations

import time
from typing import NamedTuple

from kafka.partitioner.default import murmur2

from common.errors import ErrorCode
from console.access.trouble import Trouble
from console.queries.topics import leaders_and_id
from records.builder import build_batch
from records.record import Headers, Record
from tidelog.admin.admin_client import error_text
from tidelog.admin.library_client import AdminClient
from tidelog.admin.replica_moves import Refused
from wire.messages import ProduceRequest

ACKS_ALL, TIMEOUT_MS = -1, 8_000


class Draft(NamedTuple):
    """`partition` None: the one of the key, or the first of a record without a key."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None


class Written(NamedTuple):
    partition: int
    offset: int


def write(client: AdminClient, topic: str, draft: Draft) -> Written:
    """Raises Trouble, Refused and KafkaError."""
    known, topic_id = leaders_and_id(client, topic)
    partition = draft.partition if draft.partition is not None else partition_of(draft.key, len(known))
    leader = known.get(partition, -1)
    if partition not in known:
        raise Trouble(f"{topic} has no partition {partition}")
    if leader < 0:
        raise Trouble(f"partition {partition} has no leader", is_passing=True)
    batch = build_batch([Record(0, time.time_ns() // 1_000_000, draft.key, draft.value, draft.headers)])
    data = ProduceRequest.TopicProduceData
    row = data(
        name=topic,
        topic_id=topic_id,
        partition_data=[data.PartitionProduceData(index=partition, records=bytes(batch))],
    )
    request = ProduceRequest(transactional_id=None, acks=ACKS_ALL, timeout_ms=TIMEOUT_MS, topic_data=[row])
    answer = client.send(request, leader)
    ((result,),) = [one.partition_responses for one in answer.responses]
    if result.error_code != ErrorCode.NONE:
        problem = error_text({"error_code": result.error_code, "error_message": result.error_message})
        raise Refused(problem or "refused")
    return Written(partition, result.base_offset)


def partition_of(key: bytes | None, count: int) -> int:
    """As Apache Kafka's producers choose it."""
    return 0 if key is None else (int(murmur2(key)) & 0x7FFFFFFF) % count
