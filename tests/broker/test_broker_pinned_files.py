"""Replies that keep more segment files open than there should be: clients get a little at a time, followers all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from broker.handlers.fetch import FAIR_UNSENT_FILES
from kraft.records import PartitionRecord
from storage.disk.open_files import FileHandle
from tests.broker.lab_client import LabClient
from tests.broker.replication_lab import TOPIC_ID, Lab, LabBroker, batch, eventually, fetch, produce

pytestmark = pytest.mark.virtual_time

PARTITIONS = 12


@asynccontextmanager
async def at_pin_limit(root: Path, count: int = 1) -> AsyncIterator[tuple[Lab, LabClient, list[FileHandle]]]:
    """A lab with records in many partitions, a client, and files that others keep open."""
    async with Lab(root, count=count) as lab:
        replicas = tuple(range(count))
        lab.controller.create_topic(replicas)
        for index in range(1, PARTITIONS):
            lab.controller.change(PartitionRecord(TOPIC_ID, index, replicas, replicas, 0))
        client = await lab[0].connect()
        handles = crowd(lab[0])
        for index in range(PARTITIONS):
            assert (await produce(client, batch(b"v"), index=index)).error_code == 0
        yield lab, client, handles
        for handle in handles:
            handle.unpin()


def crowd(broker: LabBroker) -> list[FileHandle]:
    files = broker.logs.context.open_files
    handles: list[FileHandle] = []
    while not files.is_at_pin_limit:
        handles.append(FileHandle(files, f"other-{len(handles)}"))
        handles[-1].pin()
    return handles


def served(response: object) -> dict[int, bool]:
    """Partition index → whether it came with records; none may have an error."""
    (topic,) = response.responses  # type: ignore[attr-defined]
    assert {row.error_code for row in topic.partitions} == {0}
    return {row.partition_index: bool(row.records) for row in topic.partitions}


async def test_a_client_gets_some_partitions_at_a_time(tmp_path: Path) -> None:
    async with at_pin_limit(tmp_path) as (_, client, handles):
        wanted = [(index, 0) for index in range(PARTITIONS)]
        some = served(await fetch(client, 0, partitions=wanted))
        assert len(some) == PARTITIONS
        assert sum(some.values()) == FAIR_UNSENT_FILES
        for _ in range(PARTITIONS):
            handles.pop().unpin()
        assert all(served(await fetch(client, 0, partitions=wanted)).values())


async def test_a_session_comes_to_every_partition_in_turn(tmp_path: Path) -> None:
    async with at_pin_limit(tmp_path) as (_, client, _):
        response = await fetch(client, 0, session_epoch=0, partitions=[(index, 0) for index in range(PARTITIONS)])
        seen = {index for index, has_records in served(response).items() if has_records}
        for epoch in range(1, 2 * PARTITIONS // FAIR_UNSENT_FILES):
            moved = [(index, 1) for index in sorted(seen)] if epoch == 1 else []
            response = await fetch(
                client, 0, session_id=response.session_id, session_epoch=epoch, partitions=moved, max_wait_ms=50
            )
            if response.responses:
                seen |= {index for index, has_records in served(response).items() if has_records}
        assert seen == set(range(PARTITIONS))


async def test_followers_get_everything(tmp_path: Path) -> None:
    async with at_pin_limit(tmp_path, count=2) as (lab, _, _):
        logs = lab[1].logs
        await eventually(lambda: all(log.log_end_offset == 1 for log in logs.logs.values()))
        assert len(logs.logs) == PARTITIONS


async def test_nothing_stays_pinned(tmp_path: Path) -> None:
    async with at_pin_limit(tmp_path) as (lab, client, handles):
        await fetch(client, 0, partitions=[(index, 0) for index in range(PARTITIONS)])
        await eventually(lambda: lab[0].logs.context.open_files.pinned == len(handles))
        (connection,) = lab[0].server.connections
        assert connection.unsent_regions == 0
