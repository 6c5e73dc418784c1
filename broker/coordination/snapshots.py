"""Snapshots of shards on disk, beside their logs, so that a broker that starts alone need not replay whole logs.

A snapshot is written while its shard works. It has all records below `begin`, and some of those from there to `end`.
Replaying the log from `begin` on completes it, because only a key's newest record counts. It is valid while the log
still has the record before `end` with the same leader epoch, because two logs that agree there agree below. A later
tombstone may be gone from the log after `delete.retention.ms`, so an older snapshot is invalid.

A missing, damaged or foreign snapshot only makes the load slower, so nothing is flushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, TypeVar
from zlib import crc32

from broker.coordination.packed_records import read_runs
from broker.coordination.partition_access import CoordinatedLog, CoordinatedPartition
from broker.coordination.shard import PackedShard, Shard, packed, transactional
from common.outlasting import outlast
from common.pacing import Pacer, Work
from common.ports import Clock, Disk, File
from common.whole_files import TEMPORARY_SUFFIX, join, write_fully

FILE_NAME = "coordinator-snapshot"
PIECE_BYTES = 1 << 20
PIECE_BYTES_MAX = 64 << 20  # a piece may be one long run
RUN_COST = 3  # units of `common.pacing`
PACKED_PER_UNIT, RECORDS_PER_UNIT = 2, 4
PENDING_COST = 4  # of a record of an open transaction

_MAGIC = b"TLCS\0\3"
_HEAD = Struct(">6sqqqqiqI")  # magic, size, begin, end, log start, epoch before `end`, creation time (ms), CRC of these
_PIECE = Struct(">II")  # size, CRC-32; the last piece is empty

_log = logging.getLogger(__name__)

T = TypeVar("T")
Key = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SnapshotLimits:
    """A shard is written when its log has grown by `records_min`, and by half of its number of records last time.

    A clean stop writes shards that lack at least `last_records_min` records, as many as it can within `last_s`.
    """

    records_min: int = 20_000
    interval_s: float = 2.0
    last_records_min: int = 1_000
    last_s: float = 2.0


class Extent(NamedTuple):
    """The head of a snapshot; see the module's text. `made_ms` is wall-clock time."""

    begin: int
    end: int
    log_start: int
    epoch: int
    made_ms: int


class _Known(NamedTuple):
    """The newest snapshot of a shard that this broker leads or follows."""

    begin: int
    end: int
    records: int
    made_ms: int


class Progress(NamedTuple):
    """Functions that return a working shard's progress."""

    log_end: Callable[[], int]
    """All lower records are in the shard and in the log."""
    decided_end: Callable[[], int]
    """No record at or above is in the shard."""
    undone: Callable[[], int]
    """How often records were taken back. -1: the shard is closed."""


def still(offset: int) -> Progress:
    """Progress of an unchanging shard that has everything below `offset`."""
    return Progress(lambda: offset, lambda: offset, lambda: 0)


