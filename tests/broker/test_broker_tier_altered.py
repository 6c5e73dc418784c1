"""Objects on the broker's own device that are altered after they were read: no wrong byte, and nobody else waits."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from common.errors import ErrorCode
from kraft.records import PartitionRecord
from object_store.directory_store import DirectoryStore
from object_store.limits import StoreLimits
from tests.broker.lab_tier import LabTier
from tests.broker.replication_lab import NEVER_MS, TOPIC_ID, Lab, eventually, fetch, row_of, values_of
from tests.broker.test_broker_cold_reads import Tiered
from tests.broker.test_broker_tier_damage import status
from tiering.reading.chunk_cache import Chunk, LentFile

SMALL, LARGE = 200, 150_000  # bytes of a value: regions that are read, and regions that go by sendfile


def overwrite(path: Path) -> None:
    data = path.read_bytes()
    middle = len(data) // 4
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(bytes(byte ^ 0xFF for byte in data[middle : middle + 50]))


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def replace(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


def delete(path: Path) -> None:
    path.unlink()


ALTERATIONS = [overwrite, truncate, replace, delete]


@asynccontextmanager
async def lent(root: Path) -> AsyncIterator[tuple[Tiered, Path]]:
    """One broker, two partitions, and a store in a directory beside the broker's own."""
    store = DirectoryStore(str(root / "tier"), StoreLimits(own_directory=str(root)))
    await store.open()
    async with Lab(root, count=1) as lab:
        lab.controller.create_topic((0,))
        lab.controller.change(PartitionRecord(TOPIC_ID, 1, (0,), (0,), 0, 0, 0))
        async with LabTier(lab[0], store) as tier:
            yield Tiered(lab, tier, await lab[0].connect()), root / "tier"
    await store.close()


def is_lent(world: Tiered) -> bool:
    chunks = world.tier.remote.cache._chunks.values()
    return bool(chunks) and all(isinstance(chunk.handle, LentFile) for chunk in chunks)


async def both(world: Tiered) -> dict[int, Any]:
    """The rows of one fetch of both partitions' first segments."""
    response = await fetch(world.client, 0, partitions=[(0, 0), (1, 0)], max_wait_ms=NEVER_MS)
    return {row.partition_index: row for row in response.responses[0].partitions}


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("alter", ALTERATIONS)
async def test_an_altered_object_is_refused_and_its_neighbour_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, alter: Callable[[Path], None], size: int
) -> None:
    async with lent(tmp_path) as (world, root):
        batches = 10 if size == SMALL else 1
        wanted = {index: await world.fill(2, batches, index=index, size=size) for index in (0, 1)}
        tier = await world.tier.copy(world.partition(0))
        await world.tier.copy(world.partition(1))
        segment = next(tier.segments())
        key = world.tier.key(tier, segment.id)
        remote = world.tier.remote
        for is_checked in (False, True):
            rows = await both(world)
            if is_checked:
                for index, values in wanted.items():
                    assert values_of(bytes(rows[index].records)) == values[: len(values) // 2]
            await eventually(lambda: not remote.downloads.running)
        assert is_lent(world)
        right = (root / key).read_bytes()
        caplog.clear()
        alter(root / key)
        with caplog.at_level(logging.WARNING):
            for is_checked in (False, True):
                rows = await both(world)
                assert rows[1].error_code == ErrorCode.NONE
                assert values_of(bytes(rows[1].records)) == wanted[1][: len(wanted[1]) // 2]
                sound = values_of(bytes(rows[0].records or b""))
                assert sound == wanted[0][: len(sound)]
                assert len(sound) < len(wanted[0]) // 2
                if is_checked:  # while it is not, what the neighbour has goes out without waiting
                    assert bool(sound) == (alter is overwrite and size == SMALL), "batches before the altered one"
                    assert rows[0].error_code == (ErrorCode.NONE if sound else ErrorCode.KAFKA_STORAGE_ERROR)
                await eventually(lambda: not remote.downloads.running)
        assert world.broker.violations == []
        assert {getattr(record, "key", None) for record in caplog.records} == {key}
        assert "flights" in key
        told = status(world)
        assert told.unreadable == 1
        assert told.read_trouble is not None
        assert key in told.read_trouble

        (root / key).write_bytes(right)
        remote.downloads._loop = SimpleNamespace(time=lambda: float("inf"))  # type: ignore[assignment]
        found = values_of(bytes(row_of(await fetch(world.client, 0)).records))
        assert found == wanted[0][: len(wanted[0]) // 2]
        assert status(world).unreadable == 0


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_a_reply_that_an_object_cuts_short_names_it_and_the_next_is_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    async with lent(tmp_path) as (world, root):
        await world.fill(2, 1, size=size)
        tier = await world.tier.copy(world.partition())
        key = world.tier.key(tier, next(tier.segments()).id)
        assert row_of(await fetch(world.client, 0)).error_code == ErrorCode.NONE

        def cut_off(chunk: Chunk) -> bool:
            os.truncate(root / chunk.name, size // 2)  # after the last look at it, before its bytes are taken
            return True

        with monkeypatch.context() as patch:
            patch.setattr(Chunk, "is_intact", cut_off)
            with pytest.raises(ConnectionError):
                await fetch(world.client, 0)
        (reason,) = world.broker.violations
        assert key in reason
        client = await world.broker.connect()
        for _ in range(2):
            assert row_of(await fetch(client, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(world.broker.violations) == 1
        assert status(world).unreadable == 1


async def test_what_is_altered_before_it_is_sent_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lent(tmp_path) as (world, root):
        await world.fill(2, 1, size=LARGE)
        tier = await world.tier.copy(world.partition())
        path = root / world.tier.key(tier, next(tier.segments()).id)
        assert row_of(await fetch(world.client, 0)).error_code == ErrorCode.NONE
        region = Chunk.region

        def altered(chunk: Chunk, start: int, end: int) -> object:
            made = region(chunk, start, end)
            overwrite(path)
            return made

        with monkeypatch.context() as patch:
            patch.setattr(Chunk, "region", altered)
            with pytest.raises(ConnectionError):
                await fetch(world.client, 0)
        assert row_of(await fetch(await world.broker.connect(), 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
