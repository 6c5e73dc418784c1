"""The state machine's bytes at one point of the log, in a file and in transfers between voters.

One file per voter, replaced completely: written to another file, fsynced, renamed. Head and body have their own
checksums. A damaged snapshot is an error, because a voter that started without it would have forgotten promises.
"""

from __future__ import annotations

import struct
import zlib

from msgspec import Struct

from common.errors import StorageFailure
from common.ports import Disk
from common.whole_files import write_whole
from kraft.quorum.journal_format import Entry, SnapshotBase

FILE_NAME = "snapshot"
MAGIC = b"TLQSNAP1"

# magic; previous index, term and command size; last index, term and command size; body size and CRC; CRC of these
_HEAD = struct.Struct("<8sQQIQQIQII")


class DamagedSnapshot(StorageFailure):
    """The snapshot on disk is damaged: this voter must not start from it."""


class Snapshot(Struct, frozen=True):
    """`state` as of the entry `base.last`, which it includes."""

    base: SnapshotBase
    state: bytes

    @property
    def end(self) -> tuple[int, int]:
        """Index and term of the last entry in it."""
        return self.base.last[1:]


def encode_snapshot(snapshot: Snapshot) -> bytes:
    (previous, previous_index, previous_term), (last, last_index, last_term) = snapshot.base
    body = b"".join((previous, last, snapshot.state))
    head = _HEAD.pack(
        MAGIC,
        previous_index,
        previous_term,
        len(previous),
        last_index,
        last_term,
        len(last),
        len(body),
        zlib.crc32(body),
        0,
    )[:-4]
    return b"".join((head, struct.pack("<I", zlib.crc32(head)), body))


def decode_snapshot(data: bytes, name: str) -> Snapshot:
    """Raises DamagedSnapshot with `name`, the source of the bytes."""
    if len(data) < _HEAD.size:
        raise DamagedSnapshot(f"{name}: {len(data)} bytes are no snapshot")
    view = memoryview(data)
    fields = _HEAD.unpack_from(view)
    magic, previous_index, previous_term, previous_bytes, last_index, last_term, last_bytes = fields[:7]
    body_bytes, body_crc, head_crc = fields[7:]
    if magic != MAGIC or zlib.crc32(view[: _HEAD.size - 4]) != head_crc:
        raise DamagedSnapshot(f"{name}: the head is damaged")
    body = view[_HEAD.size :]
    if len(body) != body_bytes or zlib.crc32(body) != body_crc:
        raise DamagedSnapshot(f"{name}: the body is damaged")
    if previous_bytes + last_bytes > body_bytes or last_index != previous_index + 1:
        raise DamagedSnapshot(f"{name}: the head contradicts itself")
    previous: Entry = (bytes(body[:previous_bytes]), previous_index, previous_term)
    state_at = previous_bytes + last_bytes
    last: Entry = (bytes(body[previous_bytes:state_at]), last_index, last_term)
    return Snapshot(SnapshotBase(previous, last), bytes(body[state_at:]))


class SnapshotFile:
    """The one snapshot in `directory`. Each call blocks for the device, a few milliseconds for metadata's sizes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{FILE_NAME}"

    @property
    def exists(self) -> bool:
        return self._disk.exists(self._path)

    def read_bytes(self) -> bytes:
        """The encoded snapshot as it is on disk."""
        file = self._disk.open(self._path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def read(self) -> Snapshot | None:
        """None when there is none; raises DamagedSnapshot."""
        return decode_snapshot(self.read_bytes(), self._path) if self.exists else None

    def write(self, encoded: bytes) -> None:
        """The snapshot is durable under its name when this returns."""
        new_path = self._path + ".new"
        write_whole(self._disk, new_path, encoded)
        self._disk.rename(new_path, self._path)
        self._disk.sync_directory(self._directory)
