"""A search for the aborted transactions that overlap a range, in one index after another, and in as many turns of the
event loop as it needs."""

from collections.abc import Callable
from struct import Struct

from common.ports import Buffer
from storage.indexes.offset_index import Pread
from storage.indexes.transaction_index import ENTRY_BYTES, checked_fields, first_entry_at
from storage.indexes.transaction_windows import WINDOW_ENTRIES, TransactionWindows

WINDOW_COST = 40  # of reading a window, in units of `common.pacing`
INDEX_COST = 3  # of an index of which no entry is read
ROW = Struct(">qq")
_ROW_AT = 2  # a row's fields come after an entry's version

Admits = Callable[[int], bool]
"""Whether work of that cost may be done in this turn."""


def admit_all(cost: int) -> bool:
    """For a search that may hold others up."""
    return True


class AbortedLookUp:
    """`rows`: (producer id, first offset) of each transaction found so far, as int64, big-endian. Some of them may
    begin at or after `end_offset`."""

    __slots__ = ("_has_moved", "_window", "end_offset", "rows", "start_offset")

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.rows = bytearray()
        self._window = -1  # of the index at which it is; -1: none yet
        self._has_moved = False  # in this turn

    def begin_turn(self) -> None:
        """In each turn it reads one window at least."""
        self._has_moved = False

    def search(self, windows: TransactionWindows, pread: Pread, count: int, admits: Admits) -> bool:
        """Search an index of `count` entries. Returns False if it has to go on there in another turn.

        What `pread` raises leaves it where it is. ValueError if the index is damaged.
        """
        window = self._window if self._window >= 0 else windows.first_at(self.start_offset)
        while (window := windows.next_below(window, self.end_offset)) * WINDOW_ENTRIES < count:
            self._window = window
            if not admits(WINDOW_COST) and self._has_moved:
                return False
            at = window * WINDOW_ENTRIES
            size = min(WINDOW_ENTRIES, count - at) * ENTRY_BYTES
            data = pread(size, at * ENTRY_BYTES)
            if len(data) < size:
                raise ValueError(f"a transaction index of {at * ENTRY_BYTES + len(data)} bytes")
            self._take(data)
            self._has_moved = True
            window += 1
        self._window = -1
        return True

    def is_complete(self, windows: TransactionWindows) -> bool:
        """Whether later indexes cannot add any: a last stable offset has reached the end, and no transaction that ends
        later began before that."""
        return windows.last_stable_offset >= self.end_offset

    def _take(self, data: bytes) -> None:
        """Take in what overlaps the range, from the first entry on whose marker is at or after its start."""
        end, rows, skipped = self.end_offset, self.rows, first_entry_at(data, self.start_offset) * ENTRY_BYTES
        at = skipped + _ROW_AT
        for _, first, _, _ in checked_fields(memoryview(data)[skipped:], self.start_offset - 1):
            if first < end:
                rows += data[at : at + ROW.size]
            at += ENTRY_BYTES


def unpack_rows(rows: Buffer) -> list[tuple[int, int]]:
    """(producer id, first offset) of each."""
    return [(producer_id, first_offset) for producer_id, first_offset in ROW.iter_unpack(rows)]
