"""Which transactions ListTransactions shows, but for its pattern (`PatternSearch`). Source: KIPs 664, 994 and 1152."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from broker.coordination.transactions.records import decode_value, decoding_cost, head_of
from broker.coordination.transactions.values import ListedTransaction, Transaction, TransactionFilter
from common.pacing import Work

COST_AT_ONCE = 400  # units of `common.pacing`
ID_COST = 2


def listed(
    ids: Iterator[str | None],
    committed: Mapping[str, bytes],
    open_ones: Mapping[str, Transaction | None],
    wanted: TransactionFilter,
    now_ms: int,
) -> Work[list[ListedTransaction]]:
    """Those of `ids` that are still there and pass the filter; None among them stands for one that is not listed.
    `open_ones`: open transactions, None for those that are not decoded yet."""
    found: list[ListedTransaction] = []
    spent = 0
    for transactional_id in ids:
        if spent >= COST_AT_ONCE:
            yield spent
            spent = 0
        spent += ID_COST
        value = None if transactional_id is None else committed.get(transactional_id)
        if transactional_id is None or value is None or not _passes(value, wanted):
            continue
        if wanted.longer_than_ms >= 0:
            known = open_ones.get(transactional_id)
            if known is None:
                known = decode_value(value)
                spent += decoding_cost(value)
            if now_ms - known.start_ms <= wanted.longer_than_ms:
                continue
        found.append(ListedTransaction(transactional_id, *head_of(value)))
    return found


def _passes(value: bytes, wanted: TransactionFilter) -> bool:
    """Whether it passes the filters that need no decoding."""
    producer_id, state = head_of(value)
    if wanted.producer_ids is not None and producer_id not in wanted.producer_ids:
        return False
    return wanted.states is None or state in wanted.states
