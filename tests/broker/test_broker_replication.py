"""Three brokers over real sockets and disks: what is committed, what is truncated, who is in sync."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from broker.partitions.record_deletion import RecordDeletion
from common.errors import ErrorCode, ProtocolError
from kraft.records import BrokerRegistrationChangeRecord, PartitionChangeRecord, PartitionRecord, RemoveTopicRecord
from records.batch import CRC_FROM
from records.builder import build_batch
from records.record import Record
from storage.disk.checkpoint_files import HIGH_WATERMARKS, decode_offsets
from storage.disk.directory_health import FreeSpace
from tests.broker.replication_lab import (
    NEVER_MS,
    PATIENCE_S,
    TOPIC,
    TOPIC_ID,
    Lab,
    LabBroker,
    batch,
    eventually,
    fetch,
    list_offset,
    produce,
    produce_for,
    row_of,
    values_of,
    within,
)

pytestmark = pytest.mark.virtual_time


async def test_what_is_acknowledged_by_all_is_everywhere_byte_for_byte(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2), min_insync_replicas="2")
        client = await lab[0].connect()
        for number in range(5):
            row = await produce(client, batch(b"value %d" % number))
            assert (row.error_code, row.base_offset) == (0, number)
        leader = lab[0].bytes()
        for broker in lab.brokers:
            assert broker.bytes() == leader
        assert values_of(leader) == [b"value %d" % number for number in range(5)]
        received = [broker.plane.fetchers.received_bytes for broker in lab.brokers]
        assert received[0] == 0
        assert all(len(leader) < size < len(leader) + 5_000 for size in received[1:])
        await eventually(lambda: all(broker.partition.high_watermark == 5 for broker in lab.brokers))


async def test_many_requests_in_flight_are_answered_in_order(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        rows = await asyncio.gather(*[produce(client, batch(b"x" * 100, b"y")) for _ in range(50)])
        assert [row.base_offset for row in rows] == list(range(0, 100, 2))


async def test_acks_all_waits_while_a_member_of_the_isr_is_silent(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"before"))).error_code == 0
        await lab[2].stop()
        row = await produce(client, batch(b"late"), timeout_ms=100)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert lab[0].partition.high_watermark == 1
        assert (await produce(client, batch(b"at once"), acks=1)).base_offset == 2
        waiting = asyncio.create_task(produce(client, batch(b"later")))
        lab.controller.change(_isr((0, 1)))
        row = await within(PATIENCE_S, waiting)
        assert (row.error_code, row.base_offset) == (0, 3)


async def test_a_leader_that_breaks_off_is_doubted_until_it_is_heard_again(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"a"))).error_code == 0
        assert not lab[1].plane.fetchers.is_doubted(0)
        await lab[0].stop()
        await eventually(lambda: lab[1].plane.fetchers.is_doubted(0))
        assert not lab[1].plane.fetchers.is_doubted(2)  # nothing is followed there
        await lab[0].start()
        await eventually(lambda: not lab[1].plane.fetchers.is_doubted(0))


def _isr(isr: tuple[int, ...]) -> PartitionChangeRecord:
    return PartitionChangeRecord(TOPIC_ID, 0, isr=isr)


async def test_too_small_an_isr_is_refused_before_the_append_and_told_after_it(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2), min_insync_replicas="2")
        client = await lab[0].connect()
        assert (await produce(client, batch(b"whole"))).error_code == 0
        await lab[1].stop()
        await lab[2].stop()
        waiting = asyncio.create_task(produce(client, batch(b"stuck")))
        await eventually(lambda: lab[0].partition.log.log_end_offset == 2)
        lab.controller.change(_isr((0,)))
        assert (await within(PATIENCE_S, waiting)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        row = await produce(client, batch(b"refused"))
        assert row.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert lab[0].partition.log.log_end_offset == 2
        assert (await produce(client, batch(b"leader only"), acks=1)).error_code == 0
        assert lab[0].partition.high_watermark == 1, "nothing is committed below the minimum"


async def test_a_new_leader_keeps_what_was_acknowledged_and_the_old_one_gives_up_the_rest(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"committed"))).error_code == 0
        lab.controller.publishes = False
        lab[1].pause_fetching()
        lab[2].pause_fetching()
        assert (await produce(client, batch(b"lost"), acks=1)).base_offset == 1
        lab.controller.elect(1, isr=(1, 2))
        for broker in (lab[1], lab[2]):
            broker.catch_up(lab.controller.image)
            broker.resume_fetching()
        other = await lab[1].connect()
        row = await produce(other, batch(b"instead"))
        assert (row.error_code, row.base_offset) == (0, 1)
        lab[0].catch_up(lab.controller.image)
        await eventually(lambda: lab[0].partition.log.log_end_offset == 2)
        await eventually(lambda: lab[0].bytes() == lab[1].bytes())
        assert lab[0].values() == [b"committed", b"instead"]
        assert [event for event, _ in lab[0].audited if event == "log_truncated"] == ["log_truncated"]
        response = await produce_for(client, batch(b"to the old leader"))
        row = response.responses[0].partition_responses[0]
        assert row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert row.current_leader.leader_id == 1
        assert [endpoint.node_id for endpoint in response.node_endpoints] == [1]


async def test_a_leader_that_wrote_nothing_follows_again(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"one"))).error_code == 0
        for leader in (1, 2, 1, 0):
            lab.controller.elect(leader)
        assert (await within(PATIENCE_S, produce(client, batch(b"two")))).error_code == 0
        assert all(broker.values() == [b"one", b"two"] for broker in lab.brokers)


def _parted(caplog: pytest.LogCaptureFixture) -> list[tuple[object, ...]]:
    """(level, high watermark, end before, end afterwards) of each log that was cut for its leader's sake."""
    lines = [
        record.__dict__ for record in caplog.records if record.getMessage() == "the log is truncated to the leader's"
    ]
    return [tuple(line[name] for name in ("levelno", "high_watermark", "log_end_offset", "offset")) for line in lines]


