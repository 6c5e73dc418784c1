"""Reads of what only the tier holds, through a broker: no seam, bounded waits, errors that can be told apart."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.partitions.partition import Partition
from broker.partitions.replica import Role
from broker.replication.preferred_replica import ASKS_AGAIN_S, STAY_S, Doubts, Redirections
from common.errors import ErrorCode
from kraft.records import PartitionRecord
from records.control import MarkerKind
from tests.broker.lab_client import LabClient
from tests.broker.lab_tier import LabTier
from tests.broker.replication_lab import (
    NEVER_MS,
    NOW_MS,
    PATIENCE_S,
    TOPIC_ID,
    Lab,
    LabBroker,
    batch,
    decode_all,
    eventually,
    fetch,
    list_offset,
    produce,
    row_of,
    values_of,
    within,
)
from tests.records.control_batches import build_control_batch

pytestmark = pytest.mark.virtual_time


class Tiered:
    """One broker with a tier and a topic."""

    def __init__(self, lab: Lab, tier: LabTier, client: LabClient) -> None:
        self.lab = lab
        self.tier = tier
        self.client = client

    @property
    def broker(self) -> LabBroker:
        return self.lab[0]

    def partition(self, index: int = 0) -> Partition:
        found = self.broker.plane.partitions.get("flights", index) or self.broker.partition
        assert found.index == index
        return found

    async def fill(self, segments: int, batches: int = 10, index: int = 0, size: int = 200) -> list[bytes]:
        """Closed segments; the values that are in them."""
        written: list[bytes] = []
        for _ in range(segments):
            for number in range(batches):
                values = [b"%d-%d-" % (len(written), number) + b"x" * size, b"y%d" % len(written)]
                await produce(self.client, batch(*values), index=index)
                written += values
            self.tier.roll(self.partition(index))
        return written

    async def all_values(self, client: LabClient, **options: Any) -> list[bytes | None]:
        """As a consumer reads from the log's start to the high watermark."""
        found: list[bytes | None] = []
        offset = 0
        while offset < self.partition().high_watermark:
            row = row_of(await fetch(client, offset, max_wait_ms=NEVER_MS, **options))
            assert row.error_code == 0
            records = [record for record in decode_all(bytes(row.records or b"")) if record.offset >= offset]
            assert not records or records[0].offset == offset, "no record is left out"
            found += [record.value for record in records]
            offset += len(records)
        return found


@asynccontextmanager
async def tiered(root: Path, count: int = 1, racks: tuple[str, ...] = ()) -> AsyncIterator[Tiered]:
    async with Lab(root, count=count, racks=racks) as lab:
        lab.controller.create_topic(tuple(range(count)))
        async with LabTier(lab[0]) as tier:
            yield Tiered(lab, tier, await lab[0].connect())


@pytest.mark.parametrize("limits", [{}, {"partition_max_bytes": 700}, {"max_bytes": 3_000, "version": 17}])
async def test_a_consumer_sees_no_seam_between_tier_and_disk(tmp_path: Path, limits: dict[str, int]) -> None:
    async with tiered(tmp_path) as world:
        written: list[bytes | None] = [*await world.fill(5, 20)]
        await world.tier.copy(world.partition(), keep=2)
        await produce(world.client, batch(b"hot"))
        log = world.partition().log
        assert log.log_start_offset == 0 < log.local_log_start_offset < log.log_end_offset
        assert await world.all_values(world.client, **limits) == [*written, b"hot"]


