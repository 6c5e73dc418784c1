"""Brokers whose audit is slow: what waits for it happens afterwards, by itself, and what does not wait goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.handlers.log_offsets import DeleteRecords
from broker.partitions.config import LogDuties
from broker.partitions.record_deletion import RecordDeletion
from common.errors import ErrorCode
from kraft.records import RemoveTopicRecord
from records.audit_event import AuditKind
from storage.audit.audit_trail import audited
from tests.broker.replication_lab import TOPIC, TOPIC_ID, Lab, batch, eventually, produce
from wire.messages import DeleteRecordsRequest

pytestmark = pytest.mark.virtual_time

CONTEXT: Any = SimpleNamespace(principal="someone", client_host="somewhere")


def slow(lab: Lab, *nodes: int) -> None:
    for node in nodes:
        lab[node].audit.slow = True


async def test_a_follower_moves_its_log_start_when_the_audit_has_told_of_it(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        for number in range(6):
            assert (await produce(client, batch(b"%d" % number))).error_code == ErrorCode.NONE
        slow(lab, 0, 1)
        deleting = asyncio.ensure_future(
            audited(lambda: RecordDeletion(lab[0].partition).delete(4, "someone@somewhere"))
        )
        await eventually(lambda: lab[0].audit.waiting)
        assert lab[0].partition.log.log_start_offset == 0
        lab[0].audit.flush()
        await deleting
        assert lab[0].partition.log.log_start_offset == 4
        await eventually(lambda: lab[2].partition.log.log_start_offset == 4, "one that does not wait")
        await eventually(lambda: lab[1].audit.waiting)
        assert (await produce(client, batch(b"more"))).error_code == ErrorCode.NONE
        assert lab[1].partition.log.log_start_offset == 0
        lab[1].audit.flush()
        await eventually(lambda: lab[0].partition.low_watermark == 4, "the leader hears of its follower's log start")
        acts = {act.event: act for act in lab[0].audit.acts}
        assert acts[AuditKind.LOG_START_MOVED].actor == "someone@somewhere"


def delete_request(timeout_ms: int) -> Any:
    part = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(partition_index=0, offset=1)
    topic = DeleteRecordsRequest.DeleteRecordsTopic(name=TOPIC, partitions=[part])
    return DeleteRecordsRequest(topics=[topic], timeout_ms=timeout_ms)


async def test_who_asks_is_answered_in_time_whatever_the_audit_does(tmp_path: Path) -> None:
    async with Lab(tmp_path, 1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        slow(lab, 0)
        async with asyncio.timeout(30):
            handler = DeleteRecords(lab[0].plane.partitions, local_move_s=0.05)
            answer = await handler.handle(CONTEXT, delete_request(timeout_ms=50))
        (told,) = answer.topics[0].partitions
        assert (told.error_code, told.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, -1)
        assert lab[0].partition.log.log_start_offset == 0


@pytest.mark.parametrize("timeout_ms", [-(2**31), 0, 1])
async def test_records_are_deleted_however_short_the_requests_timeout_is(tmp_path: Path, timeout_ms: int) -> None:
    """The timeout bounds the wait for other replicas and not the leader's own move, as in Apache Kafka."""
    async with Lab(tmp_path, 1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        slow(lab, 0)
        deleting = asyncio.ensure_future(
            DeleteRecords(lab[0].plane.partitions).handle(CONTEXT, delete_request(timeout_ms))
        )
        await eventually(lambda: lab[0].audit.waiting)
        await asyncio.sleep(0.002)  # the request's timeout is over
        lab[0].audit.flush()
        (told,) = (await deleting).topics[0].partitions
        assert (told.error_code, told.low_watermark) == (ErrorCode.NONE, 1)


async def test_a_short_timeout_ends_the_wait_for_replicas_alone(tmp_path: Path) -> None:
    async with Lab(tmp_path, 2) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        slow(lab, 1)  # the follower's own move waits
        answer = await DeleteRecords(lab[0].plane.partitions).handle(CONTEXT, delete_request(timeout_ms=0))
        (told,) = answer.topics[0].partitions
        assert (told.error_code, told.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 0)
        assert lab[0].partition.log.log_start_offset == 1
        await eventually(lambda: lab[1].audit.waiting)


async def test_a_follower_cuts_its_log_when_the_audit_has_told_of_it(tmp_path: Path) -> None:
    async with Lab(tmp_path, 2) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        await produce(client, batch(b"kept"))
        lab[1].pause_fetching()
        await produce(client, batch(b"lost"), acks=1)
        slow(lab, 0)
        lab.controller.elect(1)
        lab[1].resume_fetching()
        await eventually(lambda: lab[0].audit.waiting, "the old leader wants to cut its log")
        assert lab[0].partition.log.log_end_offset == 2
        (act,) = lab[0].audit.waiting
        assert (act.event, act.actor, act.leader_epoch) == (AuditKind.LOG_TRUNCATED, "broker-1", 1)
        assert (act.before["log_end_offset"], act.after["log_end_offset"]) == (2, 1)
        lab[0].audit.flush()
        await eventually(lambda: lab[0].bytes() == lab[1].bytes(), "it follows")


async def test_a_deleted_replica_serves_no_more_and_its_log_goes_later(tmp_path: Path) -> None:
    async with Lab(tmp_path, 1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        slow(lab, 0)
        log = lab[0].partition.log
        lab.controller.change(RemoveTopicRecord(TOPIC_ID))
        assert lab[0].plane.partitions.get(TOPIC, 0) is None
        assert lab[0].logs.get(TOPIC, 0) is log and not log.closed
        applied = lab[0].plane.partitions.applied_offset
        lab[0].audit.flush()
        await eventually(lambda: lab[0].logs.get(TOPIC, 0) is None, "the log goes")
        assert log.closed
        assert lab[0].plane.partitions.applied_offset > applied


async def test_retention_of_many_logs_waits_for_the_audit_once(tmp_path: Path) -> None:
    async with Lab(tmp_path, 1) as lab:
        lab.controller.create_topic((0,), retention_bytes="1", segment_bytes="1024")
        client = await lab[0].connect()
        for number in range(6):
            await produce(client, batch(b"%d" % number * 600))
        slow(lab, 0)
        log = lab[0].partition.log
        end = log.active.base_offset
        await asyncio.sleep(LogDuties().log_retention_check_interval_ms / 1000)
        await eventually(lambda: lab[0].audit.waiting)
        assert log.log_start_offset == 0
        while log.log_start_offset < end:
            lab[0].audit.flush()
            await asyncio.sleep(0.001)
        (act,) = lab[0].audit.acts
        assert act.cause.startswith("retention")


async def test_a_log_start_that_comes_while_another_waits_is_followed(tmp_path: Path) -> None:
    async with Lab(tmp_path, 2) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        for number in range(6):
            await produce(client, batch(b"%d" % number))
        slow(lab, 1)
        RecordDeletion(lab[0].partition).delete(2)
        await eventually(lambda: lab[1].audit.waiting)
        RecordDeletion(lab[0].partition).delete(5)
        await eventually(lambda: [act.after["log_start_offset"] for act in lab[1].audit.waiting][-1] == 5)
        while lab[0].partition.low_watermark < 5:
            lab[1].audit.flush()
            await asyncio.sleep(0.005)
        assert lab[1].partition.log.log_start_offset == 5
