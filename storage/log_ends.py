"""How far a log reaches: what is assigned, in the page cache, acknowledged and on the device."""


class LogEnds:
    """One per log. `recovery_point` <= `flushed` <= `readable` <= `log_end`, and `written` <= `readable`."""

    __slots__ = (
        "counts_flushed",
        "flush_requested",
        "flushed",
        "generation",
        "log_end",
        "readable",
        "recovery_point",
        "written",
    )

    def __init__(self, log_end: int, recovery_point: int) -> None:
        self.log_end = log_end  # the next offset to be assigned
        self.readable = log_end  # in the page cache: a slow disk holds it back
        self.written = log_end  # what counts as this replica's end; only a cut moves it back
        self.counts_flushed = False  # `written` follows `flushed`, else `readable`
        self.flushed = min(recovery_point, log_end)  # batches below it are on the device
        self.recovery_point = self.flushed  # and below it all that is known of them
        self.flush_requested = self.flushed  # what flush.messages has asked for
        self.generation = 0  # counts cuts: what was planned before one is void

    def check(self) -> None:
        """Assert what must always hold."""
        assert self.recovery_point <= self.flushed <= self.readable <= self.log_end
        assert self.written <= self.readable

    def count_flushed(self, is_flushed: bool) -> bool:
        """Whether only what is on the device counts as written from now on. Returns whether `written` moved."""
        self.counts_flushed = is_flushed
        return not is_flushed and self._count(self.readable)

    def append(self, offset: int) -> None:
        """The log ends at `offset`, and all of it is in the page cache."""
        self.log_end = self.readable = offset
        if not self.counts_flushed:
            self.written = offset

    def append_later(self, offset: int) -> None:
        """The log ends at `offset`, and bytes of it wait for a slow disk."""
        self.log_end = offset

    def in_page_cache(self, offset: int) -> bool:
        """What waited is there up to `offset`; a later append may have overtaken this. Whether `written` moved."""
        self.readable = max(self.readable, offset)
        return not self.counts_flushed and self._count(offset)

    def on_device(self, flushed: int, recovery_point: int) -> bool:
        """Whether `written` moved."""
        self.flushed = max(self.flushed, flushed)
        self.recovery_point = max(self.recovery_point, recovery_point)
        return self.counts_flushed and self._count(self.flushed)

    def _count(self, offset: int) -> bool:
        moves = offset > self.written
        if moves:
            self.written = offset
        return moves

    def request_flush(self, offset: int) -> None:
        self.flush_requested = offset

    def withdraw_recovery_point(self, offset: int) -> None:
        """Nothing at or past `offset` is to be trusted after a loss of power."""
        self.recovery_point = min(self.recovery_point, offset)

    def cut(self, end_offset: int, active_offset: int) -> None:
        """The log ends at `end_offset`, in the segment that begins at `active_offset`.

        The cut itself is not on the device yet: after a loss of power the old end could come back before newer
        segments.
        """
        self.generation += 1
        self.log_end = self.readable = self.written = end_offset
        self.flushed = min(self.flushed, active_offset)
        self.flush_requested = min(self.flush_requested, active_offset)
        self.recovery_point = min(self.recovery_point, active_offset)

    def begin_at(self, offset: int) -> None:
        """The log is empty, and begins and ends at `offset`."""
        self.cut(offset, offset)
        self.flushed = self.flush_requested = self.recovery_point = offset
