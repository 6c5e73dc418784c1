"""The end offsets of a log: assigned, in the page cache, acknowledged, on the device."""

from collections.abc import Callable

from common.errors import ErrorCode, ProtocolError
from common.invariants import check


class LogEnds:
    """One per log. Always `recovery_point` <= `flushed` <= `readable` <= `log_end`, `written` <= `readable`, and
    `log_start` <= `log_end`.

    `on_written` is called when `written` moves later than its append, because a disk or a flush has caught up.
    """

    __slots__ = (
        "counts_flushed",
        "flush_requested",
        "flushed",
        "generation",
        "log_end",
        "log_start",
        "on_written",
        "readable",
        "recovery_point",
        "written",
    )

    def __init__(
        self, log_start: int, log_end: int, recovery_point: int, *, counts_flushed: bool = False, is_cut: bool = False
    ) -> None:
        """`is_cut`: the recovery has cut files, which the device does not know yet."""
        self.log_start = log_start  # the first offset that is served
        self.log_end = log_end  # the next offset to be assigned
        self.readable = log_end  # in the page cache; less than `log_end` while the disk is slow
        self.counts_flushed = counts_flushed  # `written` follows `flushed`, else `readable`
        self.flushed = min(recovery_point, log_end)  # batches below it are on the device
        self.written = self.flushed if counts_flushed else log_end
        """This replica's end for replication; only a truncation moves it back."""
        self.recovery_point = self.flushed  # below it, indexes and producer state are on the device too
        self.flush_requested = self.flushed  # already requested because of flush.messages
        self.generation = int(is_cut)  # number of truncations, which invalidate earlier plans
        self.on_written: Callable[[], None] | None = None

    def check(self) -> None:
        """Assert the invariants, in the simulator and in debug runs."""
        ends = (self.recovery_point, self.flushed, self.readable, self.log_end)
        check(list(ends) == sorted(ends), "recovery point, flushed, readable and log end are in this order")
        check(self.log_start <= self.log_end, "the log starts at or before its end")
        check(self.written <= self.readable, "what counts as written is in the page cache")

    def start_at(self, offset: int) -> None:
        """Nothing below `offset` is served any more."""
        self.log_start = offset

    def out_of_range(self, offset: int) -> ProtocolError:
        message = f"offset {offset} outside [{self.log_start}, {self.log_end}]"
        return ProtocolError(ErrorCode.OFFSET_OUT_OF_RANGE, message)

    def count_flushed(self, is_flushed: bool) -> None:
        """Whether only flushed batches count as written from now on."""
        self.counts_flushed = is_flushed
        if not is_flushed:
            self._count(self.readable)

    def append(self, offset: int) -> None:
        """The log ends at `offset`, completely in the page cache."""
        self.log_end = self.readable = offset
        if not self.counts_flushed:
            self.written = offset

    def append_later(self, offset: int) -> None:
        """The log ends at `offset`; some of its bytes wait for a slow disk."""
        self.log_end = offset

    def in_page_cache(self, offset: int) -> None:
        """Waiting bytes up to `offset` are written; a later append may have overtaken this."""
        self.readable = max(self.readable, offset)
        if not self.counts_flushed:
            self._count(offset)

    def on_device(self, flushed: int, recovery_point: int) -> None:
        """A flush has reached these offsets."""
        self.flushed = max(self.flushed, flushed)
        self.recovery_point = max(self.recovery_point, recovery_point)
        if self.counts_flushed:
            self._count(self.flushed)

    def _count(self, offset: int) -> None:
        if offset > self.written:
            self.written = offset
            if self.on_written is not None:
                self.on_written()

    def notify(self, on_written: Callable[[], None] | None) -> None:
        """Call `on_written` from now on; None: call nothing."""
        self.on_written = on_written

    def request_flush(self, offset: int) -> None:
        self.flush_requested = offset

    def withdraw_recovery_point(self, offset: int) -> None:
        """After a power loss, nothing at or after `offset` may be trusted."""
        self.recovery_point = min(self.recovery_point, offset)

    def cut(self, end_offset: int, active_offset: int) -> None:
        """The log ends at `end_offset`, in the segment that begins at `active_offset`.

        The truncation itself is not on the device yet: after a power loss the old end could reappear before newer
        segments.
        """
        self.generation += 1
        self.log_end = self.readable = end_offset
        self.written = min(self.written, end_offset)
        self.flushed = min(self.flushed, active_offset)
        self.flush_requested = min(self.flush_requested, active_offset)
        self.recovery_point = min(self.recovery_point, active_offset)

    def begin_at(self, offset: int) -> None:
        """The log is empty, and begins and ends at `offset`."""
        self.cut(offset, offset)
        self.written = self.flushed = self.flush_requested = self.recovery_point = offset
