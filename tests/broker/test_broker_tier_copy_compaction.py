"""A copy to the tier of a log that is compacted at any moment: each object holds its range, and nothing twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from records.batch import iterate_batches
from storage.cleaning.cleaner import CleanerConfig, LogCleaner
from tests.broker.replication_lab import batch, produce
from tests.broker.tier_lab import ROOT, TierLab
from tiering.bucket.segment import SegmentState

pytestmark = pytest.mark.virtual_time

COMPACTED = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}


def cleaner_of(lab: TierLab) -> LogCleaner:
    partition = lab.partition()
    log = partition.log
    return LogCleaner(log.context, lambda: [log], lambda _: partition.high_watermark, CleanerConfig())


@pytest.mark.parametrize("point", ["get", "put"])
async def test_a_segment_that_is_compacted_while_its_copy_waits_is_copied_as_it_was(tmp_path: Path, point: str) -> None:
    """The copy waits for the store before it reads the segment ("get": whether this cluster still owns the bucket) and
    afterwards ("put")."""
    async with TierLab(tmp_path) as lab:
        written, looks = asyncio.Event(), 0

        async def before(at: str, key: str) -> None:
            nonlocal looks
            if at == point and (key == ROOT.cluster_file) == (point == "get"):
                await written.wait()
                await lab.partition().log.flush_closed()
                while await cleaner_of(lab).clean_dirtiest():
                    pass
                looks += 1

        lab.tiers[0].store.before = before
        lab.create_tiered(0, **COMPACTED)
        connection = await lab[0].connect()
        for number in range(40):  # five to a segment, of which three are left: those of two segments fill one
            key = b"key %02d" % (number // 5 * 10 + number % 5 % 3)
            assert (await produce(connection, batch(b"v" * 100, keys=[key]))).error_code == 0
        written.set()
        await lab.copied()
        assert looks > 0
        assert lab.tiers[0].service.copier.counts.failures == 0
        lab.bucket.check()
        for segment in lab.bucket.tier.segments(0):
            assert segment.state is SegmentState.COPY_FINISHED
            data = memoryview(lab.bucket.object(segment))[: segment.log_bytes]
            offsets = [(header.base_offset, header.next_offset) for _, header in iterate_batches(data, 0, len(data))]
            assert all(segment.base_offset <= low < high <= segment.end_offset for low, high in offsets)
            assert offsets == sorted(offsets)
