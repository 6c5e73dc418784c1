"""One topic: its partitions with sizes and offsets, and creating, widening and deleting topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from kafka.errors import KafkaError

from console.access.trouble import Trouble, refusal
from console.queries.reassignments import added_in, reassignments
from tidelog.admin.admin_client import error_text, topic_error_text
from tidelog.admin.library_client import AdminClient
from tidelog.admin.partition_offsets import EARLIEST, LATEST, offset_requests, offsets_in
from tidelog.admin.replica_moves import Refused
from tidelog.admin.transaction_doctor import Place
from tidelog.tier.access import answers_of
from wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    DescribeTopicPartitionsRequest,
    MetadataRequest,
    Request,
)

TIMEOUT_MS = 10_000
PARTITIONS_AT_ONCE = 100


class PartitionLine(NamedTuple):
    """`elr`: replicas that may lead although they are not in sync; `adding`: those that a reassignment adds. `begin`
    and `end` are None without an answer."""

    partition: int
    leader: int
    epoch: int
    replicas: Sequence[int]
    isr: Sequence[int]
    elr: Sequence[int]
    offline: Sequence[int]
    begin: int | None
    end: int | None
    sizes: Mapping[int, int]
    adding: Sequence[int] = ()

    @property
    def is_under(self) -> bool:
        return len(self.isr) < len(self.replicas) - len(self.adding)

    @property
    def records(self) -> int | None:
        return None if self.begin is None or self.end is None else self.end - self.begin

    @property
    def bytes(self) -> int | None:
        """Of the leader, or of any replica."""
        return self.sizes.get(self.leader, max(self.sizes.values(), default=None))


class Topic(NamedTuple):
    """`partitions` are some of `total`; those that follow begin at `next_partition`, None if there are no more."""

    name: str
    topic_id: str
    is_internal: bool
    total: int
    partitions: Sequence[PartitionLine]
    first: int
    next_partition: int | None


class Led(NamedTuple):
    """The leader of each partition of a topic, -1 without one, and the topic's id."""

    leaders: dict[int, int]
    topic_id: UUID | None


class TierLine(NamedTuple):
    """A tiered partition, as its leader reports it."""

    partition: int
    tier_bytes: int
    waiting_bytes: int
    segments: int
    log_start: int
    local_start: int
    tier_end: int | None
    trouble: str


def topic(client: AdminClient, name: str, first: int = 0, most: int = PARTITIONS_AT_ONCE) -> Topic:
    """From partition `first` on. Raises Trouble if there is no such topic, and KafkaError."""
    asked = DescribeTopicPartitionsRequest.TopicRequest(name=name)
    cursor = DescribeTopicPartitionsRequest.Cursor(topic_name=name, partition_index=first) if first else None
    request = DescribeTopicPartitionsRequest(topics=[asked], response_partition_limit=most, cursor=cursor)
    moving = reassignments(name, range(first, first + most))
    questions: list[tuple[Request[Any], int | None]] = [(_metadata_of(name), None), (request, None), (moving, None)]
    known, described, moves = client.send_all(questions)
    count = len(_answered(name, known).partitions)
    found = _answered(name, described)
    leaders = {Place(name, row.partition_index): row.leader_id for row in found.partitions}
    added = added_in(moves)
    begins, ends, sizes = _measured(
        client, name, leaders, {one for row in found.partitions for one in row.replica_nodes}
    )
    lines = [
        PartitionLine(
            row.partition_index, row.leader_id, row.leader_epoch, tuple(row.replica_nodes), tuple(row.isr_nodes),
            tuple(row.eligible_leader_replicas or ()), tuple(row.offline_replicas),
            begins.get(Place(name, row.partition_index)), ends.get(Place(name, row.partition_index)),
            sizes.get(row.partition_index, {}), added.get((name, row.partition_index), ()),
        )
        for row in found.partitions
    ]  # fmt: skip
    after = first + len(lines)
    return Topic(name, str(found.topic_id), bool(found.is_internal), count, sorted(lines), first,
                 after if after < count else None)  # fmt: skip


def partition_count(client: AdminClient, name: str) -> int:
    """Raises Trouble if there is no such topic, and KafkaError."""
    return len(leaders(client, name))


def leaders(client: AdminClient, name: str) -> dict[int, int]:
    """Of each partition, -1 without one. Raises Trouble if there is no such topic, and KafkaError."""
    return leaders_and_id(client, name).leaders


