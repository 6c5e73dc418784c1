"""Sends ISR proposals to the controller: batched, one request in flight, repeated until it is answered.

The controller compares and sets on the partition epoch, so a repeated proposal is harmless. A proposal whose outcome is
unknown stays pending at its partition, which meanwhile waits for the larger ISR.

Source: KIP-497 (AlterPartition), KIP-903 (broker epochs in the ISR).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from broker.partitions.partition import Partition
from broker.partitions.replica_set import NO_BROKER_EPOCH, IsrProposal
from common.backoff import Backoff, Retries
from common.errors import ErrorCode, MalformedFrame, OutcomeUnknown
from common.lifecycle import duty, end_task
from kraft.image.metadata import MetadataImage
from kraft.observers.controller_channel import ControllerCalls, ControllerUnavailable
from wire.messages import AlterPartitionRequest, AlterPartitionResponse, raw_uuid, schema_uuid

logger = logging.getLogger(__name__)

VERSION = 3
PARTITIONS_PER_REQUEST_MAX = 200  # 5 ms of the loop
CALL_TIMEOUT_S = 5.0
BACKOFF = Backoff(0.05, 1.0)
# The controller will never accept the proposal; metadata with the reason is on its way.
_AWAIT_METADATA = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.INVALID_UPDATE_VERSION,
    ErrorCode.INVALID_REQUEST,
    ErrorCode.NEW_LEADER_ELECTED,
)
_WITHDRAW = (ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA)


class IsrChanges:
    """Implements `IsrChanges` of the hosted partitions. Owns one task between `start` and `stop`."""

    def __init__(
        self,
        channel: ControllerCalls,
        node_id: int,
        broker_epoch: Callable[[], int],
        image: Callable[[], MetadataImage],
        rng: random.Random,
    ) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._image = image
        self._random = rng
        self._pending: dict[Partition, IsrProposal] = {}
        self._in_flight: dict[Partition, IsrProposal] = {}
        self.shrinks = self.expansions = 0  # proposed since the start
        self._work = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self.partitions)

    @property
    def partitions(self) -> set[Partition]:
        """Partitions whose proposals are not answered yet."""
        return {*self._pending, *self._in_flight}

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=duty("isr-changes"))

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    def propose(self, partition: Partition, proposal: IsrProposal) -> None:
        """A later proposal of a partition replaces an unanswered one."""
        members = () if partition.replica_set is None else partition.replica_set.isr
        self.shrinks += len(proposal.isr) < len(members)
        self.expansions += len(proposal.isr) > len(members)
        self._pending[partition] = proposal
        self._work.set()

    async def _run(self) -> None:
        retries = Retries(BACKOFF, self._random)
        while True:
            await self._work.wait()
            self._work.clear()
            batch = self._in_flight = self._take()
            if not batch:
                continue
            try:
                response = await self._channel.call(self._request(batch), VERSION, timeout_s=CALL_TIMEOUT_S)
                retry = self._settle(batch, response)
            except (ControllerUnavailable, OutcomeUnknown, MalformedFrame) as error:
                logger.info("ISR changes are not answered", extra={"cause": str(error)})
                retry = batch
            self._in_flight = {}
            for partition, proposal in retry.items():
                self._pending.setdefault(partition, proposal)
            if retry:
                await asyncio.sleep(retries.failed())
            else:
                retries.succeeded()
            if self._pending:
                self._work.set()

    def _take(self) -> dict[Partition, IsrProposal]:
        """The proposals that are still valid; those that newer metadata made obsolete are dropped."""
        batch: dict[Partition, IsrProposal] = {}
        while self._pending and len(batch) < PARTITIONS_PER_REQUEST_MAX:
            partition = next(iter(self._pending))
            proposal = self._pending.pop(partition)
            if partition.replica_set is not None and partition.replica_set.proposal == proposal:
                batch[partition] = proposal
        return batch

    def _request(self, batch: dict[Partition, IsrProposal]) -> AlterPartitionRequest:
        topics: dict[bytes, AlterPartitionRequest.TopicData] = {}
        for partition, proposal in batch.items():
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = AlterPartitionRequest.TopicData(topic_id=schema_uuid(partition.topic_id), partitions=[])
                topics[partition.topic_id] = topic
            states = [
                AlterPartitionRequest.TopicData.PartitionData.BrokerState(
                    broker_id=node, broker_epoch=self._epoch_of(partition, node)
                )
                for node in proposal.isr
            ]
            topic.partitions.append(
                AlterPartitionRequest.TopicData.PartitionData(
                    partition_index=partition.index,
                    leader_epoch=partition.leader_epoch,
                    new_isr_with_epochs=states,
                    leader_recovery_state=0,
                    partition_epoch=proposal.partition_epoch,
                )
            )
        return AlterPartitionRequest(
            broker_id=self._node_id, broker_epoch=self._broker_epoch(), topics=list(topics.values())
        )

    def _epoch_of(self, partition: Partition, node: int) -> int:
        """The member's broker epoch: for a follower the one of its fetches, if known."""
        if node == self._node_id:
            return self._broker_epoch()
        follower = partition.replica_set.followers.get(node) if partition.replica_set is not None else None
        if follower is not None and follower.broker_epoch != NO_BROKER_EPOCH:
            return follower.broker_epoch
        broker = self._image().brokers.get(node)
        return broker.epoch if broker is not None else NO_BROKER_EPOCH

    def _settle(
        self, batch: dict[Partition, IsrProposal], response: AlterPartitionResponse
    ) -> dict[Partition, IsrProposal]:
        """Pass the answers to the partitions. Returns the proposals to send again."""
        if response.error_code != ErrorCode.NONE:
            logger.warning("ISR changes are refused", extra={"error": response.error_code})
            return batch
        left = {(partition.topic_id, partition.index): partition for partition in batch}
        retry: dict[Partition, IsrProposal] = {}
        for topic in response.topics:
            for answer in topic.partitions:
                partition = left.pop((raw_uuid(topic.topic_id), answer.partition_index), None)
                if partition is None:
                    continue
                if answer.error_code == ErrorCode.NONE:
                    partition.isr_committed(tuple(answer.isr), answer.leader_epoch, answer.partition_epoch)
                elif answer.error_code in _WITHDRAW:
                    partition.isr_refused(batch[partition])
                elif answer.error_code not in _AWAIT_METADATA:
                    retry[partition] = batch[partition]
        for partition in left.values():
            retry[partition] = batch[partition]
        return retry