async def test_a_leader_that_wrote_nothing_follows_without_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with Lab(tmp_path, 2) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"kept"))).error_code == 0
        await eventually(lambda: lab[1].partition.high_watermark == 1)
        lab.controller.elect(0)
        lab.controller.elect(1)
        await eventually(lambda: _parted(caplog))
    assert _parted(caplog) == [(logging.INFO, 1, 1, 1)]


@pytest.mark.parametrize("committed", [False, True])
async def test_a_log_that_parts_from_its_leaders_is_a_warning_when_something_committed_goes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, committed: bool
) -> None:
    caplog.set_level(logging.INFO)
    async with Lab(tmp_path, 2) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        assert (await produce(client, batch(b"kept"))).error_code == 0
        lab[1].pause_fetching()
        if committed:  # by the old leader alone, and lost in an unclean election
            lab.controller.change(_isr((0,)))
        assert (await produce(client, batch(b"lost"), acks=1)).error_code == 0
        lab[0].audit.slow = True  # a cut that waits for the audit is told of once
        lab.controller.elect(1, isr=(1,))
        lab[1].resume_fetching()
        await eventually(lambda: lab[0].audit.waiting)
        assert not _parted(caplog)
        lab[0].audit.flush()
        await eventually(lambda: lab[0].bytes() == lab[1].bytes())
    expected = (logging.WARNING, 2, 2, 1) if committed else (logging.INFO, 1, 2, 1)
    assert _parted(caplog) == [expected]


async def test_a_waiting_producer_hears_of_a_new_leader(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"first"))
        await lab[2].stop()
        waiting = asyncio.create_task(produce(client, batch(b"second")))
        await eventually(lambda: lab[0].partition.log.log_end_offset == 2)
        lab.controller.elect(1)
        assert (await within(PATIENCE_S, waiting)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_restarted_follower_catches_up_and_joins_the_isr_again(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        await lab[2].stop()
        lab.controller.change(_isr((0, 1)))
        for number in range(20):
            assert (await produce(client, batch(b"%d" % number))).error_code == 0
        old_epoch = lab[2].broker_epoch
        await lab[2].start()
        assert lab[2].broker_epoch > old_epoch
        await eventually(lambda: set(lab.controller.isr) == {0, 1, 2}, "the follower is in the ISR")
        assert lab[2].bytes() == lab[0].bytes()
        states = lab.controller.alterations[-1].topics[0].partitions[0].new_isr_with_epochs
        assert {state.broker_id: state.broker_epoch for state in states}[2] == lab[2].broker_epoch


async def test_an_idle_follower_joins_once_it_is_unfenced(tmp_path: Path) -> None:
    """Its fetches move nothing any more when it becomes eligible, so they alone would not show it."""
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2), isr=(0, 1))
        lab.fence(2)
        await asyncio.sleep(0.3)
        assert lab.controller.isr == (0, 1)
        lab.controller.change(BrokerRegistrationChangeRecord(2, lab[2].broker_epoch, fenced=False))
        await eventually(lambda: set(lab.controller.isr) == {0, 1, 2})


