"""Batches that wait before they are appended: for their inspection, or for a transaction's coordinator."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from broker.handlers.record_inspection import Inspected, RecordInspection
from broker.partitions.config import LogDuties
from broker.partitions.partition import FIRST_BATCH_PATIENCE_S
from common.errors import ErrorCode, ProtocolError
from common.invariants import InvariantViolation
from kraft.records import PartitionRecord, TopicRecord
from tests.broker.lab_client import LabClient
from tests.broker.replication_lab import Lab, batch, eventually, produce
from tests.broker.transaction_lab import TXN_ID, coordinated, of_transaction
from tests.sim.loop import NS, THREAD_COUNT
from tests.virtual_time import VirtualLoop

pytestmark = pytest.mark.virtual_time

QUEUED_BYTES_MAX = LogDuties().recompression_bytes_queued_max
ALPHA, ALSO_ALPHA, BETA, OPERATORS = "lkc-aaaaaa_t", "lkc-aaaaaa_u", "lkc-bbbbbb_t", "flights"
LARGE = 1_000  # bytes of a record
LONG_MS = 9_000


class InspectingLab(Lab):
    """One broker, which has led its topic for long; each batch has to be inspected."""

    async def begin(self) -> None:
        self.controller.create_topic((0,), compression_type="gzip")
        await asyncio.sleep(FIRST_BATCH_PATIENCE_S)

    async def occupy_threads(self, seconds: float) -> None:
        """Nothing is inspected for so long."""
        loop = cast(VirtualLoop, asyncio.get_running_loop())
        for _ in range(THREAD_COUNT):
            loop.run_in_executor(None, loop.stall, int(seconds * NS))
        await asyncio.sleep(0.01)

    def fill_queue(self, room: int, done: Inspected = lambda batch: None) -> None:
        """Somebody's batches wait for their inspection, and leave `room` for others."""
        self[0].plane.inspection.submit(self[0].partition, bytes(QUEUED_BYTES_MAX - room), done)


def numbered(sequence: int, size: int = 10, producer_id: int = 7) -> bytes:
    return batch(b"x" * size, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)


async def test_what_was_in_flight_behind_a_batch_that_found_the_queue_full_waits_for_it(tmp_path: Path) -> None:
    async with InspectingLab(tmp_path, count=1) as lab:
        await lab.begin()
        client = await lab[0].connect()
        await lab.occupy_threads(0.5)
        lab.fill_queue(room=LARGE)
        refused = await produce(client, numbered(0, LARGE))
        assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await produce(client, numbered(1))).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [(await produce(client, numbered(at))).base_offset for at in (0, 1)] == [0, 1]


async def test_it_waits_for_it_also_if_its_inspection_comes_late(tmp_path: Path) -> None:
    async with InspectingLab(tmp_path, count=1) as lab:
        await lab.begin()
        client = await lab[0].connect()
        await lab.occupy_threads(2 * FIRST_BATCH_PATIENCE_S)
        lab.fill_queue(room=LARGE)
        assert (await produce(client, numbered(0, LARGE))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        behind = await produce(client, numbered(1), timeout_ms=LONG_MS)
        assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await produce(client, numbered(0, LARGE))).base_offset == 0
        assert (await produce(client, numbered(40, producer_id=8))).base_offset == 1, "perhaps it was forgotten"


async def test_what_was_in_flight_behind_a_batch_that_timed_out_in_the_queue_waits_for_it(tmp_path: Path) -> None:
    async with InspectingLab(tmp_path, count=1) as lab:
        await lab.begin()
        clients = [await lab[0].connect() for _ in range(2)]
        await lab.occupy_threads(0.5)
        first = asyncio.create_task(produce(clients[0], numbered(0), timeout_ms=200))
        await asyncio.sleep(0.1)
        behind = await produce(clients[1], numbered(1))
        assert (await first).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [(await produce(clients[0], numbered(at))).base_offset for at in (0, 1)] == [0, 1]


async def test_a_full_queue_holds_up_no_producer_that_was_forgotten(tmp_path: Path) -> None:
    """Refusals count for new producers alone: others may find the queue full as often as they like."""
    async with InspectingLab(tmp_path, count=1) as lab:
        await lab.begin()
        client = await lab[0].connect()
        assert (await produce(client, numbered(0))).base_offset == 0
        await lab.occupy_threads(0.5)
        lab.fill_queue(room=LARGE)
        for refused in (numbered(1, LARGE), batch(b"x" * LARGE)):
            assert (await produce(client, refused)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await produce(client, numbered(40, producer_id=8))).base_offset == 1


