"""The bytes of the quorum's journal: a file header, then groups of records. No I/O.

A group is what one fsync makes durable, and the next group is written only after that. So a damaged last group is a
write that was interrupted by a power loss, and nothing relied on it; a damaged group before an intact one was durable
and has been corrupted. The file's random salt marks the groups, so that clients' bytes cannot look like one; the
sequence number prevents an older group from counting as a later one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from common.errors import StorageFailure

MAGIC = b"TLQUORUM"
VERSION = 1
SALT_BYTES = 8
COPIED_BYTES_MAX = 64 << 10  # a larger entry is written by a call of its own

_HEADER = struct.Struct("<8sI8sI")  # magic, version, salt, CRC of the three
_GROUP = struct.Struct("<8sQII")  # salt, sequence, payload size, CRC of the rest and the payload
_RECORD = struct.Struct("<IB")  # body size, kind
_ENTRY = struct.Struct("<QQ")  # index, term
_VOTE = struct.Struct("<Qq")  # term, voted for or -1
_NUMBER = struct.Struct("<Q")
_IDENTITY = struct.Struct("<q16s")  # node id, cluster id or zeros

HEADER_BYTES = _HEADER.size
ENTRY_OVERHEAD_BYTES = _RECORD.size + _ENTRY.size

ENTRY, TRUNCATION, VOTE, COMMIT, PEER, IDENTITY = b"E"[0], b"T"[0], b"H"[0], b"C"[0], b"P"[0], b"I"[0]

Entry = tuple[bytes, int, int]  # command, index, term: in PySyncObj's order


class DamagedJournal(StorageFailure):
    """Durable bytes are missing or changed: this voter must not start from them."""


class SnapshotBase(NamedTuple):
    """The two entries that a snapshot leaves at the head of the log; its state includes `last`."""

    previous: Entry
    last: Entry


class JournalState(Struct):
    """The state that results from a journal's records."""

    entries: list[Entry] = field(default_factory=list)
    term: int = 0
    voted_for: int | None = None
    commit_index: int = 1
    peers: dict[int, None] = field(default_factory=dict)  # voters that this one has relied on, in order
    node_id: int = -1
    cluster_id: bytes = bytes(16)

    def replay(self, kind: int, body: memoryview) -> None:
        """Apply one record; raises ValueError if it does not follow from the state."""
        if kind == ENTRY:
            index, term = _ENTRY.unpack_from(body)
            if self.entries and index != self.entries[-1][1] + 1:
                raise ValueError(f"entry {index} follows entry {self.entries[-1][1]}")
            self.entries.append((bytes(body[_ENTRY.size :]), index, term))
        elif kind == TRUNCATION:
            (index,) = _NUMBER.unpack(body)
            if not self.entries or not self.entries[0][1] < index <= self.entries[-1][1]:
                raise ValueError(f"no entry {index} to cut away")
            del self.entries[index - self.entries[0][1] :]
        elif kind == VOTE:
            term, voted_for = _VOTE.unpack(body)
            self.vote(term, None if voted_for < 0 else voted_for)
        elif kind == COMMIT:
            self.commit(*_NUMBER.unpack(body))
        elif kind == PEER:
            self.rely_on(*_NUMBER.unpack(body))
        elif kind == IDENTITY:
            self.node_id, self.cluster_id = _IDENTITY.unpack(body)
        else:
            raise ValueError(f"unknown kind {kind}")

    def vote(self, term: int, voted_for: int | None) -> None:
        self.term, self.voted_for = term, voted_for

    def commit(self, index: int) -> None:
        self.commit_index = index

    def rely_on(self, node_id: int) -> None:
        self.peers[node_id] = None

    def adopt_cluster_id(self, cluster_id: bytes) -> None:
        self.cluster_id = cluster_id

    def replace_entries(self, entries: list[Entry]) -> None:
        self.entries = entries


def encode_header(salt: bytes) -> bytes:
    head = _HEADER.pack(MAGIC, VERSION, salt, 0)[:-4]
    return head + struct.pack("<I", zlib.crc32(head))


def group_pieces(salt: bytes, sequence: int, parts: Sequence[bytes]) -> list[bytes]:
    """A group, to be written piece after piece. `parts`: of its payload; large ones are not copied."""
    head = _GROUP.pack(salt, sequence, sum(map(len, parts)), 0)[:-4]
    crc = zlib.crc32(head)
    for part in parts:
        crc = zlib.crc32(part, crc)
    pieces: list[bytes] = []
    small = [head, struct.pack("<I", crc)]
    for part in parts:
        if len(part) <= COPIED_BYTES_MAX:
            small.append(part)
        else:
            pieces += (b"".join(small), part)
            small = []
    if small:
        pieces.append(b"".join(small))
    return pieces