def leaders_and_id(client: AdminClient, name: str) -> Led:
    """Raises Trouble if there is no such topic, and KafkaError."""
    found = _answered(name, client.send(_metadata_of(name)))
    rows = sorted(found.partitions, key=lambda one: one.partition_index)
    return Led({one.partition_index: one.leader_id for one in rows}, found.topic_id)


def tier_of(client: AdminClient, name: str) -> list[TierLine]:
    """Of the topic's partitions that are tiered. Raises KafkaError, and Trouble if no broker may be asked."""
    answers = answers_of(client)
    if not answers.brokers:
        raise Trouble(f"no broker reports its tier: {answers.reason}")
    return sorted(
        TierLine(
            led.partition, led.tier_bytes, led.copy_lag_bytes, led.segments, led.log_start_offset,
            led.local_log_start_offset, led.tier_end_offset, led.waits_for or led.manifest_trouble or "",
        )
        for broker in answers.brokers
        for led in broker.partitions
        if led.topic == name
    )  # fmt: skip


def create(
    client: AdminClient, name: str, partitions: int, replicas: int, settings: Mapping[str, str]
) -> tuple[int, int]:
    """How many partitions and replicas it got; -1 leaves a number to the cluster. Raises Refused and KafkaError."""
    row = CreateTopicsRequest.CreatableTopic
    wanted = row(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[],
        configs=[row.CreatableTopicConfig(name=key, value=value) for key, value in settings.items()],
    )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=False)
    (made,) = client.send(request).topics
    _refuse(made.error_code, made.error_message)
    return made.num_partitions, made.replication_factor


def widen(client: AdminClient, name: str, count: int, *, only_checked: bool = False) -> None:
    """Raise the number of partitions. Raises Refused and KafkaError."""
    wanted = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=TIMEOUT_MS, validate_only=only_checked)
    (made,) = client.send(request).results
    _refuse(made.error_code, made.error_message)


def delete(client: AdminClient, name: str) -> None:
    """Raises Refused and KafkaError."""
    row = DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=None)
    (gone,) = client.send(DeleteTopicsRequest(topics=[row], topic_names=[name], timeout_ms=TIMEOUT_MS)).responses
    _refuse(gone.error_code, gone.error_message)


def _measured(
    client: AdminClient, name: str, leaders: Mapping[Place, int], brokers: Iterable[int]
) -> tuple[dict[Place, int], dict[Place, int], dict[int, dict[int, int]]]:
    """Where each partition begins and ends, and its sizes by partition and broker, of the brokers that answer. All are
    asked at once. What a person may not see has no size. Raises KafkaError."""
    begins, ends = offset_requests(leaders, EARLIEST), offset_requests(leaders, LATEST)
    row = DescribeLogDirsRequest.DescribableLogDirTopic(topic=name, partitions=[one.partition for one in leaders])
    asked = [(DescribeLogDirsRequest(topics=[row]), broker) for broker in sorted(brokers)]
    answers: list[Any] = client.send_all([*begins, *ends, *asked])
    of_begins, of_ends = answers[: len(begins)], answers[len(begins) : len(begins) + len(ends)]
    sizes: dict[int, dict[int, int]] = {}
    for (_, broker), answer in zip(asked, answers[-len(asked) :] if asked else (), strict=True):
        for directory in () if isinstance(answer, KafkaError) else answer.results:
            for one in (one for topic in directory.topics for one in topic.partitions if not one.is_future_key):
                sizes.setdefault(one.partition_index, {})[broker] = one.partition_size
    return offsets_in(of_begins), offsets_in(of_ends), sizes


def _metadata_of(name: str) -> MetadataRequest:
    row = MetadataRequest.MetadataRequestTopic(name=name)
    return MetadataRequest(topics=[row], allow_auto_topic_creation=False)


def _answered(name: str, answer: Any) -> Any:
    """The topic, the only one in an answer. Raises Trouble, and the error that is the answer."""
    if isinstance(answer, KafkaError):
        raise answer
    (found,) = answer.topics
    _check(name, found.error_code)
    return found


def _check(name: str, code: int) -> None:
    if problem := topic_error_text(name, {"error_code": code}):
        raise Trouble(refusal(problem.removeprefix(f"{name}: ")))


def _refuse(code: int, message: str | None) -> None:
    if problem := error_text({"error_code": code, "error_message": message}):
        raise Refused(problem)
