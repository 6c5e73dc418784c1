"""Clients of tiered topics: one that reads all there is again and again, and one that deletes records and a topic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from common.errors import ErrorCode
from kraft.controller.tier_configs import AS_TOTAL, COPY_DISABLE, DELETE_ON_DISABLE, REMOTE_STORAGE
from records.builder import build_batch
from records.record import Record
from tests.sim.client_links import EARLIEST, LATEST, ClusterLinks, Unreachable
from tests.sim.clients import PRODUCE_TIMEOUT_MS, Consumer
from tests.sim.history import OutOfRange, Pass, TopicPartition
from tests.sim.plan import TierPlan
from wire.messages import (
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    IncrementalAlterConfigsRequest,
    ProduceRequest,
)

REST_S = 0.6
NOW_MS = 1_700_000_000_000
DOOMED = "d"
DOOMED_BATCHES = 24
DELETE_SHARE = 0.25  # of what there is, at most, at a time


class Historian:
    """Reads each partition from where its log begins to its end, rests, and begins again; from leaders alone.

    After each rest it begins as a client from before KIP-320 would, which names no epoch and asks whoever led before.
    """

    def __init__(
        self, links: ClusterLinks, partitions: Sequence[TopicPartition], consumer: Consumer | None = None
    ) -> None:
        """`consumer`: in place of one that reads all records."""
        self._links, self._partitions = links, list(partitions)
        self._consumer = consumer or Consumer(links, partitions, "historian", "")
        self._topics = sorted({topic for topic, _ in partitions})

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for partition in self._partitions:
                tasks.create_task(self._again_and_again(partition))

    async def _again_and_again(self, partition: TopicPartition) -> None:
        links, history = self._links, self._links.history
        while True:
            try:
                settled = history.settled
                begin = await links.offset(partition, EARLIEST)
                end = await links.offset(partition, LATEST)
                if begin >= 0:
                    history.beginnings.append((partition, begin))
                if 0 <= begin <= end and await self._read(partition, begin, end):
                    history.passes[partition] = Pass(partition, begin, end, settled)
                    history.counts["passes over the whole log"] += 1
                    await links.pause(REST_S)
                    await self._read(partition, begin, min(begin + 1, end), names_epoch=False)
                    continue
            except Unreachable:
                pass
            await links.refresh(self._topics)
            await links.pause()

    async def _read(self, partition: TopicPartition, offset: int, end: int, *, names_epoch: bool = True) -> bool:
        """Whether all up to `end` came. Raises Unreachable."""
        links, history = self._links, self._links.history
        while offset < end:
            leader = links.leaders.get(partition)
            if leader is None or leader.node < 0:
                return False
            meant = leader if names_epoch else leader._replace(epoch=-1)
            answer = await self._consumer.fetch(partition, meant, leader.node, offset)
            code = ErrorCode(answer.error_code)
            if code is ErrorCode.NONE:
                offset = self._consumer.show(partition, offset, answer, leader.node)
                continue
            history.counts[f"history: {code.name}"] += 1
            if code is ErrorCode.OFFSET_OUT_OF_RANGE:
                history.out_of_range.append(OutOfRange(partition, offset, leader.node))
                return False
            await links.pause()
            await links.refresh(self._topics)
        return True


class StubbornProducer:
    """Sends to one broker whatever the others say, with `acks=1` and without idempotence. `target` is -1 at first."""

    def __init__(self, links: ClusterLinks, partition: TopicPartition, target: Callable[[], int]) -> None:
        self._links, self._partition, self._target = links, partition, target

    async def run(self) -> None:
        number = 0
        while True:
            await self._links.pause(0.02)
            if self._target() >= 0:
                with contextlib.suppress(Unreachable):
                    await self._links.call(self._target(), produce_request(self._partition, number, 1), 10)
                number += 1


def produce_request(partition: TopicPartition, number: int, acks: int) -> ProduceRequest:
    data = bytes(build_batch([Record(0, NOW_MS, b"%d" % number, b"gone" * 40, ())]))
    row = ProduceRequest.TopicProduceData.PartitionProduceData(index=partition[1], records=data)
    topic = ProduceRequest.TopicProduceData(name=partition[0], partition_data=[row])
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=PRODUCE_TIMEOUT_MS, topic_data=[topic])


class Archivist:
    """Deletes records of the topics now and then; makes another tiered topic, fills it and deletes it."""

    def __init__(
        self, links: ClusterLinks, partitions: Sequence[TopicPartition], brokers: Sequence[int], plan: TierPlan
    ) -> None:
        self._links, self._partitions, self._brokers = links, list(partitions), list(brokers)
        self._plan = plan
        self._history = links.history

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            if self._plan.deletes_records:
                tasks.create_task(self._delete_records())
            if self._plan.doomed_topic:
                tasks.create_task(self._doomed_topic())
            if self._plan.switches:
                tasks.create_task(self._switch_copying())
            if self._plan.leaves:
                tasks.create_task(self._switch_tiering())
        while True:  # a client that ended would be no node any more
            await self._links.pause(REST_S)

    async def _delete_records(self) -> None:
        links, rng = self._links, self._links.ports.random
        while not self._history.all_healed:
            await links.pause(1.5)
            partition = rng.choice(self._partitions)
            try:
                begin, end = await links.offset(partition, EARLIEST), await links.offset(partition, LATEST)
                if 0 <= begin < end:
                    await self._delete_below(partition, begin + int((end - begin) * rng.random() * DELETE_SHARE))
            except Unreachable:
                await links.refresh([topic for topic, _ in self._partitions])

    async def _delete_below(self, partition: TopicPartition, offset: int) -> None:
        """Raises Unreachable."""
        history, topic = self._history, DeleteRecordsRequest.DeleteRecordsTopic
        history.deletions[partition] = max(history.deletions.get(partition, 0), offset)
        row = topic.DeleteRecordsPartition(partition_index=partition[1], offset=offset)
        request = DeleteRecordsRequest(topics=[topic(name=partition[0], partitions=[row])], timeout_ms=1_000)
        answer = await self._links.call(self._links.leaders[partition].node, request, 2)
        code = ErrorCode(answer.topics[0].partitions[0].error_code)
        history.counts[f"delete records: {code.name}"] += 1
        if code is ErrorCode.NONE:
            history.deleted[partition] = max(history.deleted.get(partition, 0), offset)

    # copying that is disabled -----------------------------------------------------------------------------

    async def _switch_copying(self) -> None:
        links, disabled = self._links, False
        while not self._history.all_healed:
            await links.pause(links.ports.random.choice((0.1, 0.5, 1.5)))
            if await self._configure(disabled=not disabled):
                disabled = not disabled
                self._history.counts[f"copying {'disabled' if disabled else 'enabled'}"] += 1
        while not await self._configure(disabled=False):
            await links.pause()

    async def _configure(self, *, disabled: bool) -> bool:
        """Whether the cluster said yes."""
        local = AS_TOTAL if disabled else self._plan.local_bytes
        return await self._set({COPY_DISABLE: str(disabled).lower(), "local.retention.bytes": str(local)})

    # tiering that is disabled -----------------------------------------------------------------------------

    async def _switch_tiering(self) -> None:
        links, disabled, rng = self._links, False, self._links.ports.random
        while not self._history.all_healed:
            await links.pause(rng.choice((0.1, 0.4, 1.0)) if disabled else rng.choice((0.5, 1.0, 2.0)))
            if await self._set({REMOTE_STORAGE: str(disabled).lower(), DELETE_ON_DISABLE: "true"}):
                disabled = not disabled
                self._history.counts[f"tiering {'disabled' if disabled else 'enabled'}"] += 1
        while not await self._set({REMOTE_STORAGE: "true"}):
            await links.pause()

    async def _set(self, settings: dict[str, str]) -> bool:
        """Whether the cluster said yes."""
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource
        configs = [
            resource.AlterableConfig(name=name, config_operation=0, value=value) for name, value in settings.items()
        ]
        rows = [resource(resource_type=2, resource_name=self._partitions[0][0], configs=configs)]
        request = IncrementalAlterConfigsRequest(resources=rows, validate_only=False)
        return await self._code(request, 1, "responses") is ErrorCode.NONE

    # a topic that goes -------------------------------------------------------------------------------------

    async def _doomed_topic(self) -> None:
        links, history, topic = self._links, self._history, CreateTopicsRequest.CreatableTopic
        configs = [
            topic.CreatableTopicConfig(name=name, value=value) for name, value in self._plan.topic_configs.items()
        ]
        made = topic(name=DOOMED, num_partitions=1, replication_factor=3, assignments=[], configs=configs)
        create = CreateTopicsRequest(topics=[made], timeout_ms=1_000, validate_only=False)
        while await self._code(create, 5, "topics") not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            if history.all_healed:  # too late for it
                return
            await links.pause()
        for number in range(DOOMED_BATCHES):
            if history.all_healed:
                break
            await self._produce(number)
            await links.pause()
        row = DeleteTopicsRequest.DeleteTopicState(name=DOOMED, topic_id=None)
        delete = DeleteTopicsRequest(topics=[row], topic_names=[], timeout_ms=1_000)
        while await self._code(delete, 6, "responses") not in (
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ):
            await links.pause()
        history.counts["topics deleted"] += 1

    async def _code(self, request: object, version: int, rows: str) -> ErrorCode | None:
        try:
            answer = await self._links.call(self._links.ports.random.choice(self._brokers), request, version, 2.0)
        except Unreachable:
            return None
        return ErrorCode(getattr(answer, rows)[0].error_code)

    async def _produce(self, number: int) -> None:
        links, key = self._links, (DOOMED, 0)
        leader = links.leaders.get(key)
        request = produce_request(key, number, -1)
        try:
            if leader is not None and leader.node >= 0:
                answer = await links.call(leader.node, request, 10)
                if answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE:
                    return
        except Unreachable:
            pass
        await links.refresh([DOOMED])
