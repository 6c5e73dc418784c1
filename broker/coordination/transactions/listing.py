"""Which transactions ListTransactions shows. Source: KIPs 664, 994 and 1152.

Patterns are RE2, as clients send them: they match in time linear in the id, whatever a client writes. A tenant's match
its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from broker.coordination.transactions.records import decode_value, decoding_cost, head_of
from broker.coordination.transactions.values import ListedTransaction, Transaction, TransactionFilter
from common.client_patterns import matcher
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.tenants import local_name

COST_AT_ONCE = 400  # units of `common.pacing`
ID_COST = 2
MATCHED_PER_UNIT = 150  # characters of an id, by a slow pattern


def pattern_of(text: str | None) -> Callable[[str], bool] | None:
    """Whether an id matches as a whole; None for no pattern. Raises INVALID_REGULAR_EXPRESSION."""
    if not text:
        return None
    try:
        return matcher(text)
    except ValueError as error:
        raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error


def listed(
    ids: Iterator[str | None],
    committed: Mapping[str, bytes],
    open_ones: Mapping[str, Transaction | None],
    wanted: TransactionFilter,
    now_ms: int,
) -> Work[list[ListedTransaction]]:
    """Those of `ids` that are still there and pass the filter; None among them stands for one that is not listed.
    `open_ones`: open transactions, None for those that are not decoded yet. Raises INVALID_REGULAR_EXPRESSION."""
    matches = pattern_of(wanted.pattern)
    found: list[ListedTransaction] = []
    spent = 0
    for transactional_id in ids:
        if spent >= COST_AT_ONCE:
            yield spent
            spent = 0
        spent += ID_COST
        value = None if transactional_id is None else committed.get(transactional_id)
        if transactional_id is None or value is None:
            continue
        if matches is not None:
            spent += len(transactional_id) // MATCHED_PER_UNIT
        if not _passes(transactional_id, value, wanted, matches):
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


def _passes(
    transactional_id: str, value: bytes, wanted: TransactionFilter, matches: Callable[[str], bool] | None
) -> bool:
    """Whether it passes the filters that need no decoding."""
    producer_id, state = head_of(value)
    if wanted.producer_ids is not None and producer_id not in wanted.producer_ids:
        return False
    if wanted.states is not None and state not in wanted.states:
        return False
    return matches is None or matches(local_name(transactional_id))