async def test_a_silent_follower_leaves_the_isr_and_writes_go_on(tmp_path: Path) -> None:
    async with Lab(tmp_path, replica_lag_time_max_ms=300) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        await lab[2].plane.fetchers.stop()
        row = await within(PATIENCE_S, produce(client, batch(b"two")))
        assert row.error_code == 0
        assert set(lab.controller.isr) == {0, 1}


async def test_a_leader_cut_off_from_the_controller_commits_nothing_without_its_isr(tmp_path: Path) -> None:
    async with Lab(tmp_path, replica_lag_time_max_ms=200) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        lab.controller.reachable = False
        await lab[1].plane.fetchers.stop()
        await lab[2].plane.fetchers.stop()
        row = await produce(client, batch(b"two"), timeout_ms=800)
        assert row.error_code == ErrorCode.REQUEST_TIMED_OUT
        assert lab[0].partition.high_watermark == 1
        assert lab[0].partition.replica_set is not None
        assert lab[0].partition.replica_set.isr == (0, 1, 2)
        assert lab[0].partition.replica_set.proposal is not None


@pytest.mark.parametrize("refusal", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_UPDATE_VERSION])
async def test_a_refused_proposal_leaves_the_committed_isr(tmp_path: Path, refusal: ErrorCode) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.refusal = refusal
        lab.controller.create_topic((0, 1, 2), isr=(0, 1))
        await eventually(lambda: lab.controller.alterations)
        client = await lab[0].connect()
        assert (await produce(client, batch(b"one"))).error_code == 0
        assert lab[0].partition.replica_set is not None
        assert lab[0].partition.replica_set.isr == (0, 1)
        if refusal is ErrorCode.INELIGIBLE_REPLICA:
            lab.controller.refusal = None
            await eventually(lambda: set(lab.controller.isr) == {0, 1, 2})


async def test_latest_is_not_known_before_the_high_watermark_reaches_the_epoch(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        lab[1].pause_fetching()
        lab[2].pause_fetching()
        await produce(client, batch(b"two"), acks=1)
        lab.controller.elect(0)  # a new epoch of the same leader begins above its high watermark
        assert (await list_offset(client, -1)).error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await list_offset(client, -1, version=4)).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        row = row_of(await fetch(client, 2, max_wait_ms=0))
        assert row.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        assert (await list_offset(client, -2)).offset == 0
        for broker in (lab[1], lab[2]):
            broker.resume_fetching()
        await eventually(lambda: lab[0].partition.high_watermark == 2)
        assert (await list_offset(client, -1)).offset == 2


async def test_a_follower_below_the_leaders_log_start_starts_again_there(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2), isr=(0, 1))
        client = await lab[0].connect()
        await lab[2].stop()
        lab.controller.change(_isr((0, 1)))
        for number in range(6):
            await produce(client, batch(b"%d" % number))
        RecordDeletion(lab[0].partition).delete(4)
        await lab[2].start()
        await eventually(lambda: lab[2].partition.log.log_end_offset == 6)
        assert lab[2].partition.log.log_start_offset == 4
        assert lab[2].values() == [b"4", b"5"]
        await eventually(lambda: lab[1].partition.log.log_start_offset == 4, "the log start reaches followers")


async def test_an_empty_follower_above_its_leaders_end_starts_again(tmp_path: Path) -> None:
    async with Lab(tmp_path, 2) as lab:
        lab.controller.create_topic((0, 1))
        assert (await produce(await lab[0].connect(), batch(b"kept"))).error_code == 0
        lab[1].partition.start_again_at(100)  # where the log of an earlier leader began
        lab.controller.elect(0)
        await eventually(lambda: lab[1].bytes() == lab[0].bytes(), "the follower copies its leader")


