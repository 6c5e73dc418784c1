"""Objects on the broker's own device that are altered after they were read: no wrong byte, and nobody else waits."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.backoff import Backoff
from common.errors import ErrorCode
from common.machine_disk import MachineFile
from common.ports import File, FileIdentity
from kraft.records import PartitionRecord
from object_store.directory_store import DirectoryStore
from object_store.limits import StoreLimits
from tests.broker.lab_tier import LIMITS, LabTier
from tests.broker.replication_lab import NEVER_MS, TOPIC_ID, Lab, eventually, fetch, row_of, values_of
from tests.broker.test_broker_cold_reads import Tiered
from tests.broker.test_broker_tier_damage import status
from tiering.reading.downloads import DownloadLimits

QUICK = replace(LIMITS, downloads=DownloadLimits(4, 1 << 20, Backoff(0.01, 0.05)))
SMALL, LARGE = 200, 150_000  # bytes of a value: regions that are read, and regions that go by sendfile


def overwrite(path: Path) -> None:
    data = path.read_bytes()
    middle = len(data) // 4
    with path.open("r+b") as file:
        file.seek(middle)
        file.write(bytes(byte ^ 0xFF for byte in data[middle : middle + 50]))


def truncate(path: Path) -> None:
    os.truncate(path, 100)


def exchange(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


def delete(path: Path) -> None:
    path.unlink()


ALTERATIONS = [overwrite, truncate, exchange, delete]


class LookedAt(MachineFile):
    """A lent file whose store is told each time that somebody has looked whether it is unchanged."""

    __slots__ = ("_store",)

    def __init__(self, fd: int, store: AlteredStore) -> None:
        super().__init__(fd)
        self._store = store

    def identity(self) -> FileIdentity:
        found = super().identity()
        self._store.looked()
        return found


class AlteredStore(DirectoryStore):
    """Objects of it are altered just after the broker has looked at them."""

    def __init__(self, root: Path) -> None:
        super().__init__(str(root / "tier"), StoreLimits(own_directory=str(root)))
        self._looks_left = 0
        self._alter: Callable[[], None] = lambda: None

    def after_look(self, number: int, alter: Callable[[], None]) -> None:
        """Alter an object after the so many-th look from now on: the first is taken as a read finds the bytes, the
        second before they are sent."""
        self._looks_left, self._alter = number, alter

    def looked(self) -> None:
        self._looks_left -= 1
        if self._looks_left == 0:
            self._alter()

    async def lend(self, key: str, start: int = 0, length: int = 0) -> File | None:
        file = await super().lend(key, start, length)
        return LookedAt(file.fd, self) if isinstance(file, MachineFile) else file


@asynccontextmanager
async def lent(root: Path) -> AsyncIterator[tuple[Tiered, Path, AlteredStore]]:
    """One broker, two partitions, and a store in a directory beside the broker's own."""
    store = AlteredStore(root)
    await store.open()
    async with Lab(root, count=1) as lab:
        lab.controller.create_topic((0,))
        lab.controller.change(PartitionRecord(TOPIC_ID, 1, (0,), (0,), 0, 0, 0))
        async with LabTier(lab[0], store, QUICK) as tier:
            yield Tiered(lab, tier, await lab[0].connect()), root / "tier", store
    await store.close()


def is_lent(world: Tiered) -> bool:
    """Whether objects are read where they lie, and none from a copy."""
    cache = world.tier.remote.cache
    return cache.open_count > 0 and cache.bytes_used == 0


async def both(world: Tiered) -> dict[int, Any]:
    """The rows of one fetch of both partitions' first segments."""
    response = await fetch(world.client, 0, partitions=[(0, 0), (1, 0)], max_wait_ms=NEVER_MS)
    return {row.partition_index: row for row in response.responses[0].partitions}


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("alter", ALTERATIONS)
async def test_an_altered_object_is_refused_and_its_neighbour_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, alter: Callable[[Path], None], size: int
) -> None:
    async with lent(tmp_path) as (world, root, _):
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
        while (row := row_of(await fetch(world.client, 0))).error_code:  # until it is tried again
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        found = values_of(bytes(row.records))
        assert found == wanted[0][: len(wanted[0]) // 2]
        assert status(world).unreadable == 0


@pytest.mark.parametrize("size", [SMALL, LARGE])
async def test_a_reply_that_an_object_cuts_short_names_it_and_the_next_is_an_answer(tmp_path: Path, size: int) -> None:
    async with lent(tmp_path) as (world, root, store):
        await world.fill(2, 1, size=size)
        tier = await world.tier.copy(world.partition())
        key = world.tier.key(tier, next(tier.segments()).id)
        assert row_of(await fetch(world.client, 0)).error_code == ErrorCode.NONE

        store.after_look(2, lambda: os.truncate(root / key, size // 2))
        with pytest.raises(ConnectionError):
            await fetch(world.client, 0)
        (reason,) = world.broker.violations
        assert key in reason
        assert " bytes" in reason, "they were missed as they were to be sent"
        client = await world.broker.connect()
        for _ in range(2):
            assert row_of(await fetch(client, 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert len(world.broker.violations) == 1
        assert status(world).unreadable == 1


async def test_what_is_altered_before_it_is_sent_is_not_sent(tmp_path: Path) -> None:
    async with lent(tmp_path) as (world, root, store):
        await world.fill(2, 1, size=LARGE)
        tier = await world.tier.copy(world.partition())
        path = root / world.tier.key(tier, next(tier.segments()).id)
        assert row_of(await fetch(world.client, 0)).error_code == ErrorCode.NONE
        store.after_look(1, lambda: overwrite(path))
        with pytest.raises(ConnectionError):
            await fetch(world.client, 0)
        (reason,) = world.broker.violations
        assert "it was altered" in reason
        assert row_of(await fetch(await world.broker.connect(), 0)).error_code == ErrorCode.KAFKA_STORAGE_ERROR
