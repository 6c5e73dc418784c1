"""Followers that do not get on, as their leader's disk is rotten or its log contradicts the tier: they say so and ask
seldom."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.tier.starts import TierStarts
from common.backoff import Backoff
from kraft.records import PartitionChangeRecord
from records.batch import HEADER_BYTES
from tests.broker.replication_lab import TOPIC_ID, Lab, batch, eventually, produce
from tests.broker.tier_lab import QUICK, TierLab

pytestmark = pytest.mark.virtual_time

VALUE = b"x" * 50
ROT_AT = 2  # the batch in which a bit is wrong
EPOCH_FIELD = range(12, 16)  # a leader stamps it: no CRC covers it, and a follower takes the offset for the truth
REQUESTS_MAX = 100  # in a second: 50 of links without news, and those of a replica that asks again and again


async def asked_in_a_second(lab: Lab) -> int:
    """How many requests all brokers served meanwhile: nearly all are followers' fetches."""
    before = sum(broker.dispatcher.requests for broker in lab.brokers)
    await asyncio.sleep(1.0)
    return sum(broker.dispatcher.requests for broker in lab.brokers) - before


def told(caplog: pytest.LogCaptureFixture, *events: str) -> list[dict[str, object]]:
    return [record.__dict__ for record in caplog.records if record.getMessage().startswith(events)]


async def rotten(lab: Lab, root: Path, spoil: Callable[[bytearray, int], None]) -> None:
    """A third replica has to copy an old segment in which `spoil` changed the bytes of the batch `ROT_AT`."""
    lab.controller.create_topic((0, 1), segment_bytes="1024", index_interval_bytes="0")
    client = await lab[0].connect()
    for _ in range(30):
        assert (await produce(client, batch(VALUE))).error_code == 0
    assert len(lab[0].partition.log.segments) > 2
    path = root / "broker-0" / "flights-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    spoil(data, ROT_AT * len(batch(VALUE)))
    path.write_bytes(data)
    lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1, 2), adding=(2,)))


@pytest.mark.parametrize("field", ["base offset", "length", "length of all", "magic", "crc", "attributes", "records"])
async def test_a_rotten_segment_of_the_leader_is_told_and_asked_for_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    chance = random.Random(field)
    at = {"base offset": 7, "length": 11, "length of all": 8, "magic": 16, "crc": 18, "attributes": 22}.get(
        field, HEADER_BYTES + 5
    )

    def spoil(data: bytearray, begin: int) -> None:
        data[begin + at] ^= 1 << chance.randrange(6)

    async with Lab(tmp_path) as lab:
        await rotten(lab, tmp_path, spoil)
        events = ("the leader sent a damaged batch", "the leader rejects fetches", "fetched records cannot be appended")
        await eventually(lambda: told(caplog, *events), "somebody says what is wrong")
        await eventually(lambda: lab[2].plane.fetchers.held_up_count == 1)
        before = len(told(caplog, *events))
        assert await asked_in_a_second(lab) < REQUESTS_MAX
        assert len(told(caplog, *events)) - before <= 2
        line = told(caplog, *events)[-1]
        assert line["leader"] == 0
        assert 0 <= int(str(line["offset"])) <= ROT_AT
        assert lab[2].partition.log.log_end_offset <= ROT_AT
        assert 2 not in lab.controller.isr
        assert [lab[0].plane.fetchers.held_up_count, lab[1].plane.fetchers.held_up_count] == [0, 0]


async def test_a_batch_that_claims_to_be_longer_than_an_answer_does_not_make_its_follower_spin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    value = bytes(200_000)
    async with Lab(tmp_path, replica_fetch_max_bytes=400_000) as lab:
        lab.controller.create_topic((0, 1))
        client = await lab[0].connect()
        for _ in range(8):
            assert (await produce(client, batch(value))).error_code == 0
        with (tmp_path / "broker-0" / "flights-0" / f"{0:020d}.log").open("r+b") as file:
            file.seek(2 * len(batch(value)) + 8)
            file.write((700_000).to_bytes(4, "big"))
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1, 2), adding=(2,)))
        await eventually(lambda: told(caplog, "the leader sent a damaged batch"))
        assert await asked_in_a_second(lab) < REQUESTS_MAX
        assert lab[2].partition.log.log_end_offset == 2


