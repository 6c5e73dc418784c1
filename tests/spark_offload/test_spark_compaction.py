"""Compaction of one partition against an oracle that reads the same bytes with kafka-python."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from records.compression import Compression
from records.record import Record
from spark_offload.compaction import partition_task
from spark_offload.compaction.partition_task import PartitionOutcome, PartitionTask, compact_partition
from spark_offload.compaction.policies import TopicPolicy
from storage.producers.producer_snapshot import Snapshot
from tests.spark_offload import compaction_world
from tests.spark_offload.compaction_world import Step, World, batches_of, decided, log_of, survivors
from tests.spark_offload.tier_builder import NOW, BuiltPartition, TierBuilder, batch, plain_batches
from tiering.bucket.segment import OFFSET_INDEX, TRANSACTION_INDEX, TieredSegment
from tiering.shard.swap import swap_complaint

DAY_MS = 86_400_000


def policy(**fields: int) -> TopicPolicy:
    chosen = {
        "delete_retention_ms": DAY_MS,
        "min_compaction_lag_ms": 0,
        "segment_bytes": 4_000,
        "index_interval_bytes": 200,
    }
    return TopicPolicy(is_compacted=True, **(chosen | fields))


def task(
    partition: BuiltPartition,
    rules: TopicPolicy,
    *,
    chunk_bytes: int = 2_000,
    key_memory_bytes: int = 1 << 28,
    min_dirty_ratio: float = 0.0,
) -> PartitionTask:
    return PartitionTask(
        tier=partition.root.as_uri(),
        cluster_id=partition.tier.cluster_id,
        path=partition.path,
        policy=rules,
        chunk_bytes=chunk_bytes,
        key_memory_bytes=key_memory_bytes,
        min_dirty_ratio=min_dirty_ratio,
    )


@contextmanager
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        yield World(TierBuilder(Path(folder)).partition("planes"))


def compact(partition: BuiltPartition, rules: TopicPolicy, **fields: Any) -> PartitionOutcome:
    """As the job and a leader do it."""
    outcome = compact_partition(task(partition, rules, **fields))
    assert outcome.problem is None
    for rewrite in outcome.rewrites:
        assert swap_complaint(rewrite.inputs, rewrite.outputs) is None
        at = partition.segments.index(rewrite.inputs[0])
        if rewrite.deletes_go:
            assert rewrite.inputs[0].base_offset <= partition.log_start
        partition.segments[at : at + len(rewrite.inputs)] = rewrite.outputs
        for segment in rewrite.outputs:
            check_object(partition, segment)
    partition.publish()
    return outcome


def check_object(partition: BuiltPartition, segment: TieredSegment) -> None:
    """What DumpLogSegments would look at: batches in range, the last one at the end, indexes at batches."""
    data = log_of(partition, segment)
    batches = batches_of(data)
    assert batches[0].base_offset >= segment.base_offset
    assert sum(len(one.records) for one in batches) == segment.records
    starts, at = {}, 0
    for one in batches:
        starts[at] = one.end - 1
        at += int.from_bytes(data[at + 8 : at + 12], "big") + 12
    whole = partition.file_of(segment).read_bytes()
    section = segment.sections[OFFSET_INDEX]
    entries = whole[section.position : section.position + section.length]
    for entry in range(0, len(entries), 8):
        offset = int.from_bytes(entries[entry : entry + 4], "big") + segment.base_offset
        assert starts[int.from_bytes(entries[entry + 4 : entry + 8], "big")] == offset
    assert len(whole) == segment.object_bytes


def all_batches(partition: BuiltPartition) -> list[compaction_world.Batch]:
    return [one for segment in partition.segments for one in batches_of(log_of(partition, segment))]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    compaction_world.steps,
    st.booleans(),
    st.sampled_from([100, 1_000, 100_000]),
    st.sampled_from([300, 1 << 20]),
    st.sampled_from([200, 1_500, 1 << 28]),
)
def test_what_stays_is_the_last_value_of_each_key(
    steps: list[Step], log_append_time: bool, segment_bytes: int, chunk_bytes: int, key_memory: int
) -> None:
    with world() as made:
        made.write(steps, log_append_time=log_append_time)
        made.close()
        if not made.partition.segments:
            return
        made.partition.publish()
        before = all_batches(made.partition)
        span = made.partition.segments[0].base_offset, made.partition.segments[-1].end_offset
        rules = policy(segment_bytes=segment_bytes)
        outcome = compact(made.partition, rules, chunk_bytes=chunk_bytes, key_memory_bytes=key_memory)
        after = all_batches(made.partition)
        assert decided(after)[0] == survivors(before)
        assert not decided(after)[1]
        assert (made.partition.segments[0].base_offset, made.partition.segments[-1].end_offset) == span
        check_batches(before, after)
        check_producers(made, after)
        assert outcome.counts.records + outcome.counts.aborted_dropped == sum(
            len(one.records) for one in before if not one.is_control
        )
        assert outcome.counts.keys == len(survivors(before))
        compact(made.partition, rules, chunk_bytes=chunk_bytes)
        assert decided(all_batches(made.partition))[0] == survivors(before), "twice is as good as once"


def check_batches(before: list[compaction_world.Batch], after: list[compaction_world.Batch]) -> None:
    """What is left of a batch has its offsets, its producer's fields, its epoch and its codec."""
    known = {one.base_offset: one for one in before}
    for one in after:
        was = known[one.base_offset]
        assert (one.end, one.producer, one.leader_epoch) == (was.end, was.producer, was.leader_epoch)
        assert one.attributes & ~0x47 == was.attributes & ~0x47
        if one.records:
            assert one.attributes & 7 == was.attributes & 7
        fresh = any(record.value is None for record in one.records) and not one.is_control
        if fresh:
            assert one.attributes & 0x40, "tombstones have a horizon"


