"""Records from a topic to an output: what is printed, what a group commits of it, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata, TopicPartition

from tidelog.streams.interruption import Interruption
from tidelog.streams.output_pipe import OutputPipe, ReaderGone
from tidelog.streams.progress import Progress
from tidelog.streams.record_formats import Incoming, Shape

POLL_MS = 200
COMMIT_S = 5.0
CHUNK_BYTES = 1 << 16


class Consumer(Protocol):
    """What is used of kafka-python's consumer."""

    def poll(self, timeout_ms: int = 0, max_records: int | None = None) -> Mapping[TopicPartition, list[Any]]: ...
    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: int) -> Any: ...
    def assignment(self) -> set[TopicPartition]: ...
    def position(self, partition: TopicPartition) -> int | None: ...
    def end_offsets(self, partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]: ...


class Consumption:
    """Until `count` records, until the ends of the partitions as they were found, or for ever.

    Offsets are those of records that were written: what a reader never got is not committed.
    """

    def __init__(
        self,
        consumer: Consumer,
        shape: Shape,
        out: OutputPipe,
        interruption: Interruption,
        progress: Progress,
        *,
        count: int | None,
        exit_at_end: bool,
        commits: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._consumer = consumer
        self._shape = shape
        self._out = out
        self._interruption = interruption
        self._progress = progress
        self._left = count
        self._exit_at_end = exit_at_end
        self._commits = commits
        self._now = now
        self._next_commit = now() + COMMIT_S
        self._written: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] | None = None
        self._is_placed = not commits  # a group assigns partitions later, maybe none
        self.finished = False
        """Whether all was read that was asked for."""

    def run(self) -> None:
        """Raises KafkaError, and Unwritten. A reader who is gone, and an interruption, end it in order."""
        try:
            while not (self._interruption.asked or self.finished):
                self._round()
        except ReaderGone:
            self.finished = True
        finally:
            self.commit()

    def assigned(self) -> None:
        """There are other partitions to read; their ends are looked up when they are needed."""
        self._ends = None
        self._is_placed = True

    def commit(self) -> None:
        """What was written since the last time. Raises KafkaError."""
        if self._commits and self._written:
            offsets = {one: OffsetAndMetadata(offset, "", -1) for one, offset in self._written.items()}
            self._written = {}
            self._consumer.commit(offsets, timeout_ms=10_000)
        self._next_commit = self._now() + COMMIT_S

    def _round(self) -> None:
        if self._left == 0:
            self.finished = True
            return
        batches = self._consumer.poll(POLL_MS, *([self._left] if self._left is not None and self._left < 500 else []))
        if not batches:
            self._out.check()
        for partition, records in batches.items():
            if not self._print(partition, records):
                break
        self._progress.show()
        if self._now() >= self._next_commit:
            self.commit()
        self.finished = self._left == 0 or (self._exit_at_end and self._is_at_end())

    def _print(self, partition: TopicPartition, records: list[Any]) -> bool:
        """False if it was broken off."""
        chunk, size, held = [], 0, 0
        for record in records[: self._left]:
            line = self._shape(
                Incoming(
                    record.topic, record.partition, record.offset, record.timestamp, record.key, record.value,
                    record.headers or (),
                )
            )  # fmt: skip
            chunk.append(line)
            size, held = size + len(line), record.offset + 1
            if size >= CHUNK_BYTES:
                if not self._put(partition, chunk, size, held):
                    return False
                chunk, size = [], 0
        return not chunk or self._put(partition, chunk, size, held)

    def _put(self, partition: TopicPartition, chunk: list[bytes], size: int, next_offset: int) -> bool:
        if not self._out.write(b"".join(chunk)):
            return False
        self._written[partition] = next_offset
        self._progress.add(len(chunk), size)
        if self._left is not None:
            self._left -= len(chunk)
        return True

    def _is_at_end(self) -> bool:
        if not self._is_placed:
            return False
        partitions = self._consumer.assignment()
        if self._ends is None:
            self._ends = dict(self._consumer.end_offsets(list(partitions))) if partitions else {}
        return all((self._consumer.position(one) or 0) >= end for one, end in self._ends.items())


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Commits before partitions go, and says that others have come."""

    def __init__(self, consumption: Consumption) -> None:
        self._consumption = consumption

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        try:
            self._consumption.commit()
        except KafkaError:  # the group has gone on without this member: others read these records again
            return

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._consumption.assigned()
