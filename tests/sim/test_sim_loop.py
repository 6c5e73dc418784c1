"""Virtual time: asyncio works unmodified, alike for equal seeds, and mistakes that would hide are found."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.loop import Deadlock, LeakedTasks, Livelock, UnhandledException, run


async def everything() -> tuple[object, ...]:
    loop = asyncio.get_running_loop()
    begin, order = loop.time(), list[int]()

    async def sleeper(number: int) -> None:
        await asyncio.sleep(1)
        order.append(number)

    async with asyncio.TaskGroup() as group:
        for number in range(6):
            group.create_task(sleeper(number))
    await asyncio.sleep(3600)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.sleep(50), 5)
    answer = await asyncio.to_thread(lambda: 42)
    results = await asyncio.gather(*(asyncio.sleep(1 / n, n) for n in (1, 2, 4)))
    async with asyncio.Lock(), asyncio.Semaphore(1), asyncio.Condition():
        pass
    return order, answer, results, loop.time() - begin


def test_asyncio_works_unmodified() -> None:
    order, answer, results, elapsed = run(everything())
    assert (order, answer, results) == (list(range(6)), 42, [1, 2, 4])
    assert elapsed == pytest.approx(1 + 3600 + 5 + 1, abs=0.02)


def test_equal_seeds_run_alike() -> None:
    assert run(everything(), 5) == run(everything(), 5)


async def test_a_timer_never_fires_early() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(1, 200):
            when = loop.time() + number / 7
            await asyncio.sleep(when - loop.time())
            assert loop.time() >= when

    run(main())


def test_what_comes_from_outside_does_not_wait_for_a_timer() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(1, lambda: None)
        begin = loop.time()
        await asyncio.to_thread(lambda: None)
        assert loop.time() - begin < 0.1

    run(main())


def test_a_task_group_cancels_in_an_order_that_memory_does_not_choose() -> None:
    async def main() -> list[int]:
        cancelled = list[int]()

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(9)
            finally:
                cancelled.append(number)

        async def fail() -> None:
            await asyncio.sleep(1)
            raise OSError

        async def fall() -> None:
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(wait(number))
                group.create_task(fail())

        with pytest.raises(ExceptionGroup):
            await fall()
        return cancelled

    padding = [bytearray(n) for n in range(1, 3000, 7)]  # moves later objects in memory
    first = run(main())
    del padding[::3]
    assert run(main()) == first


def test_deadlock() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="main-1 at"):
        run(main())


def test_livelock() -> None:
    async def main() -> None:
        while True:  # noqa: ASYNC110 - the mistake that is to be found
            await asyncio.sleep(0)

    with pytest.raises(Livelock):
        run(main())


def test_leaked_task() -> None:
    kept = []

    async def main() -> None:
        kept.append(asyncio.create_task(asyncio.sleep(9)))

    with pytest.raises(LeakedTasks):
        run(main())


@pytest.mark.parametrize("keep", [True, False])
def test_a_failed_task_that_nobody_looks_at(keep: bool) -> None:
    kept = []

    async def fail() -> None:
        raise KeyError("lost")

    async def main() -> None:
        task = asyncio.create_task(fail())
        if keep:
            kept.append(task)
        del task
        await asyncio.sleep(1)

    with pytest.raises(UnhandledException, match="lost"):
        run(main())


def test_a_callback_that_raises() -> None:
    async def main() -> None:
        asyncio.get_running_loop().call_later(1, lambda: 1 / 0)
        await asyncio.sleep(2)

    with pytest.raises(UnhandledException, match="ZeroDivisionError"):
        run(main())


def test_forbidden_calls_say_so() -> None:
    async def main() -> None:
        asyncio.get_running_loop().add_reader(0, print)

    with pytest.raises(NotImplementedError):
        run(main())
