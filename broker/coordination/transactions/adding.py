"""Partitions that join a transaction, or are asked about. Pure. Source: KIP-98, KIP-890, as in Apache Kafka 4.2."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.coordination.transactions.config import TransactionLimits
from broker.coordination.transactions.producers import NEW_PROTOCOL_VERSION
from broker.coordination.transactions.values import (
    LAST_EPOCH,
    AddPartitions,
    Partitions,
    Transaction,
    TransactionState,
)
from common.errors import ErrorCode, ProtocolError


def check_current(held: Transaction, producer_id: int, producer_epoch: int) -> None:
    """Raises ProtocolError unless the producer is the current one, whose previous transaction is complete.

    One difference from Apache Kafka: a client that has its next producer id before the markers under the old one are
    written meets CONCURRENT_TRANSACTIONS, as with any other epoch, and not INVALID_PRODUCER_ID_MAPPING, which is fatal.
    """
    if held.is_next(producer_id, producer_epoch):
        raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if held.producer_id != producer_id:
        raise ProtocolError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if held.producer_epoch != producer_epoch:
        raise ProtocolError(ErrorCode.PRODUCER_FENCED)
    check_complete(held)
    if producer_epoch > LAST_EPOCH:
        raise ProtocolError(ErrorCode.PRODUCER_FENCED)


def check_complete(held: Transaction) -> None:
    """Raises ProtocolError until the producer's previous transaction is complete."""
    if held.state.is_prepared:
        raise ProtocolError(ErrorCode.CONCURRENT_TRANSACTIONS)


def with_partitions(
    held: Transaction, request: AddPartitions, now_ms: int, limits: TransactionLimits
) -> Transaction | None:
    """The transaction with the request's partitions; None if it has them already.

    Raises ProtocolError: INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, TRANSACTION_ABORTABLE beyond a limit, and for
    every producer CONCURRENT_TRANSACTIONS.
    """
    check_complete(held)
    check_current(held, request.producer_id, request.producer_epoch)
    _check_size(request.partitions, limits)  # first, because it costs as much to join them
    is_ongoing = held.state is TransactionState.ONGOING
    joined = _joined(held.partitions if is_ongoing else {}, request.partitions)
    if is_ongoing and joined is None:
        return None
    _check_size(joined or {}, limits)
    return held._replace(
        state=TransactionState.ONGOING,
        partitions=joined or {},
        start_ms=held.start_ms if is_ongoing else now_ms,
        updated_ms=now_ms,
        previous_id=held.producer_id,
        version=NEW_PROTOCOL_VERSION if request.new_protocol else 0,
    )


def _check_size(partitions: Partitions, limits: TransactionLimits) -> None:
    if len(partitions) > limits.topics or sum(map(len, partitions.values())) > limits.partitions:
        raise ProtocolError(ErrorCode.TRANSACTION_ABORTABLE, "too many partitions or topics in one transaction")


def _joined(held: Partitions, added: Partitions) -> Partitions | None:
    """None if all are held already."""
    joined = {**held, **added}
    more = len(joined) - len(held)
    for topic in held.keys() & added.keys():
        own = held[topic]
        joined[topic] = tuple(dict.fromkeys((*own, *added[topic])))
        more += len(joined[topic]) - len(own)
    return joined if more else None


def by_topic(partitions: Iterable[tuple[str, int]]) -> Partitions:
    """A few partitions as `AddPartitions` has them."""
    indexes: dict[str, dict[int, None]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, {})[index] = None
    return {topic: tuple(some) for topic, some in indexes.items()}


def verified(
    held: Transaction, producer_id: int, producer_epoch: int, partitions: Sequence[tuple[str, int]]
) -> tuple[ErrorCode, ...]:
    """Whether each partition is in the transaction: NONE or TRANSACTION_ABORTABLE. Raises as `with_partitions`."""
    check_current(held, producer_id, producer_epoch)
    indexes: dict[str, frozenset[int]] = {}
    codes = []
    for topic, index in partitions:
        known = indexes.get(topic)
        if known is None:
            known = indexes[topic] = frozenset(held.partitions.get(topic, ()))
        codes.append(ErrorCode.NONE if index in known else ErrorCode.TRANSACTION_ABORTABLE)
    return tuple(codes)
