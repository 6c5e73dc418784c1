"""What a log answers to a batch that comes again: the same after any restart, cut or roll as before it."""

import asyncio
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.directory_config import DirectoryConfig
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from common.settings import DAY_MS
from records.batch import read_header, stamp
from records.control import MarkerKind
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from storage.producers import producer_history
from storage.producers.known_producer import BATCHES_KEPT
from storage.producers.producer_history import MARK_BATCHES, MARKS_KEPT
from storage.producers.producer_replay import READ_PER_BATCH_BYTES
from storage.producers.producer_state import Duplicate
from storage.segments.segment import Segment
from tests.storage.log_workbench import NOW_MS, OpenGate, Workbench, append, marker, produced, truncate

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=100, producer_id_expiration_ms=2**60, retention_ms=-1)


class Sent(NamedTuple):
    """One client batch and where it lies."""

    producer_id: int
    sequence: int
    size: int  # records
    base_offset: int

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.size


class Retrying:
    """A log and all batches in it, which clients send again."""

    def __init__(self, root: Path, replay_bytes_max: int = 1 << 20) -> None:
        limits = DirectoryConfig(free_bytes_min=0, replay_bytes_max=replay_bytes_max)
        self.bench = Workbench(root, CONFIG, limits)
        self.sent: list[Sent] = []
        self.log: PartitionLog

    async def open(self) -> None:
        self.log = await self.bench.log()

    def next_sequence(self, producer_id: int) -> int:
        return max((one.sequence + one.size for one in self.sent if one.producer_id == producer_id), default=0)

    def send(self, producer_id: int, count: int, *, follows: bool = False) -> None:
        sequence, base = self.next_sequence(producer_id), self.log.log_end_offset
        batch = self.batch(Sent(producer_id, sequence, count, base))
        if follows:
            stamp(batch, 0, base, 1)
            assert self.log.append_as_follower(memoryview(batch), 0, len(batch)) is not None
        else:
            append(self.log, batch)
        self.sent.append(Sent(producer_id, sequence, count, base))

    def batch(self, sent: Sent) -> bytearray:
        return produced(
            sent.size,
            timestamps=[NOW_MS + sent.base_offset] * sent.size,
            producer_id=sent.producer_id,
            sequence=sent.sequence,
        )

    async def restart(self, *, clean: bool) -> None:
        self.log = await self.bench.restart(clean=clean)

    async def truncate(self, offset: int) -> None:
        end = await truncate(self.log, offset)
        await self.bench.directory.settle()
        self.sent = [one for one in self.sent if one.next_offset <= end]

    def check(self) -> None:
        for producer_id in {one.producer_id: None for one in self.sent}:
            mine = [one for one in self.sent if one.producer_id == producer_id]
            for one in mine[-BATCHES_KEPT:]:
                known = self.log.producers.check(read_header(self.batch(one), 0))
                assert known == Duplicate(one.base_offset, one.next_offset, NOW_MS + one.base_offset)
            for older in mine[:-BATCHES_KEPT]:
                with pytest.raises(ProtocolError) as caught:
                    self.log.producers.check(read_header(self.batch(older), 0))
                assert caught.value.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            due = Sent(producer_id, self.next_sequence(producer_id), 1, 0)
            assert self.log.producers.check(read_header(self.batch(due), 0)) is None


appends = st.tuples(st.sampled_from(["send", "follow"]), st.integers(1, 3), st.integers(1, 3))
cuts = st.tuples(st.just("truncate"), st.floats(0, 1))
others = st.tuples(st.sampled_from(["roll", "stop", "die"]))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.one_of(appends, appends, appends, appends, cuts, others), max_size=60),
    st.booleans(),
    st.sampled_from([1, 7, 256]),
)
def test_retries_are_answered_as_before(
    steps: list[tuple[str | int | float, ...]], in_thread: bool, mark_batches: int
) -> None:
    async def run(root: Path) -> None:
        retrying = Retrying(root, 0 if in_thread else 1 << 20)
        await retrying.open()
        for what, *given_ in steps:
            match what:
                case "send" | "follow":
                    producer_id, count = given_
                    retrying.send(int(producer_id), int(count), follows=what == "follow")
                    continue
                case "truncate":
                    await retrying.truncate(int(float(given_[0]) * retrying.log.log_end_offset))
                case "roll":
                    retrying.log.roll(NOW_MS)
                case _:
                    await retrying.restart(clean=what == "stop")
            retrying.check()
        retrying.check()
        await retrying.restart(clean=True)
        retrying.check()
        await retrying.bench.directory.close()

    with (
        tempfile.TemporaryDirectory(prefix="tidelog-retries-") as folder,
        mock.patch.object(producer_history, "MARK_BATCHES", mark_batches),
    ):
        asyncio.run(run(Path(folder)))