async def test_a_follower_that_gets_on_again_is_not_held_up(tmp_path: Path) -> None:
    async with Lab(tmp_path) as lab:
        path = tmp_path / "broker-0" / "flights-0" / f"{0:020d}.log"
        sound = b""

        def spoil(data: bytearray, begin: int) -> None:
            nonlocal sound
            sound = bytes(data)
            data[begin + HEADER_BYTES] ^= 1

        await rotten(lab, tmp_path, spoil)
        await eventually(lambda: lab[2].plane.fetchers.held_up_count == 1)
        path.write_bytes(sound)
        await eventually(lambda: 2 in lab.controller.isr)
        assert lab[2].plane.fetchers.held_up_count == 0


async def test_a_leader_that_contradicts_the_tier_has_its_follower_begin_there_ever_more_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(QUICK, backoff_min_ms=100, backoff_max_ms=10_000)
    async with TierLab(tmp_path, 2, config) as lab:
        lab.create_tiered(0, local_retention_ms="0")
        client = await lab[0].connect()
        for _ in range(20):
            await produce(client, batch(bytes(200)))
        await lab.copied()
        assert await lab.drop_local() > 0
        epochs = lab.partition(0).log.leader_epochs
        epochs.truncate_from_end(10)
        epochs.assign(1, 10)  # as if another leader had begun there, of whom the tier has never heard
        service = lab.tiers[1].service
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
        await eventually(lambda: service.starts.repeated >= 2)
        before = service.started_from_tier
        assert await asked_in_a_second(lab) < REQUESTS_MAX
        assert service.started_from_tier - before <= 3
        lines = told(caplog, "the leader's log contradicts the tier")
        assert [line["times"] for line in lines[:2]] == [1, 2]
        assert len(lines) <= 3
        assert lines[0]["leader"] == 0


async def test_a_replica_that_cannot_begin_from_the_tier_asks_ever_more_seldom(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(QUICK, backoff_min_ms=50, backoff_max_ms=10_000)
    async with TierLab(tmp_path, 2, config) as lab:
        lab.create_tiered(0, local_retention_ms="0")
        client = await lab[0].connect()
        for _ in range(20):
            await produce(client, batch(bytes(200)))
        await lab.copied()
        assert await lab.drop_local() > 0
        lab.tiers[1].store.faults.down = True
        lab.controller.change(PartitionChangeRecord(TOPIC_ID, 0, replicas=(0, 1)))
        await eventually(lambda: len(told(caplog, "a replica cannot start from the tier yet")) >= 3)
        lines = told(caplog, "a replica cannot start from the tier yet")
        assert [line["times"] for line in lines[:3]] == [1, 2, 4]
        lab.tiers[1].store.faults.down = False
        await eventually(lambda: lab.controller.isr == (0, 1))


def test_pauses_between_futile_beginnings_grow_up_to_a_bound() -> None:
    starts, now, pauses = TierStarts(Backoff(0.1, 2.0)), 0.0, []
    replica: object = object()
    assert starts.began(replica, 10, now) == 0  # type: ignore[arg-type]
    assert starts.may_begin(replica, now)  # type: ignore[arg-type]
    for times in range(1, 9):
        assert starts.began(replica, 10, now) == times  # type: ignore[arg-type]
        begin = now
        while not starts.may_begin(replica, now):  # type: ignore[arg-type]
            now += 0.05
        pauses.append(round(now - begin, 1))
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]
    assert starts.began(replica, 20, now) == 0  # type: ignore[arg-type]
    starts.forget(replica)  # type: ignore[arg-type]
    assert starts.may_begin(replica, now)  # type: ignore[arg-type]
