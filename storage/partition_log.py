"""One replica's log: Kafka's segment files, appended with one write, read as regions of a file.

One writer; every call runs on the event loop unless it says otherwise. The unit is the record batch.
"""

from collections.abc import Callable
from typing import NamedTuple

from records.batch import BatchHeader
from storage.leader_epochs import EpochEnd, LeaderEpochCache
from storage.log_config import LogConfig
from storage.region import Region


class Appended(NamedTuple):
    """Offsets of an append, half-open; `max_timestamp` is the log append time, -1 where clients set timestamps."""

    base_offset: int
    next_offset: int
    max_timestamp: int
    duplicate: bool


class TimestampHit(NamedTuple):
    """The batch in which a timestamp was found; `resolve` looks into its records and may run in a thread."""

    header: BatchHeader
    region: Region
    timestamp: int


class PartitionLog:
    """Offsets: `log_start_offset` is the first that is served, `log_end_offset` the next to be assigned.

    `written_end_offset` is what may count as this replica's log end: bytes below it are in the page cache, and on
    the device where flush.messages is 1. It lags `log_end_offset` only while the disk is slow or a flush runs;
    `on_written` is called, on the loop, whenever it caught up some.
    """

    topic: str
    partition: int
    topic_id: bytes
    directory: str  # path below the disk's root
    config: LogConfig
    log_start_offset: int
    log_end_offset: int
    written_end_offset: int
    flushed_end_offset: int  # the recovery point: everything below is on the device
    leader_epochs: LeaderEpochCache
    on_written: Callable[[], None] | None

    def append_as_leader(
        self,
        buffer: bytearray | memoryview,
        view: memoryview,
        at: int,
        end: int,
        leader_epoch: int,
        now_ms: int,
        header: BatchHeader | None = None,
    ) -> Appended:
        """Append the one batch `view[at:end]`, which `check_produced` and `producers.check` accepted.

        `buffer` is the same memory, writable: offsets, epoch and log append time are stamped in place. `header` saves
        reading it again. Raises ProtocolError(KAFKA_STORAGE_ERROR) when the directory is offline, nearly full or
        more bytes than its budget wait for a slow disk; nothing is appended then.
        """
        raise NotImplementedError

    def append_as_follower(self, view: memoryview, at: int, end: int) -> Appended | None:
        """Append a leader's whole batches, each checked by CRC; a torn last one is left out. None: none was whole.

        Raises ProtocolError: CORRUPT_MESSAGE, OFFSET_OUT_OF_RANGE (does not begin at the log's end or after it),
        KAFKA_STORAGE_ERROR. Either all batches are appended or none.
        """
        raise NotImplementedError

    def append_as_mirror(self, view: memoryview, at: int, end: int, leader_epoch: int) -> Appended | None:
        """As a follower with given offsets, but under this leader's own epoch, which is written into the batches."""
        raise NotImplementedError

    def read(self, offset: int, bytes_max: int, until_offset: int, *, at_least_one: bool = True) -> Region | None:
        """Whole batches from the one that holds `offset`, of one segment, none at or past `until_offset`.

        None when there is nothing to read yet, or when not even the first batch fits `bytes_max` and
        `at_least_one` is off. Raises ProtocolError: OFFSET_OUT_OF_RANGE (before the log's start, after its end),
        KAFKA_STORAGE_ERROR. The caller releases the region.
        """
        raise NotImplementedError

    def locate_timestamp(self, timestamp: int) -> TimestampHit | None:
        """The first batch with a record at or after `timestamp` (ms); `TimestampHit.resolve` finds the record."""
        raise NotImplementedError

    def offset_for_timestamp(self, timestamp: int) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record at or after `timestamp`; decodes one batch."""
        raise NotImplementedError

    def max_timestamp_entry(self) -> tuple[int, int, int] | None:
        """(timestamp, offset, leader epoch) of the first record with the log's largest timestamp."""
        raise NotImplementedError

    def end_offset_for_epoch(self, epoch: int) -> EpochEnd:
        """Where the largest epoch up to `epoch` ends in this log."""
        raise NotImplementedError

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of the oldest open transaction."""
        raise NotImplementedError

    def last_stable_offset(self, high_watermark: int) -> int:
        raise NotImplementedError

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of every aborted transaction that touches the range."""
        raise NotImplementedError

    def truncate_to(self, offset: int) -> int:
        """Cut everything from the batch that holds `offset` on; the new log end, which the follower fetches next.

        Raises ProtocolError(KAFKA_STORAGE_ERROR) while bytes of this log wait for a slow disk: try again later.
        """
        raise NotImplementedError

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Drop everything and begin at `offset`: this replica is too far behind its leader's log start."""
        raise NotImplementedError

    def advance_log_start(self, offset: int, cause: str) -> bool:
        """Serve nothing below `offset` any more; segments wholly below it go. Whether it moved."""
        raise NotImplementedError

    def maybe_roll(self, now_ms: int) -> bool:
        """Begin a new segment when the active one is older than segment.ms; whether it did."""
        raise NotImplementedError

    def delete_old_segments(self, now_ms: int, high_watermark: int, *, tiered_end_offset: int | None = None) -> int:
        """Drop what retention.ms, retention.bytes and the log start allow, nothing at or past the high watermark.

        The number of segments dropped. `tiered_end_offset`: with a tier, nothing at or past it goes.
        """
        raise NotImplementedError

    async def flush(self, upto_offset: int | None = None) -> int:
        """fsync, in a thread, everything below `upto_offset` (the end); the new `flushed_end_offset`."""
        raise NotImplementedError
