"""The simulator tells of two parts of a program that change one file at once, and of nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from common.ports import Ports
from common.whole_files import replace_file
from tests.sim.loop import FilesRaced
from tests.sim.sample_nodes import world_of

Program = Callable[[Ports], Coroutine[Any, Any, object]]


def replaced(ports: Ports, name: str, directory: str = "") -> Coroutine[Any, Any, None]:
    return asyncio.to_thread(replace_file, ports.disk, directory, name, b"content")


async def two_threads(ports: Ports) -> None:
    await asyncio.gather(replaced(ports, "f"), replaced(ports, "f"))


async def the_loop_beside_a_thread(ports: Ports) -> None:
    file = ports.disk.open("f", create=True)
    work = asyncio.create_task(asyncio.to_thread(file.pwrite, b"thread", 0))
    for _ in range(50):
        await asyncio.sleep(0.000_02)
        file.pwrite(b"loop", 0)
    await work


async def a_cancelled_caller_that_leaves_its_thread_behind(ports: Ports) -> None:
    first = asyncio.create_task(replaced(ports, "f"))
    await asyncio.sleep(0)
    first.cancel()
    await replaced(ports, "f")


async def renamed_onto_what_is_written(ports: Ports) -> None:
    ports.disk.open("g", create=True)
    await asyncio.gather(replaced(ports, "f"), asyncio.to_thread(ports.disk.rename, "g", "f"))


async def one_after_the_other(ports: Ports) -> None:
    for _ in range(20):
        await replaced(ports, "f")
        ports.disk.open("f").pwrite(b"loop", 0)


async def different_files(ports: Ports) -> None:
    await asyncio.gather(*[replaced(ports, f"f{number}") for number in range(20)])


async def readers_of_what_a_thread_writes(ports: Ports) -> None:
    file = ports.disk.open("f", create=True)
    await asyncio.gather(
        asyncio.to_thread(file.pwrite, b"x", 0), asyncio.to_thread(file.fsync), asyncio.to_thread(file.pread, 1, 0)
    )


async def a_directory_that_took_the_name_of_another(ports: Ports) -> None:
    """As a topic that is made anew while its old logs go."""
    ports.disk.make_directory("d")
    await replaced(ports, "f", "d")
    old = ports.disk.open("d/f")
    writing = asyncio.create_task(asyncio.to_thread(old.pwrite, b"late", 0))
    await asyncio.sleep(0)
    ports.disk.rename("d", "d-delete")
    ports.disk.make_directory("d")
    await asyncio.gather(writing, replaced(ports, "f", "d"))


RACES: list[Program] = [
    two_threads,
    the_loop_beside_a_thread,
    a_cancelled_caller_that_leaves_its_thread_behind,
    renamed_onto_what_is_written,
]
NO_RACES: list[Program] = [
    one_after_the_other,
    different_files,
    readers_of_what_a_thread_writes,
    a_directory_that_took_the_name_of_another,
]


def run(program: Program) -> list[str]:
    done = list[str]()

    async def main(ports: Ports) -> None:
        await program(ports)
        done.append(program.__name__)
        await asyncio.Event().wait()

    world = world_of(a=main)
    try:
        world.run_for(1)
    finally:
        world.close()
    return done


@pytest.mark.parametrize("program", RACES)
def test_a_race_fails_the_run(program: Program) -> None:
    with pytest.raises(FilesRaced, match=r"\bf\b"):
        run(program)


@pytest.mark.parametrize("program", NO_RACES)
def test_what_is_no_race_passes(program: Program) -> None:
    assert run(program) == [program.__name__]
