"""Produce as clients see it: errors, duplicates, acks, what is looked into."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from broker.partitions.partition import FIRST_BATCH_PATIENCE_S
from common.errors import ErrorCode
from kraft.records import PartitionRecord, TopicRecord
from kraft.topic_names import INTERNAL_TOPICS
from records.batch import read_header
from records.compression import Compression
from tests.broker.lab_client import LabClient
from tests.broker.replication_lab import (
    PATIENCE_S,
    TOPIC,
    TOPIC_ID,
    Lab,
    batch,
    eventually,
    produce,
    within,
)
from tests.virtual_time import stall
from wire.client import ConnectionLost
from wire.messages import DescribeProducersRequest, InitProducerIdRequest

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("version", [3, 7, 8, 9, 12, 13])
async def test_every_version_appends(tmp_path: Path, version: int) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        for acks in (1, -1):
            row = await produce(client, batch(b"x"), version=version, acks=acks)
            assert row.error_code == 0
        assert lab[0].partition.high_watermark == 2


async def test_errors_are_kafkas(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), max_message_bytes="1000")
        client = await lab[0].connect()
        good = batch(b"x")
        damaged = bytearray(good)
        damaged[-1] ^= 1
        cases: list[tuple[dict[str, Any], bytes, ErrorCode]] = [
            ({"topic": "unknown"}, good, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"index": 7}, good, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ({"acks": 2}, good, ErrorCode.INVALID_REQUIRED_ACKS),
            ({}, bytes(damaged), ErrorCode.CORRUPT_MESSAGE),
            ({}, batch(b"x" * 2000), ErrorCode.MESSAGE_TOO_LARGE),
            ({}, good + good, ErrorCode.INVALID_RECORD),
            ({}, b"", ErrorCode.INVALID_RECORD),
        ]
        for options, data, error in cases:
            row = await produce(client, data, **options)
            assert (row.error_code, row.base_offset) == (error, -1), error
        assert lab[0].partition.log.log_end_offset == 0
        assert (await produce(client, good)).base_offset == 0, "the connection is as good as before"


@pytest.mark.parametrize("version", [12, 13])
@pytest.mark.parametrize("topic", sorted(INTERNAL_TOPICS))
async def test_internal_topics_take_no_record_of_a_client(tmp_path: Path, topic: str, version: int) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.change(TopicRecord(topic, TOPIC_ID), PartitionRecord(TOPIC_ID, 0, (0,), (0,), 0, 0, 0))
        client = await lab[0].connect()
        for acks in (1, -1):
            row = await produce(client, batch(b"x"), topic=topic, version=version, acks=acks)
            assert (row.error_code, row.base_offset) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
        partition = lab[0].plane.partitions.get(topic, 0)
        assert partition is not None and partition.log.log_end_offset == 0


async def test_a_transactional_batch_needs_a_transactional_id(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        data = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
        for version in (3, 11, 13):
            row = await produce(client, data, version=version)
            assert row.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_a_duplicate_is_answered_with_its_first_offset_and_not_before_it_is_committed(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()

        def numbered(sequence: int) -> bytes:
            return batch(b"x", b"y", producer_id=7, producer_epoch=0, base_sequence=sequence)

        assert (await produce(client, numbered(0))).base_offset == 0
        assert (await produce(client, numbered(2))).base_offset == 2
        assert (await produce(client, numbered(0))).base_offset == 0
        assert (await produce(client, numbered(7))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        await lab[2].stop()
        row = await produce(client, numbered(4), timeout_ms=100)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        again = asyncio.create_task(produce(client, numbered(4)))
        await asyncio.sleep(0.1)
        assert not again.done(), "the original is not committed"
        await lab[2].start()
        row = await within(10, again)
        assert (row.error_code, row.base_offset) == (0, 4)
        assert lab[0].partition.log.log_end_offset == 6


async def test_what_was_in_flight_behind_a_refused_first_batch_waits_for_it(
    tmp_path: Path,
) -> None:
    """A leader that knows nothing of a producer takes any sequence, and would take the second batch for the first."""
    async with Lab(tmp_path, count=1) as lab:
        client = await lab[0].connect()

        def numbered(sequence: int, producer_id: int = 7) -> bytes:
            return batch(b"x", b"y", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)

        refused = await produce(client, numbered(0))
        assert refused.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # this broker has not heard of it yet
        lab.controller.create_topic((0,))
        behind = await produce(client, numbered(2))
        assert behind.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [(await produce(client, numbered(at))).base_offset for at in (0, 2)] == [0, 2]
        stall(FIRST_BATCH_PATIENCE_S)
        assert (await produce(client, numbered(40, producer_id=8))).base_offset == 4, "perhaps it was forgotten"


async def test_wrong_sequences_of_one_producer_do_not_hold_up_one_that_was_forgotten(
    tmp_path: Path,
) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()

        def numbered(producer_id: int, sequence: int) -> bytes:
            return batch(b"x", producer_id=producer_id, producer_epoch=0, base_sequence=sequence)

        assert (await produce(client, numbered(7, 0))).base_offset == 0
        stall(FIRST_BATCH_PATIENCE_S)  # its leadership began longer ago than that
        assert (await produce(client, numbered(7, 9))).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await produce(client, numbered(8, 40))).base_offset == 1


async def test_sequences_survive_failover(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        first, second = await lab[0].connect(), await lab[1].connect()
        data = batch(b"x", producer_id=7, producer_epoch=3, base_sequence=0)
        assert (await produce(first, data)).base_offset == 0
        lab.controller.elect(1)
        assert (await produce(second, data)).base_offset == 0, "known as a duplicate"
        stale = batch(b"x", producer_id=7, producer_epoch=2, base_sequence=0)
        assert (await produce(second, stale)).error_code == ErrorCode.INVALID_PRODUCER_EPOCH
        (producer,) = (await described(second)).active_producers
        assert (producer.producer_id, producer.producer_epoch, producer.last_sequence) == (7, 3, 0)


async def described(client: LabClient) -> Any:
    """The partition's row of DescribeProducers."""
    topic = DescribeProducersRequest.TopicRequest(name=TOPIC, partition_indexes=[0])
    return (await client.call(DescribeProducersRequest(topics=[topic]), 0, 5.0)).topics[0].partitions[0]


