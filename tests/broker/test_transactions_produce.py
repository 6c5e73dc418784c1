"""Transactional batches: what a coordinator is asked, what waits for it, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.transaction_verification import TransactionVerification
from broker.handlers.transactional_produce import TransactionalProduce, for_client
from broker.partitions.transactional_appends import Permission
from common.errors import ErrorCode, ProtocolError
from common.node_settings.transactions import VerificationSettings
from records.builder import build_batch
from records.record import Record
from tests.broker.replication_lab import NOW_MS, PATIENCE_S, Lab, batch, eventually, produce, within
from tests.broker.transaction_lab import TXN_ID, ToldCoordinators, coordinated, marker, of_transaction
from wire.hot_codec import ProduceCall, ProducedPart

pytestmark = pytest.mark.virtual_time

OLD, NEW = 11, 12


async def send(client: Any, data: bytes, **options: Any) -> Any:
    return await produce(client, data, transactional_id=TXN_ID, **options)


@pytest.mark.parametrize("version", [3, 10, OLD, NEW, 13])
async def test_a_transaction_is_asked_for_once(tmp_path: Path, version: int) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab)
        client = await lab[0].connect()
        for sequence in range(3):
            row = await send(client, of_transaction(sequence), version=version)
            assert (row.error_code, row.base_offset) == (0, sequence)
        [question] = told.asked
        assert (question.transactional_id, question.producer_id, question.topic, question.partition) == (
            TXN_ID, 7, "flights", 0,
        )  # fmt: skip
        assert question.verify_only is (version < NEW)
        partition = lab[0].partition
        assert (partition.high_watermark, partition.last_stable_offset) == (3, 0)
        marked = partition.append_marker(marker(epoch=1 if version >= NEW else 0, new_protocol=version >= NEW), 5)
        assert (marked, partition.last_stable_offset) == ((4, False), 4)


@pytest.mark.parametrize(
    ("answer", "before_11", "at_11", "from_12"),
    [
        (ErrorCode.NOT_COORDINATOR, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 3),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 3),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 3),
        (ErrorCode.NETWORK_EXCEPTION, *[ErrorCode.NOT_ENOUGH_REPLICAS] * 3),
        (
            ErrorCode.CONCURRENT_TRANSACTIONS,
            *[ErrorCode.NOT_ENOUGH_REPLICAS] * 2,
            ErrorCode.CONCURRENT_TRANSACTIONS,
        ),
        (ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, *[ErrorCode.TRANSACTION_ABORTABLE] * 2),
        (ErrorCode.INVALID_TXN_STATE, *[ErrorCode.INVALID_TXN_STATE] * 3),
        (ErrorCode.PRODUCER_FENCED, *[ErrorCode.INVALID_PRODUCER_EPOCH] * 3),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, *[ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 3),
    ],
)
async def test_coordinators_errors_as_clients_know_them(
    tmp_path: Path, answer: ErrorCode, before_11: ErrorCode, at_11: ErrorCode, from_12: ErrorCode
) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, answer)
        client = await lab[0].connect()
        for version, error in ((10, before_11), (11, at_11), (12, from_12), (13, from_12)):
            row = await send(client, of_transaction(), version=version)
            assert (row.error_code, row.base_offset) == (error, -1), version
        assert lab[0].partition.log.log_end_offset == 0
        told.answer = ErrorCode.NONE
        assert (await send(client, of_transaction())).base_offset == 0, "a refusal leaves nothing behind"


async def test_the_previous_transaction_is_waited_for_a_short_while(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, ErrorCode.CONCURRENT_TRANSACTIONS)
        client = await lab[0].connect()
        await send(client, of_transaction(), version=OLD)
        assert len(told.asked) == 1, "these clients come again themselves"
        loop = asyncio.get_running_loop()
        begun = loop.time()
        row = await send(client, of_transaction(), version=NEW)
        assert row.error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        assert 0.06 <= loop.time() - begun < 0.2
        tries = len(told.asked)
        assert 7 <= tries - 1 <= 10, "soon at first, then every 20 ms"
        sending = asyncio.create_task(send(client, of_transaction(), version=NEW))
        await eventually(lambda: len(told.asked) == tries + 2, "asked again")
        told.answer = ErrorCode.NONE
        assert (await sending).error_code == 0


async def test_a_producers_batches_wait_in_order_and_others_pass(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        clients = [await lab[0].connect() for _ in range(4)]
        waiting = []
        for sequence in range(3):
            data = of_transaction(sequence, value=b"%d" % sequence)
            waiting.append(asyncio.create_task(send(clients[sequence], data)))
            await asyncio.sleep(0.01)
        assert (await produce(clients[3], batch(b"plain"))).base_offset == 0
        other = batch(b"other", producer_id=8, producer_epoch=0, base_sequence=0)
        assert (await produce(clients[3], other)).base_offset == 1
        assert not any(task.done() for task in waiting)
        assert lab[0].plane.transactions.waiting_count == 1
        told.release()
        assert [(await task).base_offset for task in waiting] == [2, 3, 4]
        assert lab[0].values() == [b"plain", b"other", b"0", b"1", b"2"]
        assert len(told.asked) == 1
        assert lab[0].plane.transactions.waiting_bytes == 0


@pytest.mark.parametrize("version", [OLD, NEW])
async def test_a_marker_voids_what_waits(tmp_path: Path, version: int) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        client = await lab[0].connect()
        late = asyncio.create_task(send(client, of_transaction(), version=version))
        await eventually(lambda: told.held, "asked")
        new = version >= NEW
        lab[0].partition.append_marker(marker(epoch=1 if new else 0, commit=False, new_protocol=new), 5)
        told.release()
        row = await within(PATIENCE_S, late)
        error = ErrorCode.INVALID_PRODUCER_EPOCH if new else ErrorCode.INVALID_TXN_STATE
        assert (row.error_code, row.base_offset) == (error, -1)
        assert lab[0].partition.log.log_end_offset == 1, "the marker alone"
        assert lab[0].partition.last_stable_offset == 1


async def test_the_marker_of_the_transaction_before_leaves_the_next_its_permission(tmp_path: Path) -> None:
    """In the new protocol the marker has the epoch of the next transaction, whose first batch may be here before it."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab)
        client, partition = await lab[0].connect(), lab[0].partition
        for epoch, times in ((0, 1), (2, 2)):
            assert (await send(client, of_transaction(epoch=epoch), version=NEW)).error_code == 0
            told.answer = None
            waiting = asyncio.create_task(send(client, of_transaction(epoch=epoch + 1), version=NEW))
            await eventually(lambda: told.held, "asked")
            for _ in range(times):
                partition.append_marker(marker(epoch=epoch + 1, new_protocol=True), 5)
            told.release()
            assert (await within(PATIENCE_S, waiting)).error_code == 0
            partition.append_marker(marker(epoch=epoch + 2, new_protocol=True), 5)
            told.answer = ErrorCode.NONE


async def test_a_late_batch_of_the_transaction_before_is_not_taken_for_one_of_the_next(tmp_path: Path) -> None:
    """Both have the same epoch in the old protocol, and the next transaction is open when the late answer comes."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        clients = [await lab[0].connect() for _ in range(2)]
        late = asyncio.create_task(send(clients[0], of_transaction(0), version=OLD))
        await eventually(lambda: told.held, "asked")
        answer_late = told.held.pop()
        lab[0].partition.append_marker(marker(commit=False), 5)
        next_one = asyncio.create_task(send(clients[1], of_transaction(0, value=b"next"), version=OLD))
        await eventually(lambda: told.held, "asked again")
        told.release()
        assert (await next_one).base_offset == 1
        answer_late(ErrorCode.NONE)
        assert (await late).error_code == ErrorCode.INVALID_TXN_STATE
        assert lab[0].partition.log.log_end_offset == 2


async def test_a_newer_epoch_voids_what_waits(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        clients = [await lab[0].connect() for _ in range(3)]
        late = asyncio.create_task(send(clients[0], of_transaction(epoch=3)))
        await eventually(lambda: told.held, "asked")
        newer = asyncio.create_task(send(clients[1], of_transaction(epoch=4)))
        await eventually(lambda: len(told.held) == 2, "asked for the newer one")
        row = await send(clients[2], of_transaction(epoch=3))
        assert row.error_code == ErrorCode.INVALID_PRODUCER_EPOCH, "at once: a newer one is known"
        told.release()
        assert (await late).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        assert (await newer).base_offset == 0


async def test_a_lost_leadership_voids_what_waits(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=2) as lab:
        lab.controller.create_topic((0, 1))
        told = coordinated(lab, None)
        client = await lab[0].connect()
        late = asyncio.create_task(send(client, of_transaction()))
        await eventually(lambda: told.held, "asked")
        lab.controller.elect(1)
        lab.controller.elect(0)
        await eventually(lambda: lab[0].partition.is_leader, "leads again")
        told.release()
        row = await within(PATIENCE_S, late)
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert lab[0].partition.log.log_end_offset == 0


async def test_a_batch_whose_request_timed_out_is_never_appended(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        client = await lab[0].connect()
        row = await send(client, of_transaction(), timeout_ms=100)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        told.release()
        await asyncio.sleep(0.1)
        assert lab[0].partition.log.log_end_offset == 0
        told.answer = ErrorCode.NONE
        assert (await send(client, of_transaction())).base_offset == 0
        assert len(told.asked) == 1, "no marker has come, so the answer holds"


async def test_the_new_protocol_begins_an_epoch_at_sequence_0(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        coordinated(lab)
        client = await lab[0].connect()
        await asyncio.sleep(PATIENCE_S)  # its leadership began long ago
        row = await send(client, of_transaction(5), version=NEW)
        assert row.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await send(client, of_transaction(5, producer_id=8), version=OLD)).base_offset == 0


async def test_what_waits_is_bounded(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        lab[0].plane.transactions.configure(VerificationSettings(waiting_max=2, waiting_bytes_max=3_000))
        clients = [await lab[0].connect() for _ in range(6)]
        waiting = [asyncio.create_task(send(clients[at], of_transaction(producer_id=at))) for at in range(2)]
        await eventually(lambda: len(told.held) == 2, "both are asked")
        row = await send(clients[2], of_transaction(producer_id=2))
        assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "too many producers"
        row = await send(clients[3], of_transaction(1, producer_id=0, value=b"x" * 3_000))
        assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS, "too many bytes"
        told.release()
        assert sorted([(await task).base_offset for task in waiting]) == [0, 1]
        told.answer = ErrorCode.NONE
        row = await send(clients[2], of_transaction(producer_id=2))
        assert row.error_code == 0


@pytest.mark.parametrize(("size", "most"), [(100, 16), (400_000, 3), (3_000_000, 1)])
async def test_a_turn_of_the_loop_tells_few_waiters(tmp_path: Path, size: int, most: int) -> None:
    """Each of them may append its batch, so a transaction of many partitions or long batches must not hold the loop."""
    verification = TransactionVerification(VerificationSettings(waiting_bytes_max=1 << 30))
    told = ToldCoordinators(None)
    verification.reach(told)
    turn: list[int] = []

    class Waiter:
        def __init__(self) -> None:
            self.size = size

        def permitted(self, permission: Permission) -> None:
            turn.append(size)

        def refused(self, error: ErrorCode) -> None:
            raise AssertionError(error)

    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        await lab[0].connect()
        for number in range(40):
            verification.begin(lab[0].partition, TXN_ID, number // 2, 0, Waiter(), adds=True)
        told.release()
        turns = []
        while verification.waiting_count:
            await asyncio.sleep(0)
            turns.append(len(turn))
            turn.clear()
    assert sum(turns) == 40
    assert max(turns) == most


async def test_verification_can_be_disabled_for_the_old_protocol(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab)
        lab[0].plane.transactions.configure(VerificationSettings(verification_enable=False))
        client = await lab[0].connect()
        assert (await send(client, of_transaction(), version=OLD)).base_offset == 0
        assert not told.asked
        assert (await send(client, of_transaction(producer_id=8), version=NEW)).base_offset == 1
        assert len(told.asked) == 1, "nobody else adds the partition"


async def test_a_repeated_batch_of_an_ended_transaction_is_appended_no_more(tmp_path: Path) -> None:
    """Also where the coordinator has a new transaction with that partition."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab)
        client = await lab[0].connect()
        await send(client, of_transaction(), version=OLD)
        lab[0].partition.append_marker(marker(), 5)
        told.answer = ErrorCode.INVALID_TXN_STATE
        assert (await send(client, of_transaction(), version=OLD)).error_code == ErrorCode.INVALID_TXN_STATE
        assert (await send(client, of_transaction(1), version=OLD)).error_code == ErrorCode.INVALID_TXN_STATE
        told.answer = ErrorCode.NONE
        row = await send(client, of_transaction(), version=OLD)
        assert (row.error_code, row.base_offset) == (0, 0)
        assert (await send(client, of_transaction(1), version=OLD)).base_offset == 2


