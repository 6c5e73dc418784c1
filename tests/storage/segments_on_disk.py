"""Segments written by hand, and read back as a consumer would: for the tests of compaction."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.machine_disk import MachineDisk, MachineFile
from common.whole_files import read_whole
from records.batch import BatchHeader, iterate_batches, read_header
from records.control import read_marker
from records.record import Record, decode_records
from storage.cleaning.cleaning_pass import CleaningPass, PassInput
from storage.cleaning.compaction import CompactionSegment, plan_cleaning
from storage.indexes import transaction_index
from storage.indexes.transaction_index import AbortedTransaction
from storage.log.log_config import LogConfig
from storage.log.segment_swap import CLEANED_SUFFIX, SWAP_SUFFIX, settle
from storage.producers.frozen_producers import LastRecord
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX, file_stem

CAP = 1 << 24
DIRECTORY = "topic-0"


class _UnsyncedFile(MachineFile):
    __slots__ = ()

    def fsync(self) -> None:
        """Not in a test that repeats itself hundreds of times."""


class UnsyncedDisk(MachineDisk):
    """A disk that never waits for its device."""

    def open(self, path: str, *, create: bool = False) -> MachineFile:
        return _UnsyncedFile(super().open(path, create=create).fd)

    def sync_directory(self, path: str) -> None:
        """As above."""


class SegmentsOnDisk:
    """A log without a log: batches in segments, producer state and transaction indexes beside them."""

    def __init__(self, root: Path) -> None:
        self.disk = UnsyncedDisk(root)
        self.disk.make_directory(DIRECTORY)
        self.producers = ProducerStates(2**60, 1000)
        self.bases: list[int] = []
        self.end_offset = 0
        self.checkpoint: int | None = None
        self.unreadable: list[int] = []

    def write_segment(self, batches: Iterable[bytes | bytearray], end_offset: int | None = None) -> None:
        """Close a segment of `batches`, whose offsets are set already and follow the log's end."""
        base = self.end_offset
        self.bases.append(base)
        data = b"".join(batches)
        aborted = b""
        for at, header in iterate_batches(memoryview(data), 0, len(data)):
            marker = read_marker(memoryview(data), at, header.size) if header.is_control else None
            done = self.producers.update(header, marker)
            if done is not None and done.aborted:
                aborted += transaction_index.encode(
                    AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, done.last_stable_offset)
                )
            self.end_offset = header.next_offset
        self.end_offset = end_offset if end_offset is not None else self.end_offset
        self.write(base, LOG_SUFFIX, data)
        self.write(base, INDEX_SUFFIX, b"")
        self.write(base, TIME_INDEX_SUFFIX, b"")
        if aborted:
            self.write(base, TRANSACTION_INDEX_SUFFIX, aborted)

    def write(self, base: int, suffix: str, data: bytes) -> None:
        file = self.disk.open(file_stem(DIRECTORY, base) + suffix, create=True)
        file.truncate(0)
        file.pwrite(data, 0)
        file.close()

    def read(self, base: int, suffix: str = LOG_SUFFIX) -> bytes:
        return read_whole(self.disk, file_stem(DIRECTORY, base) + suffix) or b""

    def views(self) -> list[CompactionSegment]:
        """The closed segments and an empty active one."""
        ends = [*self.bases[1:], self.end_offset]
        closed = [
            CompactionSegment(base, end, len(self.read(base)), 0, -1, -1)
            for base, end in zip(self.bases, ends, strict=True)
        ]
        return [*closed, CompactionSegment(self.end_offset, self.end_offset, 0, 0, -1, -1)]

    def compact(
        self,
        now_ms: int,
        config: LogConfig,
        *,
        map_bytes: int = 1 << 20,
        last_records: Mapping[int, LastRecord] | None = None,
        keeps_deletes: bool = False,
        stable_offset: int | None = None,
        inflated_bytes_max: int = CAP,
    ) -> CleaningPass:
        """One pass, swapped in by way of the names that a crash would leave behind."""
        stable = self.end_offset if stable_offset is None else stable_offset
        plan = plan_cleaning(self.views(), self.checkpoint, self.bases[0], stable, config, now_ms)
        given = PassInput(
            DIRECTORY,
            self.views(),
            plan,
            self.producers.last_records if last_records is None else lambda: last_records,
            config,
            map_bytes,
            inflated_bytes_max,
            keeps_deletes,
            now_ms,
        )
        cleaning = CleaningPass(self.disk, given, lambda offset, _why: self.unreadable.append(offset))
        for _ in cleaning.index():
            pass
        for group in cleaning.groups():
            for _ in cleaning.clean(group):
                pass
            self._swap([segment.base_offset for segment in group])
        self.checkpoint = cleaning.end_offset
        return cleaning

    def _swap(self, bases: Sequence[int]) -> None:
        names = self.disk.list(DIRECTORY)
        for name in names:
            if name.endswith(CLEANED_SUFFIX):
                swap = name.removesuffix(CLEANED_SUFFIX) + SWAP_SUFFIX
                self.disk.rename(f"{DIRECTORY}/{name}", f"{DIRECTORY}/{swap}")
        for base in bases[1:]:
            for name in self.disk.list(DIRECTORY):
                if name.startswith(f"{base:020d}."):
                    self.disk.remove(f"{DIRECTORY}/{name}")
        settle(self.disk, DIRECTORY, self.disk.list(DIRECTORY))
        self.bases = [base for base in self.bases if base not in bases[1:]]

    def batches(self) -> list[tuple[BatchHeader, bytes]]:
        found = []
        for base in self.bases:
            data = self.read(base)
            for at, header in iterate_batches(memoryview(data), 0, len(data)):
                found.append((header, data[at : at + header.size]))
        return found

    def records(self) -> list[Record]:
        """Every record that is no marker."""
        return [
            record
            for header, data in self.batches()
            if not header.is_control
            for record in decode_records(memoryview(data), 0, header.size, inflated_bytes_max=CAP)
        ]

    def aborted(self) -> list[AbortedTransaction]:
        return [
            entry
            for base in self.bases
            for entry in transaction_index.decode(self.read(base, TRANSACTION_INDEX_SUFFIX))
        ]

    def committed_records(self) -> list[Record]:
        """What a read_committed consumer sees: it drops aborted batches by the index and by the markers it meets."""
        waiting = sorted(self.aborted(), key=lambda entry: entry.first_offset)
        open_aborted: set[int] = set()
        found: list[Record] = []
        for header, data in self.batches():
            while waiting and waiting[0].first_offset <= header.last_offset:
                open_aborted.add(waiting.pop(0).producer_id)
            if header.is_control:
                marker = read_marker(memoryview(data), 0, header.size)
                if marker is not None and marker.kind == 0:
                    open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                found += decode_records(memoryview(data), 0, header.size, inflated_bytes_max=CAP)
        return found


def latest(records: Iterable[Record]) -> dict[bytes | None, Record]:
    """The last record of each key, a tombstone like none."""
    found: dict[bytes | None, Record] = {}
    for record in records:
        found[record.key] = record
    return {key: record for key, record in found.items() if record.value is not None}


def header_of(data: bytes | bytearray) -> BatchHeader:
    return read_header(data, 0)
