"""What the runtime needs of an internal topic's partition and its log; `broker.partitions` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from broker.partitions.transactional_appends import Marked, Marker, Permission
from common.errors import ErrorCode

T = TypeVar("T")


class ByteRegion(Protocol):
    """Whole record batches in a file. `read` may run in a thread; `release` once, on the loop, after it."""

    def read(self) -> bytes: ...

    def release(self) -> None: ...


class KnownEpochs(Protocol):
    def epoch_of(self, offset: int) -> int:
        """The epoch in which `offset` was written."""
        ...


class CleanedLog(Protocol):
    @property
    def delete_retention_ms(self) -> int:
        """The minimal time for which a tombstone stays."""
        ...


class CoordinatedLog(Protocol):
    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def generation(self) -> int:
        """Counts truncations."""
        ...

    @property
    def directory(self) -> str:
        """The directory of its files, relative to the disk's root."""
        ...

    async def when_in_memory(self, ask: Callable[[], T]) -> T:
        """Call `ask` on this log. Threads first bring into memory what it reads from the device."""
        ...

    @property
    def leader_epochs(self) -> KnownEpochs: ...

    @property
    def config(self) -> CleanedLog: ...


class CoordinatedPartition(Protocol):
    """One replica of an internal topic's partition, on the broker that leads it."""

    @property
    def topic(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def log(self) -> CoordinatedLog: ...

    @property
    def is_starved(self) -> bool:
        """Whether the committed ISR is smaller than `min.insync.replicas`."""
        ...

    def check_room(self, size: int) -> None:
        """Raises ProtocolError if `size` bytes could not be appended and committed now."""
        ...

    def append_records(self, batch: bytearray, leader_epoch: int, now_ms: int) -> int:
        """Append one batch that was already decided. Returns the log end after it.

        Raises ProtocolError unless this broker leads in that epoch and its disk works.
        """
        ...

    def check_permission(self, permission: Permission) -> None:
        """Raises ProtocolError unless the producer may still begin a transaction here with it."""
        ...

    def append_marker(self, marker: Marker, now_ms: int) -> Marked:
        """End a transaction. A repeated marker is not appended.

        Raises ProtocolError unless this broker leads, the marker is newer than what is known, and there is room.
        """
        ...

    def on_commit(self, offset: int, done: Callable[[ErrorCode | None], None]) -> bool:
        """Call `done(None)` when `offset` is committed, `done(error)` when this broker stops leading.

        Returns False, and calls nothing, if it is committed already.
        """
        ...

    def followers_fetched_within(self, seconds: float) -> bool:
        """Whether every ISR follower has fetched in this leader's epoch within the last `seconds`."""
        ...

    def read_as_replica(
        self, offset: int, bytes_max: int, *, at_least_one: bool, only_in_memory: bool
    ) -> ByteRegion | None:
        """Batches from `offset` on, committed or not; None if nothing is written there yet. `only_in_memory`: call it
        within `log.when_in_memory`."""
        ...