async def test_a_plain_batch_within_a_transaction_is_refused(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        coordinated(lab)
        client = await lab[0].connect()
        await send(client, of_transaction())
        plain = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=1)
        assert (await send(client, plain)).error_code == ErrorCode.INVALID_TXN_STATE
        assert (await send(client, batch(b"y"))).base_offset == 1, "a transactional id alone makes no transaction"


async def test_inspected_batches_take_part_in_transactions(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), cleanup_policy="compact")
        told = coordinated(lab, None)
        client = await lab[0].connect()
        keyless = build_batch(
            [Record(0, NOW_MS, None, b"x")], producer_id=7, producer_epoch=0, base_sequence=0, transactional=True
        )
        assert (await send(client, bytes(keyless))).error_code == ErrorCode.INVALID_RECORD
        assert not told.asked
    async with Lab(tmp_path / "recompressed", count=1) as lab:
        lab.controller.create_topic((0,), compression_type="zstd")
        told = coordinated(lab, None)
        client = await lab[0].connect()
        sending = asyncio.create_task(send(client, of_transaction()))
        await eventually(lambda: told.held, "asked")
        told.release()
        assert (await sending).base_offset == 0
        assert lab[0].partition.last_stable_offset == 0


async def test_permit_is_for_others_that_append(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, ErrorCode.TRANSACTION_ABORTABLE)
        partition, verification = lab[0].partition, lab[0].plane.transactions
        with pytest.raises(ProtocolError) as refused:
            await verification.permit(TXN_ID, 7, 0, partition, adds=True)
        assert refused.value.code is ErrorCode.TRANSACTION_ABORTABLE
        told.answer = ErrorCode.NONE
        permission = await verification.permit(TXN_ID, 7, 0, partition, adds=True)
        partition.check_permission(permission)
        assert await verification.permit(TXN_ID, 7, 0, partition, adds=True) is permission
        partition.append_records(bytearray(of_transaction()), partition.leader_epoch, 5)
        partition.check_permission(permission)
        partition.append_marker(marker(), 5)
        with pytest.raises(ProtocolError) as void:
            partition.check_permission(permission)
        assert void.value.code is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("epoch", [3, 4, 32_767])
