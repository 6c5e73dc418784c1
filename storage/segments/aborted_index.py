"""The aborted transactions of one segment: its `.txnindex`, and what is in memory of that."""

from common.ports import File
from storage.disk.cold_reads import PagesMissing
from storage.disk.open_files import FileHandle, OpenFiles
from storage.indexes.aborted_look_up import AbortedLookUp, Admits
from storage.indexes.transaction_index import ENTRY_BYTES, AbortedTransaction, entries_below
from storage.indexes.transaction_windows import TransactionWindows


class AbortedIndex:
    """Entries that this process has not written come into the windows when they are needed first, in a thread."""

    __slots__ = ("_failure", "_open_files", "_unread_bytes", "_windows", "file")

    def __init__(self, open_files: OpenFiles, path: str, size: int) -> None:
        """`size`: the length of the file, 0 if there is none."""
        self._open_files = open_files
        self._unread_bytes = size  # of the file's beginning, which the windows lack
        self._windows = TransactionWindows(size // ENTRY_BYTES)
        self._failure: OSError | ValueError | None = None  # of the last attempt to read it
        self.file = FileHandle(open_files, path)

    def add(self, entry: AbortedTransaction) -> None:
        """`entry` is its last one."""
        self._windows.add(entry)

    def windows(self) -> TransactionWindows:
        """Of all its entries. PagesMissing while reads are strict; OSError, ValueError if it is damaged."""
        if self._unread_bytes:
            cold = self._open_files.cold
            reading = ReadWindows(self._open_files, self, self._unread_bytes)
            if cold.is_strict and not cold.trusts(reading.key):
                raise PagesMissing(cold.begin(reading))
            if cold.is_strict and self._failure is not None:
                raise self._failure
            reading.run()
            reading.finish()
        return self._windows

    def windows_read(self, size: int, windows: TransactionWindows | None, failure: OSError | ValueError | None) -> None:
        """A thread has read the first `size` bytes, or failed."""
        if size == self._unread_bytes:  # else it was truncated meanwhile, or somebody was faster
            self._failure = failure
            if windows is not None:
                windows.extend(self._windows)
                self._windows, self._unread_bytes = windows, 0

    def search(self, look_up: AbortedLookUp, count: int, admits: Admits) -> tuple[bool, bool]:
        """Search its first `count` entries. Returns whether that is done, and whether later segments cannot add
        any. Raises as `windows`."""
        windows = self.windows()
        is_done = look_up.search(windows, self.file.pread, count, admits)
        return is_done, is_done and look_up.is_complete(windows)

    def look_at_cut(self, count: int, offset: int) -> None:
        """Read what `cut` will read of `count` entries: PagesMissing while reads are strict and some of it is not in
        memory."""
        entries_below(self.file.pread, count, offset)

    def cut(self, file: File, count: int, offset: int) -> int:
        """Truncate `file` of `count` entries; none with a marker at or after `offset` remains. Returns its length."""
        kept = entries_below(file.pread, count, offset)
        size, windows = kept * ENTRY_BYTES, self._windows
        if not kept or kept <= windows.begin:
            self._windows, self._unread_bytes = TransactionWindows(kept), min(size, self._unread_bytes)
        elif kept < windows.count:
            windows.cut(kept)
        file.truncate(size)
        return size

    def retire(self) -> None:
        """Its segment will be deleted."""
        self.file.retire()


class ReadWindows:
    """Reads a `.txnindex` in a thread, through its own file."""

    __slots__ = ("_failure", "_index", "_open_files", "_size", "_windows", "key")

    def __init__(self, open_files: OpenFiles, index: AbortedIndex, size: int) -> None:
        self._open_files = open_files
        self._index = index
        self._size = size
        self._windows: TransactionWindows | None = None
        self._failure: OSError | ValueError | None = None
        self.key = (index.file.path, -2, size)

    def run(self) -> None:
        try:
            file = self._open_files.disk.open(self._index.file.path)
            try:
                self._windows = TransactionWindows.load(file.pread, self._size)
            finally:
                file.close()
        except (OSError, ValueError) as error:
            self._failure = error.with_traceback(None)
            raise

    def finish(self) -> None:
        self._index.windows_read(self._size, self._windows, self._failure)
