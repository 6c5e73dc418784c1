"""Between a truncation and the moment when its producers are read, a leader decides nothing by the old ones."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pytest

from broker.partitions.partition import Partition
from broker.tier.led import LedPartition, NotNow
from broker.tier.undecided import check_producers_read
from common.errors import ErrorCode, ProtocolError
from common.machine_disk import MachineDisk, MachineFile
from common.ports import Ports
from tests.broker.lab_client import LabClient
from tests.broker.replication_lab import TOPIC, Lab, eventually, list_offset, produce
from tests.broker.test_broker_produce import described
from tests.broker.test_transactions_markers import codes_of, handler_of, request_of
from tests.broker.transaction_lab import TXN_ID, coordinated, marker, of_transaction
from tests.virtual_time import lab_ports

pytestmark = pytest.mark.virtual_time
LATEST = -1
COMMITTED = {"isolation_level": 1}
KEY = (7, TOPIC, 0)


class FewFiles(MachineDisk):
    """Has no file to spare for reading a log again, until it recovers: a large log's producers take as long."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._is_out = False

    def run_out(self) -> None:
        self._is_out = True

    def recover(self) -> None:
        self._is_out = False

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        if self._is_out and path.endswith(".log"):
            raise OSError(errno.EMFILE, path)
        return super().open(path, create=create)


class Unread(NamedTuple):
    """A leader whose producers are those from before a truncation."""

    lab: Lab
    leader: Partition
    client: LabClient
    disk: FewFiles

    async def read(self) -> None:
        self.disk.recover()
        await eventually(lambda: self.leader.log.barred is None, "its producers are read")


@asynccontextmanager
async def unread(root: Path) -> AsyncIterator[Unread]:
    """The leader appended a marker that no follower fetched, truncated it as a follower, and leads again."""
    disks: dict[str, FewFiles] = {}

    def ports(path: Path) -> Ports:
        disks[path.name] = FewFiles(path)
        return replace(lab_ports(path), disk=disks[path.name])

    async with Lab(root, count=2, ports=ports) as lab:
        lab.controller.create_topic((0, 1))
        coordinated(lab)
        client, leader, disk = await lab[0].connect(), lab[0].partition, disks["broker-0"]
        await produce(client, of_transaction(), transactional_id=TXN_ID, version=11)
        await eventually(lambda: leader.high_watermark == 1)
        leader.append_marker(marker(), 5)
        disk.run_out()
        lab.controller.elect(1)
        await eventually(lambda: leader.log.log_end_offset == 1, "cut where it diverged")
        lab.controller.elect(0)
        await eventually(lambda: leader.is_leader and leader.high_watermark == 1, "leads again")
        assert leader.log.barred is not None
        try:
            yield Unread(lab, leader, client, disk)
        finally:
            disk.recover()  # a clean stop waits for producers that are read


async def test_a_marker_that_was_cut_does_not_count_as_repeated(tmp_path: Path) -> None:
    """NONE and INVALID_PRODUCER_EPOCH are final for the coordinator: it would never send the marker again."""
    async with unread(tmp_path) as world:
        lab, leader, _, _ = world
        handler = handler_of(lab)
        response = await handler.write(request_of({TOPIC: [0]}))
        assert codes_of(response)[KEY] == ErrorCode.KAFKA_STORAGE_ERROR
        await world.read()
        assert codes_of(await handler.write(request_of({TOPIC: [0]})))[KEY] == ErrorCode.NONE
        assert leader.log.log_end_offset == 2
        assert leader.last_stable_offset == 2


async def test_clients_are_refused_for_a_while_and_see_no_more_than_is_stable(tmp_path: Path) -> None:
    async with unread(tmp_path) as world:
        lab, leader, client, _ = world
        for version in (11, 12):  # of both protocols
            row = await produce(client, of_transaction(1), transactional_id=TXN_ID, version=version)
            assert row.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        with pytest.raises(ProtocolError) as refused:
            await lab[0].plane.transactions.permit(TXN_ID, 7, 0, leader, adds=True)
        assert refused.value.code is ErrorCode.KAFKA_STORAGE_ERROR
        assert leader.last_stable_offset == 0
        assert (await described(client)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (await list_offset(client, LATEST, **COMMITTED)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await list_offset(client, LATEST)).offset == 1, "who reads all is served"
        await world.read()
        (producer,) = (await described(client)).active_producers
        assert producer.current_txn_start_offset == 0
        assert (await list_offset(client, LATEST, **COMMITTED)).offset == 0
        row = await produce(client, of_transaction(1), transactional_id=TXN_ID, version=11)
        assert row.base_offset == 1


@pytest.mark.parametrize("adopting", [False, True])
async def test_a_leader_of_the_tier_waits_with_what_it_must_abort(tmp_path: Path, adopting: bool) -> None:
    async with unread(tmp_path) as world:
        leader = world.leader
        known = SimpleNamespace(record=SimpleNamespace(adopted_end_offset=1, adopting=adopting))
        led = cast(LedPartition, SimpleNamespace(partition=leader, known=known))
        if adopting:
            check_producers_read(led, lost=False)
        else:
            with pytest.raises(NotNow):
                check_producers_read(led, lost=False)
        with pytest.raises(NotNow):
            check_producers_read(led, lost=True)
        await world.read()
        check_producers_read(led, lost=True)
        assert leader.log.producers.count_opened(0, 1) > 0