class ShardSnapshots:
    """One per broker. Calls on the loop, file access in threads."""

    def __init__(self, disk: Disk, clock: Clock, pacer: Pacer, limits: SnapshotLimits) -> None:
        self._disk = disk
        self._clock = clock
        self._pacer = pacer
        self._limits = limits
        self._known: dict[Key, _Known] = {}

    @property
    def interval_s(self) -> float:
        """The pause between two checks of the shards."""
        return self._limits.interval_s

    def lacking(self, partition: CoordinatedPartition, shard: Shard, offset: int) -> int:
        """The number of records that a start with the newest snapshot would replay, for a shard that has everything
        below `offset`. 0 for a shard that does not support snapshots."""
        if packed(shard) is None:
            return 0
        known = self._known.get((partition.topic, partition.index))
        begin = partition.log.log_start_offset if known is None or offset < known.begin else known.begin
        return offset - begin

    async def write_last(self, served: list[tuple[CoordinatedPartition, Shard, Progress]]) -> None:
        """Before a clean stop, write the shards whose replay would take longest."""
        lacking = [(self.lacking(partition, shard, progress.log_end()), at)
                   for at, (partition, shard, progress) in enumerate(served)]  # fmt: skip
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limits.last_s):
                for count, at in sorted(lacking, reverse=True):
                    if count < self._limits.last_records_min:
                        break
                    await self.write(*served[at])

    def is_due(self, partition: CoordinatedPartition, shard: Shard, offset: int) -> bool:
        """Whether a snapshot of the shard, which has everything below `offset`, is due. It is not while the shard may
        have more from an earlier snapshot: that could be cut off from the log, and a new one would not say so."""
        if packed(shard) is None:
            return False
        known = self._known.get((partition.topic, partition.index))
        lacking = self.lacking(partition, shard, offset)
        if known is None or offset < known.begin:
            return lacking >= self._limits.records_min
        if offset < known.end:
            return False
        if lacking >= max(self._limits.records_min, known.records // 2):
            return True
        age_ms = self._clock.wall_ms() - known.made_ms
        return known.records >= self._limits.records_min and age_ms > partition.log.config.delete_retention_ms // 2

    # writing -----------------------------------------------------------------------------------------------

    async def write(self, partition: CoordinatedPartition, shard: Shard, progress: Progress) -> bool:
        """Write `shard` while it works. Returns whether the file was written."""
        if not isinstance(shard, PackedShard):
            return False
        log = partition.log
        begin, generation, undone = progress.log_end(), log.generation, progress.undone()
        if undone < 0:
            return False
        made_ms = self._clock.wall_ms()
        path = join(log.directory, FILE_NAME)
        temporary = path + TEMPORARY_SUFFIX
        try:
            file = await _in_thread(self._begin_file, temporary)
            try:
                size, records = await self._write_pieces(shard, file, (partition.topic, partition.index))
                end = progress.decided_end()
                extent = Extent(begin, end, log.log_start_offset, log.leader_epochs.epoch_of(end - 1), made_ms)
                await _in_thread(write_fully, file, _encode_head(extent, size), 0)
            finally:
                await _in_thread(file.close)
            sound = progress.undone() == undone and progress.log_end() >= end and log.generation == generation
            if not sound:
                await _in_thread(self._disk.remove, temporary)
                return False
            await _in_thread(self._disk.rename, temporary, path)
        except OSError as error:
            fields = {"topic": partition.topic, "partition": partition.index, "error": str(error)}
            _log.warning("no snapshot of a shard written", extra=fields)
            return False
        self._known[partition.topic, partition.index] = _Known(begin, end, records, made_ms)
        return True

    def _begin_file(self, path: str) -> File:
        file = self._disk.open(path, create=True)
        file.truncate(0)
        return file

    async def _write_pieces(self, shard: PackedShard, file: File, lane: Key) -> tuple[int, int]:
        """Write the shard's state after the place of the head. Returns the file size and the number of records."""
        at, records = _HEAD.size, 0
        parts = shard.pack()
        while True:
            piece, count = await self._pacer.run(gather(parts), lane, own=True)
            await _in_thread(_write_piece, file, piece, at)
            at += _PIECE.size + len(piece)
            if not piece:
                return at, records
            records += count

    # reading -----------------------------------------------------------------------------------------------

    async def restore(self, partition: CoordinatedPartition, shard: Shard) -> int | None:
        """Load the snapshot into the new `shard`. Returns the offset from which the log must be replayed.

        None if there is no valid snapshot; then `shard` may have a part of it and must be discarded.
        """
        if not isinstance(shard, PackedShard):
            return None
        key = (partition.topic, partition.index)
        pieces = _Pieces(self._disk, join(partition.log.directory, FILE_NAME))
        records = 0
        try:
            extent = await _in_thread(pieces.open)
            if extent is None or not self._counts(extent, partition.log):
                return None
            while piece := await _in_thread(pieces.next):
                records += await self._pacer.run(_unpack(shard, piece), key, own=True)
        except (OSError, ValueError) as error:
            fields = {"topic": key[0], "partition": key[1], "error": str(error)}
            _log.warning("the snapshot of a shard cannot be read", extra=fields)
            return None
        finally:
            await _in_thread(pieces.close)
        self._known[key] = _Known(extent.begin, extent.end, records, extent.made_ms)
        return extent.begin

    def _counts(self, extent: Extent, log: CoordinatedLog) -> bool:
        """Whether replaying the log completes the snapshot."""
        age_ms = self._clock.wall_ms() - extent.made_ms
        return (
            extent.log_start == log.log_start_offset
            and extent.end <= log.log_end_offset
            and extent.epoch == log.leader_epochs.epoch_of(extent.end - 1)
            and age_ms < log.config.delete_retention_ms
        )


async def _in_thread(act: Callable[..., T], *arguments: object) -> T:
    """A cancelled caller waits for the thread too, because the file is closed next."""
    return await outlast(asyncio.ensure_future(asyncio.to_thread(act, *arguments)))


def gather(parts: Iterator[tuple[bytes, int]]) -> Work[tuple[bytes, int]]:
    """Join the next parts. Returns the piece and its number of records; an empty piece at the end."""
    gathered, size, records = [], 0, 0
    for data, count in parts:
        gathered.append(data)
        size += len(data)
        records += count
        yield RUN_COST + count // PACKED_PER_UNIT
        if size >= PIECE_BYTES:
            break
    return b"".join(gathered), records


async def begin_shard(
    partition: CoordinatedPartition, make: Callable[[], Shard], snapshots: ShardSnapshots | None
) -> tuple[Shard, int]:
    """A new shard with its snapshot, if there is a valid one, and the offset from which the log must be replayed."""
    if snapshots is not None:
        shard = make()
        begin = await snapshots.restore(partition, shard)
        if begin is not None:
            return shard, begin
    return make(), partition.log.log_start_offset


def _unpack(shard: PackedShard, piece: bytes) -> Work[int]:
    records, with_transactions = 0, transactional(shard)
    for run in read_runs(piece):
        pending = 0 if with_transactions is None else with_transactions.pending_count
        shard.unpack(run)
        records += run.records
        cost = RUN_COST + run.records // RECORDS_PER_UNIT
        if with_transactions is not None:
            cost += (with_transactions.pending_count - pending) * PENDING_COST
        yield cost
    return records


def _encode_head(extent: Extent, size: int) -> bytes:
    data = _HEAD.pack(_MAGIC, size, *extent, 0)[:-4]
    return data + crc32(data).to_bytes(4, "big")


def _write_piece(file: File, data: bytes, at: int) -> None:
    write_fully(file, _PIECE.pack(len(data), crc32(data)) + data, at)


class _Pieces:
    """A snapshot that is read piece by piece, in threads. Raises ValueError for damaged bytes."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._file: File | None = None
        self._at = _HEAD.size
        self._size = 0

    def open(self) -> Extent | None:
        """None if there is none."""
        try:
            file = self._file = self._disk.open(self._path)
        except FileNotFoundError:
            return None
        head = file.pread(_HEAD.size, 0)
        try:
            magic, self._size, *numbers, checksum = _HEAD.unpack(head)
        except struct_error as error:
            raise ValueError("a head that is cut off") from error
        if magic != _MAGIC or checksum != crc32(head[:-4]):
            raise ValueError("no head of a snapshot")
        return Extent(*numbers)

    def next(self) -> bytes:
        """The next piece; empty at the end."""
        if self._file is None:
            return b""
        try:
            size, checksum = _PIECE.unpack(self._file.pread(_PIECE.size, self._at))
        except struct_error as error:
            raise ValueError("a piece that is cut off") from error
        if size > PIECE_BYTES_MAX:
            raise ValueError("a piece that is too long")
        data = self._file.pread(size, self._at + _PIECE.size)
        if len(data) != size or crc32(data) != checksum:
            raise ValueError("a damaged piece")
        self._at += _PIECE.size + size
        if not size and self._at != self._size:  # zeros: the device never got what was written
            raise ValueError("an end in the middle")
        return data

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
