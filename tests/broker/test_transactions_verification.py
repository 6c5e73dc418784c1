"""Whom coordinators are asked for, and waiters for their answers that fail."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from broker.partitions.partition import Partition
from broker.partitions.transactional_appends import Permission
from common.errors import ErrorCode, ProtocolError
from tests.broker.replication_lab import Lab, eventually, produce
from tests.broker.transaction_lab import TXN_ID, coordinated, of_transaction

pytestmark = pytest.mark.virtual_time


async def test_a_waiter_that_fails_keeps_no_others_waiting(tmp_path: Path) -> None:
    failures: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(str(context["exception"])))
    told_waiters: list[int] = []

    class Waiter:
        size = 100

        def __init__(self, number: int) -> None:
            self.number = number

        def permitted(self, permission: Permission) -> None:
            told_waiters.append(self.number)
            if self.number == 1:
                raise RuntimeError("a bug")

        def refused(self, error: ErrorCode) -> None:
            raise AssertionError(error)

    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        verification = lab[0].plane.transactions
        for number in range(4):
            verification.begin(lab[0].partition, TXN_ID, number // 2, 0, Waiter(number), adds=True)
        told.release()
        await eventually(lambda: verification.waiting_count == 0, "all are told")
    assert told_waiters == [0, 1, 2, 3]
    assert (failures, verification.waiting_bytes) == (["a bug"], 0)


@pytest.mark.parametrize("adds", [False, True])
async def test_after_an_election_a_stranger_gets_no_part_in_an_open_transaction(tmp_path: Path, adds: bool) -> None:
    """Tenants share the partitions of `__consumer_offsets`, and the log does not say whose a transaction is."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        coordinator = coordinated(lab)
        partition, verification = lab[0].partition, lab[0].plane.transactions
        permission = await verification.permit(TXN_ID, 7, 3, partition, adds=adds)
        partition.check_permission(permission)
        partition.append_records(bytearray(of_transaction(-1, epoch=3)), partition.leader_epoch, 5)
        for _ in range(2):
            epoch = partition.leader_epoch
            lab.controller.elect(0)
            await eventually(partial(_has_left, partition, epoch), "elected")
            coordinator.answer = ErrorCode.INVALID_PRODUCER_ID_MAPPING
            for _ in range(2):
                with pytest.raises(ProtocolError) as refused:
                    await verification.permit("stranger", 7, 3, partition, adds=adds)
                assert refused.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            coordinator.answer = ErrorCode.NONE
            asked = len(coordinator.asked)
            for _ in range(2):
                partition.check_permission(await verification.permit(TXN_ID, 7, 3, partition, adds=adds))
            assert len(coordinator.asked) == asked + 1, "once in a transaction and leadership"


def _has_left(partition: Partition, epoch: int) -> bool:
    return partition.leader_epoch > epoch


async def test_in_plain_topics_an_open_transaction_goes_on_without_a_question(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        coordinator = coordinated(lab)
        client, partition = await lab[0].connect(), lab[0].partition
        assert (await produce(client, of_transaction(), transactional_id=TXN_ID, version=12)).base_offset == 0
        lab.controller.elect(0)
        await eventually(lambda: partition.leader_epoch == 1, "elected")
        assert (await produce(client, of_transaction(1), transactional_id=TXN_ID, version=12)).base_offset == 1
        assert len(coordinator.asked) == 1