@pytest.mark.parametrize("is_open", [False, True])
async def test_what_a_stranger_claims_concerns_nobody_else(tmp_path: Path, epoch: int, is_open: bool) -> None:
    """Producer ids are small numbers, and all tenants of a cell share the partitions of `__consumer_offsets`."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab)
        partition, verification = lab[0].partition, lab[0].plane.transactions
        permission = await verification.permit(TXN_ID, 7, 3, partition, adds=True)
        if is_open:
            partition.append_records(bytearray(of_transaction(epoch=3)), partition.leader_epoch, 5)
        told.answer = None
        claim = asyncio.create_task(verification.permit("stranger", 7, epoch, partition, adds=True))
        await eventually(lambda: told.held, "asked, though the producer of another id may send")
        for _ in range(2):
            partition.check_permission(permission)
            assert await verification.permit(TXN_ID, 7, 3, partition, adds=True) is permission
            told.release(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            with pytest.raises(ProtocolError) as refused:
                await claim
            assert refused.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        client = await lab[0].connect()
        sequence = 1 if is_open else 0
        assert (await send(client, of_transaction(sequence, epoch=3), version=NEW)).base_offset == sequence


async def test_a_stranger_shares_no_question(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab, None)
        partition, verification = lab[0].partition, lab[0].plane.transactions
        for first, second in (("stranger", TXN_ID), (TXN_ID, "stranger")):
            asked = len(told.asked)
            permits = {
                name: asyncio.create_task(verification.permit(name, 7, 0, partition, adds=True))
                for name in (first, second)
            }
            await eventually(lambda: len(told.held) == 2, "both are asked")
            answers = dict(zip((one.transactional_id for one in told.asked[asked:]), told.held, strict=True))
            told.held.clear()
            answers["stranger"](ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            with pytest.raises(ProtocolError) as refused:
                await permits["stranger"]
            assert refused.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
            answers[TXN_ID](ErrorCode.NONE)
            partition.check_permission(await permits[TXN_ID])
            partition.append_marker(marker(), 5)
            assert verification.waiting_count == 0


async def test_a_strangers_batch_holds_back_and_refuses_nobody_elses(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab)
        clients = [await lab[0].connect() for _ in range(2)]
        assert (await send(clients[0], of_transaction())).base_offset == 0
        told.answer = None
        claim = asyncio.create_task(produce(clients[1], of_transaction(epoch=9), transactional_id="stranger"))
        await eventually(lambda: told.held, "asked")
        assert (await within(PATIENCE_S, send(clients[0], of_transaction(1)))).base_offset == 1
        told.release(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        assert (await claim).error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await send(clients[0], of_transaction(2))).base_offset == 2


@pytest.mark.parametrize("adds", [False, True])
async def test_groups_partitions_are_asked_for_whatever_the_setting_says(tmp_path: Path, *, adds: bool) -> None:
    """Tenants share them: the victim's marker would be refused for the epoch that a stranger has named."""
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        told = coordinated(lab)
        partition, verification = lab[0].partition, lab[0].plane.transactions
        verification.configure(VerificationSettings(verification_enable=False))
        permission = await verification.permit(TXN_ID, 7, 1, partition, adds=adds)
        partition.check_permission(permission)
        partition.append_records(bytearray(of_transaction(-1, epoch=1)), partition.leader_epoch, 5)
        told.answer = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        with pytest.raises(ProtocolError) as refused:
            await verification.permit("stranger", 7, 32_767, partition, adds=adds)
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert partition.append_marker(marker(epoch=1), 5) == (2, False)
        assert (partition.last_stable_offset, len(told.asked), verification.waiting_count) == (2, 2, 0)


