"""What a broker does from time to time goes on, whatever happens to one round of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.config import LogDuties
from broker.duties import STALL_MIN_S, Duties, Stalls
from broker.partitions.hosted import HostedPartitions
from broker.partitions.log_settings import LogSettings
from common.machine import machine_ports
from common.pacing import Pacer
from storage.audit_trail import NoTrail
from storage.log_context import DirectoryConfig
from storage.log_directory import LogDirectory


class Surprising(HostedPartitions):
    """Fails whoever looks for unsettled partitions, and counts them."""

    looks = 0

    def __init__(self, logs: LogDirectory) -> None:
        super().__init__(0, logs, LogSettings(0, {}), lambda: 0.0, 10.0, Pacer())
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


def test_several_duties_tell_of_one_stall_once_and_it_is_forgotten() -> None:
    stalls = Stalls(10.0)
    stalls.note(due=1.0, now=1.0 + STALL_MIN_S)  # a busy loop is no stall
    assert stalls.recent_s(2.0) == 0
    stalls.note(due=5.0, now=25.0)
    stalls.note(due=7.0, now=25.0)
    stalls.note(due=5.5, now=25.0)
    assert stalls.recent_s(26.0) == 20.0
    assert stalls.recent_s(36.0) == 0
