"""The thread's part of the audit journal: numbers events, writes them in groups, reads them, deletes files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from common.ports import Disk, File
from common.whole_files import join, write_fully
from records.audit_event import AuditEvent, AuditSource, decode_audit_event, encode_audit_event
from storage.audit import journal_files
from storage.audit.audit_trail import Act
from storage.audit.journal_files import FILE_BYTES, encode_entry, entries_in, file_name

CHUNK_BYTES_MAX = FILE_BYTES // 4


class Announced(NamedTuple):
    """An announced act and its wall-clock time."""

    act: Act
    wall_ms: int


class JournalWriter:
    """Calls come one at a time, each in some thread. Each may raise OSError, and be repeated after it."""

    def __init__(self, disk: Disk, directory: str, node: int, made_incarnation: str, bytes_max: int) -> None:
        """`made_incarnation`: id for a new journal; `bytes_max`: limit of the files."""
        self.incarnation = ""
        self.next_sequence = 0
        self.lost = 0  # events that were unread when their file was deleted
        self._disk = disk
        self._directory = directory
        self._node = node
        self._made_incarnation = made_incarnation
        self._files_max = max(bytes_max // FILE_BYTES, 2)
        self._files: list[int] = []
        self._file: File | None = None
        self._position = 0
        self._released = 0  # events below this sequence are shipped

    @property
    def size_bytes(self) -> int:
        return len(self._files) * FILE_BYTES

    def open(self) -> None:
        """Find the end of the journal, or create it with room for its first events, because on a full device retention
        must be recorded before it can free room. Does nothing if it is open."""
        if self.incarnation:
            return
        disk, directory = self._disk, self._directory
        disk.make_directory(directory)
        incarnation = journal_files.read_incarnation(disk, directory, self._made_incarnation)
        self._files = journal_files.journal_files(disk, directory)
        if self._files:
            data = journal_files.read_file(disk, directory, self._files[-1])
            self.next_sequence, self._position = self._files[-1], 0
            for entry in entries_in(data):
                self.next_sequence = max(self.next_sequence, decode_audit_event(entry.payload).sequence + 1)
                self._position = entry.end
            if len(data) < FILE_BYTES or any(data[self._position :]):
                self._position = FILE_BYTES  # a crash may have left a partial entry: begin a new file
        else:
            self._begin_file(0)
        self._released = self._files[0]
        self.incarnation = incarnation

    # writing -----------------------------------------------------------------------------------------------

    def write(self, announced: Sequence[Announced]) -> None:
        """Write all of them durably. A repeated call gives them the same sequence numbers."""
        self.open()
        sequence = self.next_sequence
        chunk, first = bytearray(), sequence
        for one in announced:
            entry = encode_entry(self._payload(one, sequence))
            if chunk and len(chunk) + len(entry) > CHUNK_BYTES_MAX:
                self._append(chunk, first)
                chunk, first = bytearray(), sequence
            chunk += entry
            sequence += 1
        if chunk:
            self._append(chunk, first)
        self.next_sequence = sequence

    def _payload(self, one: Announced, sequence: int) -> bytes:
        act = one.act
        event = AuditEvent(
            event=act.event,
            wall_ms=one.wall_ms,
            source=AuditSource.BROKER,
            node=self._node,
            incarnation=self.incarnation,
            sequence=sequence,
            cause=act.cause,
            actor=act.actor,
            topic=act.topic,
            topic_id=act.topic_id.hex(),
            partition=act.partition,
            leader_epoch=act.leader_epoch,
            before=dict(act.before),
            after=dict(act.after),
        )
        return encode_audit_event(event)

    def _append(self, chunk: bytearray, first: int) -> None:
        if not self._files or self._position + len(chunk) > FILE_BYTES:
            self._begin_file(first)
        elif self._file is None:
            self._file = self._disk.open(join(self._directory, file_name(self._files[-1])))
        file = self._file
        if file is None:
            raise OSError("the journal has no file")
        write_fully(file, chunk, self._position)
        file.fsync()
        self._position += len(chunk)

    def _begin_file(self, first: int) -> None:
        file = journal_files.make_file(self._disk, self._directory, first)
        self.close()
        self._file, self._position = file, 0
        if first not in self._files:
            self._files.append(first)
        while len(self._files) > self._files_max:
            self.lost += max(self._files[1] - max(self._files[0], self._released), 0)
            self._remove_first()

    def _remove_first(self) -> None:
        self._disk.remove(join(self._directory, file_name(self._files[0])))
        del self._files[0]
        self._released = max(self._released, self._files[0])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # reading -----------------------------------------------------------------------------------------------

    def take(self, from_sequence: int, bytes_max: int) -> list[tuple[int, bytes]]:
        """Events from that sequence on, as (sequence, payload) ascending: at least one if there is any, otherwise at
        most `bytes_max` bytes."""
        self.open()
        taken: list[tuple[int, bytes]] = []
        size = 0
        for number, first in enumerate(self._files):
            if number + 1 < len(self._files) and self._files[number + 1] <= from_sequence:
                continue
            for entry in entries_in(journal_files.read_file(self._disk, self._directory, first)):
                sequence = decode_audit_event(entry.payload).sequence
                if sequence < from_sequence or sequence >= self.next_sequence:
                    continue
                size += len(entry.payload)
                if taken and size > bytes_max:
                    return taken
                taken.append((sequence, entry.payload))
                from_sequence = sequence + 1
        return taken

    def release(self, before_sequence: int) -> None:
        """Events below that sequence are no longer needed; files with only such events are deleted, except the
        newest."""
        self.open()
        self._released = max(self._released, before_sequence)
        while len(self._files) > 1 and self._files[1] <= before_sequence:
            self._remove_first()