@pytest.mark.parametrize("clean", [True, False])
async def test_the_fourth_last_batch_is_known_after_a_start_from_a_snapshot(tmp_path: Path, clean: bool) -> None:
    """Kafka's entries alone would have it refused as out of order, and its producer would fail."""
    retrying = Retrying(tmp_path)
    await retrying.open()
    for _ in range(BATCHES_KEPT):
        retrying.send(7, 2)
    retrying.log.roll(NOW_MS)
    await retrying.log.flush()
    await retrying.bench.directory.settle()
    await retrying.bench.directory.checkpoint_recovery_points()
    await retrying.restart(clean=clean)
    assert retrying.log.producer_history.snapshots == [10]
    again = retrying.batch(retrying.sent[1])
    assert retrying.log.producers.check(read_header(again, 0)) == Duplicate(2, 4, NOW_MS + 2)
    await retrying.bench.directory.close()


async def test_after_a_cut_a_log_takes_nothing_until_its_producers_are_read(tmp_path: Path) -> None:
    retrying = Retrying(tmp_path, replay_bytes_max=0)
    await retrying.open()
    for _ in range(4 * BATCHES_KEPT):
        retrying.send(7, 1)
    log = retrying.log
    gate = retrying.bench.disk.open_gate = OpenGate([f"{log.segments[0].stem}.log"], before=True)
    assert log.truncate_to(12) == 12
    cut_off = read_header(produced(producer_id=7, sequence=12), 0)
    for refused in (
        lambda: log.find_duplicate(cut_off),  # the producers known so far would call it a duplicate
        lambda: append(log, produced()),
        lambda: log.truncate_to(11),
        lambda: log.truncate_fully_and_start_at(0),
    ):
        with pytest.raises(ProtocolError) as caught:
            refused()
        assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.maybe_roll(NOW_MS + 10 * DAY_MS)
    assert log.delete_old_segments(NOW_MS, 12) == 0
    log.advance_log_start(3, "a test")
    gate.go_on.set()
    await retrying.bench.directory.settle()
    assert threading.get_ident() not in gate.threads
    assert len(gate.threads) == log.context.reloads.reload_count == 1
    assert log.find_duplicate(cut_off) is None
    assert log.find_duplicate(read_header(produced(producer_id=7, sequence=8), 0)) is not None
    assert append(log, produced()).base_offset == 12
    await retrying.bench.directory.close()


async def test_a_cut_of_the_last_batches_reads_no_further_than_a_mark(tmp_path: Path) -> None:
    """However long the segment is: nobody is answered until a cut follower follows again."""
    retrying = Retrying(tmp_path, replay_bytes_max=MARKS_KEPT * MARK_BATCHES * READ_PER_BATCH_BYTES)
    retrying.bench.config = replace(CONFIG, segment_bytes=1 << 30)
    await retrying.open()
    for at in range(5 * MARK_BATCHES):
        retrying.send(7 + at % 2, 1)
    log, read = retrying.log, retrying.bench.disk.bytes_read
    batch_bytes = log.active.size // log.log_end_offset
    for offset in (5 * MARK_BATCHES - 3, 4 * MARK_BATCHES + 1, 4 * MARK_BATCHES - 1):
        read.clear()
        await retrying.truncate(offset)
        assert log.context.reloads.reload_count == 0
        assert 0 < read[f"{log.active.stem}.log"] <= MARKS_KEPT * MARK_BATCHES * batch_bytes
        retrying.check()
    await retrying.truncate(3 * MARK_BATCHES - 1)
    assert log.context.reloads.reload_count == 1
    retrying.check()
    await retrying.bench.directory.close()


async def test_no_mark_of_a_segment_that_compaction_wrote_anew_is_believed(tmp_path: Path) -> None:
    retrying = Retrying(tmp_path)
    await retrying.open()
    for _ in range(MARK_BATCHES + 2):
        retrying.send(7, 1)
    log = retrying.log
    mark = log.producer_history.newest_mark(log.segments, log.log_end_offset)
    assert mark is not None
    swapped = Segment.fresh(log.context.open_files, log.directory, mark.segment.base_offset, NOW_MS)
    segments = [swapped if segment is mark.segment else segment for segment in log.segments]
    assert log.producer_history.newest_mark(segments, log.log_end_offset) is None
    await retrying.bench.directory.close()


