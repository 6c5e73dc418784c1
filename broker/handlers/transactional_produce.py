"""Transactional batches of Produce: the right to the transactional id, and batches that wait for a coordinator.

A batch within an open transaction is appended at once. One that would begin a transaction is copied and waits for the
coordinator's answer (`transaction_verification.py`), with the later batches of its producer behind it; batches of other
producers go on.

Errors are those of Apache Kafka 4.2's ReplicaManager: what a client may retry is NOT_ENOUGH_REPLICAS, because every
client retries that, and it asks for no new metadata.
"""

from __future__ import annotations

from typing import Protocol

from broker.coordination.transactions.config import is_too_long
from broker.handlers.first_batches import check_order
from broker.handlers.pending_produce import PendingProduce
from broker.handlers.transaction_verification import TransactionVerification
from broker.partitions.partition import Partition
from broker.partitions.transactional_appends import Permission
from broker.security.authorizer import Access
from common.errors import ErrorCode, ProtocolError
from common.ports import Clock
from kraft.records import AclOperation, AclResource
from records.batch import is_transactional, read_header
from storage.log.partition_log import Appended
from wire.hot_codec import ProduceCall

ABORTABLE_FROM, ADDS_FROM = 11, 12  # versions whose clients know TRANSACTION_ABORTABLE, and speak the new protocol
_WRITE, _TRANSACTIONAL_ID = int(AclOperation.WRITE), int(AclResource.TRANSACTIONAL_ID)

_UNREACHED = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT,
)


class ProduceOutcomes(Protocol):
    """Answers parts of requests; implemented by `broker.handlers.produce`."""

    def appended(self, pending: PendingProduce, number: int, partition: Partition, appended: Appended) -> None: ...

    def failed(self, pending: PendingProduce, number: int, error: ProtocolError) -> None: ...


class WaitingBatch:
    """A copy of one batch, until the coordinator has answered."""

    __slots__ = ("_batch", "_came_behind", "_clock", "_number", "_outcomes", "_partition", "_pending")

    def __init__(
        self,
        outcomes: ProduceOutcomes,
        clock: Clock,
        pending: PendingProduce,
        number: int,
        partition: Partition,
        batch: bytearray,
    ) -> None:
        self._outcomes = outcomes
        self._clock = clock
        self._pending = pending
        self._number = number
        self._partition = partition
        self._batch = batch
        self._came_behind = partition.has_just_refused

    @property
    def size(self) -> int:
        return len(self._batch)

    def permitted(self, permission: Permission) -> None:
        pending, partition, batch = self._pending, self._partition, self._batch
        if pending.settled:  # timed out: the client may have sent the batch again, so this copy must not be appended
            partition.note_refusal()
            return
        acks, now_ms = pending.call.acks, self._clock.wall_ms()
        try:
            with memoryview(batch) as view:
                if not permission.adds:  # in the new protocol the partition itself asks for sequence 0
                    check_order(partition, read_header(view, 0), came_behind=self._came_behind)
                appended = partition.transactions.append_produced(
                    batch, view, 0, len(batch), acks, now_ms, permission
                )  # fmt: skip
        except ProtocolError as error:
            self._outcomes.failed(pending, self._number, error)
            return
        self._outcomes.appended(pending, self._number, partition, appended)

    def refused(self, error: ErrorCode) -> None:
        if not self._pending.settled:
            self._outcomes.failed(self._pending, self._number, for_client(error, self._pending.head.version))


class TransactionalProduce:
    """Serves the transactional batches of all requests of a broker."""

    def __init__(self, verification: TransactionVerification, outcomes: ProduceOutcomes, clock: Clock) -> None:
        self._verification = verification
        self._outcomes = outcomes
        self._clock = clock

    def refusal(self, call: ProduceCall, view: memoryview, access: Access | None) -> ErrorCode | None:
        """Why a request is rejected as a whole because of its transactional batches."""
        producers = set()
        for part in call.parts:
            if is_transactional(view, part.start, part.end):
                header = read_header(view, part.start)
                producers.add((header.producer_id, header.producer_epoch))
        transactional_id = (call.transactional_id or b"").decode(errors="replace")
        if producers and access is not None and not access.may(_WRITE, _TRANSACTIONAL_ID, transactional_id):
            return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        if len(producers) > 1 or (producers and is_too_long(transactional_id)):
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        return None

    def append(
        self,
        pending: PendingProduce,
        number: int,
        partition: Partition,
        view: memoryview,
        at: int,
        end: int,
        now_ms: int,
    ) -> None:
        """Append or queue the transactional batch `view[at:end]` of part `number`. Raises ProtocolError if it is
        rejected now."""
        acks, version = pending.call.acks, pending.head.version
        partition.check_appendable(acks)
        header = partition.check_batch(view, at, end, now_ms, transactional=True)
        transactions, producer_id, epoch = partition.transactions, header.producer_id, header.producer_epoch
        transactional_id = (pending.call.transactional_id or b"").decode(errors="replace")
        adds = version >= ADDS_FROM
        needs_permission = transactions.needs_permission(transactional_id, producer_id, epoch)
        if not needs_permission or not self._verification.asks(adds=adds):
            appended = transactions.append_checked(view, view, at, end, header, now_ms, None)
        else:
            batch = WaitingBatch(
                outcomes=self._outcomes,
                clock=self._clock,
                pending=pending,
                number=number,
                partition=partition,
                batch=bytearray(view[at:end]),
            )
            self._verification.begin(partition, transactional_id, producer_id, epoch, batch, adds=adds)
            return
        self._outcomes.appended(pending, number, partition, appended)


def for_client(error: ErrorCode, version: int) -> ProtocolError:
    """The error of a batch whose transaction's coordinator answered `error`, for Produce `version`."""
    if error in _UNREACHED or (error is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDS_FROM):
        message = f"the transaction's coordinator has not confirmed the partition: {error.name}"
        return ProtocolError(ErrorCode.NOT_ENOUGH_REPLICAS, message)
    if error is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_FROM:
        error = ErrorCode.INVALID_TXN_STATE
    if error is ErrorCode.INVALID_TXN_STATE:
        return ProtocolError(error, "the partition is not in the transaction")
    return ProtocolError(error)
