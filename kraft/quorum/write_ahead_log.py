"""The quorum's journal on disk: PySyncObj's `Journal` with checksums, group commit and crash-safe rewrites.

Records gather in memory until `sync`, which writes them as one group and fsyncs. Code that makes a promise (a vote, an
acknowledgement, a commit) calls `sync` before the promise leaves the node. A file with the journal's name is always
complete up to its last sync: a rewrite goes to another file, which is fsynced and renamed.

`sync` runs on the event loop although it blocks. Measured on ext4 under uvloop, 3,000 groups of 200 bytes: 0.19 ms p50
and 0.31 ms p99 on the loop, 0.24 ms and 0.40 ms through `asyncio.to_thread`. The reason is safety, not the thread's
overhead: in a thread, a leader's own copy would count for a commit before it is durable, and messages would arrive
between a vote and its record. Nor has a controller work that must continue while its journal waits: a leader whose disk
hangs cannot commit, and by its silence the others learn to replace it.
"""

# The names of PySyncObj's interface:
# ruff: noqa: N802

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import overload

from pysyncobj.journal import Journal

from common.identifiers import ZERO_UUID
from common.invariants import check
from common.ports import Disk, File
from common.whole_files import write_fully
from kraft.quorum import journal_format as wire
from kraft.quorum.journal_format import DamagedJournal, Entry, JournalState, SnapshotBase

FILE_NAME = "journal"
FIRST_ENTRY: Entry = (b"\1", 1, 0)  # the no-op with which every log of PySyncObj begins
REWRITE_BYTES_MIN = 4 << 20  # size from which a file full of votes and truncated entries is rewritten
REWRITE_RATIO = 4


