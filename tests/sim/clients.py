"""Simulated clients that speak the protocol as well-behaved ones do: a producer, a consumer, a member of a group."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from common.errors import ErrorCode
from records.batch import iterate_batches, read_header
from records.builder import build_batch
from records.record import Record
from tests.sim.client_links import EARLIEST, ClusterLinks, Flight, Leader, Unreachable
from tests.sim.history import Acknowledged, Fetched, Joined, OutOfRange, Shown, TopicPartition
from wire.messages import (
    FetchRequest,
    HeartbeatRequest,
    InitProducerIdRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
    ProduceRequest,
    SyncGroupRequest,
)

IN_FLIGHT_MAX = 4
PRODUCE_TIMEOUT_MS = 900
FETCH_WAIT_MS = 400
FETCH_BYTES_MAX = 1 << 20
SESSION_TIMEOUT_MS = 1_500
HEARTBEAT_S = 0.25

# What a producer that sends the same sequences again may hear from a leader that is deposed, new or short of replicas.
RESENT = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.BROKER_NOT_AVAILABLE,
    }
)


@dataclass(slots=True)
class Unsent:
    """A batch on its way; it keeps its sequence until it is acknowledged."""

    data: bytes
    crc: int
    count: int
    base_sequence: int
    attempts: int = 0


class IdempotentProducer:
    """`acks=all`, several batches in flight, the same sequences again after any failure."""

    def __init__(
        self, links: ClusterLinks, partitions: Sequence[TopicPartition], pause_s: float, *, idempotent: bool = True
    ) -> None:
        """Not `idempotent`: for a topic that may lose what was acknowledged, and sequences with it."""
        self._links, self._partitions, self._pause_s = links, list(partitions), pause_s
        self._idempotent = idempotent
        self._history = links.history
        self._topics = sorted({topic for topic, _ in partitions})

    async def run(self) -> None:
        producer_id, epoch = await self._init() if self._idempotent else (-1, -1)
        async with asyncio.TaskGroup() as tasks:
            for partition in self._partitions:
                tasks.create_task(self._produce(partition, producer_id, epoch))

    async def _init(self) -> tuple[int, int]:
        request = InitProducerIdRequest(
            transactional_id=None, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
        )
        while True:
            node = self._links.ports.random.choice(sorted(self._links.brokers))
            try:
                response = await self._links.call(node, request, 4)
            except Unreachable:
                await self._links.pause()
                continue
            if response.error_code == ErrorCode.NONE:
                return response.producer_id, response.producer_epoch
            await self._links.pause()

    async def _produce(self, partition: TopicPartition, producer_id: int, epoch: int) -> None:
        rng, history, waiting = self._links.ports.random, self._history, deque[Unsent]()
        name, sequence = f"{producer_id} {partition[0]}-{partition[1]}", 0
        while True:
            if not history.stop_producing:
                # A broker takes any first sequence of a producer that it does not know (as Apache Kafka does): were
                # the first of several batches refused by a leader to be, the second would be taken as the first.
                at_once = IN_FLIGHT_MAX if sequence > sum(batch.count for batch in waiting) else 1
                for _ in range(rng.randint(1, at_once) - len(waiting)):
                    batch = self._build(partition, producer_id, epoch, sequence)
                    sequence += batch.count
                    waiting.append(batch)
            history.unacknowledged[name] = len(waiting)
            if waiting and not await self._send(partition, producer_id, waiting):
                await self._links.refresh(self._topics)
                await self._links.pause(0.04)
            elif not waiting or len(waiting) < IN_FLIGHT_MAX:
                await self._links.pause(self._pause_s)

    def _build(self, partition: TopicPartition, producer_id: int, epoch: int, sequence: int) -> Unsent:
        rng = self._links.ports.random
        now_ms, count = self._links.ports.clock.wall_ms(), rng.randint(1, 3)
        text = f"{producer_id}/{partition[1]}/{sequence}/".encode()
        records = [Record(n, now_ms, text, text * rng.randint(1, 12), ()) for n in range(count)]
        first = sequence if self._idempotent else -1
        data = bytes(build_batch(records, producer_id=producer_id, producer_epoch=epoch, base_sequence=first))
        return Unsent(data, read_header(data, 0).crc, count, sequence)

    async def _send(self, partition: TopicPartition, producer_id: int, waiting: deque[Unsent]) -> bool:
        """Send all that wait, in order, and wait for every answer; whether all were acknowledged."""
        leader = self._links.leaders.get(partition)
        if leader is None or leader.node < 0:
            return False
        batches = list(waiting)
        flight = Flight()
        calls = [self._call(leader.node, partition, batch, flight) for batch in batches]
        answers = await asyncio.gather(*[asyncio.create_task(call) for call in calls])
        for batch, answer in zip(batches, answers, strict=True):
            if answer is None or not self._judge(partition, producer_id, batch, answer):
                return False
            waiting.popleft()
        return True

    async def _call(self, node: int, partition: TopicPartition, batch: Unsent, flight: Flight) -> Any:
        topic = ProduceRequest.TopicProduceData(
            name=partition[0],
            partition_data=[
                ProduceRequest.TopicProduceData.PartitionProduceData(index=partition[1], records=batch.data)
            ],
        )
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[topic])
        batch.attempts += 1
        if batch.attempts > 1:
            self._history.counts["batches sent again"] += 1
        try:
            response = await self._links.call(node, request, 10, flight=flight)
        except Unreachable:
            return None
        return response.responses[0].partition_responses[0]

    def _judge(self, partition: TopicPartition, producer_id: int, batch: Unsent, answer: Any) -> bool:
        code = ErrorCode(answer.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            acknowledged = Acknowledged(
                partition,
                answer.base_offset if code is ErrorCode.NONE else -1,
                batch.count,
                batch.crc,
                producer_id,
                batch.base_sequence,
            )
            self._history.acknowledged.append(acknowledged)
            if batch.attempts > 1:
                self._history.counts["acknowledged after a retry"] += 1
            return True
        self._history.counts[f"produce: {code.name}"] += 1
        if code not in RESENT:
            self._history.impossible.append(f"a valid batch of {partition} was refused with {code.name}")
        if answer.current_leader is not None:
            self._links.learn_leader(partition, answer.current_leader.leader_id, answer.current_leader.leader_epoch)
        return False


class Consumer:
    """Reads partitions from their beginning, from the leader or, with a rack, from where the leader sends it."""

    def __init__(
        self,
        links: ClusterLinks,
        partitions: Sequence[TopicPartition],
        name: str,
        rack: str,
        isolation: int = 0,
        wait_ms: int = FETCH_WAIT_MS,
    ) -> None:
        self._links, self._partitions, self._name, self._rack = links, list(partitions), name, rack
        self._isolation, self._wait_ms = isolation, wait_ms
        self._topics = sorted({topic for topic, _ in partitions})

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for partition in self._partitions:
                tasks.create_task(self._read(partition))

    async def _read(self, partition: TopicPartition) -> None:
        links, history, offset, preferred = self._links, self._links.history, 0, -1
        while True:
            leader = links.leaders.get(partition)
            if leader is None or leader.node < 0:
                await links.refresh(self._topics)
                await links.pause()
                continue
            node = preferred if preferred >= 0 else leader.node
            try:
                answer = await self.fetch(partition, leader, node, offset)
            except Unreachable:
                preferred = -1
                await links.refresh(self._topics)
                await links.pause()
                continue
            code = ErrorCode(answer.error_code)
            if code is not ErrorCode.NONE:
                history.counts[f"fetch: {code.name}"] += 1
                if code is ErrorCode.OFFSET_OUT_OF_RANGE and preferred < 0:
                    history.out_of_range.append(OutOfRange(partition, offset, node))
                    offset = await self._after_reset(partition, offset)
                preferred = -1
                await links.refresh(self._topics)
                await links.pause()
            elif answer.preferred_read_replica >= 0 and preferred < 0:
                preferred = answer.preferred_read_replica
                history.counts["reads sent to a follower"] += 1
            else:
                offset = self.show(partition, offset, answer, node)
                history.positions[(self._name, partition)] = offset

    async def _after_reset(self, partition: TopicPartition, offset: int) -> int:
        """Where to go on when the leader does not have `offset`: where the log begins, if that is further on."""
        try:
            return max(offset, await self._links.offset(partition, EARLIEST))
        except Unreachable:
            return offset

    async def fetch(self, partition: TopicPartition, leader: Leader, node: int, offset: int) -> Any:
        """The partition's part of the answer. Raises Unreachable."""
        response = await self._links.call(node, self._request(partition, leader.epoch, offset), 12)
        return response.responses[0].partitions[0]

    def _request(self, partition: TopicPartition, epoch: int, offset: int) -> Any:
        wanted = FetchRequest.FetchTopic.FetchPartition(
            partition=partition[1],
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=FETCH_BYTES_MAX,
        )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=self._wait_ms,
            min_bytes=1,
            max_bytes=FETCH_BYTES_MAX,
            isolation_level=self._isolation,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=partition[0], partitions=[wanted])],
            forgotten_topics_data=[],
            rack_id=self._rack,
        )

    def show(self, partition: TopicPartition, offset: int, answer: Any, node: int) -> int:
        """What came from `offset` on; the offset behind it."""
        if not answer.records:
            return offset
        history = self._links.history
        with memoryview(answer.records) as view:
            for _, header in iterate_batches(view, 0, len(view)):
                if header.next_offset <= offset:
                    continue
                if header.base_offset > offset and not history.explains(partition, offset, header.base_offset):
                    history.impossible.append(f"{partition}: offset {offset} is missing before {header.base_offset}")
                history.shown.append(Shown(partition, header.base_offset, header.next_offset, header.crc, node))
                offset = header.next_offset
        return offset


