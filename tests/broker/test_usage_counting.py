"""What clients use is counted where it passes: time at the loop, records at their partition."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.security.session import ClientSession
from broker.security.usage import Usage
from common.pacing import Pacer, Strain
from common.ports import Ports
from kraft.records import RemoveTopicRecord
from tests.broker.replication_lab import NEVER_MS, TOPIC_ID, Lab, batch, fetch, produce, row_of
from tests.virtual_time import LoopClock, lab_ports

pytestmark = pytest.mark.virtual_time


async def test_a_partition_counts_what_is_appended_and_what_consumers_get(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client, data = await lab[0].connect(), batch(b"x" * 300)
        hosted, partition = lab[0].plane.partitions, lab[0].partition
        assert hosted.take_busy() == {}
        for _ in range(2):
            await produce(client, data)
        assert (partition.bytes_in, partition.bytes_out) == (2 * len(data), 0), "followers are no clients"
        row = row_of(await fetch(client, 0))
        assert partition.bytes_out == len(row.records) == 2 * len(data)
        assert hosted.take_busy() == {partition: (0, 0)}
        assert partition.look_at_bytes() == (2 * len(data), 2 * len(data)) and hosted.take_busy() == {}
        await fetch(client, 2, max_wait_ms=1)
        assert hosted.take_busy() == {}, "nothing was sent"
        await produce(client, data)
        assert hosted.take_busy() == {partition: (2 * len(data), 2 * len(data))}
        assert lab[1].partition.bytes_in == 0, "a follower's copy is not counted"


async def test_a_partition_that_is_gone_is_busy_no_longer(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        await produce(client, batch(b"x"))
        lab.controller.change(RemoveTopicRecord(TOPIC_ID))
        assert len(lab[0].plane.partitions) == 0
        assert lab[0].plane.partitions.take_busy() == {}


class BusyClock(LoopClock):
    """A clock that each reading moves by a microsecond, as if time passed within the callbacks of the loop."""

    def __init__(self) -> None:
        self.readings = 0
        super().__init__()

    def monotonic(self) -> float:
        self.readings += 1
        return super().monotonic() + self.readings / 1e6


def busy_ports(root: Path) -> Ports:
    return replace(lab_ports(root), clock=BusyClock())


def used_by(lab: Lab) -> list[Usage]:
    """What each client uses, in the order of their connections."""
    sessions = [connection.state for connection in lab[0].server.connections]
    return [one.usage for one in sessions if isinstance(one, ClientSession) and not one.internal]


async def test_time_counts_for_the_client_also_when_its_answer_comes_later(tmp_path: Path) -> None:
    async with Lab(tmp_path, ports=busy_ports) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"x"))
        (used,) = used_by(lab)
        assert used.busy_s > 0, "its answer, when the followers had it"
        waiting = asyncio.create_task(fetch(client, 1, max_wait_ms=NEVER_MS))
        await asyncio.sleep(0.1)
        before = used.busy_s
        await produce(await lab[0].connect(), batch(b"y"))
        await waiting
        assert used.busy_s > before, "the fetch that was woken"


async def test_slices_and_the_steps_between_them_count_for_the_lane() -> None:
    now, heard = [0.0], list[tuple[Any, float]]()
    pacer = Pacer(slice_cost=10, inline_cost=0, strain=Strain(lambda: now[0], lambda: 0, lambda: None))
    pacer.tell(lambda group, seconds: heard.append((group, seconds)))

    def work() -> Any:
        for _ in range(3):
            now[0] += 1.0
            yield 10
        return "done"

    async def handling() -> str:
        now[0] += 0.25
        return str(await pacer.run(work(), "alpha"))

    assert await pacer.metered(handling(), "alpha") == "done"
    assert {group for group, _ in heard} == {"alpha"} and sum(seconds for _, seconds in heard) == 3.25
    heard.clear()
    await pacer.run(work(), "upkeep", own=True)
    await pacer.metered(asyncio.sleep(0), None)
    assert heard == []
