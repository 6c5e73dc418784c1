"""Which transactions ListTransactions shows. Source: KIPs 664, 994 and 1152.

Patterns are RE2, as clients send them: they match in time linear in the id, whatever a client writes. A tenant's match
its own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from broker.coordination.transactions.records import decode_value, head_of
from broker.coordination.transactions.values import ListedTransaction, TransactionFilter
from common.client_patterns import matcher
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.tenants import local_name

IDS_AT_ONCE = 200
ID_COST = 2  # units of `common.pacing`


def pattern_of(text: str | None) -> Callable[[str], bool] | None:
    """Whether an id matches as a whole; None for no pattern. Raises INVALID_REGULAR_EXPRESSION."""
    if not text:
        return None
    try:
        return matcher(text)
    except ValueError as error:
        raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error


def listed(
    ids: Iterator[str], committed: Mapping[str, bytes], wanted: TransactionFilter, now_ms: int
) -> Work[list[ListedTransaction]]:
    """Those of `ids` that are still there and pass the filter. Raises INVALID_REGULAR_EXPRESSION."""
    matches = pattern_of(wanted.pattern)
    found: list[ListedTransaction] = []
    for count, transactional_id in enumerate(ids, 1):
        value = committed.get(transactional_id)
        if value is not None and _passes(transactional_id, value, wanted, matches, now_ms):
            found.append(ListedTransaction(transactional_id, *head_of(value)))
        if count % IDS_AT_ONCE == 0:
            yield IDS_AT_ONCE * ID_COST
    return found


def _passes(
    transactional_id: str,
    value: bytes,
    wanted: TransactionFilter,
    matches: Callable[[str], bool] | None,
    now_ms: int,
) -> bool:
    producer_id, state = head_of(value)
    if wanted.producer_ids is not None and producer_id not in wanted.producer_ids:
        return False
    if wanted.states is not None and state not in wanted.states:
        return False
    if wanted.longer_than_ms >= 0 and now_ms - decode_value(value).start_ms <= wanted.longer_than_ms:
        return False
    return matches is None or matches(local_name(transactional_id))