class OffsetReader:
    """Reads a group's offsets again and again, no member of it, from the broker that says it coordinates."""

    def __init__(self, links: ClusterLinks, group: str, partitions: Sequence[TopicPartition]) -> None:
        self._links, self._group, self._partitions = links, group, list(partitions)

    async def run(self) -> None:
        while True:
            with contextlib.suppress(Unreachable):
                node = await self._links.coordinator(self._group)
                await fetch_offsets(self._links, node, self._group, self._partitions)
            await self._links.pause()


async def fetch_offsets(
    links: ClusterLinks, node: int, group: str, wanted: list[TopicPartition], *, stable: bool = True
) -> dict[TopicPartition, int] | ErrorCode:
    """The group's offsets as `node` tells them, noted in the history, or its error code. Raises Unreachable."""
    history = links.history
    known = {key: history.group_offsets.get((group, key), -1) for key in wanted}
    topics = [
        OffsetFetchRequest.OffsetFetchRequestGroup.OffsetFetchRequestTopics(
            name=topic, partition_indexes=[index for name, index in wanted if name == topic]
        )
        for topic in sorted({name for name, _ in wanted})
    ]
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=topics)
    response = (await links.call(node, OffsetFetchRequest(groups=[asked], require_stable=stable), 8)).groups[0]
    if response.error_code:
        return ErrorCode(response.error_code)
    offsets: dict[TopicPartition, int] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            if partition.error_code:
                return ErrorCode(partition.error_code)
            key = (topic.name, partition.partition_index)
            history.offset_fetches.append(Fetched(group, key, partition.committed_offset, known[key]))
            offsets[key] = partition.committed_offset
    return offsets


