"""The leader's side of `__audit`: appends the events that brokers send, each once and in order.

A header of the last record in every batch has each journal's last sequence, so a new leader reads it from the last
batch of its log, whatever retention has deleted. An event at or below that sequence is skipped, and acknowledged when
its earlier copy is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from common.errors import ErrorCode, ProtocolError
from common.ports import Clock
from kraft.topic_names import AUDIT_TOPIC
from records.batch import iterate_batches
from records.builder import build_batch
from records.record import Record, decode_records

POSITIONS_HEADER = "positions"
INFLATED_BYTES_MAX = 16 << 20
COMMIT_TIMEOUT_S = 8.0


class Position(NamedTuple):
    """The last event of a broker's journal in the topic."""

    incarnation: str
    sequence: int


class Entry(NamedTuple):
    """One event as a broker sends it."""

    sequence: int
    event: bytes


Positions = dict[int, Position]
_decoder = msgspec.json.Decoder(dict[int, tuple[str, int]])


class AuditTopicHost:
    """Appends to all partitions of `__audit` that this broker leads."""

    def __init__(self, hosted: HostedPartitions, clock: Clock) -> None:
        self._hosted = hosted
        self._clock = clock
        self._positions: dict[int, tuple[int, Positions]] = {}  # by partition: (leader epoch, positions)

    async def append(self, index: int, node: int, incarnation: str, entries: Sequence[Entry]) -> int:
        """The last sequence of the journal in the topic (-1: none), returned when everything up to there is committed.

        Raises ProtocolError: as `Partition.check_room`; INVALID_REQUEST; REQUEST_TIMED_OUT if the outcome is unknown.
        """
        partition = self._hosted.find_leader(AUDIT_TOPIC, index)
        sequences = [entry.sequence for entry in entries]
        if sequences != sorted(sequences):
            raise ProtocolError(ErrorCode.INVALID_REQUEST)
        positions = self._known(partition)
        last = positions.get(node, Position(incarnation, -1))
        if last.incarnation != incarnation:
            last = Position(incarnation, -1)
        fresh = [entry for entry in entries if entry.sequence > last.sequence]
        if fresh:
            last = Position(incarnation, fresh[-1].sequence)
            positions = positions | {node: last}
            self._append(partition, node, fresh, positions)
            self._positions[index] = (partition.leader_epoch, positions)
        await _committed(partition)
        return last.sequence

    def _append(self, partition: Partition, node: int, fresh: list[Entry], positions: Positions) -> None:
        partition.check_room(sum(len(entry.event) for entry in fresh))
        now_ms = self._clock.wall_ms()
        key = str(node).encode()
        records = [Record(0, now_ms, key, entry.event) for entry in fresh]
        headers = ((POSITIONS_HEADER, msgspec.json.encode(positions)),)
        records[-1] = Record(0, now_ms, key, fresh[-1].event, headers)
        partition.append_records(build_batch(records), partition.leader_epoch, now_ms)

    def _known(self, partition: Partition) -> Positions:
        found = self._positions.get(partition.index)
        if found is None or found[0] != partition.leader_epoch:
            found = self._positions[partition.index] = (partition.leader_epoch, last_positions(partition))
        return found[1]


def last_positions(partition: Partition) -> Positions:
    """The positions in the last batch of the log; empty if the log is empty. Raises ProtocolError."""
    log = partition.log
    end = log.log_end_offset
    if end <= log.local_log_start_offset:
        return {}
    region = log.read(end - 1, 1, end)
    if region is None:
        raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "the end of the log is still being written")
    try:
        data = memoryview(region.read())
    finally:
        region.release()
    positions: Positions = {}
    for at, header in iterate_batches(data, 0, len(data)):
        for record in decode_records(data, at, header.size, inflated_bytes_max=INFLATED_BYTES_MAX)[-1:]:
            for name, value in record.headers:
                if name == POSITIONS_HEADER:
                    positions = {node: Position(*one) for node, one in _decoder.decode(value or b"{}").items()}
    return positions


async def _committed(partition: Partition) -> None:
    """Wait until everything that this leader has appended so far is committed."""
    done: asyncio.Future[ErrorCode | None] = asyncio.get_running_loop().create_future()

    def answer(error: ErrorCode | None) -> None:
        if not done.done():
            done.set_result(error)

    if not partition.on_commit(partition.log.log_end_offset, answer):
        return
    try:
        async with asyncio.timeout(COMMIT_TIMEOUT_S):
            error = await done
    except TimeoutError:
        raise ProtocolError(ErrorCode.REQUEST_TIMED_OUT) from None
    if error is not None:
        raise ProtocolError(error)
