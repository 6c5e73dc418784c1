"""What InitProducerId and a fence make of a transactional id. Pure.

Source: KIP-360 and KIP-890, as in Apache Kafka 4.2. Two differences, both where Kafka's coordinator fails with
UNKNOWN_SERVER_ERROR: a client that asks again for the last epoch of a producer id gets it, and one whose epoch was
fenced there is PRODUCER_FENCED. And a fence in the new protocol at the last epoch draws the next producer id too:
otherwise a client that ends its transaction again would get the epoch that only fences.
"""

from __future__ import annotations

from typing import NamedTuple

from broker.coordination.transactions.config import TransactionConfig, is_too_long
from broker.coordination.transactions.values import (
    LAST_EPOCH,
    NEEDS_ID,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME,
    InitProducer,
    NeedsId,
    Producer,
    Transaction,
    TransactionState,
)
from common.errors import ErrorCode, ProtocolError
from kraft.image.tenants import local_name

NEW_PROTOCOL_VERSION = 2


class Step(NamedTuple):
    """`transaction`: the new state, None if it stays. `reply`: for the client once that is committed."""

    transaction: Transaction | None
    reply: Producer | ErrorCode


def check_init(request: InitProducer, config: TransactionConfig) -> None:
    """Raises ProtocolError: INVALID_REQUEST, INVALID_TRANSACTION_TIMEOUT."""
    name = request.transactional_id
    if not local_name(name) or is_too_long(name, config.id_bytes_max):
        raise ProtocolError(ErrorCode.INVALID_REQUEST)
    if not 0 < request.timeout_ms <= config.max_timeout_ms:
        raise ProtocolError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)


def first_step(request: InitProducer, fresh_id: int, now_ms: int) -> Step:
    """A transactional id that is not known yet."""
    transaction = Transaction(fresh_id, 0, request.timeout_ms, updated_ms=now_ms, previous_id=fresh_id)
    return Step(transaction, transaction.producer)


def init_step(
    held: Transaction, request: InitProducer, fresh_id: int | None, now_ms: int, *, new_protocol: bool
) -> Step | NeedsId:
    """`new_protocol`: the cluster's transaction version is 2. Raises ProtocolError: CONCURRENT_TRANSACTIONS,
    PRODUCER_FENCED."""
    if held.state.is_prepared:
        raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS)
    expects = request.producer_id != NO_PRODUCER_ID
    if expects and not _may_be_current(held, request):
        raise ProtocolError(ErrorCode.PRODUCER_FENCED)
    if held.state is TransactionState.ONGOING:
        fenced = fence(held, fresh_id, now_ms, new_protocol=new_protocol)
        return fenced if fenced is NEEDS_ID else Step(fenced, ErrorCode.CONCURRENT_TRANSACTIONS)
    is_current = not expects or request.producer_epoch == held.producer_epoch
    if not is_current and request.producer_epoch != held.last_epoch:
        raise ProtocolError(ErrorCode.PRODUCER_FENCED)
    if not is_current:
        next_one = held
    elif not held.is_exhausted:
        last_epoch = held.producer_epoch if expects else NO_EPOCH
        next_one = held._replace(
            producer_epoch=held.producer_epoch + 1, last_epoch=last_epoch, previous_id=held.producer_id
        )
    elif fresh_id is None:
        return NEEDS_ID
    else:
        last_epoch = held.producer_epoch if expects else NO_EPOCH
        next_one = held._replace(
            producer_id=fresh_id, producer_epoch=0, last_epoch=last_epoch, previous_id=held.producer_id
        )
    next_one = next_one._replace(
        state=TransactionState.EMPTY,
        timeout_ms=request.timeout_ms,
        partitions={},
        start_ms=NO_TIME,
        updated_ms=now_ms,
        next_id=NO_PRODUCER_ID,
    )
    return Step(next_one, next_one.producer)


def _may_be_current(held: Transaction, request: InitProducer) -> bool:
    """The client's producer id is the current one, or the one before, whose epochs it used up: then it may not have
    seen the answer with the current one. Or it is the next one already."""
    return (
        request.producer_id == held.producer_id
        or (request.producer_id == held.previous_id and request.producer_epoch >= LAST_EPOCH)
        or held.is_next(request.producer_id, request.producer_epoch)
    )


def fence(held: Transaction, fresh_id: int | None, now_ms: int, *, new_protocol: bool) -> Transaction | NeedsId:
    """Abort an ongoing transaction under an epoch that its client does not have.

    In the new protocol the client may get that epoch when it ends the transaction itself, as if it had been first.
    """
    needs_id = new_protocol and held.is_exhausted
    if needs_id and fresh_id is None:
        return NEEDS_ID
    return held._replace(
        producer_epoch=min(held.producer_epoch + 1, LAST_EPOCH + 1),
        last_epoch=held.producer_epoch if new_protocol else NO_EPOCH,
        state=TransactionState.PREPARE_ABORT,
        previous_id=held.producer_id,
        next_id=fresh_id if needs_id and fresh_id is not None else NO_PRODUCER_ID,
        updated_ms=now_ms,
        version=NEW_PROTOCOL_VERSION if new_protocol else 0,
    )
