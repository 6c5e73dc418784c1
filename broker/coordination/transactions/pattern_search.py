"""Which ids match the pattern of a ListTransactions.

A client chooses the pattern, and perhaps the ids: to match a long one takes up to a second. So patterns are matched in
a thread, where RE2 leaves the interpreter to the event loop. The node has one such thread at a time, and tenants take
turns with it, so that a client takes few of the threads and processors that others need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar
from weakref import WeakValueDictionary

from broker.coordination.transactions.values import ListedTransaction
from common.client_patterns import Matcher, matcher
from common.errors import ErrorCode, ProtocolError
from common.outlasting import outlast
from kraft.image.tenants import local_name

COST_AT_ONCE = 10_000  # units of `common.pacing` in one turn of the thread

T = TypeVar("T")


class PatternSearch:
    """`rest(prefix)` returns when it is the turn of the clients with that prefix."""

    def __init__(self, rest: Callable[[str], Awaitable[None]]) -> None:
        self._rest = rest
        self._turns = asyncio.Lock()
        self._of_clients: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def compiled(self, text: str, prefix: str) -> Matcher:
        """`prefix`: see `matching`. Raises INVALID_REGULAR_EXPRESSION."""
        try:
            async with self._turns_of(prefix):
                return await self._in_thread(partial(matcher, text))
        except ValueError as error:
            raise ProtocolError(ErrorCode.INVALID_REGULAR_EXPRESSION, str(error)) from error

    async def matching(
        self, listed: Sequence[ListedTransaction], matches: Matcher, prefix: str
    ) -> list[ListedTransaction]:
        """Those whose id matches as a whole: a tenant's without `prefix`, that of the tenant that asks. Operators have
        no prefix, and may name an id with its tenant's or without. `listed` must not change meanwhile."""
        found: list[ListedTransaction] = []
        at = 0
        async with self._turns_of(prefix):
            while at < len(listed):
                await self._rest(prefix)
                some, at = await self._in_thread(partial(some_matching, listed, at, matches, prefix))
                found += some
        return found

    def _turns_of(self, prefix: str) -> asyncio.Lock:
        """One request of these clients waits for the thread, and the others behind it. The caller keeps the lock."""
        return self._of_clients.setdefault(prefix, asyncio.Lock())

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Also where its request ends meanwhile, the next one begins after it."""
        async with self._turns:
            return await outlast(asyncio.ensure_future(asyncio.to_thread(work)))


def some_matching(
    listed: Sequence[ListedTransaction], begin: int, matches: Matcher, prefix: str
) -> tuple[list[ListedTransaction], int]:
    """Those of one turn, from the `begin`-th on, and where the next turn begins."""
    found: list[ListedTransaction] = []
    spent, at = 0, begin
    while at < len(listed) and spent < COST_AT_ONCE:
        name = listed[at].transactional_id.removeprefix(prefix)
        for one in {name: None, name if prefix else local_name(name): None}:
            spent += matches.cost(one)
            if matches(one):
                found.append(listed[at])
                break
        at += 1
    return found, at
