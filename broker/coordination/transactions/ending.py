"""How a transaction ends: EndTxn of both protocols, and the last marker. Pure.

Source: KIP-98 and KIP-890, as in Apache Kafka 4.2. In the old protocol the state alone shows a repeated request. In the
new one each transaction has its own epoch, so the epoch does: the stored one is one higher than the one sent, or the
client's producer id is the previous one, whose epochs are used up.

Two differences from 4.2. A commit that finds the transaction aborted by its coordinator is PRODUCER_FENCED, as in later
versions (KAFKA-20785): clients such as Kafka Streams go on after that, while INVALID_TXN_STATE ends them. And where the
last transaction was one of the old protocol, its producer shares its epoch with the one that it has fenced, so that
nothing is taken for a repeated request of the new one.
"""

from __future__ import annotations

from broker.coordination.transactions.adding import check_complete
from broker.coordination.transactions.producers import NEW_PROTOCOL_VERSION, Step
from broker.coordination.transactions.values import (
    LAST_EPOCH,
    NEEDS_ID,
    NO_PRODUCER,
    NO_PRODUCER_ID,
    EndTransaction,
    NeedsId,
    Transaction,
    TransactionState,
)
from common.errors import ErrorCode, ProtocolError

_State = TransactionState


def end_step(held: Transaction, request: EndTransaction, fresh_id: int | None, now_ms: int) -> Step | NeedsId:
    """Raises ProtocolError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS,
    INVALID_TXN_STATE."""
    if request.new_protocol:
        return _end_new(held, request, fresh_id, now_ms)
    return _end_old(held, request, now_ms)


def _end_old(held: Transaction, request: EndTransaction, now_ms: int) -> Step:
    if held.producer_id != request.producer_id:
        raise ProtocolError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if held.producer_epoch != request.producer_epoch:
        raise ProtocolError(ErrorCode.PRODUCER_FENCED)
    check_complete(held)
    if held.state is _State.ONGOING:
        prepared = held._replace(
            state=_prepared_state(request.commit), updated_ms=now_ms, previous_id=held.producer_id, version=0
        )
        return Step(_without_markers(prepared, now_ms), NO_PRODUCER)
    _check_outcome(held, request)
    return Step(None, NO_PRODUCER)


def _end_new(held: Transaction, request: EndTransaction, fresh_id: int | None, now_ms: int) -> Step | NeedsId:
    check_complete(held)
    ended_new = held.version >= NEW_PROTOCOL_VERSION  # otherwise the stored epoch is that of a later producer
    bumped = ended_new and held.producer_epoch == request.producer_epoch + 1
    rotated = (
        held.previous_id == request.producer_id and request.producer_epoch == LAST_EPOCH and held.producer_epoch == 0
    )
    if held.producer_id != request.producer_id and not rotated:
        raise ProtocolError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if request.producer_epoch > LAST_EPOCH or not _is_epoch_valid(held, request, bumped=bumped, rotated=rotated):
        raise ProtocolError(ErrorCode.PRODUCER_FENCED)
    if held.state is not _State.ONGOING and (bumped or rotated):
        if request.commit and held.state is _State.COMPLETE_ABORT:
            raise ProtocolError(ErrorCode.PRODUCER_FENCED, "the coordinator has aborted the transaction")
        _check_outcome(held, request)
        return Step(None, held.producer)
    if held.state is not _State.ONGOING and request.commit:
        raise ProtocolError(ErrorCode.INVALID_TXN_STATE)
    if held.is_exhausted and fresh_id is None:
        return NEEDS_ID
    prepared = held._replace(
        state=_prepared_state(request.commit),
        producer_epoch=held.producer_epoch + 1,
        last_epoch=held.producer_epoch,
        previous_id=held.producer_id,
        next_id=NO_PRODUCER_ID if fresh_id is None or not held.is_exhausted else fresh_id,
        start_ms=held.start_ms if held.state is _State.ONGOING else now_ms,
        updated_ms=now_ms,
        version=NEW_PROTOCOL_VERSION,
    )
    return Step(_without_markers(prepared, now_ms), completed(prepared, now_ms).producer)


def _is_epoch_valid(held: Transaction, request: EndTransaction, *, bumped: bool, rotated: bool) -> bool:
    if held.state in (_State.COMPLETE_COMMIT, _State.COMPLETE_ABORT) and (bumped or rotated):
        return held.producer_epoch <= LAST_EPOCH  # the one above is never answered
    return request.producer_epoch == held.producer_epoch


def _check_outcome(held: Transaction, request: EndTransaction) -> None:
    """A repeated request: returns if the transaction has ended like this. Raises INVALID_TXN_STATE if it ended
    otherwise, or there was none."""
    wanted = _State.COMPLETE_COMMIT if request.commit else _State.COMPLETE_ABORT
    if held.state is not wanted:
        raise ProtocolError(ErrorCode.INVALID_TXN_STATE)


def _prepared_state(commit: bool) -> TransactionState:
    return _State.PREPARE_COMMIT if commit else _State.PREPARE_ABORT


def _without_markers(prepared: Transaction, now_ms: int) -> Transaction:
    """A transaction without partitions needs no markers: it is complete at once."""
    return prepared if prepared.partitions else completed(prepared, now_ms)


def completed(prepared: Transaction, now_ms: int) -> Transaction:
    """Every marker is written. If a next producer id was drawn, it is the current one from now on."""
    is_commit = prepared.state is _State.PREPARE_COMMIT
    rotates = prepared.version >= NEW_PROTOCOL_VERSION and prepared.next_id != NO_PRODUCER_ID
    return prepared._replace(
        state=_State.COMPLETE_COMMIT if is_commit else _State.COMPLETE_ABORT,
        producer_id=prepared.next_id if rotates else prepared.producer_id,
        producer_epoch=0 if rotates else prepared.producer_epoch,
        previous_id=prepared.producer_id,
        next_id=NO_PRODUCER_ID,
        partitions={},
        updated_ms=now_ms,
    )