async def test_a_session_reads_the_tier_and_goes_on_at_the_end(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        written = await world.fill(3)
        await world.tier.copy(world.partition())
        response = await fetch(world.client, 0, session_epoch=0)
        session, epoch, offset, found = response.session_id, 1, 0, values_of(bytes(row_of(response).records))
        assert session > 0
        while len(found) < len(written):
            offset = len(found)
            response = await fetch(world.client, offset, session_id=session, session_epoch=epoch, max_wait_ms=NEVER_MS)
            found += values_of(bytes(row_of(response).records))
            epoch += 1
        assert found == written
        waiting = asyncio.create_task(
            fetch(world.client, len(found), session_id=session, session_epoch=epoch, max_wait_ms=NEVER_MS)
        )
        await asyncio.sleep(0.02)
        await produce(await world.broker.connect(), batch(b"new"))
        assert values_of(bytes(row_of(await within(PATIENCE_S, waiting)).records)) == [b"new"]


async def test_several_cold_partitions_and_a_hot_one_in_one_fetch(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        world.lab.controller.change(*[PartitionRecord(TOPIC_ID, index, (0,), (0,), 0, 0, 0) for index in (1, 2)])
        wanted: dict[int, list[bytes]] = {}
        for index in range(3):
            wanted[index] = await world.fill(2, index=index)
            if index < 2:
                await world.tier.copy(world.partition(index))
        found: dict[int, list[bytes | None]] = {0: [], 1: [], 2: []}
        for _ in range(200):
            places = [(index, len(found[index])) for index in range(3) if len(found[index]) < len(wanted[index])]
            if not places:
                break
            response = await fetch(world.client, 0, partitions=places, partition_max_bytes=1_500, max_wait_ms=NEVER_MS)
            for row in response.responses[0].partitions:
                found[row.partition_index] += values_of(bytes(row.records or b""))
        assert found == wanted


async def test_a_hot_position_does_not_wait_for_a_cold_one(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        world.lab.controller.change(PartitionRecord(TOPIC_ID, 1, (0,), (0,), 0, 0, 0))
        written = await world.fill(2)
        await world.tier.copy(world.partition())
        await produce(world.client, batch(b"hot"), index=1)
        world.tier.store.gate.clear()
        world.tier.set_wait(NEVER_MS)
        response = await within(PATIENCE_S, fetch(world.client, 0, partitions=[(0, 0), (1, 0)], max_wait_ms=NEVER_MS))
        rows = {row.partition_index: row for row in response.responses[0].partitions}
        assert values_of(bytes(rows[1].records)) == [b"hot"]
        assert (rows[0].error_code, bytes(rows[0].records or b"")) == (0, b"")
        waiting = asyncio.create_task(fetch(world.client, 0, partitions=[(0, 0), (1, 1)], max_wait_ms=NEVER_MS))
        await asyncio.sleep(0.02)
        await produce(await world.broker.connect(), batch(b"hotter"), index=1)
        response = await within(PATIENCE_S, waiting)
        rows = {row.partition_index: row for row in response.responses[0].partitions}
        assert values_of(bytes(rows[1].records)) == [b"hotter"]
        world.tier.store.gate.set()
        assert (await world.all_values(world.client))[0] == written[0]


@pytest.mark.parametrize("max_wait_ms", [0, 20, NEVER_MS])
async def test_a_slow_store_bounds_the_wait_and_the_next_fetch_finds_the_bytes(
    tmp_path: Path, max_wait_ms: int
) -> None:
    async with tiered(tmp_path) as world:
        written = await world.fill(2)
        await world.tier.copy(world.partition())
        world.tier.store.gate.clear()
        loop = asyncio.get_running_loop()
        began = loop.time()
        row = row_of(await within(PATIENCE_S, fetch(world.client, 0, max_wait_ms=max_wait_ms)))
        took = loop.time() - began
        assert (row.error_code, bytes(row.records or b"")) == (0, b"")
        assert took >= world.tier.wait_ms / 1000 - 0.05
        gets = len(world.tier.store.gets)
        world.tier.store.gate.set()
        await eventually(lambda: world.tier.store.running == 0)
        row = row_of(await fetch(world.client, 0, max_wait_ms=max_wait_ms))
        assert values_of(bytes(row.records))[0] == written[0]
        assert len(world.tier.store.gets) <= gets + 3, "the index that was under way is not fetched again"


async def test_few_bytes_from_the_tier_end_the_wait(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(1, 1)
        await world.tier.copy(world.partition())
        world.tier.set_wait(NEVER_MS)
        row = row_of(await within(PATIENCE_S, fetch(world.client, 0, min_bytes=1 << 20, max_wait_ms=NEVER_MS)))
        assert bytes(row.records)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("unclaimed", ErrorCode.OFFSET_NOT_AVAILABLE),
        ("down", ErrorCode.OFFSET_NOT_AVAILABLE),
        ("missing", ErrorCode.KAFKA_STORAGE_ERROR),
        ("truncated", ErrorCode.KAFKA_STORAGE_ERROR),
        ("altered", ErrorCode.KAFKA_STORAGE_ERROR),
        ("another lineage", ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_a_fault_is_told_at_a_bounded_rate_and_harms_only_its_range(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str, error: ErrorCode
) -> None:
    caplog.set_level(logging.WARNING)
    async with tiered(tmp_path) as world:
        written = await world.fill(3)
        tier = await world.tier.copy(world.partition())
        first = tier.find(0)
        assert first is not None
        key, objects = world.tier.key(tier, first.id), world.tier.store.objects
        data, info = objects[key]
        if fault == "unclaimed":
            world.tier.claimed = False
        elif fault == "down":
            world.tier.store.break_down()
        elif fault == "missing":
            del objects[key]
        elif fault == "truncated":
            objects[key] = (data[:50], info)
        elif fault == "altered":
            objects[key] = (data[:100] + bytes([data[100] ^ 16]) + data[101:], info)
        else:
            world.partition().log.leader_epochs.truncate_from_end(0)
            world.partition().log.leader_epochs.assign(7, 0)
        loop = asyncio.get_running_loop()
        began, replies = loop.time(), 0
        while replies < 3:
            row = row_of(await fetch(world.client, 0, max_wait_ms=10))
            assert row.error_code == error
            replies += 1
        assert loop.time() - began >= 3 * (world.tier.wait_ms / 1000 - 0.05), "no busy loop"
        if error is ErrorCode.KAFKA_STORAGE_ERROR:
            assert any(record.__dict__.get("key") == key for record in caplog.records)
            if fault != "another lineage":
                row = row_of(await fetch(world.client, first.end_offset))
                assert values_of(bytes(row.records))[0] == written[first.end_offset]
        hot = row_of(await fetch(world.client, world.partition().high_watermark, max_wait_ms=0))
        assert hot.error_code == 0


async def test_readers_who_leave_are_forgotten(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(2)
        await world.tier.copy(world.partition())
        world.tier.store.gate.clear()
        other = await world.broker.connect()
        waiting = asyncio.create_task(fetch(other, 0, max_wait_ms=NEVER_MS))
        await eventually(lambda: world.tier.store.running)
        downloads = world.tier.remote.downloads
        assert downloads.awaited == 1
        other.close()
        await asyncio.gather(waiting, return_exceptions=True)
        await eventually(lambda: not downloads.awaited)
        assert downloads.running == 1, "it goes on for the next reader"


async def test_offsets_below_the_log_start_are_out_of_range(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        written = await world.fill(3)
        partition = world.partition()
        await world.tier.copy(partition)
        partition.log.advance_log_start(25, "test")
        await world.tier.copy(partition)
        assert row_of(await fetch(world.client, 24)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        row = row_of(await fetch(world.client, 25))
        assert written[25] in values_of(bytes(row.records))


async def test_a_log_start_within_a_segment_of_several_epochs_is_no_other_lineage(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        partition = world.partition()
        written = []
        for epoch in range(3):
            written += [b"%d-%d" % (epoch, number) for number in range(5)]
            await produce(world.client, batch(*written[-5:]))
            world.lab.controller.elect(0)
        world.tier.roll(partition)
        await world.tier.copy(partition)
        for start in (0, 3, 5, 7, 12):
            partition.log.advance_log_start(start, "test")
            await world.tier.copy(partition)
            found = row_of(await fetch(world.client, start, max_wait_ms=NEVER_MS))
            assert written[start] in values_of(bytes(found.records))


async def test_read_committed_is_told_of_aborted_transactions(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        partition = world.partition()
        log = partition.log

        def append(data: bytes) -> None:
            buffer = bytearray(data)
            log.append_as_leader(buffer, memoryview(buffer), 0, len(buffer), partition.leader_epoch, NOW_MS)
            partition.advance()

        def transactional(producer: int, sequence: int, *values: bytes) -> None:
            append(batch(*values, producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True))

        def end(producer: int, kind: MarkerKind) -> None:
            append(
                bytes(
                    build_control_batch(
                        kind, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW_MS
                    )
                )
            )

        transactional(1, 0, b"aborted", b"aborted")
        transactional(2, 0, b"kept")
        end(1, MarkerKind.ABORT)
        world.tier.roll(partition)
        transactional(3, 0, b"aborted, and the marker is in the next segment")
        end(2, MarkerKind.COMMIT)
        world.tier.roll(partition)
        end(3, MarkerKind.ABORT)
        world.tier.roll(partition)
        transactional(4, 0, b"aborted on the disk")
        transactional(4, 1, b"here, too")
        end(4, MarkerKind.ABORT)
        append(batch(b"plain"))
        local = [log.aborted_transactions(offset, log.log_end_offset) for offset in range(log.log_end_offset)]
        await world.tier.copy(partition)
        assert log.local_log_start_offset == 7

        for offset in range(7):
            row = row_of(await fetch(world.client, offset, isolation=1, max_wait_ms=NEVER_MS))
            told = [(one.producer_id, one.first_offset) for one in row.aborted_transactions]
            last = decode_all(bytes(row.records))[-1].offset
            expected = [(producer, first) for producer, first in local[offset] if first <= last]
            assert told == expected, offset
            assert row_of(await fetch(world.client, offset, isolation=0)).aborted_transactions in (None, [])


async def test_offsets_by_time_are_those_of_an_untiered_log(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        for segment in range(4):
            for number in range(5):
                await produce(world.client, batch(*[b"%d" % (segment * 10 + number)] * (1 + number % 3)))
            world.tier.roll(world.partition())
        await produce(world.client, batch(b"last"))
        times = [*range(NOW_MS - 1, NOW_MS + 5), -3, 0]

        async def ask() -> list[tuple[int, int, int, int]]:
            rows = [await list_offset(world.client, timestamp) for timestamp in times]
            return [(row.error_code, row.timestamp, row.offset, row.leader_epoch) for row in rows]

        untiered = await ask()
        await world.tier.copy(world.partition())
        assert await ask() == untiered
        world.partition().log.advance_log_start(3, "test")
        assert (await list_offset(world.client, 0)).offset == 3


async def test_the_ends_of_tier_and_disk(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(4, 5)
        log = world.partition().log

        async def ask() -> list[tuple[int, int]]:
            rows = [await list_offset(world.client, timestamp, 11) for timestamp in (-2, -4, -5, -6)]
            return [(row.error_code, row.offset) for row in rows]

        assert await ask() == [(0, 0), (0, 0), (0, -1), (0, -1)], "no tier"
        tier = await world.tier.copy(world.partition(), keep=2)
        local = log.local_log_start_offset
        assert local < tier.tier_end_offset == 40
        assert await ask() == [(0, 0), (0, local), (0, 39), (0, 40)]
        world.tier.claimed = False
        again = int(ErrorCode.OFFSET_NOT_AVAILABLE)
        assert await ask() == [(0, 0), (0, local), (again, -1), (again, -1)]
        assert (await list_offset(world.client, NOW_MS)).error_code == again
        assert (await list_offset(world.client, -1)).offset == 40, "the hot end needs no tier"


async def test_a_look_up_in_a_store_that_is_down_is_a_retriable_error(tmp_path: Path) -> None:
    async with tiered(tmp_path) as world:
        await world.fill(2)
        await world.tier.copy(world.partition())
        world.tier.store.break_down()
        assert (await list_offset(world.client, NOW_MS)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


async def test_followers_send_readers_of_the_tier_back_to_the_leader(tmp_path: Path) -> None:
    async with tiered(tmp_path, 3, ("a", "b", "c")) as world:
        written = await world.fill(3)
        follower = world.lab[1].partition
        await eventually(lambda: follower.high_watermark == len(written))
        await world.tier.copy(world.partition(), keep=3)
        async with LabTier(world.lab[1]) as tier:
            tier.roll(follower)
            await tier.copy(follower)
        there = await world.lab[1].connect()
        row = row_of(await fetch(there, 0, rack="b", current_leader_epoch=follower.leader_epoch))
        assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert row.high_watermark == -1, "librdkafka goes back to the leader only when its offset is above this"
        row = row_of(await fetch(there, 0, rack="b"))
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "it may take this follower for the leader"
        asked_at = world.lab[1].plane.partitions.now()
        await eventually(lambda: world.lab[1].plane.partitions.now() >= asked_at + ASKS_AGAIN_S)
        assert row_of(await fetch(there, 0, rack="b")).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        offset = world.partition().log.local_log_start_offset
        assert row_of(await fetch(world.client, 0, rack="b")).preferred_read_replica == -1, "cold offsets stay here"
        assert row_of(await fetch(world.client, offset, rack="b")).preferred_read_replica == 1
        for place in (offset, offset + 2):
            row = row_of(await fetch(world.client, place, rack="b"))
            assert row.preferred_read_replica == -1, "it has been there, and is back"
            assert bytes(row.records)


@pytest.mark.parametrize("rack", ["", "a", "b"])
async def test_a_deposed_leader_tells_no_reader_that_its_offset_is_out_of_range(tmp_path: Path, rack: str) -> None:
    """A client from before KIP-320 names no epoch; out of range would have it go on at the log's end."""
    async with tiered(tmp_path, 3, ("a", "b", "c")) as world:
        written = await world.fill(3)
        old = world.partition()
        await world.tier.copy(old, keep=3)
        offsets = [*range(len(written) + 1), len(written) + 9]
        world.lab.controller.elect(1)
        await eventually(lambda: old.role is Role.FOLLOWER)
        assert old.log.local_log_start_offset > 0
        for offset in offsets:
            row = row_of(await fetch(world.client, offset, max_wait_ms=0, rack=rack))
            if rack == "a" and old.log.local_log_start_offset <= offset <= len(written):
                assert row.error_code == ErrorCode.NONE, "whoever was sent here is served"
            else:
                assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, offset


def test_a_follower_believes_whoever_keeps_asking_that_it_was_sent() -> None:
    doubts = Doubts()
    assert not doubts.was_sent("a", 5, 0.0)
    assert not doubts.was_sent("a", 5, ASKS_AGAIN_S / 2)
    assert not doubts.was_sent("b", 5, ASKS_AGAIN_S), "another reader"
    assert doubts.was_sent("a", 5, ASKS_AGAIN_S)
    assert not doubts.was_sent("a", 6, ASKS_AGAIN_S + 1), "it has read elsewhere meanwhile"
    assert not doubts.was_sent("a", 6, ASKS_AGAIN_S + 1 + STAY_S), "that was long ago"


def test_a_reader_that_comes_back_may_be_sent_away_again_later() -> None:
    redirections = Redirections()
    assert redirections.may_redirect("a", 5, 0.0)
    assert redirections.may_redirect("a", 9, 1.0), "it has read there meanwhile"
    assert not redirections.may_redirect("a", 9, 2.0)
    assert not redirections.may_redirect("a", 20, 3.0)
    assert redirections.may_redirect("b", 9, 2.0)
    assert redirections.may_redirect("a", 20, 3.0 + STAY_S)