def entry_parts(entry: Entry) -> tuple[bytes, bytes]:
    command, index, term = entry
    return _RECORD.pack(_ENTRY.size + len(command), ENTRY) + _ENTRY.pack(index, term), command


def encode_truncation(index: int) -> bytes:
    """Entries from `index` on are removed."""
    return _RECORD.pack(_NUMBER.size, TRUNCATION) + _NUMBER.pack(index)


def encode_vote(term: int, voted_for: int | None) -> bytes:
    return _RECORD.pack(_VOTE.size, VOTE) + _VOTE.pack(term, -1 if voted_for is None else voted_for)


def encode_commit(index: int) -> bytes:
    return _RECORD.pack(_NUMBER.size, COMMIT) + _NUMBER.pack(index)


def encode_peer(node_id: int) -> bytes:
    return _RECORD.pack(_NUMBER.size, PEER) + _NUMBER.pack(node_id)


def encode_identity(node_id: int, cluster_id: bytes) -> bytes:
    return _RECORD.pack(_IDENTITY.size, IDENTITY) + _IDENTITY.pack(node_id, cluster_id)


def state_parts(state: JournalState) -> list[bytes]:
    """The payload of one group with the whole `state`."""
    parts = [encode_identity(state.node_id, state.cluster_id), encode_vote(state.term, state.voted_for)]
    parts += [encode_peer(peer) for peer in state.peers]
    for entry in state.entries:
        parts += entry_parts(entry)
    parts.append(encode_commit(state.commit_index))
    return parts


def _records(payload: memoryview) -> Iterator[tuple[int, memoryview]]:
    at = 0
    while at < len(payload):
        size, kind = _RECORD.unpack_from(payload, at)
        at += _RECORD.size
        if at + size > len(payload):
            raise ValueError("a record is longer than its group")
        yield kind, payload[at : at + size]
        at += size


def _group_at(view: memoryview, at: int, salt: bytes) -> tuple[int, memoryview] | None:
    """Sequence and payload of the intact group at `at`, or None."""
    if at + _GROUP.size > len(view):
        return None
    found, sequence, size, crc = _GROUP.unpack_from(view, at)
    end = at + _GROUP.size + size
    if found != salt or end > len(view):
        return None
    payload = view[at + _GROUP.size : end]
    if zlib.crc32(payload, zlib.crc32(view[at : at + _GROUP.size - 4])) != crc:
        return None
    return sequence, payload


class ReadJournal(NamedTuple):
    """`end`: position after the last intact group; bytes after it belong to an interrupted write."""

    state: JournalState
    salt: bytes
    sequence: int
    end: int


def read_journal(data: bytes, name: str) -> ReadJournal:
    """Replay a whole file; `name` is for the message of DamagedJournal."""
    view = memoryview(data)
    salt = _read_header(view, name)
    state, at, sequence = JournalState(), HEADER_BYTES, 0
    while (group := _group_at(view, at, salt)) is not None:
        found, payload = group
        if found != sequence + 1:
            raise DamagedJournal(f"{name}: group {found} at {at} follows group {sequence}")
        try:
            for kind, body in _records(payload):
                state.replay(kind, body)
        except (ValueError, struct.error) as error:
            raise DamagedJournal(f"{name}: group {found} at {at}: {error}") from error
        sequence = found
        at += _GROUP.size + len(payload)
    later = _later_group(data, view, at, salt, sequence)
    if later is not None:
        raise DamagedJournal(f"{name}: damaged at {at}, yet intact again at {later}")
    if sequence == 0:  # the first group is durable before the file gets its name
        raise DamagedJournal(f"{name}: the first group is damaged")
    return ReadJournal(state, salt, sequence, at)


def _read_header(view: memoryview, name: str) -> bytes:
    if len(view) < HEADER_BYTES:
        raise DamagedJournal(f"{name}: {len(view)} bytes are no journal")
    magic, version, salt, crc = _HEADER.unpack_from(view)
    if magic != MAGIC or zlib.crc32(view[: HEADER_BYTES - 4]) != crc:
        raise DamagedJournal(f"{name}: the header is damaged")
    if version != VERSION:
        raise DamagedJournal(f"{name}: version {version}, and this program reads {VERSION}")
    return bytes(salt)


def _later_group(data: bytes, view: memoryview, at: int, salt: bytes, sequence: int) -> int | None:
    """Position of an intact group after the damage at `at` that was written after group `sequence`."""
    candidate = data.find(salt, at)
    while candidate >= 0:
        group = _group_at(view, candidate, salt)
        if group is not None and group[0] > sequence:
            return candidate
        candidate = data.find(salt, candidate + 1)
    return None
