"""Waiters for coordinators' answers that fail."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.partitions.transactional_appends import Permission
from common.errors import ErrorCode
from tests.broker.replication_lab import Lab, eventually
from tests.broker.transaction_lab import TXN_ID, coordinated

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
