"""How much of what waits for coordinators one tenant may have."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from broker.handlers.transaction_verification import TransactionVerification
from broker.partitions.transactional_appends import Permission
from common.errors import ErrorCode, ProtocolError
from common.node_settings.transactions import VerificationSettings
from tests.broker.replication_lab import Lab, eventually
from tests.broker.transaction_lab import TXN_ID, ToldCoordinators

pytestmark = pytest.mark.virtual_time

ALPHA, BETA, GAMMA = "lkc-aaaaaa_t", "lkc-bbbbbb_t", "lkc-cccccc_t"


class Waiter:
    def __init__(self, size: int) -> None:
        self.size = size

    def permitted(self, permission: Permission) -> None:
        """It waits no more."""

    def refused(self, error: ErrorCode) -> None:
        raise AssertionError(error)


class Askers:
    """Producers that begin transactions in a partition of `lab`, whose coordinators are silent until `answered`."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._told = ToldCoordinators(None)
        self._producer_ids = count()
        self.verification = TransactionVerification(VerificationSettings(waiting_max=12, waiting_bytes_max=12_000))
        self.verification.reach(self._told)

    def admitted(self, transactional_id: str, size: int = 0, *, is_one: bool = False) -> int:
        """How many more producers of that id may wait; `is_one`: how many batches of one producer."""
        producer_id = next(self._producer_ids)
        for number in range(100):
            try:
                self.verification.begin(
                    self._lab[0].partition, transactional_id, producer_id, 0, Waiter(size), adds=True
                )
            except ProtocolError as error:
                return number if error.code is ErrorCode.NOT_ENOUGH_REPLICAS else -1
            producer_id = producer_id if is_one else next(self._producer_ids)
        return 100

    async def answered(self) -> None:
        self._told.release()
        await eventually(lambda: not self.verification.waiting_count, "answered")
        assert self.verification.waiting_bytes == 0


async def test_a_tenant_leaves_room_for_what_others_wait_for(tmp_path: Path) -> None:
    """Its coordinator may be slow, and its clients can name any producers."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        await lab[0].connect()
        askers = Askers(lab)
        assert [askers.admitted(one) for one in (ALPHA, BETA, ALPHA, GAMMA)] == [6, 3, 0, 1]
        assert askers.admitted(TXN_ID) == 2, "the operators may have all that is left"
        await askers.answered()
        assert askers.admitted(ALPHA, 1_500, is_one=True) == 3, "bytes, also behind one question"
        assert [askers.admitted(one, 1_500) for one in (BETA, ALPHA, GAMMA)] == [1, 0, 1]
        await askers.answered()
        assert askers.admitted(ALPHA, 11_000) == 1, "one batch may be longer than a tenant's part"
        assert askers.admitted(TXN_ID) == 1
        await askers.answered()
        assert askers.admitted(TXN_ID) == 12
        await askers.answered()
