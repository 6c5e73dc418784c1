"""What `tidelog_tier_copy_failures_total` counts: each failed attempt at a step of a copy, and no lost leadership."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.tier import copying, service
from broker.tier.led import NotNow
from broker.tier.metrics import register_tier_metrics
from common.errors import OutcomeUnknown
from common.metrics import Metrics
from object_store.errors import StoreUnavailable
from storage.log.closed_segments import SegmentReader
from tests.broker.replication_lab import TOPIC, TOPIC_ID, batch, eventually, produce
from tests.broker.tier_lab import ROOT, TierLab
from tiering.bucket.keys import SegmentKey
from tiering.shard.shard_protocol import Claim, Refused

pytestmark = pytest.mark.virtual_time

VALUE = b"v" * 200
TIMES = 3
NAME = b"tidelog_tier_copy_failures_total"
Break = Callable[[TierLab, pytest.MonkeyPatch], None]


class Failing:
    """Raises `error` the first TIMES times that it is passed."""

    def __init__(self, error: Exception) -> None:
        self.error, self.left = error, TIMES

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise self.error


def counted(lab: TierLab, node: int = 0) -> int:
    """As /metrics shows it."""
    metrics = Metrics()
    register_tier_metrics(metrics, lab.tiers[node].service)
    (line,) = [line for line in metrics.text().splitlines() if line.startswith(NAME)]
    return int(float(line.split()[-1]))


async def fill(lab: TierLab) -> None:
    connection = await lab[0].connect()
    for _ in range(8):
        assert (await produce(connection, batch(VALUE))).error_code == 0


async def claimed(lab: TierLab) -> None:
    lab.create_tiered(0)
    await eventually(lambda: lab.view() is not None, "the claim is answered")


def finding(lab: TierLab, patch: pytest.MonkeyPatch) -> None:
    fail, right = Failing(NotNow("bytes are missing")), copying.next_segment

    def found(*given: Any) -> Any:
        closed = right(*given)
        if closed is not None:
            fail()
        return closed

    patch.setattr(service, "next_segment", found)


def owning(lab: TierLab, patch: pytest.MonkeyPatch) -> None:
    copier, fail = lab.tiers[0].service.copier, Failing(StoreUnavailable("s3", "get", "cluster.json", "away"))
    guard = copier._guard

    class Guard:
        async def check(self) -> int:
            fail()
            return await guard.check()

    patch.setattr(copier, "_guard", Guard())


def reading(_: TierLab, patch: pytest.MonkeyPatch, error: type[OSError] = OSError) -> None:
    fail, right = Failing(error(errno.EIO, "the disk is rotten")), SegmentReader.steps

    def steps(reader: SegmentReader) -> Iterator[int]:
        fail()
        return right(reader)

    patch.setattr(SegmentReader, "steps", steps)


def missing(lab: TierLab, patch: pytest.MonkeyPatch) -> None:
    reading(lab, patch, FileNotFoundError)


def writing_state(name: str) -> Break:
    def broken(lab: TierLab, _: pytest.MonkeyPatch) -> None:
        fail = Failing(OutcomeUnknown("the shard is silent"))

        async def before(at: str) -> None:
            if at == name:
                fail()

        lab.tiers[0].calls.before = before

    return broken


def uploading(lab: TierLab, _: pytest.MonkeyPatch) -> None:
    fail = Failing(StoreUnavailable("s3", "put", "segment", "away"))

    async def before(at: str, key: str) -> None:
        if at == "put" and isinstance(ROOT.parse_key(key), SegmentKey):
            fail()

    lab.tiers[0].store.before = before


@pytest.mark.parametrize(
    "broken",
    [finding, owning, reading, missing, writing_state("StartCopy"), uploading, writing_state("FinishCopy")],
    ids=["finding", "owning", "reading", "missing", "starting", "uploading", "finishing"],
)
async def test_each_failed_attempt_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: Break) -> None:
    async with TierLab(tmp_path) as lab:
        await claimed(lab)
        broken(lab, monkeypatch)
        assert counted(lab) == 0
        await fill(lab)
        await lab.copied()
        assert counted(lab) == TIMES
        lab.bucket.check()


async def test_another_leaders_claim_is_no_failure(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        await claimed(lab)
        assert not isinstance(lab.bucket.ask(Claim(7, 1, 1, TOPIC), TOPIC_ID), Refused)
        await fill(lab)
        await eventually(lambda: lab.tiers[0].service.led[0].failures > 1, "it has noticed")
        assert counted(lab) == 0


async def test_a_shard_that_is_silent_while_the_leadership_moves_is_no_failure(tmp_path: Path) -> None:
    async with TierLab(tmp_path, 2) as lab:
        lab.create_tiered(0, 1)
        await eventually(lambda: lab.view() is not None, "the claim is answered")

        async def before(name: str) -> None:
            if name == "StartCopy":
                if lab.partition(0).is_leader:
                    lab.controller.elect(1)
                raise OutcomeUnknown("the shard is silent")

        lab.tiers[0].calls.before = before
        connection = await lab[0].connect()
        for _ in range(8):
            if (await produce(connection, batch(VALUE))).error_code:
                break
        await lab.copied(1)
        assert (counted(lab, 0), counted(lab, 1)) == (0, 0)


async def test_a_segment_below_the_logs_start_is_no_failure(tmp_path: Path) -> None:
    async with TierLab(tmp_path) as lab:
        await claimed(lab)
        fail = Failing(StoreUnavailable("s3", "put", "segment", "away"))

        async def before(at: str, key: str) -> None:
            if at == "put" and isinstance(ROOT.parse_key(key), SegmentKey) and fail.left:
                partition = lab.partition()
                if fail.left == 1:
                    await lab.tiers[0].service.delete_records(partition, partition.log.active.base_offset, 10)
                fail()

        lab.tiers[0].store.before = before
        await fill(lab)
        await eventually(lambda: not fail.left, "the uploads failed")
        await eventually(lambda: lab.bucket.tier.log_start_offset and not list(lab.bucket.tier.copying()))
        assert counted(lab) == TIMES