def check_producers(made: World, after: list[compaction_world.Batch]) -> None:
    """Each producer's last batch is there, were it empty."""
    ends = {one.end - 1 for one in after if not one.is_control}
    assert set(made.last.values()) <= ends


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(compaction_world.steps, st.sampled_from([100, 100_000]))
def test_deletes_go_when_their_time_has_passed(steps: list[Step], segment_bytes: int) -> None:
    with world() as made:
        made.write(steps)
        made.close()
        if not made.partition.segments:
            return
        made.partition.publish()
        before = all_batches(made.partition)
        rules = policy(segment_bytes=segment_bytes, delete_retention_ms=0)
        compact(made.partition, rules)
        assert decided(all_batches(made.partition))[0] == survivors(before), "the first time they are only marked"
        for _ in range(3):
            compact(made.partition, rules)
        left = all_batches(made.partition)
        assert decided(left)[0] == [one for one in survivors(before) if one.value is not None]
        markers = [one for one in left if one.is_control and one.records]
        producers = {one.producer[0] for one in left if one.attributes & 16 and not one.is_control}
        assert {one.producer[0] for one in markers} <= producers, "a marker goes after the last of its batches"
        indexed = [one for one in made.partition.segments if TRANSACTION_INDEX in one.sections]
        assert not indexed or any(one.attributes & 16 and not one.is_control for one in left)
        again = compact(made.partition, rules)
        assert not again.rewrites, "it comes to rest"


def test_deletes_stay_when_the_log_start_has_a_hole_behind_it() -> None:
    with world() as made:
        made.offset = 10
        made.write(
            [Step("batch", 0, Compression.NONE, ((b"a", None, 0, 0),)), Step("roll", 0, Compression.NONE, ())] * 2
        )
        made.partition.publish()
        rules = policy(delete_retention_ms=0)
        for _ in range(3):
            outcome = compact(made.partition, rules)
            assert not any(rewrite.deletes_go for rewrite in outcome.rewrites)
        assert [record.offset for record in decided(all_batches(made.partition))[0]] == [11]
        made.partition.log_start = 10
        made.partition.publish()
        compact(made.partition, rules)
        assert decided(all_batches(made.partition))[0] == []


def test_nothing_behind_an_open_transaction_or_too_young_is_touched() -> None:
    value = ((b"a", b"v", 0, 0),)
    with world() as made:
        rolled = Step("roll", 0, Compression.NONE, ())
        plain = Step("batch", 0, Compression.NONE, value)
        made.write([plain, rolled, plain, rolled, Step("batch", 3, Compression.NONE, value), rolled, plain, rolled])
        made.partition.publish()
        outcome = compact(made.partition, policy())
        assert outcome.end == 2
        assert [(one.base_offset, one.end_offset) for one in made.partition.segments] == [(0, 2), (2, 3), (3, 4)]
    with world() as made:
        made.partition.add(plain_batches(0, 20))
        made.partition.add([batch([Record(0, 2**52, b"k", b"v")], 20)])
        made.partition.add(plain_batches(21, 20))
        made.partition.publish()
        assert compact(made.partition, policy(min_compaction_lag_ms=1_000)).end == 20


