"""Callers that wait until transactions are complete, and the tasks that record it."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from broker.coordination.transactions.completions import Completions
from broker.coordination.transactions.shard_tasks import ShardTasks

pytestmark = pytest.mark.virtual_time


async def test_all_callers_of_a_completed_id_go_on_and_nothing_is_kept() -> None:
    completions = Completions()
    waiting = {name: [completions.next_of(name) for _ in range(2)] for name in ("a", "b")}
    assert len(completions) == 4
    completions.completed({"a", "unknown"})
    assert all(future.done() for future in waiting["a"]) and not any(future.done() for future in waiting["b"])
    for name, futures in waiting.items():
        for future in futures:
            completions.drop(name, future)
    assert len(completions) == 0


async def test_a_caller_that_has_gone_is_passed_over() -> None:
    completions = Completions()
    gone, other = completions.next_of("a"), completions.next_of("a")
    gone.cancel()
    completions.completed(["a"])
    assert other.done() and len(completions) == 0


async def test_a_task_ends_with_its_work_and_is_not_kept() -> None:
    tasks, begun = ShardTasks(), list[str]()
    stuck = asyncio.Event()

    async def work(name: str) -> None:
        begun.append(name)
        if name == "stuck":
            await stuck.wait()

    for round_ in (1, 2):
        for name in ("a", "a", "stuck"):
            tasks.begin(name, partial(work, name))
        assert len(tasks) == 2
        await asyncio.sleep(0.01)
        assert (len(tasks), begun.count("a"), begun.count("stuck")) == (1, round_, 1)
    await tasks.stop()
    tasks.begin("a", lambda: work("a"))
    await asyncio.sleep(0.01)
    assert (len(tasks), begun.count("a")) == (0, 2)