async def test_a_damaged_answer_is_not_appended_and_told_ever_more_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> list[int]:
        return [record.__dict__["times"] for record in caplog.records if "damaged batch" in record.getMessage()]

    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        await produce(client, batch(b"sound"))
        lab[1].pause_fetching()
        await asyncio.sleep(1.0)  # the fetch that named it is over
        await produce(client, batch(b"to be damaged"), acks=1)
        path = tmp_path / "broker-0" / "flights-0" / f"{0:020d}.log"
        data = bytearray(path.read_bytes())
        sound = len(batch(b"sound"))
        data[sound + CRC_FROM + 45] ^= 1
        path.write_bytes(data)
        lab[1].resume_fetching()
        await eventually(lambda: 5 in told(), "the follower tries again")
        assert told() == [1, 2, 3, 5]
        assert lab[1].values() == [b"sound"]
        assert lab[0].partition.high_watermark == 1


async def test_high_watermarks_survive_a_stop(tmp_path: Path) -> None:
    async with Lab(tmp_path, count=1) as lab:
        lab.controller.create_topic((0,))
        client = await lab[0].connect()
        await produce(client, batch(b"one", b"two"))
        client.close()
        await lab[0].stop()
        await lab[0].start()
        assert lab[0].partition.high_watermark == 2
        assert lab[0].values() == [b"one", b"two"]


async def test_a_follower_that_knows_of_a_topic_before_its_leader_does_is_not_forgotten(tmp_path: Path) -> None:
    """The leader learns of the topic between the follower's fetch and the end of that turn."""
    async with Lab(tmp_path, count=2) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        lab.controller.publishes = False
        lab.controller.change(PartitionRecord(TOPIC_ID, 1, (0, 1), (0, 1), 0))
        lab[0].after_frame = lambda: lab[0].catch_up(lab.controller.image)
        lab[1].catch_up(lab.controller.image)
        await eventually(lambda: lab[0].plane.partitions.get("flights", 1) is not None)
        await asyncio.sleep(0.3)  # the fetch that named it is over
        lab[0].after_frame = lambda: None
        row = await within(PATIENCE_S, produce(client, batch(b"two"), index=1))
        assert row.error_code == 0


async def test_deleting_a_topic_removes_its_replicas_and_tells_who_waits(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        waiting = asyncio.create_task(fetch(client, 1, max_wait_ms=NEVER_MS))
        await asyncio.sleep(0.05)
        lab.controller.change(RemoveTopicRecord(TOPIC_ID))
        assert row_of(await within(PATIENCE_S, waiting)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (await produce(client, batch(b"two"))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for broker in lab.brokers:
            assert broker.plane.partitions.get("flights", 0) is None
            assert not broker.logs.logs


async def test_an_added_replica_copies_the_partition_and_a_removed_one_goes(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        await produce(client, batch(b"one"))
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1, 2), adding=(2,)))
        await eventually(lambda: set(lab.controller.isr) == {0, 1, 2})
        assert lab[2].values() == [b"one"]
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 2), isr=(0, 2), adding=()))
        assert lab[1].plane.partitions.get("flights", 0) is None
        assert (await produce(client, batch(b"two"))).error_code == 0
        assert lab[2].values() == [b"one", b"two"]


async def test_what_was_decided_is_appended_and_what_would_not_fit_is_told_before(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0,), max_message_bytes="100")
        partition = lab[0].partition
        partition.check_room(1 << 20)
        decided = build_batch([Record(0, 1, b"k", bytes(2_000), ())])
        assert partition.append_records(decided, partition.leader_epoch, 1) == 1
        lab[0].logs.context.health.update_free_space(FreeSpace.REFUSED)
        with pytest.raises(ProtocolError) as caught:
            partition.check_room(1)
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR


class Breaking(Lab):
    """A lab in which starts can be broken off before brokers have recovered their logs."""

    breaks_off = False

    def prepare(self, broker: LabBroker) -> None:
        if self.breaks_off:
            raise InterruptedError


async def test_a_start_that_is_broken_off_keeps_the_high_watermarks(tmp_path: Path) -> None:
    async with Breaking(tmp_path, 1) as lab:
        lab.controller.create_topic((0,))
        await produce(await lab[0].connect(), batch(b"one", b"two"))
        await lab[0].stop()
        checkpoint = tmp_path / "broker-0" / HIGH_WATERMARKS
        said = checkpoint.read_bytes()
        assert decode_offsets(said) == {(TOPIC, 0): 2}
        lab.breaks_off = True
        with pytest.raises(InterruptedError):
            await lab[0].start()
        await lab[0].plane.stop()
        await lab[0].logs.close()
        assert checkpoint.read_bytes() == said
