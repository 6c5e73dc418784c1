"""From journals to `__audit`: in order, each event once, through lost answers, new leaders and new starts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from broker.audit.config import AuditConfig
from broker.audit.shipper import ATTEMPTS_BEFORE_FEWER_REPLICAS, AuditShipper
from broker.audit.topic_host import AuditTopicHost, Entry, Position, last_positions
from broker.handlers.internal import AppendAudit
from common.errors import ErrorCode, ProtocolError
from common.machine_disk import MachineDisk
from kraft.image.metadata import MetadataImage
from kraft.records import PartitionChangeRecord, PartitionRecord, TopicRecord
from records.audit_event import (
    EVENT_BYTES_MAX,
    AuditEvent,
    AuditKind,
    AuditSource,
    decode_audit_event,
    encode_audit_event,
)
from records.record import decode_records
from storage.audit.audit_journal import JOURNAL_DIRECTORY, AuditJournal
from storage.audit.audit_trail import Act, audited, require
from storage.audit.journal_writer import JournalWriter
from tests.broker.replication_lab import Lab, LabBroker, eventually
from tests.virtual_time import LoopClock
from wire.client import CallTimeout, ConnectionLost
from wire.messages import AppendAuditRequest, AppendAuditResponse

pytestmark = pytest.mark.virtual_time

AUDIT = "__audit"
LISTENER = "NODES"
AUDIT_ID = bytes(range(16, 32))
ONE, OTHER = "1" * 32, "2" * 32
FAST = AuditConfig(linger_ms=1, backoff_min_ms=1, backoff_max_ms=20)


def make_topic(lab: Lab, *replicas: int) -> None:
    lab.controller.change(TopicRecord(AUDIT, AUDIT_ID), PartitionRecord(AUDIT_ID, 0, replicas, replicas, replicas[0]))


def host_of(broker: LabBroker) -> AuditTopicHost:
    return AuditTopicHost(broker.plane.partitions, LoopClock())


def entries(*sequences: int) -> list[Entry]:
    return [Entry(sequence, b"event %d" % sequence) for sequence in sequences]


def values(broker: LabBroker) -> list[bytes]:
    partition = broker.plane.partitions.get(AUDIT, 0)
    assert partition is not None
    log, found, offset = partition.log, list[bytes](), 0
    while offset < log.log_end_offset:
        region = log.read(offset, 1 << 20, log.log_end_offset)
        assert region is not None
        data = memoryview(region.read())
        region.release()
        at = 0
        while at < len(data):
            size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
            records = decode_records(data, at, size, inflated_bytes_max=1 << 20)
            found += [record.value or b"" for record in records]
            offset, at = records[-1].offset + 1, at + size
    return found


async def test_the_topic_takes_each_event_once(tmp_path: Path) -> None:
    async with Lab(tmp_path, 1) as lab:
        make_topic(lab, 0)
        host = host_of(lab[0])
        assert await host.append(0, 7, ONE, []) == -1
        assert await host.append(0, 7, ONE, entries(0, 1, 2)) == 2
        assert await host.append(0, 7, ONE, entries(1, 2, 4)) == 4, "a gap is an event that stayed in its journal"
        assert await host.append(0, 8, OTHER, entries(0)) == 0
        assert await host.append(0, 7, ONE, entries(2, 4)) == 4
        assert values(lab[0]) == [b"event %d" % n for n in (0, 1, 2, 4, 0)]
        with pytest.raises(ProtocolError, match="INVALID_REQUEST"):
            await host.append(0, 7, ONE, entries(6, 5))
        assert await host.append(0, 7, OTHER, entries(0)) == 0, "a broker with a new disk counts anew"


async def test_a_new_leader_knows_how_far_each_journal_is(tmp_path: Path) -> None:
    async with Lab(tmp_path, 2) as lab:
        make_topic(lab, 0, 1)
        hosts = [host_of(lab[0]), host_of(lab[1])]
        assert await hosts[0].append(0, 7, ONE, entries(*range(5))) == 4
        assert await hosts[0].append(0, 8, OTHER, entries(9)) == 9
        with pytest.raises(ProtocolError, match="NOT_LEADER"):
            await hosts[1].append(0, 7, ONE, entries(5))
        partition = lab[1].plane.partitions.get(AUDIT, 0)
        assert partition is not None
        lab.controller.change(_led_by(1))
        await eventually(lambda: partition.is_leader)
        assert last_positions(partition) == {7: Position(ONE, 4), 8: Position(OTHER, 9)}
        assert await hosts[1].append(0, 7, ONE, entries(3, 4, 5)) == 5
        assert values(lab[1]) == [b"event %d" % n for n in (0, 1, 2, 3, 4, 9, 5)]


def _led_by(leader: int) -> Any:
    return PartitionChangeRecord(AUDIT_ID, 0, leader=leader)


async def test_what_is_not_committed_is_not_acknowledged(tmp_path: Path) -> None:
    async with Lab(tmp_path, 2) as lab:
        make_topic(lab, 0, 1)
        host = host_of(lab[0])
        await lab[1].plane.fetchers.stop()
        for _ in range(2):  # a repeated event as little as its original
            with pytest.raises(ProtocolError, match="REQUEST_TIMED_OUT"):
                await host.append(0, 7, ONE, entries(0))
        assert values(lab[0]) == [b"event 0"]


class Topics:
    def __init__(self) -> None:
        self.refusals = 2

    async def ensure(self, name: str) -> None:
        if self.refusals:
            self.refusals -= 1
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class LossyLinks:
    """Requests and answers get lost; what arrives is handled by the leader's handler."""

    def __init__(self, lab: Lab, handler: AppendAudit, seed: int) -> None:
        self.lab, self.handler, self.chance = lab, handler, random.Random(seed)
        self.is_closed = False

    async def connect(self, address: Any, timeout_s: float, closed: Any = None) -> Any:
        if self.chance.random() < 0.2:
            raise ConnectionLost("refused")
        return self

    async def call(self, request: Any, version: int, timeout_s: float) -> Any:
        if self.chance.random() < 0.2:
            raise CallTimeout("lost on its way")
        answer = await self.handler.handle(None, request)  # type: ignore[arg-type]
        if self.chance.random() < 0.3:
            raise CallTimeout("the answer is lost")
        return answer

    def close(self) -> None:
        pass