def test_what_would_not_change_is_left_alone() -> None:
    with world() as made:
        for first in (0, 1_000):
            made.partition.add(
                [batch([Record(0, NOW, b"%d" % offset, bytes(50)) for offset in range(at, at + 10)], at)
                 for at in range(first, first + 1_000, 10)]
            )  # fmt: skip
        for at in range(2_000, 2_100, 10):
            made.partition.add([batch([Record(0, NOW, b"x", bytes(5))] * 10, at)])
        made.partition.publish()
        kept = made.partition.segments[:2]
        outcome = compact(made.partition, policy())
        assert made.partition.segments[:2] == kept
        assert len(made.partition.segments) == 3
        assert len(outcome.rewrites) == 1
        assert not compact(made.partition, policy()).rewrites
        assert not compact(made.partition, policy(), min_dirty_ratio=1.01).rewrites


def test_a_partition_of_nothing_but_superseded_records_keeps_its_offsets() -> None:
    with world() as made:
        for at in range(0, 30, 10):
            made.partition.add([batch([Record(0, NOW, None, b"v")] * 10, at)], snapshot=Snapshot([], []))
        made.partition.publish()
        outcome = compact(made.partition, policy())
        assert outcome.counts.without_key == 30
        (segment,) = made.partition.segments
        assert (segment.base_offset, segment.end_offset, segment.records) == (0, 30, 0)
        (only,) = all_batches(made.partition)
        assert (only.base_offset, only.end, only.records) == (20, 30, ())


@pytest.mark.parametrize("damage", ["flipped", "cut", "missing", "records", "section", "offset"])
def test_damage_is_named_and_nothing_is_proposed(damage: str) -> None:
    with world() as made:
        made.partition.add(plain_batches(0, 100))
        segment = made.partition.add(plain_batches(100, 100))
        made.partition.publish()
        file = made.partition.file_of(segment)
        data = bytearray(file.read_bytes())
        second = int.from_bytes(data[8:12], "big") + 12
        if damage == "flipped":
            data[second + 70] ^= 1
        elif damage == "offset":
            data[second + 7] ^= 1
        elif damage == "cut":
            del data[second + 5 :]
        elif damage == "section":
            data[segment.sections["producer_snapshot"].position] ^= 1
        elif damage == "records":
            compaction_world.spoil_record(data, second)
        file.write_bytes(data)
        if damage == "missing":
            file.unlink()
        outcome = compact_partition(task(made.partition, policy()))
        assert outcome.problem is not None and not outcome.rewrites
        assert outcome.problem.what == partition_task.DAMAGED
        assert outcome.problem.key == made.partition.tier.segment_key(made.partition.path, segment.id)
        places = {"flipped": second, "records": second, "section": segment.sections["producer_snapshot"].position}
        if damage in places:
            assert outcome.problem.position == places[damage]


def test_altered_objects_end_in_problems_alone() -> None:
    """Wherever a byte of the log differs, the task tells of it, and nothing takes the place of anything."""
    chance = random.Random(7)
    with world() as made:
        one = Step("batch", 3, Compression.NONE, ((b"a", b"v", 1, 0), (b"b", None, 0, 0)))
        end = Step("abort", 3, Compression.NONE, ())
        made.write([one, one._replace(producer=4), end, one, one._replace(producer=0)])
        made.close()
        made.partition.publish()
        segment = made.partition.segments[0]
        file = made.partition.file_of(segment)
        sound = file.read_bytes()
        for _ in range(400):
            at = chance.randrange(len(sound))
            data = bytearray(sound)
            data[at] ^= 1 << chance.randrange(8)
            file.write_bytes(data if chance.random() < 0.8 else data[:at])
            outcome = compact_partition(task(made.partition, policy()))
            if at < segment.log_bytes:
                assert outcome.problem is not None, at
                assert not outcome.rewrites
