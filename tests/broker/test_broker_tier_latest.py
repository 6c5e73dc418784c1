"""ListOffsets for the record with the greatest timestamp of all, where a segment's greatest is of no record."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from records.builder import build_batch
from records.record import Record
from tests.broker.replication_lab import NOW_MS, list_offset, produce
from tests.broker.test_broker_cold_reads import tiered
from tiering.shard.tier_records import encode_segment

pytestmark = pytest.mark.virtual_time

MAX_TIMESTAMP = -3
TIMES = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=2, max_size=6)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(times=TIMES, said=st.lists(st.integers(0, 3), min_size=6, max_size=6), hidden=st.integers(0, 23))
@example(times=[[0], [0]], said=[0, 1, 0, 0, 0, 0], hidden=0)  # of equal records the first, though the second says more
async def test_the_latest_record_is_found_though_segments_say_more(
    tmp_path: Path, times: list[list[int]], said: list[int], hidden: int
) -> None:
    """Compaction leaves batches without records, and a log start hides some of a segment's."""
    async with tiered(Path(tempfile.mkdtemp(dir=tmp_path))) as world:
        for batch in times:
            records = [Record(at, NOW_MS + time, b"k", b"v" * 90, ()) for at, time in enumerate(batch)]
            await produce(world.client, bytes(build_batch(records)))
            world.tier.roll(world.partition())
        count = sum(map(len, times))
        partition = world.partition()
        start = hidden % count
        tier = await world.tier.copy(partition)
        partition.log.advance_log_start(start, "test")
        await world.tier.copy(partition)
        for segment, more in zip(list(tier.segments(0)), said, strict=False):
            told = replace(segment, max_timestamp=segment.max_timestamp + more)
            tier.replay_segment(segment.id, encode_segment(told, 0))
        all_times = [time for batch in times for time in batch]
        wanted = max(range(start, count), key=lambda offset: (all_times[offset], -offset))
        row = await list_offset(world.client, MAX_TIMESTAMP)
        assert (row.error_code, row.timestamp, row.offset) == (0, NOW_MS + all_times[wanted], wanted)
