"""Produce and Fetch of very many partitions: served in slices, and answered as if they were not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from broker.handlers.produce import BYTES_AT_ONCE
from common.errors import ErrorCode
from common.pacing import SLICE_COST
from kraft.records import PartitionRecord, TopicRecord
from tests.broker.lab_client import LabClient
from tests.broker.replication_lab import TOPIC, TOPIC_ID, Lab, LabBroker, batch, eventually
from tests.broker.reserved_port import LOCALHOST
from wire.codec import encode_request
from wire.messages import FetchRequest, ProduceRequest

PARTITIONS = 40
OTHER, OTHER_ID = "arrivals", bytes(range(16, 32))
ALIKE, ALIKE_ID = "alike", bytes(range(48, 64))  # in both laboratories, with the same records
SLICE_MAX = 2 * SLICE_COST
QUICK = 1 << 20
Topic = ProduceRequest.TopicProduceData


@asynccontextmanager
async def opened(root: Path, parts_at_once: int) -> AsyncIterator[Lab]:
    async with Lab(root, count=2, produce_parts_at_once=parts_at_once, fetch_parts_at_once=parts_at_once) as lab:
        for name, topic_id, leader in ((TOPIC, TOPIC_ID, 0), (ALIKE, ALIKE_ID, 0), (OTHER, OTHER_ID, 1)):
            lab.controller.change(
                TopicRecord(name, topic_id),
                *[PartitionRecord(topic_id, index, (leader,), (leader,), leader, 0, 0) for index in range(PARTITIONS)],
            )
        for name, leader in ((TOPIC, 0), (ALIKE, 0), (OTHER, 1)):
            found = lab[leader].plane.partitions.get
            await eventually(
                lambda name=name, found=found: all(  # type: ignore[misc]
                    (one := found(name, index)) is not None and one.is_leader for index in range(PARTITIONS)
                )
            )
        yield lab


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def lab(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """Every request of more than one partition is a long one."""
    async with opened(tmp_path_factory.mktemp("long"), 1) as lab:
        yield lab


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def short(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Lab]:
    """No request is a long one."""
    async with opened(tmp_path_factory.mktemp("short"), QUICK) as lab:
        yield lab


def produced(rows: list[tuple[str, int, bytes]], acks: int = -1, timeout_ms: int = 5_000) -> ProduceRequest:
    """A request with one topic element for each run of rows of one topic."""
    topics: list[Any] = []
    for name, index, records in rows:
        if not topics or topics[-1].name != name:
            topics.append(Topic(name=name, partition_data=[]))
        topics[-1].partition_data.append(Topic.PartitionProduceData(index=index, records=records))
    return ProduceRequest(transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def told(lab: Lab, response: Any) -> list[tuple[Any, ...]]:
    """All rows of a Produce answer, and the leaders that it names, which are at their ports."""
    endpoints = response.node_endpoints or ()
    assert all(one.port == lab[one.node_id].ports[0].number for one in endpoints)
    return [
        (topic.name, row.index, row.error_code, row.base_offset, row.error_message, str(row.current_leader))
        for topic in response.responses
        for row in topic.partition_responses
    ] + [(one.node_id,) for one in endpoints]


def sent(client: LabClient, request: ProduceRequest) -> None:
    """Send a request and wait for no answer."""
    correlation = client.next_correlation()
    client.send_frame(correlation, [encode_request(request, 12, correlation, "lab")])


def watched(broker: LabBroker) -> None:
    broker.machinery.pacer.costliest = 0
    broker.machinery.pacer.slices = 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("acks", [-1, 1])
async def test_one_partition_named_thousands_of_times_is_appended_in_slices(lab: Lab, acks: int) -> None:
    broker, count = lab[0], 5_000
    client = await broker.connect()
    begin = broker.partition.log.log_end_offset
    watched(broker)
    response = await client.call(produced([(TOPIC, 0, batch(b"x"))] * count, acks), 12, 30.0)
    rows = response.responses[0].partition_responses
    assert [row.base_offset for row in rows] == list(range(begin, begin + count)), "in the order of the request"
    assert broker.machinery.pacer.costliest <= SLICE_MAX
    assert broker.machinery.pacer.slices >= count // 50
    assert broker.machinery.pool.held == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_few_large_batches_are_appended_in_slices(lab: Lab) -> None:
    broker, count = lab[0], 24
    large = batch(b"x" * (BYTES_AT_ONCE // 8))
    client = await broker.connect()
    watched(broker)
    response = await client.call(produced([(TOPIC, index, large) for index in range(count)]), 12, 30.0)
    assert [row.error_code for row in response.responses[0].partition_responses] == [0] * count
    assert broker.machinery.pacer.slices >= count
    assert broker.machinery.pacer.costliest <= SLICE_MAX
    assert broker.machinery.pool.held == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", range(5))
async def test_a_long_produce_is_answered_as_a_short_one(lab: Lab, short: Lab, seed: int) -> None:
    rng = random.Random(seed)
    good = batch(b"x")
    damaged = good[:-1] + bytes([good[-1] ^ 1])
    rows = [
        (rng.choice([ALIKE, ALIKE, OTHER, "unknown"]), rng.randrange(PARTITIONS + 3), rng.choice([good, good, damaged]))
        for _ in range(rng.randrange(1, 200))
    ]
    request = produced(rows, rng.choice([-1, 1, 7]))
    answers = []
    for one in (short, lab):
        client = await one[0].connect()
        answers.append(told(one, await client.call(request, 12, 30.0)))
    assert answers[0] == answers[1]
    assert lab[0].machinery.pool.held == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_long_produce_without_acknowledgement_is_appended_before_what_follows(lab: Lab) -> None:
    reader, writer = await asyncio.open_connection(LOCALHOST, lab[0].ports[0].number)
    begin = lab[0].partition.log.log_end_offset
    writer.write(encode_request(produced([(TOPIC, 0, batch(b"x"))] * 300, acks=0), 12, 1, "lab"))
    writer.write(encode_request(produced([(TOPIC, 0, batch(b"y"))]), 12, 2, "lab"))
    size = int.from_bytes(await reader.readexactly(4), "big")
    answer = await reader.readexactly(size)
    assert answer[:4] == (2).to_bytes(4, "big"), "the first has no answer"
    assert lab[0].partition.log.log_end_offset == begin + 301
    failing = produced([(TOPIC, 0, batch(b"x")), (TOPIC, 999, batch(b"x"))], acks=0)
    writer.write(encode_request(failing, 12, 3, "lab"))
    assert await reader.read() == b"", "an error is told by the end of the connection"
    writer.close()
    assert lab[0].machinery.pool.held == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_that_goes_leaves_nothing(lab: Lab) -> None:
    client = await lab[0].connect()
    begin = lab[0].partition.log.log_end_offset
    sent(client, produced([(TOPIC, 0, batch(b"x"))] * 2_000))
    await eventually(lambda: lab[0].partition.log.log_end_offset > begin)
    client.close()
    await eventually(lambda: lab[0].machinery.pool.held == 0)
    await eventually(lambda: lab[0].partition.log.log_end_offset == begin + 2_000, "all of it was received")


@pytest.mark.asyncio(loop_scope="module")
async def test_what_is_not_committed_in_time_is_told(lab: Lab) -> None:
    topic_id = bytes(range(32, 48))
    lab.controller.change(
        TopicRecord("slow", topic_id),
        PartitionRecord(topic_id, 0, (0, 7), (0, 7), 0, 0, 0),
        PartitionRecord(topic_id, 1, (0,), (0,), 0, 0, 0),
    )
    client = await lab[0].connect()
    request = produced([("slow", number % 2, batch(b"x")) for number in range(600)], timeout_ms=1)
    response = await client.call(request, 12, 30.0)
    errors = [(row.index, row.error_code) for row in response.responses[0].partition_responses]
    assert errors == [(number % 2, 0 if number % 2 else ErrorCode.REQUEST_TIMED_OUT) for number in range(600)]
    assert lab[0].machinery.pool.held == 0


FetchTopic = FetchRequest.FetchTopic
Forgotten = FetchRequest.ForgottenTopic


def fetched(
    rows: list[tuple[str, int, int]],
    *,
    session: tuple[int, int] = (0, -1),
    forgotten: list[tuple[str, int]] | None = None,
    wait_ms: int = 0,
    bytes_min: int = 1,
    bytes_max: int = 1 << 20,
) -> FetchRequest:
    """A request for (topic, index, offset), in that order."""
    topics: list[Any] = []
    for name, index, offset in rows:
        if not topics or topics[-1].topic != name:
            topics.append(FetchTopic(topic=name, partitions=[]))
        topics[-1].partitions.append(
            FetchTopic.FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=200)
        )
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=bytes_min,
        max_bytes=bytes_max,
        isolation_level=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=[Forgotten(topic=name, partitions=[index]) for name, index in forgotten or ()],
        rack_id="",
    )


def read(response: Any) -> list[tuple[Any, ...]]:
    return [
        (
            topic.topic,
            row.partition_index,
            row.error_code,
            row.high_watermark,
            bytes(row.records or b""),
            str(row.current_leader),
        )
        for topic in response.responses
        for row in topic.partitions
    ]


async def filled(lab: Lab, name: str = TOPIC) -> None:
    client = await lab[0].connect()
    await client.call(produced([(name, index, batch(b"x" * index)) for index in range(0, PARTITIONS, 2)]), 12, 30.0)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("epoch", [-1, 0])
async def test_a_full_fetch_of_tens_of_thousands_is_served_in_slices(lab: Lab, epoch: int) -> None:
    await filled(lab)
    broker, count = lab[0], 20_000
    client = await broker.connect()
    watched(broker)
    rows = [(TOPIC, number, 0) for number in range(count)]
    response = await client.call(fetched(rows, session=(0, epoch), wait_ms=60_000), 12, 60.0)
    assert [row[1] for row in read(response)] == list(range(count))
    assert broker.machinery.pacer.costliest <= SLICE_MAX
    assert broker.machinery.pacer.slices >= count // 50
    assert broker.machinery.pool.held == 0
    assert len(broker.plane.sessions) == (1 if epoch == 0 else 0)
    if epoch == 0:
        watched(broker)
        gone = [(TOPIC, number) for number in range(100, count)]
        changed = [(TOPIC, number, 1 << 40) for number in range(5_000)]
        response = await client.call(fetched(changed, session=(response.session_id, 1), forgotten=gone), 12, 60.0)
        assert {row[2] for row in read(response)} <= {0, 1, 3}
        assert broker.machinery.pacer.costliest <= SLICE_MAX
    client.close()
    await eventually(lambda: not broker.plane.sessions or epoch == 0)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("seed", range(6))
async def test_a_long_fetch_is_answered_as_a_short_one(lab: Lab, short: Lab, seed: int) -> None:
    rng = random.Random(seed)

    def some(most: int) -> list[tuple[str, int, int]]:
        return [
            (
                rng.choice([ALIKE, ALIKE, OTHER, "unknown"]),
                rng.randrange(PARTITIONS + 3),
                rng.choice([0, 0, 1, 1 << 40]),
            )
            for _ in range(rng.randrange(1, most))
        ]

    first, then, limit = some(200), some(40), rng.choice([1, 900, 1 << 20])
    gone = [(name, index) for name, index, _ in rng.sample(first, len(first) // 2)]
    answers = []
    for one in (short, lab):
        await filled(one, ALIKE)
        client = await one[0].connect()
        plain = await client.call(fetched(first, bytes_max=limit), 12, 30.0)
        full = await client.call(fetched(first, session=(0, 0), bytes_max=limit), 12, 30.0)
        more = await client.call(
            fetched(then, session=(full.session_id, 1), forgotten=gone, bytes_max=limit), 12, 30.0
        )  # fmt: skip
        late = await client.call(fetched(then, session=(full.session_id, 1)), 12, 30.0)
        answers.append([read(plain), read(full), read(more), more.error_code, late.error_code])
        client.close()
    assert answers[0] == answers[1]
    assert lab[0].machinery.pool.held == 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("epoch", [-1, 0])
async def test_a_long_fetch_waits_and_is_woken(lab: Lab, epoch: int) -> None:
    ends = [lab[0].plane.partitions.get(TOPIC, index) for index in range(PARTITIONS)]
    rows = [(TOPIC, one.index, one.log.log_end_offset) for one in ends if one is not None]
    consumer, producer = await lab[0].connect(), await lab[0].connect()
    partition = ends[7]
    assert partition is not None
    before = len(partition.watchers)
    waiting = asyncio.create_task(consumer.call(fetched(rows, session=(0, epoch), wait_ms=60_000), 12, 60.0))
    await eventually(lambda: len(partition.watchers) > before)
    await producer.call(produced([(TOPIC, 7, batch(b"news"))]), 12, 30.0)
    answer = await waiting
    assert [row[1] for row in read(answer) if row[4]] == [7]
    consumer.close()
    await eventually(lambda: len(partition.watchers) == before)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("epoch", [-1, 0])
@pytest.mark.parametrize("count", [30, 3_000, 20_000])
async def test_a_consumer_that_goes_midway_leaves_nothing(lab: Lab, epoch: int, count: int) -> None:
    await filled(lab)
    broker, partition = lab[0], lab[0].plane.partitions.get(TOPIC, 1)
    assert partition is not None
    await eventually(lambda: not partition.watchers)
    slices, client = broker.machinery.pacer.slices, await broker.connect()
    request = fetched([(TOPIC, n, 0) for n in range(count)], session=(0, epoch), wait_ms=60_000, bytes_min=1 << 20)
    correlation = client.next_correlation()
    client.send_frame(correlation, [encode_request(request, 12, correlation, "lab")])
    await eventually(lambda: broker.machinery.pacer.slices > slices + min(count // 100, 5))
    client.close()
    await eventually(lambda: broker.machinery.pool.held == 0 and not partition.watchers)
    files = broker.logs.context.open_files
    assert not files.is_at_pin_limit


@pytest.mark.asyncio(loop_scope="module")
async def test_a_waiting_incremental_fetch_holds_its_frame_no_longer_than_its_connection(lab: Lab) -> None:
    broker, client = lab[0], await lab[0].connect()
    ends = [broker.plane.partitions.get(TOPIC, index) for index in range(PARTITIONS)]
    rows = [(TOPIC, one.index, one.log.log_end_offset) for one in ends if one is not None]
    full = await client.call(fetched(rows, session=(0, 0)), 12, 30.0)
    request = fetched(rows, session=(full.session_id, 1), wait_ms=60_000)
    correlation = client.next_correlation()
    client.send_frame(correlation, [encode_request(request, 12, correlation, "lab")])
    await eventually(lambda: broker.machinery.pool.held > 0)
    client.close()
    await eventually(lambda: broker.machinery.pool.held == 0)
