"""Reading lines, sending them within a window, printing records and committing them: without a cluster."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaError, UnknownError
from kafka.future import Future
from kafka.structs import OffsetAndMetadata, TopicPartition

from tidelog.commands.produce import send_all
from tidelog.streams.consumption import Consumption
from tidelog.streams.interruption import Interruption
from tidelog.streams.line_source import LineSource
from tidelog.streams.output_pipe import OutputPipe, ReaderGone, Unwritten
from tidelog.streams.production import Pace, Production, Undelivered, Window
from tidelog.streams.progress import Progress
from tidelog.streams.record_formats import shape_of
from tidelog.streams.record_lines import BadLine, Outgoing, text_lines
from tidelog.streams.starting_point import Misplaced, Start, parse_start, positions


@pytest.fixture
def interruption() -> Iterator[Interruption]:
    with Interruption() as one:
        yield one


def lines_of(data: bytes, interruption: Interruption, most: int = 100) -> tuple[list[bytes], LineSource]:
    read, write = os.pipe()

    def give() -> None:
        with open(write, "wb") as out:
            out.write(data)

    writer = threading.Thread(target=give)
    writer.start()
    source = LineSource(read, interruption, most)
    try:
        return list(source), source
    finally:
        writer.join()
        os.close(read)


@given(st.lists(st.binary(max_size=50).filter(lambda line: not {10, 13} & set(line)), max_size=20), st.booleans())
def test_lines_are_what_stands_between_their_ends(lines: list[bytes], crlf: bool) -> None:
    end = b"\r\n" if crlf else b"\n"
    with Interruption() as interruption:
        found, source = lines_of(b"".join(line + end for line in lines), interruption)
    assert (found, source.number) == (lines, len(lines))


def test_a_line_too_long_is_told_by_its_number(interruption: Interruption) -> None:
    with pytest.raises(BadLine, match="more than 100 bytes"):
        lines_of(b"a\n" + b"x" * 5_000, interruption)
    assert lines_of(b"a\nlast", interruption)[0] == [b"a", b"last"]


def test_an_interruption_ends_the_lines(interruption: Interruption) -> None:
    read, write = os.pipe()
    os.write(write, b"whole\nhalf")
    found = []
    for line in LineSource(read, interruption):
        found.append(line)
        os.kill(os.getpid(), signal.SIGINT)
    assert found == [b"whole"]
    assert (interruption.asked, interruption.number) == (True, signal.SIGINT)
    os.close(read)
    os.close(write)


class FakeProducer:
    """Keeps the records; `flush` acknowledges them, or fails those that `bad` says."""

    def __init__(self, bad: Callable[[Outgoing], bool] = lambda record: False) -> None:
        self.sent: list[tuple[Outgoing, Any]] = []
        self.calls: list[str] = []
        self._bad = bad
        self._open: list[tuple[Outgoing, Any]] = []

    def send(
        self, topic: str, value: Any, key: bytes | None, headers: Any, partition: int | None, timestamp_ms: int | None
    ) -> Any:
        future = Future()
        self.sent.append((value, future))
        self._open.append((value, future))
        return future

    def flush(self, timeout: float | None = None) -> None:
        for record, future in self._open:
            if self._bad(record):
                future.failure(RuntimeError("lost"))
            else:
                future.success(None)
        self._open = []

    def begin_transaction(self) -> None:
        self.calls.append("begin")

    def commit_transaction(self) -> None:
        self.flush()
        self.calls.append("commit")

    def abort_transaction(self) -> None:
        self.calls.append("abort")


NO_PACE = Pace(0, lambda seconds: None, lambda: 0.0)


@pytest.mark.parametrize(
    ("size", "calls", "committed"),
    [(None, [], 0), (0, ["begin", "commit"], 5), (2, ["begin", "commit"] * 3, 5), (5, ["begin", "commit"], 5)],
)
def test_transactions_hold_all_records_or_so_many(size: int | None, calls: list[str], committed: int) -> None:
    producer = FakeProducer()
    production = Production(producer, "t", NO_PACE, size)
    for number in range(5):
        production.send(Outgoing(None, b"%d" % number), number + 1)
    production.finish(1)
    assert (producer.calls, production.committed, production.window.acknowledged) == (calls, committed, 5)


def test_giving_up_sends_what_there_is_or_aborts_the_transaction() -> None:
    for size, calls, acknowledged in ((None, [], 1), (0, ["begin", "abort"], 0)):
        producer = FakeProducer()
        production = Production(producer, "t", NO_PACE, size)
        production.send(Outgoing(None, b""), 1)
        production.give_up(1)
        assert (producer.calls, production.window.acknowledged) == (calls, acknowledged)


def test_the_first_line_that_is_lost_is_told() -> None:
    production = Production(FakeProducer(lambda record: record.value in (b"3", b"4")), "t", NO_PACE)
    for number in range(1, 6):
        production.send(Outgoing(None, b"%d" % number), number)
    with pytest.raises(Undelivered) as caught:
        production.finish(1)
    assert (caught.value.line, production.window.acknowledged) == (3, 3)
    with pytest.raises(Undelivered):
        production.send(Outgoing(None, b"6"), 6)


class Refusing(FakeProducer):
    """The coordinator refuses so many commits, and aborts if it is to."""

    def __init__(self, commits: int, refuses_abort: bool = False) -> None:
        super().__init__()
        self._good, self._refuses_abort = commits, refuses_abort

    def commit_transaction(self) -> None:
        if self.calls.count("commit") >= self._good:
            raise KafkaError("refused")
        super().commit_transaction()

    def abort_transaction(self) -> None:
        super().abort_transaction()
        if self._refuses_abort:
            raise KafkaError("Invalid transition")


def test_a_transaction_that_lost_a_record_is_aborted_and_not_committed() -> None:
    producer = FakeProducer(lambda record: record.value == b"3")
    production = Production(producer, "t", NO_PACE, 2)
    for number in range(1, 4):
        production.send(Outgoing(None, b"%d" % number), number)
    with pytest.raises(Undelivered) as caught:
        production.send(Outgoing(None, b"4"), 4)
    production.give_up(1)
    assert (caught.value.line, producer.calls) == (3, ["begin", "commit", "begin", "abort"])
    assert production.outcome() == "no open transaction is left, 2 records are committed before"


class Divided(FakeProducer):
    """As the library: a batch that is divided has not ended when `flush` does, and its parts end later."""

    def flush(self, timeout: float | None = None) -> None:
        timer = threading.Timer(0, super().flush)
        timer.start()
        raise UnknownError("Future not done")

    def commit_transaction(self) -> None:
        assert all(future.is_done for _, future in self.sent)
        self.calls.append("commit")


@pytest.mark.parametrize("lost", [None, b"2"])
def test_a_batch_that_the_library_divides_is_waited_for(lost: bytes | None) -> None:
    producer = Divided(lambda record: record.value == lost)
    production = Production(producer, "t", NO_PACE, 3)
    production.send(Outgoing(None, b"1"), 1)
    production.send(Outgoing(None, b"2"), 2)
    if lost is None:
        production.finish(60)
        assert (producer.calls, production.committed) == (["begin", "commit"], 2)
        return
    with pytest.raises(Undelivered) as caught:
        production.finish(60)
    assert (caught.value.line, producer.calls) == (2, ["begin"])


@pytest.mark.parametrize(
    ("producer", "said"),
    [
        (Refusing(1), "line 4: KafkaError: refused; no open transaction is left, 2 records are committed before"),
        (
            Refusing(1, True),
            "line 4: KafkaError: refused; the open transaction is aborted after its timeout, 2 records are",
        ),
        (FakeProducer(lambda record: record.value == b"3"), "line 3: lost; no open transaction is left, 2 records are"),
    ],
)
def test_a_commit_that_fails_ends_the_command_by_line_and_count(
    producer: FakeProducer, said: str, interruption: Interruption, capsys: pytest.CaptureFixture[str]
) -> None:
    read, write = os.pipe()
    os.write(write, b"1\n2\n3\n4\n5\n")
    os.close(write)
    source = LineSource(read, interruption)
    production = Production(producer, "t", NO_PACE, 2)
    with pytest.raises(typer.Exit) as caught:
        send_all(source, text_lines(None), 1, production, Progress("sent", None), interruption)
    os.close(read)
    assert caught.value.exit_code == 1
    assert said in capsys.readouterr().err
    assert producer.calls == ["begin", "commit", "begin", "abort"]


@given(st.lists(st.integers(0, 300), min_size=1, max_size=50))
def test_the_window_is_never_above_its_bytes_but_for_one_record(sizes: list[int]) -> None:
    window = Window(bytes_max=250, records_max=4)
    held: list[int] = []
    for line, size in enumerate(sizes):
        while held and (sum(held) + size > 250 or len(held) >= 4):
            window.leave(held.pop(0), line, None)
        window.enter(size)  # would wait for ever without room
        held.append(size)
    while held:
        window.leave(held.pop(0), 0, None)
    assert (window.acknowledged, window.acknowledged_bytes) == (len(sizes), sum(sizes))


@given(st.integers(1, 1_000), st.integers(1, 300))
def test_a_pace_is_kept_however_long_the_pauses(rate: int, records: int) -> None:
    now = [0.0]

    def pause(seconds: float) -> None:
        now[0] += max(0.0, seconds)

    pace = Pace(rate, pause, lambda: now[0])
    for _ in range(records):
        pace.wait()
    assert now[0] >= (records - 1) / rate - 0.15
    assert now[0] <= (records - 1) / rate + 0.15


class Fetched:
    def __init__(self, partition: int, offset: int) -> None:
        self.topic, self.partition, self.offset, self.timestamp = "t", partition, offset, 0
        self.key, self.value, self.headers = None, b"%d" % offset, None


class FakeConsumer:
    """Partitions with so many records each, by a few a poll."""

    def __init__(self, ends: Mapping[int, int], begins: int = 0) -> None:
        self._ends = {TopicPartition("t", one): end for one, end in ends.items()}
        self._at = dict.fromkeys(self._ends, begins)
        self.commits: list[dict[int, int]] = []

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> Mapping[TopicPartition, list[Any]]:
        found = {}
        for one, at in self._at.items():
            to = min(self._ends[one], at + 7)
            if to > at:
                found[one] = [Fetched(one.partition, offset) for offset in range(at, to)]
            self._at[one] = to
        return found

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> Any:
        self.commits.append({one.partition: row.offset for one, row in offsets.items()})

    def assignment(self) -> set[TopicPartition]:
        return set(self._at)

    def position(self, partition: TopicPartition) -> int | None:
        return self._at[partition]

    def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {one: self._ends[one] for one in partitions}


def consumption(
    consumer: FakeConsumer, out: int, interruption: Interruption, *, count: int | None = None, commits: bool = True
) -> Consumption:
    run = Consumption(
        consumer, shape_of("text", terminal=False), OutputPipe(out, interruption), interruption,
        Progress("read", None), count=count, exit_at_end=True, commits=commits,
    )  # fmt: skip
    run.assigned()
    return run


@pytest.mark.parametrize("count", [None, 1, 7, 8, 30, 35])
def test_a_group_commits_just_what_was_printed(count: int | None, interruption: Interruption) -> None:
    consumer, (read, write) = FakeConsumer({0: 30, 1: 5}), os.pipe()
    run = consumption(consumer, write, interruption, count=count)
    run.run()
    os.close(write)
    printed = os.read(read, 1 << 16).splitlines()
    os.close(read)
    assert run.finished
    assert len(printed) == (count or 35)
    assert sum(consumer.commits[-1].values()) == len(printed)


def test_a_reader_who_is_gone_ends_it_and_what_was_read_is_committed(interruption: Interruption) -> None:
    consumer, (read, write) = FakeConsumer({0: 100_000}), os.pipe()
    os.close(read)
    run = consumption(consumer, write, interruption)
    run.run()
    os.close(write)
    assert (run.finished, consumer.commits) == (True, [])
    read, write = os.pipe()
    out = OutputPipe(write, interruption)
    out.check()
    os.close(read)
    with pytest.raises(ReaderGone):
        out.check()
    os.close(write)


class Filling(FakeConsumer):
    """The device behind `out` is full from a round on."""

    def __init__(self, ends: Mapping[int, int], out: int, at_round: int) -> None:
        super().__init__(ends)
        self._out, self._left = out, at_round

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> Mapping[TopicPartition, list[Any]]:
        self._left -= 1
        if not self._left:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, self._out)
            os.close(full)
        return super().poll(timeout_ms, max_records)


@pytest.mark.parametrize("at_round", [1, 2, 4])
def test_a_device_that_is_full_is_said_and_what_was_written_is_committed(
    at_round: int, interruption: Interruption
) -> None:
    read, write = os.pipe()
    consumer = Filling({0: 1_000}, write, at_round)
    with pytest.raises(Unwritten, match="No space left"):
        consumption(consumer, write, interruption).run()
    os.close(write)
    printed = os.read(read, 1 << 16).splitlines()
    os.close(read)
    assert len(printed) == 7 * (at_round - 1)
    assert consumer.commits == ([{0: len(printed)}] if printed else [])


def test_an_interruption_ends_it_while_the_reader_does_not_read(interruption: Interruption) -> None:
    consumer, (read, write) = FakeConsumer({0: 1_000_000}), os.pipe()
    timer = threading.Timer(0, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    run = consumption(consumer, write, interruption)
    run.run()
    timer.join()
    assert not run.finished
    os.close(read)
    os.close(write)


def test_where_a_consumer_begins() -> None:
    begins, ends = {0: 5, 1: 0}, {0: 10, 1: 2}

    def at(time_ms: int) -> Mapping[int, int | None]:
        return {0: 7, 1: None}

    def found(text: str) -> dict[int, int]:
        return positions(parse_start(text), begins, ends, at)

    assert found("earliest") == begins
    assert found("latest") == found("-0") == ends
    assert found("-3") == {0: 7, 1: 0}
    assert found("2013-01-01T00:00:00Z") == found("@1000") == {0: 7, 1: 2}
    assert positions(Start(offset=1), {0: 0}, {0: 1}, at) == {0: 1}
    with pytest.raises(Misplaced, match="partition 0 begins at 5 and ends at 10"):
        found("2")
    for wrong in ("never", "--1", "1e3", str(2**63), "@x"):
        with pytest.raises(typer.Exit):
            parse_start(wrong)
