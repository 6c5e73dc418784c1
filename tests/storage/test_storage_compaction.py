"""Compaction: what is left of a log, against the simple rule that the latest record of each key stays."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from records.batch import DELETE_HORIZON, HEADER_BYTES, has_valid_crc, read_header
from records.builder import assemble, build_batch
from records.compression import Compression
from records.control import MarkerKind
from records.record import Record
from storage.cleaning.compaction import (
    CompactionSegment,
    OffsetMap,
    group_segments,
    plan_cleaning,
)
from storage.log.log_config import LogConfig
from storage.producers.frozen_producers import LastRecord
from tests.records.control_batches import build_control_batch
from tests.storage.segments_on_disk import CAP, SegmentsOnDisk, header_of, latest

NOW = 1_000_000
CONFIG = LogConfig(cleanup_policy=("compact",), delete_retention_ms=1000)


def record(key: str | None, value: str | None, timestamp: int = NOW) -> Record:
    return Record(0, timestamp, None if key is None else key.encode(), None if value is None else value.encode())


def test_only_the_latest_record_of_a_key_stays_at_its_offset(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "1"), record("b", "1"), record("a", "2")])])
    log.write_segment([build_batch([record("c", "1"), record("b", "2")], base_offset=3)])
    log.compact(NOW, CONFIG, last_records={})
    assert [(r.offset, r.key, r.value) for r in log.records()] == [(2, b"a", b"2"), (3, b"c", b"1"), (4, b"b", b"2")]
    first = log.batches()[0][0]
    assert (first.base_offset, first.last_offset, first.count) == (0, 2, 1)
    assert log.bases == [0]
    assert log.checkpoint == 5


def test_tombstones_get_a_horizon_and_go_after_it(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "1"), record("b", "1", NOW - 7), record("a", None, NOW + 3)])])
    log.write_segment([build_batch([record("z", "1")], base_offset=3)])
    log.compact(NOW, CONFIG, last_records={})
    header = log.batches()[0][0]
    assert header.delete_horizon_ms == NOW + 1000
    assert [(r.key, r.value, r.timestamp) for r in log.records()][:2] == [(b"b", b"1", NOW - 7), (b"a", None, NOW + 3)]
    assert header.max_timestamp == NOW + 3
    outside = DefaultRecordBatch(log.batches()[0][1])
    assert outside.validate_crc()
    assert [(r.offset, r.key, r.timestamp) for r in outside] == [(1, b"b", NOW - 7), (2, b"a", NOW + 3)]
    for now, keys in ((NOW + 999, [b"b", b"a", b"z"]), (NOW + 1000, [b"b", b"z"])):
        log.checkpoint = 0
        log.compact(now, CONFIG, last_records={})
        assert [r.key for r in log.records()] == keys
    assert log.records()[0].timestamp == NOW - 7


def test_a_tier_keeps_tombstones(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "1"), record("a", None)])])
    for now in (NOW, NOW + 10_000):
        log.checkpoint = 0
        log.compact(now, CONFIG, keeps_deletes=True)
        assert [(r.key, r.value) for r in log.records()] == [(b"a", None)]
        assert not log.batches()[0][0].attributes & DELETE_HORIZON


def test_an_empty_batch_remembers_its_producers_last_sequence(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment(
        [
            build_batch([record("a", "1")], producer_id=5, producer_epoch=1, base_sequence=0),
            _produced([record("a", "2"), record("b", "1")], 5, 1, base_sequence=1, producer_epoch=1),
        ]
    )
    log.write_segment([build_batch([record("a", "3"), record("b", "3")], base_offset=3)])
    log.compact(NOW, CONFIG)
    headers = [header for header, _ in log.batches()]
    assert [(h.base_offset, h.last_offset, h.count) for h in headers] == [(1, 2, 0), (3, 4, 2)]
    assert (headers[0].producer_id, headers[0].producer_epoch, headers[0].last_sequence) == (5, 1, 2)
    assert headers[0].size == HEADER_BYTES
    log.checkpoint = 0
    log.compact(NOW, CONFIG, last_records={5: LastRecord(77, 1)})
    assert [h.base_offset for h, _ in log.batches()] == [3]


def test_the_last_batch_of_a_pass_keeps_the_logs_end(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "1"), record(None, "no key")])])
    log.write_segment([build_batch([record(None, "no key")], base_offset=2)])
    log.compact(NOW, CONFIG)
    assert [(h.base_offset, h.last_offset, h.count) for h, _ in log.batches()] == [(0, 1, 1), (2, 2, 0)]


@pytest.mark.parametrize("codec", list(Compression))
def test_batches_keep_their_codec_and_a_sound_crc(codec: Compression, tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "x" * 99), record("b", "x" * 99)] * 20, compression=codec)])
    log.compact(NOW, CONFIG)
    ((header, data),) = log.batches()
    assert (header.compression, header.count, header.last_offset) == (codec, 2, 39)
    assert has_valid_crc(memoryview(data), 0, header)
    assert [r.offset for r in log.records()] == [38, 39]


def test_what_cannot_be_read_is_kept_and_reported(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    sound = build_batch([record("a", "1"), record("a", "2")], base_offset=0)
    lying = assemble(header_of(build_batch([record("a", "3")] * 2, base_offset=2)), b"\xff\x01 no records at all")
    bomb = build_batch([record("a", "\0" * 100_000)], base_offset=4, compression=Compression.ZSTD)
    log.write_segment([sound, lying, bomb])
    log.write_segment([build_batch([record("a", "9")], base_offset=5)])
    cleaning = log.compact(NOW, CONFIG, inflated_bytes_max=50_000)
    assert log.unreadable == [2, 4]
    assert cleaning.counts.batches_unreadable == 2
    assert [data for _, data in log.batches()][:2] == [bytes(lying), bytes(bomb)]
    assert [h.base_offset for h, _ in log.batches()] == [2, 4, 5]


def test_damage_on_disk_stops_the_pass(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "1"), record("a", "2")])])
    data = bytearray(log.read(0))
    data[-1] ^= 1
    log.write(0, ".log", bytes(data))
    with pytest.raises(Exception, match="CRC"):
        log.compact(NOW, CONFIG)
    assert log.read(0) == bytes(data)


def test_aborted_records_go_at_once_and_markers_when_they_are_needed_no_more(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment(
        [
            _produced([record("a", "1")], 1, 0, transactional=True),
            _produced([record("a", "2"), record("b", "2")], 2, 1, transactional=True),
            _marker(MarkerKind.ABORT, 2, 3),
            _marker(MarkerKind.COMMIT, 1, 4),
            build_batch([record("z", "1")], base_offset=5),
        ]
    )
    log.write_segment([build_batch([record("y", "1")], base_offset=6)])
    log.compact(NOW, CONFIG, last_records={})
    assert [(r.key, r.value) for r in log.records()] == [(b"a", b"1"), (b"z", b"1"), (b"y", b"1")]
    assert [(h.base_offset, h.delete_horizon_ms) for h, _ in log.batches() if h.is_control] == [(3, None), (4, None)]
    assert [entry.producer_id for entry in log.aborted()] == [2]
    log.checkpoint = 0
    log.compact(NOW + 10, CONFIG, last_records={})
    assert [h.delete_horizon_ms for h, _ in log.batches() if h.is_control] == [NOW + 1010, None]
    assert log.aborted() == []
    log.checkpoint = 0
    log.compact(NOW + 1010, CONFIG, last_records={})
    assert [h.base_offset for h, _ in log.batches() if h.is_control] == [4]
    assert [r.key for r in log.committed_records()] == [b"a", b"z", b"y"]


def test_a_commit_without_records_is_needed_no_more_though_the_one_before_it_is(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    batches = [
        _produced([record("a", "1")], 1, 0, transactional=True),
        _marker(MarkerKind.COMMIT, 1, 1),
        _produced([record("b", "1")], 1, 2, base_sequence=1, transactional=True),
        _marker(MarkerKind.COMMIT, 1, 3),
    ]
    log.write_segment(batches)
    log.write_segment([build_batch([record("b", "2")], base_offset=4)])
    for now in (NOW, NOW + 1):
        log.checkpoint = 0
        log.compact(now, CONFIG, last_records={})
    horizons = {h.base_offset: h.delete_horizon_ms for h, _ in log.batches() if h.is_control}
    assert horizons == {1: None, 3: NOW + 1001}


def test_records_past_the_offset_map_are_not_judged(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "1"), record("a", "2"), record("b", "1"), record(None, "x")])])
    log.compact(NOW, CONFIG, map_bytes=1, last_records={})
    assert [(r.key, r.value) for r in log.records()] == [(b"a", b"2"), (b"b", b"1"), (None, b"x")]
    assert log.checkpoint == 2


def test_an_abort_marker_in_a_later_segment_is_known(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    log.write_segment([build_batch([record("a", "1")])])
    log.write_segment([_produced([record("a", "2")], 2, 1, transactional=True)])
    log.write_segment([_marker(MarkerKind.ABORT, 2, 2)])
    log.compact(NOW, CONFIG, last_records={}, stable_offset=2)
    assert [(r.key, r.value) for r in log.committed_records()] == [(b"a", b"1")]


def _produced(
    records: list[Record],
    producer_id: int,
    offset: int,
    *,
    base_sequence: int = 0,
    producer_epoch: int = 0,
    transactional: bool = False,
) -> bytearray:
    return build_batch(
        records,
        base_offset=offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        transactional=transactional,
    )


def _marker(kind: MarkerKind, producer_id: int, offset: int) -> bytearray:
    return build_control_batch(
        kind, producer_id=producer_id, producer_epoch=0, coordinator_epoch=1, timestamp=NOW, base_offset=offset
    )


keys = st.sampled_from([b"a", b"b", b"c", b"a long key that is held as a digest", None])
values = st.sampled_from([None, b"x", b"yy"])
batch_records = st.lists(st.tuples(keys, values), min_size=1, max_size=5)
plain_batches = st.lists(st.tuples(batch_records, st.sampled_from(list(Compression)), st.booleans()), max_size=14)


@settings(max_examples=80, deadline=None)
@given(plain_batches, st.integers(1, 4), st.integers(1, 2000))
def test_the_latest_value_of_every_key_survives_any_number_of_passes(
    drawn: list[tuple[list[tuple[bytes | None, bytes | None]], Compression, bool]], keys_max: int, segment_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        log = SegmentsOnDisk(Path(root))
        pending: list[bytearray] = []
        offset = 0
        for number, (content, codec, closes) in enumerate(drawn):
            records = [Record(0, NOW + number, key, value) for key, value in content]
            pending.append(build_batch(records, base_offset=offset, compression=codec))
            offset += len(records)
            if closes:
                log.write_segment(pending)
                pending = []
        log.write_segment([*pending, build_batch([record("end", "x")], base_offset=offset)])
        before = log.records()
        config = LogConfig(cleanup_policy=("compact",), delete_retention_ms=5, segment_bytes=segment_bytes)
        keyed = [r for r in before if r.key is not None]
        for round_number in range(4):
            log.checkpoint = None
            while log.checkpoint is None or log.checkpoint < log.end_offset:
                seen = log.checkpoint
                log.compact(NOW + 10 * round_number, config, map_bytes=int(keys_max * 200 / 0.9) + 1, last_records={})
                assert log.checkpoint is not None
                assert seen is None or log.checkpoint > seen
            left = log.records()
            assert latest(left) == latest(keyed)
            assert set(left) <= set(before)
            assert [r.offset for r in left] == sorted(r.offset for r in left)
        last_of = {r.key: r for r in keyed}
        assert log.records() == sorted((r for r in last_of.values() if r.value is not None), key=lambda r: r.offset)
        assert log.unreadable == []


events = st.lists(
    st.tuples(st.sampled_from(["data", "data", "commit", "abort", "plain", "close"]), st.integers(1, 3), batch_records),
    max_size=25,
)


def written(root: Path, drawn: list[tuple[str, int, list[tuple[bytes | None, bytes | None]]]]) -> SegmentsOnDisk:
    """A log with these events, after which all transactions have ended."""
    log = SegmentsOnDisk(root)
    pending: list[bytearray] = []
    offset = 0
    sequences = dict.fromkeys((1, 2, 3), 0)
    open_producers: set[int] = set()
    drawn = [*drawn, *(("commit", pid, []) for pid in (1, 2, 3)), ("plain", 0, [(b"end", b"x")]), ("close", 0, [])]
    for name, pid, content in drawn:
        records = [Record(0, NOW, key, value) for key, value in content]
        if name == "close":
            if pending:
                log.write_segment(pending)
            pending = []
        elif name == "plain":
            pending.append(build_batch(records, base_offset=offset))
            offset += len(records)
        elif name == "data":
            pending.append(_produced(records, pid, offset, base_sequence=sequences[pid], transactional=True))
            sequences[pid] += len(records)
            offset += len(records)
            open_producers.add(pid)
        elif pid in open_producers:
            pending.append(_marker(MarkerKind.COMMIT if name == "commit" else MarkerKind.ABORT, pid, offset))
            offset += 1
            open_producers.discard(pid)
    return log


@settings(max_examples=100, deadline=None)
@given(events, st.integers(1, 600))
def test_readers_of_committed_records_lose_nothing(
    drawn: list[tuple[str, int, list[tuple[bytes | None, bytes | None]]]], segment_bytes: int
) -> None:
    with tempfile.TemporaryDirectory() as root:
        log = written(Path(root), drawn)
        before = log.committed_records()
        last_records = log.producers.last_records()
        config = LogConfig(cleanup_policy=("compact",), delete_retention_ms=5, segment_bytes=segment_bytes)
        keyed = [r for r in before if r.key is not None]
        for now in (NOW, NOW + 3, NOW + 9, NOW + 20):
            log.checkpoint = None
            log.compact(now, config)
            assert latest(log.committed_records()) == latest(keyed)
            assert set(log.committed_records()) <= set(before)
            assert len(log.aborted()) == len(set(log.aborted()))
        replayed = SegmentsOnDisk(Path(root) / "again")
        replayed.write_segment([data for _, data in log.batches()])
        for pid, last in last_records.items():
            found = replayed.producers.last_records()[pid]
            assert found.last_data_offset == last.last_data_offset


@settings(max_examples=50, deadline=None)
@given(events, st.integers(1, 600))
def test_a_tier_keeps_what_says_that_records_were_aborted(
    drawn: list[tuple[str, int, list[tuple[bytes | None, bytes | None]]]], segment_bytes: int
) -> None:
    """The first pass drops aborted records of which the tier has copies, and later passes find markers alone."""
    with tempfile.TemporaryDirectory() as root:
        log = written(Path(root), drawn)
        aborted = set(log.aborted())
        config = LogConfig(cleanup_policy=("compact",), delete_retention_ms=5, segment_bytes=segment_bytes)
        for now in (NOW, NOW + 3, NOW + 9, NOW + 20):
            log.checkpoint = None
            log.compact(now, config, keeps_deletes=True)
            assert set(log.aborted()) == aborted


def segments_of(*sizes: int) -> list[CompactionSegment]:
    return [CompactionSegment(10 * i, 10 * i + 10, size, 1, 100 + i, 200 + i) for i, size in enumerate(sizes)]


def test_the_plan_stops_before_the_active_the_unstable_and_the_young() -> None:
    segments = segments_of(100, 100, 100, 50)
    plan = plan_cleaning(segments, None, 0, 40, CONFIG, NOW)
    assert (plan.first_dirty_offset, plan.first_uncleanable_offset) == (0, 30)
    assert (plan.clean_bytes, plan.cleanable_bytes, plan.dirty_ratio) == (0, 300, 1.0)
    plan = plan_cleaning(segments, 10, 0, 29, CONFIG, NOW)
    assert (plan.first_dirty_offset, plan.first_uncleanable_offset) == (10, 20)
    assert plan.dirty_ratio == 0.5
    assert not plan.is_due(0.5)
    assert plan.is_due(0.49)
    lagging = LogConfig(min_compaction_lag_ms=50)
    assert plan_cleaning(segments, 0, 0, 40, lagging, 251).first_uncleanable_offset == 20
    assert plan_cleaning(segments, 0, 0, 40, lagging, 249).cleanable_bytes == 0
    overdue = LogConfig(max_compaction_lag_ms=50)
    assert plan_cleaning(segments, 10, 0, 20, overdue, 152).is_due(0.99)
    assert not plan_cleaning(segments, 10, 0, 20, overdue, 151).is_overdue


@pytest.mark.parametrize("checkpoint", [4, 41])
def test_a_checkpoint_outside_the_log_is_void(checkpoint: int) -> None:
    assert plan_cleaning(segments_of(1, 1, 1, 1), checkpoint, 5, 40, CONFIG, NOW).first_dirty_offset == 5


def test_groups_obey_bytes_indexes_and_offsets() -> None:
    def sizes(segments: list[CompactionSegment], end: int, config: LogConfig) -> list[list[int]]:
        return [[s.base_offset for s in group] for group in group_segments(segments, end, config)]

    segments = segments_of(40, 40, 40, 0, 40)
    assert sizes(segments, 100, LogConfig(segment_bytes=100)) == [[0, 10], [20, 30, 40]]
    assert sizes(segments, 21, LogConfig(segment_bytes=100)) == [[0, 10], [20]]
    assert sizes(segments, 100, LogConfig(segment_index_bytes=2)) == [[0, 10], [20, 30], [40]]
    assert sizes(segments, 100, LogConfig(segment_bytes=1)) == [[0], [10], [20], [30], [40]]
    far = [segments[0], CompactionSegment(10, 2**31 + 5, 1, 1, 0, 0)]
    assert sizes(far, 2**40, LogConfig()) == [[0], [10]]


def test_the_offset_map_is_bounded() -> None:
    offsets = OffsetMap(10_000)
    taken = sum(offsets.put(b"key %d" % i, i) for i in range(1000))
    assert taken == offsets.keys_max == len(offsets) == 45
    assert offsets.put(b"key 3", 2000)
    assert offsets.get(b"key 3") == 2000
    assert offsets.get(b"key 999") == -1
    long = b"k" * 1000
    fresh = OffsetMap(10_000)
    fresh.put(long, 5)
    fresh.put(long + b"!", 6)
    assert (fresh.get(long), fresh.get(long + b"!"), fresh.get(long + b"?")) == (5, 6, -1)


def test_the_new_indexes_lead_to_batches(tmp_path: Path) -> None:
    log = SegmentsOnDisk(tmp_path)
    batches = [
        build_batch([Record(0, NOW + i, b"%d" % i, b"x" * 500), Record(0, NOW + i, b"same", b"x")], base_offset=2 * i)
        for i in range(100)
    ]
    log.write_segment(batches)
    log.compact(NOW, CONFIG, last_records={})
    data = log.read(0)
    entries = [
        int.from_bytes(log.read(0, ".index")[at : at + 4], "big") for at in range(0, len(log.read(0, ".index")), 8)
    ]
    positions = [int.from_bytes(log.read(0, ".index")[at + 4 : at + 8], "big") for at in range(0, 8 * len(entries), 8)]
    assert len(entries) > 5
    for offset, position in zip(entries, positions, strict=True):
        assert read_header(data, position).last_offset == offset
    times = log.read(0, ".timeindex")
    assert int.from_bytes(times[-12:-4], "big") == NOW + 99
    assert len(data) < CAP
