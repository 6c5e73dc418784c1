"""Fetch as clients see it: waiting, limits, sessions, racks, epochs, and who may pose as a replica."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from common.errors import ErrorCode
from kraft.records import PartitionRecord
from records.compression import Compression
from tests.broker.replication_lab import (
    NEVER_MS,
    PATIENCE_S,
    TOPIC,
    TOPIC_ID,
    Lab,
    batch,
    eventually,
    fetch,
    list_offset,
    produce,
    row_of,
    values_of,
    within,
)
from wire.client import ConnectionLost
from wire.messages import (
    AlterReplicaLogDirsRequest,
    DeleteRecordsRequest,
    DescribeLogDirsRequest,
    OffsetForLeaderEpochRequest,
)

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("version", [4, 6, 7, 10, 11, 12, 13, 16, 18])
async def test_every_version_reads(tmp_path: Path, version: int) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        await produce(client, batch(b"one", b"two"))
        row = row_of(await fetch(client, 0, version=version))
        assert (row.error_code, row.high_watermark) == (0, 2)
        assert values_of(bytes(row.records)) == [b"one", b"two"]


async def test_a_fetch_waits_for_records_and_is_answered_when_they_are_committed(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        producer, consumer = await lab[0].connect(), await lab[0].connect()
        waiting = asyncio.create_task(fetch(consumer, 0, max_wait_ms=NEVER_MS))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await produce(producer, batch(b"x"))
        assert values_of(bytes(row_of(await within(PATIENCE_S, waiting)).records)) == [b"x"]


async def test_a_fetch_waits_for_as_many_bytes_as_it_asks_for_or_its_time(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        producer, consumer = await lab[0].connect(), await lab[0].connect()
        await produce(producer, batch(b"x"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        row = row_of(await fetch(consumer, 0, min_bytes=1_000, max_wait_ms=150))
        assert loop.time() - began >= 0.14
        assert values_of(bytes(row.records)) == [b"x"], "what there is when the time is over"
        waiting = asyncio.create_task(fetch(consumer, 0, min_bytes=1_000, max_wait_ms=NEVER_MS))
        await asyncio.sleep(0.05)
        await produce(producer, batch(b"y" * 1_000))
        assert values_of(bytes(row_of(await within(PATIENCE_S, waiting)).records)) == [b"x", b"y" * 1_000]


async def test_one_batch_comes_however_small_the_limits(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        for _ in range(3):
            await produce(client, batch(b"x" * 500))
        smallest: list[dict[str, Any]] = [{"max_bytes": 1}, {"partition_max_bytes": 1}, {"max_bytes": 0}]
        for limits in smallest:
            assert len(values_of(bytes(row_of(await fetch(client, 1, **limits)).records))) == 1
        assert len(values_of(bytes(row_of(await fetch(client, 0, max_bytes=1_300)).records))) == 2


async def test_uncommitted_records_are_not_shown(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"shown"))
        await lab[2].stop()
        await produce(client, batch(b"hidden"), acks=1)
        row = row_of(await fetch(client, 0))
        assert values_of(bytes(row.records)) == [b"shown"]
        assert row_of(await fetch(client, 1, max_wait_ms=50)).records in (None, b"")
        assert row_of(await fetch(client, 9)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_epochs_of_readers_are_checked(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        lab.controller.elect(0)
        client = await lab[0].connect()
        fenced = row_of(await fetch(client, 0, current_leader_epoch=0))
        assert fenced.error_code == ErrorCode.FENCED_LEADER_EPOCH
        unknown = row_of(await fetch(client, 0, current_leader_epoch=2))
        assert unknown.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        assert row_of(await fetch(client, 0, current_leader_epoch=1, max_wait_ms=10)).error_code == 0


async def test_the_new_leader_is_named_to_readers(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        waiting = asyncio.create_task(fetch(client, 0, version=10, max_wait_ms=NEVER_MS))
        await asyncio.sleep(0.05)
        lab.controller.elect(2)
        assert row_of(await within(PATIENCE_S, waiting)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        response = await fetch(client, 0, version=16, current_leader_epoch=0)
        assert row_of(response).error_code == ErrorCode.FENCED_LEADER_EPOCH
        assert row_of(response).current_leader.leader_id == 2
        assert [endpoint.node_id for endpoint in response.node_endpoints] == [2]


# sessions --------------------------------------------------------------------------------------------------


def rows_by_index(response: Any) -> dict[int, Any]:
    return {row.partition_index: row for topic in response.responses for row in topic.partitions}


async def two_partitions(lab: Lab) -> None:
    lab.controller.create_topic((0,))
    lab.controller.change(PartitionRecord(TOPIC_ID, 1, (0,), (0,), 0))


@pytest.mark.parametrize("version", [7, 12, 13])
async def test_a_session_names_only_what_changed(tmp_path: Path, version: int) -> None:
    async with Lab(tmp_path, count=1) as lab:
        await two_partitions(lab)
        producer, client = await lab[0].connect(), await lab[0].connect()

        async def ask(epoch: int, partitions: list[tuple[int, int]], **options: Any) -> Any:
            return await fetch(
                client, 0, version=version, session_id=session, session_epoch=epoch, partitions=partitions, **options
            )

        session = 0
        first = await ask(0, [(0, 0), (1, 0)], max_wait_ms=10)
        session = first.session_id
        assert session > 0
        assert sorted(rows_by_index(first)) == [0, 1]
        assert rows_by_index(await ask(1, [], max_wait_ms=10)) == {}
        await produce(producer, batch(b"x"), index=1)
        second = await ask(2, [])
        assert list(rows_by_index(second)) == [1]
        assert values_of(bytes(rows_by_index(second)[1].records)) == [b"x"]
        again = await ask(3, [])
        assert values_of(bytes(rows_by_index(again)[1].records)) == [b"x"], "the position has not moved"
        assert rows_by_index(await ask(4, [(1, 1)], max_wait_ms=10)) == {}
        await produce(producer, batch(b"y"), index=1)
        assert rows_by_index(await ask(5, [], forgotten=[1], max_wait_ms=10)) == {}
        await produce(producer, batch(b"z"), index=0)
        assert list(rows_by_index(await ask(6, []))) == [0]


async def test_session_errors_are_exact(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        await two_partitions(lab)
        client = await lab[0].connect()
        unknown = await fetch(client, 0, session_id=77, session_epoch=1)
        assert (unknown.error_code, unknown.session_id) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0)
        session = (await fetch(client, 0, session_epoch=0, max_wait_ms=1)).session_id
        wrong = await fetch(client, 0, session_id=session, session_epoch=3)
        assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
        by_id = await fetch(client, 0, version=13, session_id=session, session_epoch=1)
        assert by_id.error_code == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        assert (await fetch(client, 0, session_id=session, session_epoch=1, max_wait_ms=1)).error_code == 0
        ended = await fetch(client, 0, session_id=session, session_epoch=-1, max_wait_ms=1)
        assert (ended.error_code, ended.session_id) == (0, 0)
        gone = await fetch(client, 0, session_id=session, session_epoch=2)
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_outlives_its_connection_and_misses_nothing(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        await two_partitions(lab)
        producer, client = await lab[0].connect(), await lab[0].connect()
        session = (await fetch(client, 0, session_epoch=0, max_wait_ms=1)).session_id
        client.close()
        await eventually(lambda: not lab[0].partition.watchers)
        await produce(producer, batch(b"x"))
        other = await lab[0].connect()
        response = await fetch(other, 0, session_id=session, session_epoch=1, partitions=[])
        assert values_of(bytes(row_of(response).records)) == [b"x"]


async def test_a_partition_with_an_error_is_named_until_it_is_forgotten(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        await two_partitions(lab)
        client = await lab[0].connect()
        first = await fetch(client, 0, session_epoch=0, partitions=[(0, 0), (5, 0)], max_wait_ms=1)
        assert rows_by_index(first)[5].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        second = await fetch(client, 0, session_id=first.session_id, session_epoch=1, partitions=[])
        assert list(rows_by_index(second)) == [5]
        third = await fetch(
            client, 0, session_id=first.session_id, session_epoch=2, partitions=[], forgotten=[5], max_wait_ms=10
        )
        assert rows_by_index(third) == {}


async def test_the_partitions_of_a_session_take_turns(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        await two_partitions(lab)
        client = await lab[0].connect()
        for index in (0, 1):
            for _ in range(3):
                await produce(client, batch(b"x" * 900), index=index)
        response = await fetch(client, 0, session_epoch=0, partitions=[(0, 0), (1, 0)], max_bytes=1_000)
        session, served = response.session_id, []
        for epoch in range(1, 5):
            response = await fetch(client, 0, session_id=session, session_epoch=epoch, partitions=[], max_bytes=1_000)
            served += [index for index, row in rows_by_index(response).items() if row.records]
        assert served in ([1, 0, 1, 0], [0, 1, 0, 1])


# replicas --------------------------------------------------------------------------------------------------


async def test_who_poses_as_a_replica_is_refused_and_loses_its_connection(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"x"))
        await lab[2].stop()
        impostor = await lab[0].connect()
        await produce(client, batch(b"y"), acks=1)
        response = await fetch(impostor, 2, version=12, replica=2)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with pytest.raises(ConnectionLost):
            await within(PATIENCE_S, fetch(impostor, 0, max_wait_ms=1))
        assert lab[0].partition.high_watermark == 1
        asked = await list_offset(client, -1, replica_id=2)
        assert asked.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED


async def test_an_earlier_life_of_a_follower_moves_nothing(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        node = await lab[0].connect(internal=True)
        stale = await fetch(node, 0, version=17, replica=2, replica_epoch=lab[2].broker_epoch - 1)
        assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH


async def test_consumers_are_sent_to_their_rack_and_served_there(tmp_path: Path) -> None:
    async with Lab(tmp_path, racks=("a", "b", "c")) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"x"))
        row = row_of(await fetch(client, 0, rack="b"))
        assert (row.preferred_read_replica, row.records) in ((1, b""), (1, None))
        assert row_of(await fetch(client, 0, rack="a")).preferred_read_replica == -1
        assert row_of(await fetch(client, 0, rack="elsewhere")).preferred_read_replica == -1
        near = await lab[1].connect()
        row = row_of(await within(PATIENCE_S, fetch(near, 0, rack="b", max_wait_ms=NEVER_MS)))
        assert values_of(bytes(row.records)) == [b"x"]
        waiting = asyncio.create_task(fetch(near, 1, rack="b", max_wait_ms=NEVER_MS))
        await asyncio.sleep(0.05)
        await produce(client, batch(b"y"))
        assert values_of(bytes(row_of(await within(PATIENCE_S, waiting)).records)) == [b"y"]
        for stranger in ({"version": 10}, {"rack": ""}, {"rack": "a"}, {"rack": "elsewhere"}):
            row = row_of(await fetch(near, 0, **stranger))
            assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, "no leader has sent it here"


# offsets ---------------------------------------------------------------------------------------------------


async def test_offsets_by_kind_and_time(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        assert (await list_offset(client, -3)).offset == -1
        await produce(client, batch(b"0", b"1", b"2", compression=Compression.GZIP))
        await produce(client, batch(b"3"))
        found = {kind: await list_offset(client, kind) for kind in (-1, -2, -3, -4, -5, 0, 1_700_000_000_001)}
        assert {kind: row.offset for kind, row in found.items()} == {
            -1: 4, -2: 0, -3: 2, -4: 0, -5: -1, 0: 0, 1_700_000_000_001: 1,
        }  # fmt: skip
        assert found[-3].timestamp == 1_700_000_000_002
        assert (await list_offset(client, 1_800_000_000_000)).offset == -1
        assert (await list_offset(client, -6)).error_code == ErrorCode.UNSUPPORTED_VERSION
        assert (await list_offset(client, -4, version=7)).error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_epochs_end_where_the_next_one_began(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"x", b"y"))
        lab.controller.elect(0)
        await produce(client, batch(b"z"))
        kind = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        rows = [
            kind.OffsetForLeaderPartition(partition=0, current_leader_epoch=1, leader_epoch=epoch)
            for epoch in (0, 1, 2)
        ]
        response = await client.call(
            OffsetForLeaderEpochRequest(replica_id=-1, topics=[kind(topic=TOPIC, partitions=rows)]), 4, 5.0
        )
        answers = [(row.leader_epoch, row.end_offset) for row in response.topics[0].partitions]
        assert answers == [(0, 2), (1, 3), (-1, -1)]


async def test_deleted_records_are_gone_on_every_replica(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        for _ in range(4):
            await produce(client, batch(b"x"))

        async def delete(offset: int, timeout_ms: int = 5_000) -> Any:
            kind = DeleteRecordsRequest.DeleteRecordsTopic
            rows = [kind.DeleteRecordsPartition(partition_index=0, offset=offset)]
            request = DeleteRecordsRequest(topics=[kind(name=TOPIC, partitions=rows)], timeout_ms=timeout_ms)
            return (await client.call(request, 2, 10.0)).topics[0].partitions[0]

        row = await delete(2)
        assert (row.error_code, row.low_watermark) == (0, 2)
        assert [broker.partition.log.log_start_offset for broker in lab.brokers] == [2, 2, 2]
        assert row_of(await fetch(client, 1)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete(9)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert (await delete(-1)).low_watermark == 4
        await lab[2].plane.fetchers.stop()
        await produce(client, batch(b"x"), acks=1)
        assert (await delete(4, timeout_ms=100)).error_code == 0, "nothing to move"


async def test_a_replica_stays_in_the_one_directory(tmp_path: Path) -> None:
    """Errors are those of Apache Kafka's ReplicaManager; of a topic whose future directory's name would be too long,
    too."""
    directories, long = AlterReplicaLogDirsRequest.AlterReplicaLogDir, "n" * 220

    def to(path: str, **topics: list[int]) -> AlterReplicaLogDirsRequest.AlterReplicaLogDir:
        rows = [directories.AlterReplicaLogDirTopic(name=name, partitions=found) for name, found in topics.items()]
        return directories(path=path, topics=rows)

    async with Lab(tmp_path, count=1) as lab:
        await two_partitions(lab)
        client = await lab[0].connect()
        dirs = [to("data", **{TOPIC: [0, 7], "absent": [0], long: [0]}), to("elsewhere", **{TOPIC: [1]})]
        for version in (1, 2):
            answer = await client.call(AlterReplicaLogDirsRequest(dirs=dirs), version, 5.0)
            assert {(row.topic_name, one.partition_index): one.error_code
                    for row in answer.results for one in row.partitions} == {
                (TOPIC, 0): ErrorCode.NONE,
                (TOPIC, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ("absent", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                (long, 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
                (TOPIC, 1): ErrorCode.LOG_DIR_NOT_FOUND,
            }  # fmt: skip


async def test_log_directories_are_described(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        await two_partitions(lab)
        client = await lab[0].connect()
        await produce(client, batch(b"x"))
        response = await client.call(DescribeLogDirsRequest(topics=None), 4, 5.0)
        (result,) = response.results
        sizes = {row.partition_index: row.partition_size for row in result.topics[0].partitions}
        assert sizes == {0: len(batch(b"x")), 1: 0}
        assert result.usable_bytes > 0
