"""A log against a list of batches: random appends, cuts, rolls, restarts, torn tails."""

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from common.errors import ErrorCode, ProtocolError
from records.batch import HEADER_BYTES, read_header, stamp
from records.record import decode_records
from storage.disk.checkpoint_files import LOG_STARTS, RECOVERY_POINTS
from storage.log.log_config import LogConfig
from storage.log.partition_log import PartitionLog
from tests.storage.log_workbench import NOW_MS, Workbench, append, produced, read_all, resolved, truncate

PRODUCER = 5
CONFIG = LogConfig(
    segment_bytes=1_500,
    index_interval_bytes=200,
    producer_id_expiration_ms=2**60,
    retention_ms=-1,
    file_delete_delay_ms=0,
)


class Kept(NamedTuple):
    """A batch as the log must hold it."""

    base: int
    next: int
    data: bytes

    @property
    def epoch(self) -> int:
        return read_header(self.data, 0).leader_epoch


class LogAndTwin(RuleBasedStateMachine):
    """Every rule changes both; the invariant compares all that a reader can see."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp(prefix="tidelog-twin-"))
        self.bench = Workbench(self.root, CONFIG)
        self.log: PartitionLog
        self.twin: list[Kept] = []
        self.start = 0
        self.end = 0
        self.epoch = 1
        self.sequence = 0

    def run(self, coroutine: Any) -> Any:
        """A step and all flushes that it asked for, so that the same steps give the same state."""

        async def body() -> Any:
            result = await coroutine
            await self.bench.directory.settle()
            return result

        return self.loop.run_until_complete(body())

    @initialize()
    def open(self) -> None:
        self.log = self.run(self.bench.log())

    def teardown(self) -> None:
        self.run(self.bench.directory.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.root)

    # Rules

    @rule(count=st.integers(1, 4), size=st.integers(1, 300), ahead=st.integers(-50, 50), idempotent=st.booleans())
    def append_as_leader(self, count: int, size: int, ahead: int, idempotent: bool) -> None:
        times = [max(NOW_MS + self.end + ahead + at, 0) for at in range(count)]
        batch = produced(
            count, size=size, timestamps=times, producer_id=PRODUCER if idempotent else -1, sequence=self.sequence
        )
        if idempotent:
            assert self.log.producers.check(read_header(batch, 0)) is None
            self.sequence += count

        async def body() -> None:
            appended = append(self.log, batch, self.epoch)
            assert (appended.base_offset, appended.next_offset) == (self.end, self.end + count)

        self.run(body())
        self.keep(bytes(batch))

    @rule(counts=st.lists(st.integers(1, 3), min_size=1, max_size=6), size=st.integers(1, 400), torn=st.integers(0, 60))
    def append_as_follower(self, counts: list[int], size: int, torn: int) -> None:
        run = bytearray()
        offset = self.end
        for count in counts:
            batch = produced(count, size=size)
            stamp(batch, 0, offset, self.epoch)
            offset += count
            run += batch
        whole = len(run)
        run += produced(1)[:torn]  # what a leader's fetch limit cuts

        async def body() -> None:
            appended = self.log.append_as_follower(memoryview(run), 0, len(run))
            assert appended is not None
            assert (appended.base_offset, appended.next_offset) == (self.end, offset)

        self.run(body())
        at = 0
        while at < whole:
            batch_bytes = bytes(run[at : at + read_header(run, at).size])
            self.keep(batch_bytes)
            at += len(batch_bytes)

    @rule(where=st.floats(0, 1))
    def truncate(self, where: float) -> None:
        offset = self.start + int(where * (self.end - self.start))

        async def body() -> int:
            return await truncate(self.log, offset)

        end = self.run(body())
        if offset < self.end:
            while self.twin and (self.twin[-1].next > offset or offset <= self.start):
                self.twin.pop()
            end_of_rest = max((kept.next for kept in self.twin), default=self.start)
            cut = offset if offset <= self.start else max(end_of_rest, self.start)
            if cut == self.start:
                self.twin.clear()
            assert end == cut
        else:
            assert end == self.end
        self.end = end
        self.recount_sequence()

    @rule(where=st.floats(0, 1))
    def advance_log_start(self, where: float) -> None:
        offset = self.start + int(where * (self.end - self.start))

        async def body() -> None:
            assert self.log.advance_log_start(offset, "test") == (offset > self.start)

        self.run(body())
        self.start = max(self.start, offset)

    @rule()
    def begin_epoch(self) -> None:
        self.epoch += 1

    @rule()
    def roll(self) -> None:
        async def body() -> None:
            self.log.roll(NOW_MS)

        self.run(body())

    @rule()
    def flush(self) -> None:
        assert self.run(self.log.flush()) == self.end

    @rule(upto=st.floats(0, 1))
    def delete_by_size(self, upto: float) -> None:
        async def body() -> None:
            self.log.update_config(LogConfig(**{**_fields(CONFIG), "retention_bytes": 3_000}))
            self.log.delete_old_segments(NOW_MS, self.start + int(upto * (self.end - self.start)))
            self.log.update_config(CONFIG)

        self.run(body())
        assert self.log.log_start_offset <= self.start + int(upto * (self.end - self.start))
        self.start = self.log.log_start_offset

    @rule()
    def restart_clean(self) -> None:
        self.log = self.run(self.bench.restart(clean=True))
        assert self.log.context.health.offline is None

    @rule()
    def checkpoint(self) -> None:
        """The files say what the logs do, whatever has moved it since."""
        assert self.run(self.bench.directory.checkpoint_recovery_points())
        who = (self.log.topic, self.log.partition)
        checkpoints = self.bench.directory.context.checkpoints
        assert checkpoints.on_device(RECOVERY_POINTS).get(who, 0) == self.log.recovery_point
        assert checkpoints.on_device(LOG_STARTS).get(who, 0) in (0, self.log.log_start_offset)

    @rule()
    def die(self) -> None:
        """The page cache survives, so nothing is lost; of the log's start, only what was checkpointed is known."""
        self.checkpoint()
        self.log = self.run(self.bench.restart(clean=False))

    @precondition(lambda self: self.log.active.size > 0 and self.log.recovery_point <= self.log.active.base_offset)
    @rule(cut=st.floats(0, 1), garbage=st.binary(max_size=200))
    def tear(self, cut: float, garbage: bytes) -> None:
        """The last file loses its end and may get another one."""
        self.checkpoint()
        self.run(self.bench.directory.close())
        path = self.root / (self.log.active.stem + ".log")
        data = path.read_bytes()
        path.write_bytes(data[: int(cut * len(data))] + garbage)
        base = self.log.active.base_offset
        left = int(cut * len(data))
        for kept in [kept for kept in self.twin if kept.base >= base]:
            left -= len(kept.data)
            if left < 0:
                self.twin.remove(kept)
        self.end = max(max((kept.next for kept in self.twin), default=base), base)
        self.reopen_after_damage()

    @precondition(lambda self: self.log.active.size > 0 and self.log.recovery_point <= self.log.active.base_offset)
    @rule(where=st.floats(0, 1, exclude_max=True), flip=st.integers(1, 255))
    def damage(self, where: float, flip: int) -> None:
        """One byte that a CRC covers changes: its batch and all behind it are gone."""
        self.checkpoint()
        self.run(self.bench.directory.close())
        path = self.root / (self.log.active.stem + ".log")
        data = bytearray(path.read_bytes())
        kept = [kept for kept in self.twin if kept.base >= self.log.active.base_offset]
        victim = int(where * len(kept))
        at = sum(len(one.data) for one in kept[:victim]) + HEADER_BYTES - 1
        data[at] ^= flip
        path.write_bytes(bytes(data))
        for one in kept[victim:]:
            self.twin.remove(one)
        self.end = kept[victim].base
        self.reopen_after_damage()

    def reopen_after_damage(self) -> None:
        self.run(self.bench.start())
        self.log = self.run(self.bench.log())
        if self.end < self.start:  # nothing below the log's start is served: it begins anew
            self.end = self.start
            self.twin.clear()
        self.recount_sequence()

    # The twin

    def keep(self, data: bytes) -> None:
        header = read_header(data, 0)
        self.twin.append(Kept(header.base_offset, header.next_offset, data))
        self.end = header.next_offset

    def recount_sequence(self) -> None:
        """Of a producer of which nothing is left, any sequence is welcome."""
        last = [read_header(kept.data, 0) for kept in self.twin]
        mine = [header for header in last if header.producer_id == PRODUCER]
        self.sequence = mine[-1].last_sequence + 1 if mine else 0

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.log_start_offset, log.log_end_offset, log.written_end_offset) == (self.start, self.end, self.end)
        log.ends.check()

    @invariant()
    def readers_see_the_twin(self) -> None:
        if not hasattr(self, "log"):
            return
        self.run(self.compare_reads())

    async def compare_reads(self) -> None:
        log = self.log
        served = [kept for kept in self.twin if kept.next > self.start]
        for bytes_max in (1, 700, 1 << 20):
            found = read_all(log, bytes_max=bytes_max)
            assert [header.base_offset for header in found] == [kept.base for kept in served]
        for kept in served[::3]:
            offset = max(kept.base, self.start)
            region = log.read(offset, 1, kept.next)
            assert region is not None
            assert region.read() == kept.data
            region.release()
            assert log.read(offset, 1 << 20, max(kept.next - 1, offset)) is None
        assert log.read(self.end, 1 << 20, self.end) is None
        for outside in (self.start - 1, self.end + 1):
            with pytest.raises(ProtocolError) as caught:
                log.read(outside, 1, self.end)
            assert caught.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert all(segment.log.pins == 0 for segment in log.segments)

    @invariant()
    def times_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        records = [
            record
            for kept in self.twin
            for record in decode_records(memoryview(kept.data), 0, len(kept.data), inflated_bytes_max=1 << 20)
            if record.offset >= self.start
        ]
        for record in records[::5]:
            for target in (record.timestamp, record.timestamp + 1):
                expected = next((one.offset for one in records if one.timestamp >= target), None)
                found = resolved(self.log.locate_timestamp(target))
                assert (found[1] if found else None) == expected

    @invariant()
    def producers_and_epochs_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        headers = [read_header(kept.data, 0) for kept in self.twin]
        mine = [header for header in headers if header.producer_id == PRODUCER]
        views = [view for view in self.log.producers.views() if view.producer_id == PRODUCER]
        if mine:
            assert [view.last_sequence for view in views] == [mine[-1].last_sequence]
        epochs: dict[int, int] = {}
        for kept in self.twin:
            epochs.setdefault(kept.epoch, kept.base)
        expected = [(epoch, start) for epoch, start in epochs.items() if start >= self.start]
        older = [epoch for epoch, start in epochs.items() if start < self.start]
        found = [entry for entry in self.log.leader_epochs.entries() if entry[1] < self.end]
        if older and self.start < self.end and (not expected or expected[0][1] > self.start):
            expected.insert(0, (older[-1], self.start))
        assert found == expected


def _fields(config: LogConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__dataclass_fields__}


TestLogAndTwin = LogAndTwin.TestCase
TestLogAndTwin.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    report_multiple_bugs=False,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