async def test_rights_and_producers_of_a_request() -> None:
    verification = TransactionVerification(VerificationSettings())
    handler = TransactionalProduce(verification, SimpleNamespace(), SimpleNamespace())
    asked: list[tuple[int, int, str]] = []

    class Rights:
        def may(self, operation: int, resource: int, name: str) -> bool:
            asked.append((operation, resource, name))
            return name == "mine"

    def refusal(transactional_id: bytes, *batches: bytes) -> ErrorCode | None:
        data, parts = b"".join(batches), []
        for number, one in enumerate(batches):
            start = sum(map(len, batches[:number]))
            parts.append(ProducedPart(b"t", number, start, start + len(one)))
        call = ProduceCall(transactional_id, -1, 1000, parts)
        return handler.refusal(call, memoryview(data), Rights())  # type: ignore[arg-type]

    assert refusal(b"mine", of_transaction()) is None
    assert refusal(b"theirs", of_transaction()) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert refusal(b"theirs", batch(b"plain"), b"") is None, "no transactional batch"
    assert refusal(b"mine", of_transaction(), of_transaction(producer_id=8)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert refusal(b"mine", of_transaction(), of_transaction(1)) is None
    assert asked[0] == (4, 5, "mine")


def test_a_timeout_is_no_word_of_the_coordinator() -> None:
    assert for_client(ErrorCode.REQUEST_TIMED_OUT, 13).code is ErrorCode.NOT_ENOUGH_REPLICAS