class StaleMembership(Exception):
    """Join again; with `forget`, as a new member."""

    def __init__(self, forget: bool) -> None:
        super().__init__("stale")
        self.forget = forget


class GroupMember:
    """Joins, syncs, fetches offsets, commits ever higher ones and heartbeats; the leader deals out the partitions.

    After a commit of unknown fate it joins as a new member, so that the late commit is fenced.
    """

    def __init__(self, links: ClusterLinks, group: str, partitions: Sequence[TopicPartition]) -> None:
        self._links, self._group, self._partitions = links, group, list(partitions)
        self._history = links.history
        self._member_id = ""
        self._generation = -1
        self._coordinator = -1
        self._offsets: dict[TopicPartition, int] = {}

    async def run(self) -> None:
        while True:
            try:
                self._coordinator = await self._links.coordinator(self._group)
                await self._take_part()
            except Unreachable:
                self._member_id = ""
                await self._links.pause()
            except StaleMembership as stale:
                if stale.forget:
                    self._member_id = ""
                await self._links.pause(0.03)

    async def _call(self, request: Any, version: int, timeout_s: float = 1.2) -> Any:
        return await self._links.call(self._coordinator, request, version, timeout_s)

    async def _take_part(self) -> None:
        """Until the membership is stale or the coordinator away: raises StaleMembership, Unreachable."""
        leader, member_ids = await self._join()
        assigned = await self._sync(leader, member_ids)
        await self._fetch_offsets(assigned)
        while True:
            await self._links.pause(HEARTBEAT_S)
            request = HeartbeatRequest(
                group_id=self._group,
                generation_id=self._generation,
                member_id=self._member_id,
                group_instance_id=None,
            )
            self._check((await self._call(request, 4)).error_code)
            await self._commit()

    def _check(self, error_code: int) -> None:
        code = ErrorCode(error_code)
        if code is not ErrorCode.NONE:
            self._history.counts[f"group: {code.name}"] += 1
            raise StaleMembership(forget=code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REQUEST_TIMED_OUT))

    async def _join(self) -> tuple[str, list[str]]:
        expected = self._history.generations.get(self._group, -1)
        request = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            rebalance_timeout_ms=SESSION_TIMEOUT_MS,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=b"\0\0")],
            reason=None,
        )
        response = await self._call(request, 9, timeout_s=3.0)
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = response.member_id
            raise StaleMembership(forget=False)
        self._check(response.error_code)
        self._member_id, self._generation = response.member_id, response.generation_id
        self._history.joins.append(Joined(self._group, self._member_id, self._generation, expected))
        return response.leader, [member.member_id for member in response.members]

    async def _sync(self, leader: str, member_ids: list[str]) -> list[TopicPartition]:
        assignments = []
        if leader == self._member_id:
            for number, member_id in enumerate(member_ids):
                mine = self._partitions[number :: len(member_ids)]
                assignments.append(
                    SyncGroupRequest.SyncGroupRequestAssignment(
                        member_id=member_id, assignment=json.dumps([leader, mine]).encode()
                    )
                )
        request = SyncGroupRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )
        response = await self._call(request, 5, timeout_s=3.0)
        self._check(response.error_code)
        said_by, mine = json.loads(response.assignment)
        self._history.synced(self._group, self._member_id, self._generation, said_by)
        return [(topic, partition) for topic, partition in mine]

    async def _fetch_offsets(self, assigned: list[TopicPartition]) -> None:
        self._offsets.clear()
        if not assigned:
            return
        fetched = await fetch_offsets(self._links, self._coordinator, self._group, assigned)
        if isinstance(fetched, ErrorCode):
            self._check(fetched)
        else:
            self._offsets = fetched

    async def _commit(self) -> None:
        if not self._offsets:
            return
        rng = self._links.ports.random
        partition = rng.choice(sorted(self._offsets))
        offset = self._offsets[partition] + rng.randint(1, 5)
        item = OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            partition_index=partition[1], committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
        )
        request = OffsetCommitRequest(
            group_id=self._group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            group_instance_id=None,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=partition[0], partitions=[item])],
        )
        response = await self._call(request, 8)
        code = response.topics[0].partitions[0].error_code
        if code not in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION):
            self._history.counts[f"commit: {ErrorCode(code).name}"] += 1
            raise StaleMembership(forget=True)  # it may be appended and yet become visible
        self._check(code)
        self._history.committed_offset(self._group, partition, offset)
        self._offsets[partition] = offset