class WriteAheadLog(Journal):  # type: ignore[misc]  # the library is untyped
    """Created by `create` and `open`, off the event loop."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        rng: random.Random,
        state: JournalState,
        rewrite_bytes_min: int = REWRITE_BYTES_MIN,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"
        self._random = rng
        self._state = state
        self._rewrite_bytes_min = rewrite_bytes_min
        self._entries = state.entries
        self.entry_bytes = sum(len(entry[0]) for entry in state.entries)
        self._file: File
        self._salt = b""
        self._sequence = 0
        self._end = 0  # size of the file's intact groups
        self._gathered: list[bytes] = []
        self._written_commit_index = 0
        self._is_to_be_rewritten = False
        self.sync_count = 0
        self._is_leader: Callable[[], bool] = lambda: False

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: str,
        rng: random.Random,
        node_id: int,
        term: int = 0,
        cluster_id: bytes = ZERO_UUID,
        *,
        rewrite_bytes_min: int = REWRITE_BYTES_MIN,
    ) -> WriteAheadLog:
        """A new journal, durable under its name when this returns. `term`: the first in which this voter may vote."""
        state = JournalState([FIRST_ENTRY], term=term, node_id=node_id, cluster_id=cluster_id)
        journal = cls(disk, directory, rng, state, rewrite_bytes_min)
        journal.rewrite()
        return journal

    @classmethod
    def open(
        cls, disk: Disk, directory: str, rng: random.Random, node_id: int, base: SnapshotBase | None
    ) -> WriteAheadLog:
        """The journal of an earlier run, truncated after its last complete group and aligned with the snapshot at
        `base`.

        Raises DamagedJournal, also for the journal of another node, or if no snapshot covers its beginning.
        """
        path = f"{directory}/{FILE_NAME}"
        file = disk.open(path)
        data = _read_whole(file)
        found = wire.read_journal(data, path)
        if found.state.node_id != node_id:
            raise DamagedJournal(f"{path}: belongs to node {found.state.node_id}, and this is node {node_id}")
        if found.end < len(data):
            file.truncate(found.end)
            file.fsync()  # before any write there: an old tail must never follow a new group
        self = cls(disk, directory, rng, found.state)
        self._file, self._salt = file, found.salt
        self._sequence, self._end = found.sequence, found.end
        self._align(base)
        return self

    def _align(self, base: SnapshotBase | None) -> None:
        """Make the log begin with the two entries of the snapshot.

        A crash between a snapshot and the trim of the log leaves a longer log (own snapshot), or one that does not
        match it (a leader's snapshot): such a log was not committed beyond the snapshot.
        """
        first = self._entries[0][1] if self._entries else 0
        if base is None:
            if first != 1:
                raise DamagedJournal(f"{self._path}: begins at entry {first}, and there is no snapshot")
            return
        previous, last = base
        if first > previous[1] or first == 0:
            raise DamagedJournal(f"{self._path}: begins at entry {first}, and the snapshot ends at {last[1]}")
        position = previous[1] - first
        kept = self._entries[position:]
        if len(kept) < 2 or kept[1][1:] != last[1:]:
            kept = [previous, last]
        if position > 0 or kept[:2] != self._entries[:2]:
            self._replace_entries(kept)
            self.rewrite()
        self._state.commit(max(self._state.commit_index, last[1]))

    def serve(self, is_leader: Callable[[], bool]) -> None:
        """Start as the log of a node: what it commits as leader is durable at once."""
        self._is_leader = is_leader

    # -- reading

    @overload
    def __getitem__(self, item: int) -> Entry: ...
    @overload
    def __getitem__(self, item: slice) -> list[Entry]: ...
    def __getitem__(self, item: int | slice) -> Entry | list[Entry]:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def first_index(self) -> int:
        return self._entries[0][1]

    @property
    def last_index(self) -> int:
        return self._entries[-1][1]

    def term_at(self, index: int) -> int | None:
        """The term of the entry at `index`, or None if the log does not have it."""
        position = index - self._entries[0][1]
        return self._entries[position][2] if 0 <= position < len(self._entries) else None

    def batch(self, index: int, bytes_max: int) -> list[Entry]:
        """Entries from `index` on, up to `bytes_max` bytes; the first one whatever its size."""
        position = end = index - self._entries[0][1]
        size = 0
        while end < len(self._entries) and (size == 0 or size + len(self._entries[end][0]) <= bytes_max):
            size += len(self._entries[end][0])
            end += 1
        return self._entries[position:end]

    @property
    def cluster_id(self) -> bytes:
        """16 bytes; zeros until the first `adopt_cluster_id`."""
        return self._state.cluster_id

    @property
    def file_bytes(self) -> int:
        return self._end

    @property
    def _live_bytes(self) -> int:
        return self.entry_bytes + len(self._entries) * wire.ENTRY_OVERHEAD_BYTES

    def has_relied_on(self, node_id: int) -> bool:
        """Whether this voter may have counted a vote or an acknowledgement of `node_id`, in this run or an earlier
        one."""
        return node_id in self._state.peers

    # -- writing, durable at the next `sync`

    def add(self, command: bytes, idx: int, term: int) -> None:
        entry = (bytes(command), idx, term)
        if self._entries:
            check(idx == self._entries[-1][1] + 1, "the log has no gaps")
        self._entries.append(entry)
        self.entry_bytes += len(entry[0])
        self._gather(*wire.entry_parts(entry))

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N803
        check(entryFrom > 0, "the first entry stays")
        if entryFrom < len(self._entries):
            index = self._entries[entryFrom][1]
            self.entry_bytes -= sum(len(entry[0]) for entry in self._entries[entryFrom:])
            del self._entries[entryFrom:]
            self._gather(wire.encode_truncation(index))

    def setCurrentTerm(self, term: int, votedForNodeId: int | None) -> None:  # noqa: N803
        check(term >= self._state.term, "the term never falls")
        self._state.vote(term, votedForNodeId)
        self._gather(wire.encode_vote(term, votedForNodeId))

    def getCurrentTerm(self) -> int:
        return self._state.term

    def getVotedForNodeId(self) -> int | None:
        return self._state.voted_for

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N803
        """A hint for the next start, written with the next group. A leader's own copy counts for its commits, so it
        becomes durable here, before anything is applied or answered."""
        if raftCommitIndex != self._state.commit_index:
            self._state.commit(raftCommitIndex)
            if self._is_leader():
                self.sync()

    def getRaftCommitIndex(self) -> int:
        return min(self._state.commit_index, self.last_index)

    def rely_on(self, node_id: int) -> None:
        """From the next sync on, `node_id` cannot return with an empty directory unnoticed."""
        if node_id not in self._state.peers:
            self._state.rely_on(node_id)
            self._gather(wire.encode_peer(node_id))

    def adopt_cluster_id(self, cluster_id: bytes) -> None:
        self._state.adopt_cluster_id(cluster_id)
        self._gather(wire.encode_identity(self._state.node_id, cluster_id))

    def _gather(self, *parts: bytes) -> None:
        """Of one record."""
        if not self._is_to_be_rewritten:
            self._gathered += parts

    # -- the file

    def sync(self) -> None:
        """Make all gathered records durable in one write. Raises OSError; then the node must stop, because after a
        failed fsync the disk's content is unknown."""
        if self._is_to_be_rewritten or self._end > max(self._rewrite_bytes_min, REWRITE_RATIO * self._live_bytes):
            self.rewrite()
            return
        if not self._gathered:
            return
        if self._state.commit_index != self._written_commit_index:
            self._written_commit_index = self._state.commit_index
            self._gathered.append(wire.encode_commit(self._state.commit_index))
        group = wire.group_pieces(self._salt, self._sequence + 1, self._gathered)
        end = _write_pieces(self._file, group, self._end)
        self._file.fsync()
        self._sequence += 1
        self._end = end
        self._gathered.clear()
        self.sync_count += 1

    def discard_before(self, index: int) -> None:
        """Drop entries before `index`, at once and durably: a snapshot has them."""
        check(self.first_index <= index < self.last_index, "a log keeps two entries")
        self._replace_entries(self._entries[index - self.first_index :])
        self.rewrite()

    def restart_at(self, base: SnapshotBase) -> None:
        """Replace all entries by the two at the end of a leader's snapshot; durable at the next `sync`."""
        self._replace_entries(list(base))
        self._gathered.clear()
        self._is_to_be_rewritten = True

    def _replace_entries(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._state.replace_entries(entries)
        self.entry_bytes = sum(len(entry[0]) for entry in entries)

    def rewrite(self) -> None:
        """Write the whole state to a new file and rename it to the journal's name."""
        new_path = self._path + ".new"
        salt = self._random.randbytes(wire.SALT_BYTES)
        content = [wire.encode_header(salt), *wire.group_pieces(salt, 1, wire.state_parts(self._state))]
        file = self._disk.open(new_path, create=True)
        try:
            file.truncate(0)  # left by an interrupted rewrite
            end = _write_pieces(file, content, 0)
            file.fsync()
            self._disk.rename(new_path, self._path)
            self._disk.sync_directory(self._directory)
        except BaseException:
            file.close()
            raise
        if self._sequence > 0:
            self._file.close()
        self._file, self._salt, self._sequence, self._end = file, salt, 1, end
        self._written_commit_index = self._state.commit_index
        self._gathered.clear()
        self._is_to_be_rewritten = False
        self.sync_count += 1

    def close(self) -> None:
        """Sync once more: a group after the last promises lets the next start distinguish corruption from a torn
        write."""
        self._gathered.append(wire.encode_commit(self._state.commit_index))
        self.sync()
        self._file.close()

    def abandon(self) -> None:
        """Close the file without writing, as after a failure."""
        self._file.close()

    def _destroy(self) -> None:
        """Called by PySyncObj; the journal's owner closes it."""

    # -- parts of PySyncObj's interface that this log does not use

    def clear(self) -> None:
        raise AssertionError("only `restart_at` replaces a log")

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N803
        raise AssertionError("only `discard_before` trims a log")

    def onOneSecondTimer(self) -> None:
        pass


def _write_pieces(file: File, pieces: Sequence[bytes], at: int) -> int:
    """The position after them."""
    for piece in pieces:
        write_fully(file, piece, at)
        at += len(piece)
    return at


def _read_whole(file: File) -> bytes:
    parts = []
    at, size = 0, file.size()
    while at < size:
        part = file.pread(size - at, at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    return b"".join(parts)
