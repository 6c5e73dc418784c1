"""Transactional ids that are longer than any that a coordinator has: they must not come to one, nor wait for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.coordination.transactions.config import ID_BYTES_MAX, TransactionConfig, is_too_long
from broker.coordination.transactions.producers import check_init
from broker.coordination.transactions.values import NO_EPOCH, NO_PRODUCER_ID, InitProducer
from broker.handlers.transaction_verification import TransactionVerification
from broker.partitions.transactional_appends import Permission
from common.errors import ErrorCode, ProtocolError
from common.node_settings.transactions import VerificationSettings
from tests.broker.replication_lab import Lab, batch, eventually, produce
from tests.broker.transaction_lab import ToldCoordinators, coordinated, of_transaction
from wire.codec import decode_request, encode_request
from wire.messages import AddPartitionsToTxnRequest

pytestmark = pytest.mark.virtual_time

LONGEST_STRING = 0x7FFF
UNKNOWN = ErrorCode.INVALID_PRODUCER_ID_MAPPING
_Transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction


class Waiter:
    size = 0

    def permitted(self, permission: Permission) -> None:
        """It waits no more."""

    def refused(self, error: ErrorCode) -> None:
        raise AssertionError(error)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=8), st.integers(0, LONGEST_STRING))
@example(b"x", ID_BYTES_MAX)
@example(b"x", ID_BYTES_MAX + 1)
@example(b"\xff", ID_BYTES_MAX // 3)
@example(b"\xff", ID_BYTES_MAX // 3 + 1)
def test_what_is_not_too_long_is_read_by_a_coordinator(letters: bytes, times: int) -> None:
    """Clients may send any bytes, which are read as text and become bytes again."""
    name = ("lkc-aaaaaa_" if times % 2 else "") + (letters * times)[:LONGEST_STRING].decode(errors="replace")
    too_long = is_too_long(name)
    assert too_long is (len(name.encode()) > ID_BYTES_MAX)
    begin = InitProducer(name or "x", 1_000, NO_PRODUCER_ID, NO_EPOCH)
    if too_long:
        with pytest.raises(ProtocolError):
            check_init(begin, TransactionConfig())
        return
    row = _Transaction(transactional_id=name, producer_id=1, producer_epoch=0, verify_only=False, topics=[])
    frame = encode_request(AddPartitionsToTxnRequest(transactions=[row]), 5, 1, "c")
    assert decode_request(frame[4:])[1].transactions[0].transactional_id == name


@pytest.mark.parametrize("verifies", [True, False])
@pytest.mark.parametrize("version", [3, 11, 12, 13])
async def test_a_batch_with_too_long_an_id_is_refused_and_no_coordinator_is_asked(
    tmp_path: Path, version: int, *, verifies: bool
) -> None:
    """The error is that of an id that the coordinator does not know."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        coordinators = coordinated(lab)
        lab[0].plane.transactions.configure(VerificationSettings(verification_enable=verifies))
        client = await lab[0].connect()
        for too_long in ("x" * (ID_BYTES_MAX + 1), "x" * LONGEST_STRING):
            row = await produce(client, of_transaction(), version=version, transactional_id=too_long)
            assert (row.error_code, row.base_offset) == (UNKNOWN, -1)
        assert not coordinators.asked
        row = await produce(client, batch(b"plain"), version=version, transactional_id="x" * LONGEST_STRING)
        assert row.error_code == 0, "it is no batch of a transaction"
        row = await produce(client, of_transaction(), version=version, transactional_id="x" * ID_BYTES_MAX)
        assert row.error_code == 0


async def test_long_ids_count_as_memory_that_waits(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        await lab[0].connect()
        coordinators = ToldCoordinators(None)
        verification = TransactionVerification(VerificationSettings(waiting_bytes_max=1_000_000))
        verification.reach(coordinators)
        refused = set()
        for number in range(100):
            one = f"{number:0{ID_BYTES_MAX}}"
            try:
                verification.begin(lab[0].partition, one, number, 0, Waiter(), adds=True)
            except ProtocolError as error:
                refused.add(error.code)
        assert refused == {ErrorCode.NOT_ENOUGH_REPLICAS}
        assert 10 < len(coordinators.asked) < 32
        assert ID_BYTES_MAX * len(coordinators.asked) < verification.waiting_bytes <= 1_000_000
        coordinators.release()
        await eventually(lambda: not verification.waiting_count, "answered")
        assert verification.waiting_bytes == 0