async def test_a_surprise_behind_the_inspection_of_one_batch_holds_up_none_behind_it(tmp_path: Path) -> None:
    """It may be a broken invariant: the loop's handler stops the node then."""
    reported: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    surprise = InvariantViolation("planted")

    def surprised(inspected: bytearray | ProtocolError) -> None:
        raise surprise

    async with InspectingLab(tmp_path, count=1) as lab:
        await lab.begin()
        client = await lab[0].connect()
        await lab.occupy_threads(0.5)
        lab.fill_queue(room=LARGE, done=surprised)
        assert (await produce(client, numbered(0))).base_offset == 0
        assert (await produce(client, numbered(1))).base_offset == 1
        assert reported == [surprise]
        assert lab[0].partition not in lab[0].plane.inspection


async def test_a_tenant_leaves_room_for_what_others_have_inspected(tmp_path: Path) -> None:
    """Its batches may take long to inflate, and it has as many topics and clients as it likes."""
    inspection = RecordInspection(at_once_max=2, queued_bytes_max=12_000, inflated_bytes_max=1 << 20)
    async with Lab(tmp_path, count=1) as lab:
        for topic in (ALPHA, ALSO_ALPHA, BETA, OPERATORS):
            topic_id = topic.encode()[-16:].rjust(16)
            lab.controller.change(TopicRecord(topic, topic_id), PartitionRecord(topic_id, 0, (0,), (0,), 0, 0, 0))
        partitions = lab[0].plane.partitions

        def admitted(topic: str, size: int = 1_000) -> int:
            partition = partitions.get(topic, 0)
            assert partition is not None
            for number in range(100):
                try:
                    inspection.submit(partition, bytes(size), lambda batch: None)
                except ProtocolError as error:
                    return number if error.code is ErrorCode.NOT_ENOUGH_REPLICAS else -1
            return 100

        for _ in range(2):
            assert [admitted(topic) for topic in (ALPHA, ALSO_ALPHA, BETA)] == [6, 0, 3]
            assert admitted(OPERATORS) == 3, "the operators may have all that is left"
            await eventually(lambda: not any(partition in inspection for partition in partitions), "inspected")
        assert admitted(ALPHA, 11_000) == 1, "one batch may be longer than a tenant's part"
        await inspection.close()


async def send_in_transaction(client: LabClient, sequence: int) -> tuple[ErrorCode, int]:
    data = of_transaction(sequence)
    row = await produce(client, data, transactional_id=TXN_ID, version=11, timeout_ms=LONG_MS)
    return ErrorCode(row.error_code), row.base_offset


async def test_what_waits_long_for_a_coordinator_does_not_come_before_what_was_refused(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        coordinator = coordinated(lab, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        clients = [await lab[0].connect() for _ in range(2)]
        await asyncio.sleep(FIRST_BATCH_PATIENCE_S)
        assert await send_in_transaction(clients[0], 0) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
        coordinator.answer = None
        behind = asyncio.create_task(send_in_transaction(clients[0], 1))
        await asyncio.sleep(2 * FIRST_BATCH_PATIENCE_S)
        again = asyncio.create_task(send_in_transaction(clients[1], 0))
        await asyncio.sleep(0.1)
        coordinator.release()
        assert await behind == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
        assert await again == (ErrorCode.NONE, 0)


async def test_what_came_in_a_later_leadership_does_not_come_before_what_waited_since_an_earlier_one(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        coordinator = coordinated(lab, None)
        clients = [await lab[0].connect() for _ in range(2)]
        first = asyncio.create_task(send_in_transaction(clients[0], 0))
        await asyncio.sleep(0.1)
        lab.controller.elect(0)
        await asyncio.sleep(FIRST_BATCH_PATIENCE_S)
        behind = asyncio.create_task(send_in_transaction(clients[1], 1))
        await asyncio.sleep(0.1)
        coordinator.release()
        assert [await one for one in (first, behind)] == [(ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)] * 2
        coordinator.answer = ErrorCode.NONE
        for sequence in (0, 1):
            assert await send_in_transaction(clients[0], sequence) == (ErrorCode.NONE, sequence)
