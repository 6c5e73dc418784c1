"""A partition of an internal topic in memory, whose followers and high watermark the test moves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from struct import Struct
from typing import TypeVar

from broker.partitions.transactional_appends import Marked, Marker, Permission
from common.errors import ErrorCode, ProtocolError
from records.batch import read_header, stamp
from records.builder import build_batch
from records.control import MarkerKind
from records.record import Record
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_config import LogConfig

T = TypeVar("T")


@dataclass
class MemoryRegion:
    data: bytes
    released: int = 0

    def read(self) -> bytes:
        return self.data

    def release(self) -> None:
        self.released += 1


@dataclass
class MemoryLog:
    batches: list[bytes] = field(default_factory=list)
    log_start_offset: int = 0
    log_end_offset: int = 0
    generation: int = 0
    directory: str = ""
    leader_epochs: LeaderEpochCache = field(default_factory=LeaderEpochCache)
    config: LogConfig = field(default_factory=LogConfig)

    async def when_in_memory(self, ask: Callable[[], T]) -> T:
        return ask()


@dataclass
class MemoryPartition:
    """`auto_commit`: followers have everything at once. `failing_reads`: so many more reads fail."""

    topic: str = "__consumer_offsets"
    index: int = 0
    leader_epoch: int = 1
    is_leader: bool = True
    high_watermark: int = 0
    auto_commit: bool = True
    fresh: bool = True
    refuse: ErrorCode | None = None
    is_starved: bool = False
    refuse_append: ErrorCode | None = None
    failing_reads: int = 0
    log: MemoryLog = field(default_factory=MemoryLog)
    waiting: list[tuple[int, Callable[[ErrorCode | None], None]]] = field(default_factory=list)
    regions: list[MemoryRegion] = field(default_factory=list)
    open_transactions: dict[int, int] = field(default_factory=dict)  # producer id → epoch
    marked: dict[int, int] = field(default_factory=dict)  # producer id → end of its last marker
    void: ErrorCode | None = None  # why permissions are void

    def check_room(self, size: int) -> None:
        if self.refuse is not None:
            raise ProtocolError(self.refuse)

    def append_records(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        if self.refuse_append is not None:
            raise ProtocolError(self.refuse_append)
        if leader_epoch != self.leader_epoch or not self.is_leader:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        header = read_header(batch, 0)
        if header.is_transactional:
            if header.producer_epoch < self.open_transactions.get(header.producer_id, -1):
                raise ProtocolError(ErrorCode.INVALID_PRODUCER_EPOCH)
            self.open_transactions[header.producer_id] = header.producer_epoch
        return self._append(batch, header.count)

    def check_permission(self, permission: Permission) -> None:
        if self.void is not None:
            raise ProtocolError(self.void)

    def append_marker(self, marker: Marker, now_ms: int) -> Marked:
        if self.refuse_append is not None:
            raise ProtocolError(self.refuse_append)
        if not self.is_leader:
            raise ProtocolError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.open_transactions.pop(marker.producer_id, None) is None:
            return Marked(self.marked.get(marker.producer_id, 0), is_repeated=True)
        end = self.marked[marker.producer_id] = self._append(marker_batch(marker, now_ms), 1)
        return Marked(end, is_repeated=False)

    def _append(self, batch: bytearray, count: int) -> int:
        leader_epoch = self.leader_epoch
        stamp(batch, 0, self.log.log_end_offset, leader_epoch)
        self.log.leader_epochs.assign(leader_epoch, self.log.log_end_offset)
        self.log.batches.append(bytes(batch))
        self.log.log_end_offset += count
        if self.auto_commit:
            self.commit()
        return self.log.log_end_offset

    def on_commit(self, offset: int, done: Callable[[ErrorCode | None], None]) -> bool:
        if offset <= self.high_watermark:
            return False
        self.waiting.append((offset, done))
        return True

    def commit(self, offset: int | None = None) -> None:
        self.high_watermark = self.log.log_end_offset if offset is None else offset
        due = [entry for entry in self.waiting if entry[0] <= self.high_watermark]
        self.waiting = [entry for entry in self.waiting if entry[0] > self.high_watermark]
        for _, done in due:
            done(None)

    def depose(self) -> None:
        self.is_leader = False
        waiting, self.waiting = self.waiting, []
        for _, done in waiting:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def followers_fetched_within(self, seconds: float) -> bool:
        return self.fresh

    def read_as_replica(
        self, offset: int, bytes_max: int, *, at_least_one: bool, only_in_memory: bool
    ) -> MemoryRegion | None:
        if self.failing_reads:
            self.failing_reads -= 1
            raise ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR)
        chosen: list[bytes] = []
        size = 0
        for batch in self.log.batches:
            if read_header(batch, 0).last_offset < offset:
                continue
            if chosen and size + len(batch) > bytes_max:
                break
            chosen.append(batch)
            size += len(batch)
        if not chosen:
            return None
        region = MemoryRegion(b"".join(chosen))
        self.regions.append(region)
        return region


def marker_batch(marker: Marker, now_ms: int) -> bytearray:
    """The control batch, as a partition's leader writes it."""
    kind = MarkerKind.COMMIT if marker.commit else MarkerKind.ABORT
    key, value = Struct(">hh").pack(0, kind), Struct(">hi").pack(0, marker.coordinator_epoch)
    return build_batch(
        [Record(0, now_ms, key, value, ())],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )
