"""What `tidelog_tier_copy_failures_total` counts: each failed attempt at a step of a copy, and no lost leadership."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.tier.metrics import register_tier_metrics
from common.errors import OutcomeUnknown
from common.machine_disk import MachineDisk, MachineFile
from common.metrics import Metrics
from common.ports import Ports
from object_store.errors import StoreUnavailable
from storage.segments.segment import LOG_SUFFIX
from tests.broker.replication_lab import TOPIC, TOPIC_ID, batch, eventually, produce
from tests.broker.tier_lab import ROOT, TierLab
from tests.virtual_time import lab_ports
from tiering.bucket.keys import SegmentKey
from tiering.shard.shard_protocol import Claim, Refused

pytestmark = pytest.mark.virtual_time

VALUE = b"v" * 200
TIMES = 3
NAME = b"tidelog_tier_copy_failures_total"
Break = Callable[[TierLab], None]


class Failing:
    """Raises `error` the first TIMES times that it is passed."""

    def __init__(self, error: Exception) -> None:
        self.error, self.left = error, TIMES

    def __call__(self) -> None:
        if self.left:
            self.left -= 1
            raise self.error


def failing_ports(root: Path) -> Ports:
    return replace(lab_ports(root), disk=FailingDisk(root))


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


class FailingDisk(MachineDisk):
    """`fail` is passed before bytes of a segment are read: in these tests that is to copy it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fail: Callable[[], None] = lambda: None

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        file = super().open(path, create=create)
        return FailingFile(file.fd, self) if path.endswith(LOG_SUFFIX) else file


class FailingFile(MachineFile):
    __slots__ = ("_disk",)

    def __init__(self, fd: int, disk: FailingDisk) -> None:
        super().__init__(fd)
        self._disk = disk

    def pread(self, size: int, position: int) -> bytes:
        self._disk.fail()
        return super().pread(size, position)


def owning(lab: TierLab) -> None:
    async def before(at: str, key: str) -> None:
        if at == "get" and key == ROOT.cluster_file and counted(lab) < TIMES:  # manifests ask as well
            raise StoreUnavailable("s3", "get", "cluster.json", "away")

    lab.tiers[0].store.before = before


def reading(lab: TierLab, error: type[OSError] = OSError) -> None:
    disk = lab[0].machinery.ports.disk
    assert isinstance(disk, FailingDisk)
    disk.fail = Failing(error(errno.EIO, "the disk is rotten"))


def missing(lab: TierLab) -> None:
    reading(lab, FileNotFoundError)


def writing_state(name: str) -> Break:
    def broken(lab: TierLab) -> None:
        fail = Failing(OutcomeUnknown("the shard is silent"))

        async def before(at: str) -> None:
            if at == name:
                fail()

        lab.tiers[0].calls.before = before

    return broken


def uploading(lab: TierLab) -> None:
    fail = Failing(StoreUnavailable("s3", "put", "segment", "away"))

    async def before(at: str, key: str) -> None:
        if at == "put" and isinstance(ROOT.parse_key(key), SegmentKey):
            fail()

    lab.tiers[0].store.before = before


@pytest.mark.parametrize(
    "broken",
    [owning, reading, missing, writing_state("StartCopy"), uploading, writing_state("FinishCopy")],
    ids=["owning", "reading", "missing", "starting", "uploading", "finishing"],
)
async def test_each_failed_attempt_counts_once(tmp_path: Path, broken: Break) -> None:
    async with TierLab(tmp_path, ports=failing_ports) as lab:
        broken(lab)
        await claimed(lab)
        assert counted(lab) == 0
        await fill(lab)
        await lab.copied()
        assert counted(lab) == TIMES
        lab.bucket.check()


async def test_each_attempt_counts_while_bytes_are_missing(tmp_path: Path) -> None:
    """Until a deletion makes up for what this disk has lost between the tier's end and its own log."""
    async with TierLab(tmp_path) as lab:
        lab.create_tiered(0, local_retention_ms="0")
        await eventually(lambda: lab.view() is not None, "the claim is answered")
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def before(name: str) -> None:
            if name == "StartCopy":
                begun.set()
                await go_on.wait()

        lab.tiers[0].calls.before = before
        await fill(lab)
        await fill(lab)
        await begun.wait()
        log, (led,) = lab.partition().log, lab.tiers[0].service.led
        await log.flush_closed()
        first = log.segments[-2].base_offset
        while log.delete_old_segments(lab.bucket.now_ms, first, first):
            pass
        assert log.local_log_start_offset == first
        go_on.set()
        await eventually(lambda: led.failures >= TIMES)
        assert counted(lab) == led.failures
        tried = counted(lab)
        await lab.tiers[0].service.delete_records(lab.partition(), first, 10)
        await fill(lab)
        await lab.copied()
        assert tried <= counted(lab) <= tried + 1


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
