"""TxnOffsetCommit 0-5: offsets of a group that a producer sends in its transaction.

They are written to the group's partition as a batch of the transaction, and count when that is committed. Before the
first one the transaction's coordinator is asked, as before a batch of Produce: up to version 4 whether the partition is
in the transaction, from version 5 on to add it (KIP-890). Versions from 3 on name the member that consumed the records
(KIP-447).

Errors are those of Apache Kafka 4.2's group coordinator: where the transaction's coordinator cannot be asked, the
answer is COORDINATOR_LOAD_IN_PROGRESS, because clients ask the same broker again then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.values import CommitRequest, OffsetToCommit, PendingCommitRequest
from broker.handlers.transaction_verification import TransactionVerification
from broker.partitions.hosted import HostedPartitions
from broker.requests.context import RequestContext
from common.decision import ProducerStamp
from common.errors import ErrorCode, ProtocolError
from kraft.image.metadata import MetadataImage
from kraft.topic_names import GROUP_TOPIC
from wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

LOADING_FROM, ABORTABLE_FROM, ADDS_FROM = 2, 4, 5
"""Versions whose clients know COORDINATOR_LOAD_IN_PROGRESS, know TRANSACTION_ABORTABLE, and speak the new protocol."""

_Row = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
_Asked = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic

_OF_THE_LOG = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


class TransactionOffsets:
    def __init__(
        self,
        coordinator: GroupCoordinator,
        verification: TransactionVerification,
        hosted: HostedPartitions,
        image: Callable[[], MetadataImage],
    ) -> None:
        self._coordinator = coordinator
        self._verification = verification
        self._hosted = hosted
        self._image = image

    async def txn_offset_commit(
        self, context: RequestContext, request: TxnOffsetCommitRequest
    ) -> TxnOffsetCommitResponse:
        known = self._image().topics
        items = tuple(
            OffsetToCommit(
                topic.name,
                partition.partition_index,
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                found.topic_id,
            )
            for topic in request.topics
            if (found := known.get(topic.name)) is not None
            for partition in topic.partitions
            if partition.partition_index in found.partitions
        )
        codes: tuple[ErrorCode, ...] = ()
        if items or not request.topics:
            try:
                codes = await self._commit(context.api_version, request, items)
            except ProtocolError as error:
                codes = (for_client(error.code, context.api_version),) * len(items)
        decided = dict(zip(((item.topic, item.partition) for item in items), codes, strict=True))
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return TxnOffsetCommitResponse(
            topics=[
                pending_row(
                    topic, (decided.get((topic.name, one.partition_index), unknown) for one in topic.partitions)
                )
                for topic in request.topics
            ]
        )

    async def _commit(
        self, version: int, request: TxnOffsetCommitRequest, items: tuple[OffsetToCommit, ...]
    ) -> tuple[ErrorCode, ...]:
        """Raises ProtocolError, also that of the transaction's coordinator."""
        commit = CommitRequest(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id, items
        )
        pending = PendingCommitRequest(commit, ProducerStamp(request.producer_id, request.producer_epoch))
        partition = self._hosted.find_leader(GROUP_TOPIC, self._coordinator.partition_of(request.group_id))
        permission = await self._verification.permit(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            partition,
            adds=version >= ADDS_FROM,
        )
        return await self._coordinator.commit_pending(pending, permission)


def for_client(error: ErrorCode, version: int) -> ErrorCode:
    """The error as clients of `version` know it."""
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        return ErrorCode.INVALID_TXN_STATE
    error = _OF_THE_LOG.get(error, error)
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < LOADING_FROM:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


def pending_row(topic: _Asked, codes: Iterator[ErrorCode]) -> _Row:
    """`codes` are what becomes of the partitions in turn."""
    row = _Row.TxnOffsetCommitResponsePartition
    rows = [row(partition_index=one.partition_index, error_code=next(codes)) for one in topic.partitions]
    return _Row(name=topic.name, partitions=rows)