async def test_every_replica_describes_its_producers_and_no_other_broker_does(tmp_path: Path) -> None:
    """kafka-transactions.sh asks the brokers of --broker-id, whatever they lead."""
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        clients = [await broker.connect() for broker in lab.brokers]
        await produce(clients[0], batch(b"x", producer_id=7, producer_epoch=3, base_sequence=0))
        rows = [await described(client) for client in clients]
        assert rows[0].active_producers == rows[1].active_producers != []
        assert [row.error_code for row in rows] == [0, 0, ErrorCode.NOT_LEADER_OR_FOLLOWER]


async def test_acks_0_is_not_answered_and_an_error_closes_the_connection(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        silent = asyncio.create_task(produce(client, batch(b"x"), acks=0))
        await eventually(lambda: lab[0].partition.log.log_end_offset == 1)
        assert not silent.done()
        silent.cancel()
        other = await lab[0].connect()
        with pytest.raises(ConnectionLost):
            await within(PATIENCE_S, produce(other, batch(b"x"), acks=0, index=9))


async def test_log_append_time_is_answered_and_stored(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), message_timestamp_type="LogAppendTime")
        client = await lab[0].connect()
        row = await produce(client, batch(b"x"))
        header = read_header(lab[0].bytes(), 0)
        assert row.log_append_time_ms == header.max_timestamp > 1_700_000_100_000
        assert header.is_log_append_time


@pytest.mark.parametrize("compression", [Compression.NONE, Compression.LZ4, Compression.ZSTD])
async def test_a_topic_with_a_codec_stores_it_in_order(tmp_path: Path, compression: Compression) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), compression_type="gzip")
        client = await lab[0].connect()
        values = [b"%d" % number * 50 for number in range(30)]
        rows = await asyncio.gather(*[produce(client, batch(value, compression=compression)) for value in values])
        assert [row.base_offset for row in rows] == list(range(30))
        assert lab[0].values() == values
        assert read_header(lab[0].bytes(), 0).compression == Compression.GZIP


async def test_a_compacted_topic_takes_no_record_without_a_key(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), cleanup_policy="compact")
        client = await lab[0].connect()
        row = await produce(client, batch(b"x", b"y", b"z", keys=[b"k", None, None], compression=Compression.GZIP))
        assert row.error_code == ErrorCode.INVALID_RECORD
        assert [error.batch_index for error in row.record_errors] == [1, 2]
        assert (await produce(client, batch(b"x"))).base_offset == 0


async def test_a_bomb_is_refused_where_it_is_looked_into_and_kept_elsewhere(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), compression_type="lz4", max_message_bytes="10000000")
        client = await lab[0].connect()
        bomb = batch(bytes(100 << 20), compression=Compression.GZIP)
        assert (await produce(client, bomb)).error_code == ErrorCode.INVALID_RECORD
        assert lab[0].partition.log.log_end_offset == 0


async def test_a_surprise_in_one_batch_holds_up_none_behind_it(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,), compression_type="gzip")
        partition = lab[0].partition
        partition.configure(replace(partition.log.config, compression_gzip_level=77))  # no setting allows it
        client = await lab[0].connect()
        surprising, plain = batch(b"x"), batch(b"y", compression=Compression.GZIP)
        rows = await asyncio.gather(produce(client, surprising), produce(client, plain))
        assert [row.error_code for row in rows] == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]


async def test_producer_ids_are_handed_out_once(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=2) as lab:
        lab.controller.create_topic((0, 1))
        clients = [await lab[0].connect(), await lab[1].connect()]
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000)
        answers = [await client.call(request, 4, 5.0) for client in clients for _ in range(25)]
        assert all((answer.error_code, answer.producer_epoch) == (0, 0) for answer in answers)
        assert len({answer.producer_id for answer in answers}) == 50
