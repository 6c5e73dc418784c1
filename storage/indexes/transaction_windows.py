"""What is in memory of a transaction index, so that a look-up reads few of its entries.

Of each window of entries: the least first offset, and the last offset of the last entry. Markers are in order, so a
search in the last offsets finds the first window that a look-up needs. It skips later windows whose least first offset
lies behind its range. Without that it would read to the end of the index wherever one transaction was open for long:
all entries have the start of that transaction as last stable offset.
"""

from array import array
from bisect import bisect_left

from storage.indexes.offset_index import Pread
from storage.indexes.transaction_index import ENTRY_BYTES, AbortedTransaction, checked_fields

WINDOW_ENTRIES = 128
BLOCK_WINDOWS = 128
OFFSET_MAX = 2**63 - 1
_STEP_ENTRIES = 32 * WINDOW_ENTRIES


class TransactionWindows:
    """Of the entries from number `begin` on; `count` is the number behind the last one.

    After a truncation the last window may know less than it has read: then it is read in vain.
    """

    __slots__ = ("_blocks", "_last", "_least", "begin", "count", "last_stable_offset", "least")

    def __init__(self, begin: int = 0) -> None:
        self.begin = self.count = begin
        self.least = OFFSET_MAX
        self.last_stable_offset = -1  # the greatest of all entries, -1 if that is not known
        self._least = array("q")
        self._last = array("q")
        self._blocks = array("q")  # the least of each BLOCK_WINDOWS windows

    @property
    def memory_bytes(self) -> int:
        return 200 + 16 * len(self._least) + 8 * len(self._blocks)

    def add(self, entry: AbortedTransaction) -> None:
        """The next entry."""
        _, first, last, last_stable = entry
        slot = self.count
        self.count = slot + 1
        if slot == self.begin or slot % WINDOW_ENTRIES == 0:
            self._append(first, last)
        else:
            self._last[-1] = last
            if first < self._least[-1]:
                self._least[-1] = first
                self._blocks[-1] = min(self._blocks[-1], first)
        self.least = min(self.least, first)
        self.last_stable_offset = max(self.last_stable_offset, last_stable)

    def _add_window(self, count: int, least: int, last: int, last_stable: int) -> None:
        self._append(least, last)
        self.count += count
        self.least = min(self.least, least)
        self.last_stable_offset = max(self.last_stable_offset, last_stable)

    def _append(self, least: int, last: int) -> None:
        if len(self._least) % BLOCK_WINDOWS == 0:
            self._blocks.append(least)
        else:
            self._blocks[-1] = min(self._blocks[-1], least)
        self._least.append(least)
        self._last.append(last)

    @classmethod
    def load(cls, pread: Pread, size: int) -> "TransactionWindows":
        """Of all entries of a file of `size` bytes. ValueError if it is damaged."""
        if size % ENTRY_BYTES:
            raise ValueError(f"a transaction index of {size} bytes")
        loaded, before, step = cls(), -1, _STEP_ENTRIES * ENTRY_BYTES
        for at in range(0, size, step):
            data = memoryview(pread(min(step, size - at), at))
            if len(data) < min(step, size - at):
                raise ValueError(f"a transaction index of {at + len(data)} bytes instead of {size}")
            for start in range(0, len(data), WINDOW_ENTRIES * ENTRY_BYTES):
                window = data[start : start + WINDOW_ENTRIES * ENTRY_BYTES]
                least, stable = OFFSET_MAX, -1
                for _, first, last, last_stable in checked_fields(window, before):
                    before = last
                    least, stable = min(least, first), max(stable, last_stable)
                loaded._add_window(len(window) // ENTRY_BYTES, least, before, stable)
        return loaded

    def extend(self, behind: "TransactionWindows") -> None:
        """Add those of the entries that follow."""
        least, last, first = behind._least, behind._last, 0
        if least and self.count % WINDOW_ENTRIES:
            self._least[-1], self._last[-1] = min(self._least[-1], least[0]), last[0]
            first = 1
        self._least += least[first:]
        self._last += last[first:]
        starts = range(0, len(self._least), BLOCK_WINDOWS)
        self._blocks = array("q", (min(self._least[at : at + BLOCK_WINDOWS]) for at in starts))
        self.count = behind.count
        self.least = min(self.least, behind.least)
        self.last_stable_offset = max(self.last_stable_offset, behind.last_stable_offset)

    def cut(self, count: int) -> None:
        """Only the entries before number `count` remain, at least one."""
        windows = (count - 1) // WINDOW_ENTRIES - self.begin // WINDOW_ENTRIES + 1
        del self._least[windows:], self._last[windows:], self._blocks[(windows - 1) // BLOCK_WINDOWS + 1 :]
        self.count = count
        self.last_stable_offset = -1

    def first_at(self, offset: int) -> int:
        """The first window with an entry whose marker is at or after `offset`."""
        return bisect_left(self._last, offset)

    def next_below(self, window: int, offset: int) -> int:
        """The first window from `window` on that may have a transaction that begins before `offset`; the number of
        windows if none has."""
        least, blocks, behind = self._least, self._blocks, len(self._least)
        if self.least >= offset:
            return behind
        while window < behind:
            block = window // BLOCK_WINDOWS
            stop = min((block + 1) * BLOCK_WINDOWS, behind)
            if blocks[block] < offset:
                for number in range(window, stop):
                    if least[number] < offset:
                        return number
            window = stop
        return behind
