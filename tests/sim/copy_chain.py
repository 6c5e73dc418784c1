"""Programs that read, process and write exactly once: members of a group that copy what is committed in their input
partitions to the output, with the group's offsets in the same transaction."""

from __future__ import annotations

from collections.abc import Callable

from common.errors import ErrorCode
from tests.sim.client_links import ClusterLinks, Unreachable
from tests.sim.clients import GroupMember, StaleMembership, fetch_offsets
from tests.sim.committed_reader import CommittedReader, values_of
from tests.sim.history import TopicPartition
from tests.sim.transaction_history import Names, OffsetRead, TransactionHistory, text_of
from tests.sim.transactional_clients import (
    Abortable,
    Fenced,
    Member,
    TransactionalProducer,
)
from wire.messages import HeartbeatRequest

BATCH_RECORDS = 4
WAIT_MS = 30
BUSY_S, IDLE_S = 0.03, 0.25  # before it looks for records again


class Copier(GroupMember):
    """One program, with a transactional id of its own."""

    def __init__(
        self,
        links: ClusterLinks,
        told: TransactionHistory,
        names: Names,
        partitions: int,
        new_producer: Callable[[], TransactionalProducer],
    ) -> None:
        inputs = [(names.input, index) for index in range(partitions)]
        super().__init__(links, names.chain, inputs)
        self._names = names
        self._told, self._new_producer = told, new_producer
        self._reader = CommittedReader(links, told, inputs, "copier", wait_ms=WAIT_MS)
        self._producer: TransactionalProducer | None = None

    async def _take_part(self) -> None:
        leader, member_ids = await self._join()
        assigned = await self._sync(leader, member_ids)
        await self._rewind(assigned)
        pause_s = BUSY_S
        while True:
            await self._links.pause(pause_s)
            await self._heartbeat()
            copied = [await self._copy(partition) for partition in assigned]
            pause_s = BUSY_S if any(copied) else IDLE_S

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self._group,
            generation_id=self._generation,
            member_id=self._member_id,
            group_instance_id=None,
        )
        self._check((await self._call(request, 4)).error_code)

    async def _rewind(self, partitions: list[TopicPartition]) -> None:
        """Go on where the group's offsets are, once no transaction may change them any more."""
        while partitions:
            marks = {key: self._told.mark(self._group, key) for key in partitions}
            fetched = await fetch_offsets(self._links, self._coordinator, self._group, partitions)
            if not isinstance(fetched, ErrorCode):
                for key, offset in fetched.items():
                    self._told.offset_reads.append(OffsetRead(self._group, key, offset, marks[key]))
                self._offsets.update(fetched)
                return
            if fetched is not ErrorCode.UNSTABLE_OFFSET_COMMIT:
                self._check(fetched)
            self._history.counts["offsets unstable"] += 1
            await self._links.pause(0.05)
            await self._heartbeat()

    async def _copy(self, partition: TopicPartition) -> bool:
        """Whether there was something to copy."""
        begin = max(self._offsets[partition], 0)
        end, values = await self._read(partition, begin)
        if end == begin:
            return False
        try:
            if self._producer is None:
                producer = self._new_producer()
                await producer.init()
                self._producer = producer
            if await self._transact(self._producer, partition, end, values):
                self._history.committed_offset(self._group, partition, end)
                self._offsets[partition] = end
            else:
                await self._rewind([partition])
        except Fenced as error:
            self._producer = None
            self._history.counts["copiers fenced"] += 1
            raise StaleMembership(forget=False) from error
        return True

    async def _read(self, partition: TopicPartition, begin: int) -> tuple[int, list[tuple[int, bytes]]]:
        links = self._links
        leader = links.leaders.get(partition)
        try:
            if leader is None or leader.node < 0:
                raise Unreachable("no leader is known")
            answer = await self._reader.fetch(partition, leader, leader.node, begin)
        except Unreachable:
            await links.refresh([self._names.input, self._names.output])
            return begin, []
        if answer.error_code != ErrorCode.NONE:
            await links.refresh([self._names.input, self._names.output])
            return begin, []
        end, batches = self._reader.read(partition, begin, answer, leader.node)
        return end, [value for batch in batches for value in values_of(batch)]

    async def _transact(
        self, producer: TransactionalProducer, source: TopicPartition, end: int, values: list[tuple[int, bytes]]
    ) -> bool:
        """Whether it is committed. Raises Fenced."""
        rng, target = self._links.ports.random, (self._names.output, source[1])
        producer.begin()
        commit = rng.random() < 0.85
        texts = [text_of(producer.intent, str(offset)) for offset, _ in values]
        try:
            if texts:
                await producer.add([target])
                await producer.produce(
                    target, [texts[at : at + BATCH_RECORDS] for at in range(0, len(texts), BATCH_RECORDS)]
                )
            await producer.send_offsets(self._group, {source: end}, Member(self._member_id, self._generation))
        except Abortable:
            self._history.counts["copies given up"] += 1
            commit = False
        await producer.end(commit)
        await producer.go_on()
        return commit
