"""What a broker does from time to time goes on, whatever happens to one round of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from broker.partitions.config import LogDuties
from broker.partitions.duties import STALL_MIN_S, Duties, Stalls
from broker.partitions.hosted import HostedPartitions
from broker.partitions.log_settings import LogSettings
from common.directory_config import DirectoryConfig
from common.machine import machine_ports
from common.node_settings.replication import ReplicationSettings
from common.pacing import Pacer, Work
from storage.audit.audit_trail import NoTrail
from storage.directory.log_directory import LogDirectory
from storage.log.log_config import LogConfig
from tests.sim.loop import NS, SimLoop, run
from tests.virtual_time import LoopClock

pytestmark = pytest.mark.virtual_time


class Surprising(HostedPartitions):
    """Fails whoever looks for unsettled partitions, and counts them."""

    looks = 0

    def __init__(self, logs: LogDirectory) -> None:
        super().__init__(0, logs, LogSettings(0, {}), lambda: 0.0, ReplicationSettings(), Pacer())
        self.looked_again = asyncio.Event()

    def review(self, partitions_max: int, stalled_s: float = 0.0) -> None:
        self.looks += 1
        if self.looks > 1:
            self.looked_again.set()
        raise KeyError("a surprise")


async def test_a_duty_that_fails_once_is_done_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ports = machine_ports(tmp_path)
    logs = LogDirectory(ports, "", 0, NoTrail(), DirectoryConfig())
    hosted = Surprising(logs)
    hosted.unsettled_partitions[object()] = None  # type: ignore[index]
    duties = Duties(hosted, logs, ports.clock, LogDuties(log_cleaner_enable=False), 60.0, 0.001, 1 << 20, 10.0, Pacer())
    duties.start()
    async with asyncio.timeout(5):
        await hosted.looked_again.wait()
    await duties.stop()
    assert "a duty failed" in caplog.text


def test_the_reviews_after_a_stall_give_its_time_back_to_followers(tmp_path: Path) -> None:
    given: dict[str, list[float]] = {"unsettled": [], "quiet": []}

    class Reviewed(HostedPartitions):
        def review(self, partitions_max: int, stalled_s: float = 0.0) -> None:
            given["unsettled"].append(stalled_s)

        def review_quiet(self, partitions_max: int, stalled_s: float = 0.0) -> None:
            given["quiet"].append(stalled_s)

    async def stall() -> None:
        ports, loop = machine_ports(tmp_path), cast(SimLoop, asyncio.get_running_loop())
        logs = LogDirectory(ports, "", 0, NoTrail(), DirectoryConfig())
        hosted = Reviewed(0, logs, LogSettings(0, {}), loop.time, ReplicationSettings(), Pacer())
        hosted.unsettled_partitions[object()] = None  # type: ignore[index]
        hosted.quiet_partitions[object()] = False  # type: ignore[index]
        config = LogDuties(log_cleaner_enable=False)
        duties = Duties(hosted, logs, ports.clock, config, 60.0, 0.1, 1 << 20, 10.0, Pacer())
        duties.start()
        await asyncio.sleep(1.0)
        loop.stall(3 * NS)
        await asyncio.sleep(1.0)
        await duties.stop()

    run(stall())
    for stalls in given.values():
        assert stalls[0] == 0
        assert 2.8 < stalls[-1] < 3.1


class Growing:
    """A partition whose log grows as fast as it is shortened; `steps` of retention."""

    holds_erased = False

    def __init__(self) -> None:
        self.log = self
        self.closed = False
        self.config = LogConfig()
        self.steps = 0

    async def when_in_memory(self, ask: Callable[[], int]) -> int:
        await asyncio.sleep(0.001)
        return ask()

    def delete_old_segments(self, now_ms: int) -> int:
        self.steps += 1
        return 1


async def test_a_log_that_grows_as_fast_as_it_is_shortened_does_not_keep_others_waiting(tmp_path: Path) -> None:
    ports, pacer = machine_ports(tmp_path), Pacer()
    logs = LogDirectory(ports, "", 0, NoTrail(), DirectoryConfig())
    hosted = HostedPartitions(0, logs, LogSettings(0, {}), lambda: 0.0, ReplicationSettings(), pacer)
    partitions = [Growing() for _ in range(3)]
    for number, partition in enumerate(partitions):
        hosted.by_id[bytes([number]) * 16] = {0: cast(Any, partition)}
    config = LogDuties(log_cleaner_enable=False, log_retention_check_interval_ms=50)
    duties = Duties(hosted, logs, LoopClock(), config, 60.0, 60.0, 1 << 20, 10.0, pacer)
    duties.start()
    await asyncio.sleep(1.0)
    await duties.stop()
    fewest, most = min(one.steps for one in partitions), max(one.steps for one in partitions)
    assert fewest > 20 and most < 3 * fewest


class Noting(Pacer):
    """Notes whose turns were taken."""

    def __init__(self) -> None:
        super().__init__()
        self.looks: list[Hashable] = []

    async def run(self, work: Work[Any], lane: Hashable = None, *, own: bool = False) -> Any:
        self.looks.append(lane)
        return await super().run(work, lane, own=own)


def test_idle_producers_are_looked_for_at_the_interval_that_is_set(tmp_path: Path) -> None:
    async def rounds() -> list[Hashable]:
        ports, pacer = machine_ports(tmp_path), Noting()
        logs = LogDirectory(ports, "", 0, NoTrail(), DirectoryConfig())
        hosted = HostedPartitions(0, logs, LogSettings(0, {}), lambda: 0.0, ReplicationSettings(), pacer)
        config = LogDuties(log_cleaner_enable=False, producers_expire_s=0.5)
        duties = Duties(hosted, logs, ports.clock, config, 60.0, 60.0, 1 << 20, 10.0, pacer)
        duties.start()
        await asyncio.sleep(2.2)
        await duties.stop()
        return pacer.looks

    assert run(rounds()).count("expire-producers") == 4


def test_the_cleaner_rests_as_long_as_was_said_last(tmp_path: Path) -> None:
    async def rounds() -> tuple[int, int]:
        ports, pacer = machine_ports(tmp_path), Noting()
        logs = LogDirectory(ports, "", 0, NoTrail(), DirectoryConfig(), pacer=pacer)
        hosted = HostedPartitions(0, logs, LogSettings(0, {}), lambda: 0.0, ReplicationSettings(), pacer)
        config = LogDuties(log_cleaner_backoff_ms=1_000)
        duties = Duties(hosted, logs, ports.clock, config, 60.0, 60.0, 1 << 20, 10.0, pacer)
        duties.start()
        await asyncio.sleep(10.5)
        slowly = pacer.looks.count("cleaner")
        duties.configure_cleaner(replace(config, log_cleaner_backoff_ms=100))
        await asyncio.sleep(10.5)
        await duties.stop()
        return slowly, pacer.looks.count("cleaner") - slowly

    slowly, quickly = run(rounds())
    assert slowly == 10
    assert 95 < quickly < 105


def test_several_duties_tell_of_one_stall_once_and_it_is_forgotten() -> None:
    stalls = Stalls(10.0)
    stalls.note(due=1.0, now=1.0 + STALL_MIN_S)  # a busy loop is no stall
    assert stalls.recent_s(2.0) == 0
    stalls.note(due=5.0, now=25.0)
    stalls.note(due=7.0, now=25.0)
    stalls.note(due=5.5, now=25.0)
    assert stalls.recent_s(26.0) == 20.0
    assert stalls.recent_s(36.0) == 0
