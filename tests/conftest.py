"""What holds for the whole suite."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from bench.embedded import EmbeddedCluster, held_loops
from tests.brief_java import use_brief_java
from tests.lanes import is_quick_file, is_quick_test, part_of
from tests.prepared_command import prepared
from tests.virtual_time import VirtualLoop
from tidelog.nodes.loop_watch import Held, LoopWatch
from tidelog.nodes.stack_sampling import LOOP_MODULES, StackSampling

# The suite runs beside other work on few cores, so how long an example takes says nothing about it. A property that
# needs more examples than these says so; every run draws others.
settings.register_profile("suite", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
use_brief_java(os.environ)

UNIT = "unit"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The quick lane does not even import what is slow."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if config.getoption("-m") == UNIT and is_test and not is_quick_file(collection_path) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="every Nth of the tests that are left, from the Kth on")


def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    if config.getoption("-m") == UNIT:
        for item in items:
            if is_quick_test(item):
                item.add_marker(UNIT)


@pytest.hookimpl(trylast=True, specname="pytest_collection_modifyitems")
def pytest_collection_keep_part(items: list[pytest.Item], config: pytest.Config) -> None:
    """Of what `-m` and `-k` have left."""
    if (part := config.getoption("--part")) is None:
        return
    try:
        kept = part_of(items, part)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """What all tests import and declare stays until the end: there is nothing to be found meanwhile."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Nor later: leave it out of the collector's rounds, which simulated worlds call for when they end."""
    gc.enable()
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], object]]:
    """The loop that a test's coroutine runs on; a test's name does not show it."""
    return {"loop": VirtualLoop if item.get_closest_marker("virtual_time") else asyncio.new_event_loop}


HELD_MAX_S = 0.050  # of CPU time: more than the 20 ms of the rule, because a shared core is slow at times
SAMPLES_MIN = 4  # fewer may be a machine that stood still, which counts as CPU time
UNSEEN_MAX_S = 0.500  # of a call into C that lets nothing take a sample
VIRTUAL_LOOP_MODULES = ("tests.virtual_time", "tests.sim.loop")
PRODUCT = ("tidelog", "broker", "proxy", "kraft", "tiering", "storage", "object_store", "wire", "records", "common")
EXCUSED: dict[str, str] = {}
"""Functions that may hold a loop for longer, and why."""


class _Collections:
    """The longest garbage collection: the heap of a whole test session is not that of a node."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._began_s = 0.0

    def noted(self, phase: str, _: dict[str, int]) -> None:
        now_s = time.thread_time()
        if phase == "start":
            self._began_s = now_s
        else:
            self.longest_s = max(self.longest_s, now_s - self._began_s)


def is_too_long(what: str, seconds: float, samples: int) -> bool:
    held = seconds >= HELD_MAX_S and (samples >= SAMPLES_MIN or seconds >= UNSEEN_MAX_S)
    return held and what not in EXCUSED


@pytest.fixture(autouse=True)
def _the_loop_turns(request: pytest.FixtureRequest) -> Iterator[None]:
    """A callback of the product that holds a laboratory's loop for too long fails its test."""
    if not inspect.iscoroutinefunction(getattr(request, "function", None)):
        yield
        return
    found: list[Held] = []
    collections = _Collections()
    gc.callbacks.append(collections.noted)
    sampling = StackSampling(LoopWatch(held_s=HELD_MAX_S), found.append, (*LOOP_MODULES, *VIRTUAL_LOOP_MODULES))
    try:
        yield
    finally:
        sampling.stop()
        gc.callbacks.remove(collections.noted)
    held = [
        one
        for one in found
        if one.stack[0].split(".")[0] in PRODUCT
        and is_too_long(one.what, one.seconds - collections.longest_s, one.samples)
    ]
    assert not held, [(one.what, round(one.seconds * 1000), " > ".join(one.stack)) for one in held]


def _no_node_was_held(cluster: EmbeddedCluster) -> None:
    """No callback of a real node held its loop for too long."""
    for line in held_loops(cluster.data):
        found = re.search(r" what=(\S+) cpu_ms=(\d+) samples=(\d+)", line)
        assert found, line
        assert not is_too_long(found[1], int(found[2]) / 1000, int(found[3])), line


EmbeddedCluster.stopped = staticmethod(_no_node_was_held)
EmbeddedCluster.run_command = staticmethod(prepared)