@pytest.mark.parametrize("are_forgotten", [False, True])
async def test_a_cut_after_a_clean_stop_shows_no_transaction_whose_marker_is_gone(
    tmp_path: Path, are_forgotten: bool
) -> None:
    """The snapshot of the stop says neither that the marker was not committed nor who had expired by then."""
    retrying = Retrying(tmp_path, replay_bytes_max=0)
    await retrying.open()
    append(retrying.log, produced(producer_id=7, transactional=True))
    append(retrying.log, marker(MarkerKind.COMMIT, 7))
    if are_forgotten:
        assert at_once(retrying.log.producers.expire(1 << 62)) == 1
    await retrying.restart(clean=True)
    log = retrying.log
    assert len(log.producers) == (0 if are_forgotten else 1)
    await truncate(log, 1)
    assert log.barred is not None
    assert log.last_stable_offset(1) == 0
    await retrying.bench.directory.settle()
    assert log.context.reloads.reload_count == 1
    assert log.last_stable_offset(1) == 0
    append(log, marker(MarkerKind.ABORT, 7))
    assert log.aborted_transactions(0, 1) == [(7, 0)]
    await retrying.bench.directory.close()


async def test_a_log_that_is_deleted_while_its_producers_are_read(tmp_path: Path) -> None:
    retrying = Retrying(tmp_path, replay_bytes_max=0)
    await retrying.open()
    for _ in range(4 * BATCHES_KEPT):
        retrying.send(7, 1)
    other = await retrying.bench.log("other")
    retrying.log.truncate_to(12)
    retrying.bench.directory.delete_log(retrying.log)
    await retrying.bench.directory.settle()
    assert retrying.bench.directory.offline is None
    with pytest.raises(ProtocolError):
        append(retrying.log, produced())
    assert append(other, produced()).base_offset == 0
    await retrying.bench.directory.close()


async def test_a_clean_stop_waits_for_producers_that_are_read(tmp_path: Path) -> None:
    retrying = Retrying(tmp_path, replay_bytes_max=0)
    await retrying.open()
    for _ in range(4 * BATCHES_KEPT):
        retrying.send(7, 1)
    retrying.log.truncate_to(12)
    retrying.sent = retrying.sent[:12]
    await retrying.restart(clean=True)
    assert retrying.bench.directory.continues.broker_epoch >= 0
    retrying.check()
    await retrying.bench.directory.close()


async def test_a_log_whose_producers_cannot_be_read_stays_barred_until_it_is_recovered(tmp_path: Path) -> None:
    retrying = Retrying(tmp_path, replay_bytes_max=0)
    await retrying.open()
    for _ in range(4 * BATCHES_KEPT):
        retrying.send(7, 1)
    log = retrying.log
    path = tmp_path / f"{log.active.stem}.log"
    data = path.read_bytes()
    path.write_bytes(bytes(len(data) // 2) + data[len(data) // 2 :])
    log.truncate_to(log.log_end_offset - 1)
    await retrying.bench.directory.settle()
    assert "log_damaged" in retrying.bench.events
    assert retrying.bench.directory.offline is None
    with pytest.raises(ProtocolError):
        append(log, produced())
    await retrying.restart(clean=True)
    retrying.sent = [one for one in retrying.sent if one.next_offset <= retrying.log.log_end_offset]
    assert retrying.sent
    retrying.check()
    retrying.send(7, 1)
    await retrying.bench.directory.close()


async def test_batches_that_were_pushed_out_by_those_cut_are_known_again(tmp_path: Path) -> None:
    retrying = Retrying(tmp_path)
    await retrying.open()
    for _ in range(4 * BATCHES_KEPT):
        retrying.send(7, 1)
    await retrying.truncate(2 * BATCHES_KEPT)
    retrying.check()
    known = retrying.log.producers.check(read_header(retrying.batch(retrying.sent[-BATCHES_KEPT]), 0))
    assert known == Duplicate(BATCHES_KEPT, BATCHES_KEPT + 1, NOW_MS + BATCHES_KEPT)
    await retrying.bench.directory.close()
