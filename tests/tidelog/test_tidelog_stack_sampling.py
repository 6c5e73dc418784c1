"""A real process finds the callback that holds its loop, and nothing where none does."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import asyncio, sys, time
import uvloop
from tidelog.nodes.loop_watch import LoopWatch
from tidelog.nodes.stack_sampling import StackSampling

def burns(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass

async def in_short_steps(seconds):
    for _ in range(int(seconds / 0.002)):
        burns(0.002)
        await asyncio.sleep(0)

async def run():
    watch = LoopWatch()
    sampling = StackSampling(watch, lambda held: None)
    loop = asyncio.get_running_loop()
    await in_short_steps(0.3)
    held = {what: place for what, place in watch.places.items() if place.longest_s >= 0.05}
    print("short", sorted(held))
    for _ in range(3):
        loop.call_soon(burns, 0.2)
        await asyncio.sleep(0.01)
    await asyncio.to_thread(burns, 0.1)
    sampling.stop()
    place = watch.places["__main__:burns"]
    print("long", place.count >= 3, place.longest_s > 0.1)

with asyncio.Runner(loop_factory=uvloop.new_event_loop if sys.argv[1] == "uvloop" else None) as runner:
    runner.run(run())
"""


def outcome(loop: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, loop], capture_output=True, text=True, check=True, timeout=120
    )
    return done.stdout.splitlines()


def test_it_finds_what_holds_either_loop() -> None:
    for loop in ("uvloop", "stock"):
        assert outcome(loop) == ["short []", "long True True"]
