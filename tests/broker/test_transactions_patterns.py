"""Patterns of ListTransactions, matched in a thread: real ones here, under the coordinator."""

from __future__ import annotations

import asyncio
import threading

import pytest
import re2

from broker.coordination.transactions.pattern_search import COST_AT_ONCE, PatternSearch, some_matching
from broker.coordination.transactions.values import ListedTransaction, TransactionFilter, TransactionState
from common.client_patterns import Matcher, matcher
from common.errors import ErrorCode, ProtocolError
from tests.broker.test_transactions_coordinator import World
from tests.broker.transaction_driver import TransactionDriver
from tests.common.call_count import counted_calls

SLOW = ".*a.{100}"
ALPHA, BETA = "lkc-aaaaaa_", "lkc-bbbbbb_"


def rows(*names: str) -> list[ListedTransaction]:
    return [ListedTransaction(name, 7, TransactionState.EMPTY) for name in names]


def names_of(found: list[ListedTransaction]) -> list[str]:
    return [one.transactional_id for one in found]


async def test_the_loop_matches_nothing_and_reads_no_pattern() -> None:
    world = World()
    await world.elected()
    long_names = [f"{number:03}" + "ab" * 120 for number in range(50)]
    driver = TransactionDriver()
    for name in long_names:
        driver.init(ALPHA + name)
        await world.put(0, ALPHA + name, driver.state(ALPHA + name))
    with counted_calls(Matcher.__call__) as matched, counted_calls(matcher) as read:
        found = await world.coordinator.list_transactions(TransactionFilter(pattern="0.*a.{101}", prefix=ALPHA))
    assert len(found) == len(long_names)
    assert (matched.calls, read.calls) == (0, 0), "the calls of this thread, which runs the loop"
    await world.coordinator.stop()
    await world.runtime.stop()


async def test_a_client_matches_ids_as_it_sees_them() -> None:
    """Operators see a tenant's ids with its prefix, and may leave that out."""
    world = World()
    await world.elected()
    driver = TransactionDriver()
    for name in (ALPHA + "same", "same"):
        driver.init(name)
        await world.put(0, name, driver.state(name))

    async def found(pattern: str, prefix: str) -> list[str]:
        return names_of(await world.coordinator.list_transactions(TransactionFilter(pattern=pattern, prefix=prefix)))

    assert await found("same", "") == [ALPHA + "same", "same"]
    assert await found(ALPHA + ".*", "") == await found("same", ALPHA) == [ALPHA + "same"]
    assert await found(ALPHA + ".*", ALPHA) == []
    await world.coordinator.stop()
    await world.runtime.stop()


async def at_rest(_: str) -> None: ...


def turns_of(listed: list[ListedTransaction], matches: Matcher) -> tuple[list[str], list[int]]:
    """What matches, and how many ids each turn of the thread looked at."""
    found: list[str] = []
    looked: list[int] = []
    at = 0
    while at < len(listed):
        begin = at
        some, at = some_matching(listed, begin, matches, "")
        found += names_of(some)
        looked.append(at - begin)
    return found, looked


@pytest.mark.parametrize("pattern", [".*", SLOW, "(?:a?b?){499}(?:.?){400}"])
def test_a_turn_of_the_thread_is_short_whatever_the_pattern_is(pattern: str) -> None:
    matches = matcher(pattern)
    names = ["ab" * length for length in range(1, 125)] + ["ab" * 15_000] * 3
    found, looked = turns_of(rows(*names), matches)
    assert found == [name for name in names if matches(name)]
    begin = 0
    for count in looked:
        costs = [matches.cost(name) for name in names[begin : begin + count]]
        assert sum(costs[:-1]) < COST_AT_ONCE, "the last of a turn begins before it is used up"
        begin += count


@pytest.mark.virtual_time
async def test_tenants_take_turns() -> None:
    turns: list[str] = []

    async def rest(prefix: str) -> None:
        turns.append(prefix)

    search = PatternSearch(rest)
    matches = await search.compiled("(?:a?b?){499}(?:.?){400}", "")
    many = rows(*(f"{ALPHA}{'ab' * 120}{number}" for number in range(20)))
    few = rows(*(f"{BETA}{'ab' * 120}{number}" for number in range(2)))
    of_alpha = [asyncio.ensure_future(search.matching(many, matches, ALPHA)) for _ in range(5)]
    found = await search.matching(few, matches, BETA)
    assert found == few
    assert turns.count(ALPHA) <= 4, "five lists of another one are not waited for"
    assert [len(one) for one in await asyncio.gather(*of_alpha)] == [20] * 5


class HeldMatcher(Matcher):
    """Its first match lasts until it is let go."""

    def __init__(self) -> None:
        super().__init__(re2.compile(".*"))
        self.begun, self.released = threading.Event(), threading.Event()
        self.running = self.most = 0

    def __call__(self, name: str) -> bool:
        self.running += 1
        self.most = max(self.most, self.running)
        self.begun.set()
        self.released.wait(10)
        self.running -= 1
        return True


async def test_lists_that_are_given_up_take_one_thread_in_all() -> None:
    search, matches = PatternSearch(at_rest), HeldMatcher()
    given_up = [asyncio.ensure_future(search.matching(rows("a"), matches, str(number))) for number in range(3)]
    await asyncio.to_thread(matches.begun.wait, 10)
    for one in given_up:
        one.cancel()
    next_one = asyncio.ensure_future(search.matching(rows("b"), matches, "next"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not next_one.done()
    matches.released.set()
    assert names_of(await next_one) == ["b"]
    assert matches.most == 1
    assert all(one.cancelled() for one in given_up)


@pytest.mark.virtual_time
@pytest.mark.parametrize("pattern", ["(", r"(a)\1", "x" * 1_001, "((a{1000}){1000}){1000}", r"\pL" * 21])
async def test_what_is_no_pattern(pattern: str) -> None:
    world = World()
    await world.elected()
    with pytest.raises(ProtocolError) as caught:
        await world.coordinator.list_transactions(TransactionFilter(pattern=pattern))
    assert caught.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION
    await world.coordinator.stop()
    await world.runtime.stop()
