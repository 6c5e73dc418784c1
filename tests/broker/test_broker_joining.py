"""Followers that come before their leader is ready for them, and those that the controller refuses at first."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.partitions.partition import Partition
from broker.replication.fetch_sessions import FetchSession
from broker.security.session import ClientSession
from common.errors import ErrorCode
from kraft.records import BrokerRegistrationChangeRecord, PartitionChangeRecord
from tests.broker.replication_lab import TOPIC_ID, Lab, batch, eventually
from tests.virtual_time import stall
from wire.hot_codec import FetchCall, FetchPart

pytestmark = pytest.mark.virtual_time

VERSION = 17
BYTES_MAX = 1 << 20
CLIENT = ClientSession("NODES", internal=True, client_host="127.0.0.1", connection=None)


def replica_call(lab: Lab, node: int, leader_epoch: int) -> FetchCall:
    """The first fetch of `node`, which has nothing yet, for the only partition."""
    part = FetchPart(TOPIC_ID, 0, leader_epoch, 0, -1, 0, BYTES_MAX)
    return FetchCall(
        replica=node,
        replica_epoch=lab[node].broker_epoch,
        wait_ms_max=500,
        bytes_min=1,
        bytes_max=BYTES_MAX,
        isolation=0,
        session_id=0,
        session_epoch=0,
        parts=[part],
        forgotten=[],
        rack=b"",
        cluster_id=None,
    )


async def test_a_leader_hears_who_named_it_before_it_led(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((1, 0, 2))
        await lab[2].stop()
        reader, call = lab[0].plane.fetch.reader, replica_call(lab, 2, leader_epoch=1)
        session = FetchSession(7, 2, True, 0.0)
        (position,) = session.update(call.parts, ())
        position.watch(reader.find(position, VERSION, CLIENT))
        reader.acknowledge(position, call, session)
        lab.controller.elect(0)
        assert reader.read(position, call, VERSION, BYTES_MAX, True, CLIENT).row.error == ErrorCode.NONE
        replicas = lab[0].partition.replica_set
        assert replicas is not None
        assert replicas.followers[2].end_offset == 0
        assert replicas.followers[2].session is session


async def test_who_was_refused_a_place_in_the_isr_is_looked_after(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.reachable = False
        lab.controller.create_topic((0, 1, 2), isr=(0, 1))
        await lab[1].stop()
        await lab[2].stop()
        partition: Partition = lab[0].partition
        hosted = lab[0].plane.partitions
        for node in (1, 2):
            partition.follower_fetched(node, 0, 0, lab[node].broker_epoch)
        replicas = partition.replica_set
        assert replicas is not None
        proposal = replicas.proposal
        assert proposal is not None
        assert proposal.isr == (0, 1, 2)
        hosted.review(10)
        assert partition not in hosted.unsettled_partitions
        partition.isr_refused(proposal)
        assert partition in hosted.unsettled_partitions


async def test_a_new_leader_is_joined_by_all_though_nothing_is_written(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((0, 1, 2))
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, isr=(1,), leader=1))
        await eventually(lambda: sorted(lab.controller.isr) == [0, 1, 2])


async def test_followers_get_back_the_time_in_which_their_leader_stood_still(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.reachable = False
        lab.controller.create_topic((0, 1, 2))
        await lab[1].stop()
        await lab[2].stop()
        partition: Partition = lab[0].partition
        for node in (1, 2):
            partition.follower_fetched(node, 0, 0, lab[node].broker_epoch)
        partition.append_records(bytearray(batch(b"x")), partition.leader_epoch, 0)
        replicas = partition.replica_set
        assert replicas is not None
        stall(60.0)  # their fetches wait in the sockets
        partition.review(stalled_s=60.0)
        assert replicas.proposal is None
        partition.review()
        assert replicas.proposal is not None


async def test_what_was_whole_while_the_isr_was_too_small_is_not_behind_at_the_next_record(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        lab.controller.reachable = False
        await lab[1].stop()
        await lab[2].stop()
        lab.controller.create_topic((0, 1, 2), isr=(0, 1), min_insync_replicas="3")
        partition: Partition = lab[0].partition
        partition.append_records(bytearray(batch(b"x")), partition.leader_epoch, 0)
        partition.follower_fetched(1, partition.log.log_end_offset, 0, lab[1].broker_epoch)
        assert partition.high_watermark < partition.log.log_end_offset
        stall(60.0)
        partition.review()
        partition.append_records(bytearray(batch(b"y")), partition.leader_epoch, 0)
        stall(0.001)
        partition.review()
        replicas = partition.replica_set
        assert replicas is not None
        assert replicas.proposal is None


async def test_a_broker_that_has_lost_records_does_not_lead_where_it_led_before(tmp_path: Path) -> None:
    """The controllers change the partitions of a broker a few at a time, after its registration."""
    async with Lab(tmp_path) as lab:
        lab.controller.create_topic((1, 0, 2))
        epoch = lab.controller.image.brokers[0].epoch
        lab.controller.change(BrokerRegistrationChangeRecord(0, epoch, fenced=True, lost_data=True))
        lab.controller.elect(0)
        await asyncio.sleep(0.1)
        assert not lab[0].partition.is_leader
        assert lab[0].partition.leader_epoch == 1
        lab.controller.elect(1)
        lab.controller.change(BrokerRegistrationChangeRecord(0, epoch, fenced=False))
        await eventually(lambda: lab[0].partition.leader_id == 1, "it follows")
        lab.controller.elect(0)
        await eventually(lambda: lab[0].partition.is_leader, "it is elected once it has caught up")