def journal_at(path: Path) -> AuditJournal:
    return AuditJournal(JournalWriter(MachineDisk(path), JOURNAL_DIRECTORY, 9, ONE, 1 << 20), LoopClock())


def act(number: int, topic: str = "t") -> Act:
    return Act(AuditKind.LOG_START_MOVED, topic, bytes(16), number, "test", after={"log_start_offset": number})


async def write(journal: AuditJournal, acts: Sequence[Act]) -> None:
    await asyncio.gather(*(audited(lambda one=one: require(journal, one)) for one in acts))  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(3))
async def test_a_journal_is_shipped_in_order_and_once_whatever_gets_lost(tmp_path: Path, seed: int) -> None:
    config = AuditConfig(linger_ms=1, batch_bytes=2_000, backoff_min_ms=1, backoff_max_ms=2)
    async with Lab(tmp_path, 1) as lab:
        make_topic(lab, 0)
        image = lambda: lab[0].plane.partitions.image  # noqa: E731
        links = LossyLinks(lab, AppendAudit(host_of(lab[0])), seed)
        count = 0
        for life in range(4):
            journal = journal_at(tmp_path / "journal")
            shipper = _shipper(journal, image, links, config, seed)
            shipper.start()
            await write(journal, [act(n) for n in range(count, count + 40)])
            await write(journal, [act(n, AUDIT) for n in range(5)])
            count += 40
            if life % 2:  # it dies in the midst of shipping, or when all is shipped
                await eventually(lambda end=count: len(values(lab[0])) >= end, "everything is shipped")  # type: ignore[misc]
            await shipper.stop()
            await journal.close()
        shipped = [decode_audit_event(value) for value in values(lab[0])]
        assert [event.partition for event in shipped] == list(range(count))
        assert [event.sequence for event in shipped] == sorted({event.sequence for event in shipped})
        assert all(event.topic == "t" for event in shipped), "what happens to the topic itself stays in the journal"


def _shipper(journal: AuditJournal, image: Any, links: Any, config: AuditConfig, seed: int) -> AuditShipper:
    def elsewhere() -> MetadataImage:
        return image()  # type: ignore[no-any-return]

    return AuditShipper(9, journal, elsewhere, None, Topics(), links, LISTENER, random.Random(seed), config)  # type: ignore[arg-type]


async def test_nothing_is_asked_of_anybody_while_there_is_nothing_to_ship(tmp_path: Path) -> None:
    class Nobody:
        async def ensure(self, name: str) -> None:
            raise AssertionError("asked for a topic")

    journal = journal_at(tmp_path)
    shipper = AuditShipper(
        9, journal, MetadataImage, None, Nobody(), None, "INTERNAL", random.Random(1), FAST  # type: ignore[arg-type]
    )  # fmt: skip
    shipper.start()
    await asyncio.sleep(0.05)
    await shipper.stop()
    assert shipper.failures == 0
    await journal.close()


async def test_the_topic_is_not_made_while_brokers_are_still_starting(tmp_path: Path) -> None:
    asked: list[str] = []

    class Listening:
        async def ensure(self, name: str) -> None:
            asked.append(name)
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async with Lab(tmp_path, 2) as lab:
        journal = journal_at(tmp_path / "journal")
        await write(journal, [act(1)])
        lab.fence(1)

        def image() -> MetadataImage:
            return lab[0].plane.partitions.image

        shipper = AuditShipper(9, journal, image, None, Listening(), None, LISTENER, random.Random(1), FAST)  # type: ignore[arg-type]
        shipper.start()
        await eventually(lambda: shipper.failures >= 2)
        assert not asked
        await eventually(lambda: asked, "one that stays away is not waited for")
        assert shipper.failures >= ATTEMPTS_BEFORE_FEWER_REPLICAS
        await shipper.stop()
        await journal.close()


async def test_what_is_no_event_is_refused_before_it_is_written(tmp_path: Path) -> None:
    async with Lab(tmp_path, 1) as lab:
        make_topic(lab, 0)
        handler = AppendAudit(host_of(lab[0]))
        whole = encode_audit_event(
            AuditEvent(event="x", wall_ms=1, source=AuditSource.BROKER, node=9, incarnation=ONE, sequence=0)
        )
        for damaged in (b"no event", whole[:-1], whole[:-1] + b',"cause":"' + b"x" * EVENT_BYTES_MAX + b'"}'):
            events = [AppendAuditRequest.AuditEntry(sequence=n, event=one) for n, one in enumerate((whole, damaged))]
            request = AppendAuditRequest(partition_index=0, node_id=9, incarnation=ONE, events=events)
            answer: Any = await handler.handle(None, request)  # type: ignore[arg-type]
            assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert not values(lab[0]), "the whole ones beside it neither: they are sent again"


async def test_an_error_that_only_newer_versions_know_ends_no_shipper(tmp_path: Path) -> None:
    class Newer(LossyLinks):
        refusals = 3

        async def connect(self, address: Any, timeout_s: float, closed: Any = None) -> Any:
            return self

        async def call(self, request: Any, version: int, timeout_s: float) -> Any:
            if self.refusals:
                self.refusals -= 1
                return AppendAuditResponse(throttle_time_ms=0, error_code=9_999, last_sequence=-1)
            return await self.handler.handle(None, request)  # type: ignore[arg-type]

    async with Lab(tmp_path, 1) as lab:
        make_topic(lab, 0)
        journal = journal_at(tmp_path / "journal")
        await write(journal, [act(1)])
        links = Newer(lab, AppendAudit(host_of(lab[0])), 1)
        shipper = _shipper(journal, lambda: lab[0].plane.partitions.image, links, FAST, 1)
        shipper.start()
        await eventually(lambda: shipper.shipped, "it is shipped in the end")
        assert len(values(lab[0])) == 1
        await shipper.stop()
        await journal.close()
