"""The files of an audit journal: entries one behind the other in files of a fixed size. Blocking calls, for a thread.

    <directory>/incarnation                          32 hexadecimal digits, made once
    <directory>/<20-digit sequence>.journal          entries from that sequence on

An entry is its length and the CRC-32C of its payload (big-endian uint32 each), then the payload. A file is filled with
zeros when it is made, so that an entry needs no more room on the device than there was then; the first entry of length
0, of no sound checksum, or past the file's end, ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from common.checksum import crc32c
from common.ports import Disk, File
from common.whole_files import join, read_whole, replace_file, write_fully

FILE_BYTES = 256 << 10
SUFFIX = ".journal"
INCARNATION = "incarnation"
_DIGITS = 20
_ENTRY = Struct(">II")
ENTRY_OVERHEAD = _ENTRY.size


class Entry(NamedTuple):
    """One payload, and where in its file the next one begins."""

    payload: bytes
    end: int


def encode_entry(payload: bytes) -> bytes:
    return _ENTRY.pack(len(payload), crc32c(payload)) + payload


def entries_in(data: bytes, position: int = 0) -> Iterator[Entry]:
    """Entries from `position`, the beginning of an entry, to the first invalid one."""
    while position + ENTRY_OVERHEAD <= len(data):
        length, crc = _ENTRY.unpack_from(data, position)
        end = position + ENTRY_OVERHEAD + length
        if not length or end > len(data):
            return
        payload = data[position + ENTRY_OVERHEAD : end]
        if crc32c(payload) != crc:
            return
        yield Entry(payload, end)
        position = end


def file_name(sequence: int) -> str:
    return f"{sequence:0{_DIGITS}d}{SUFFIX}"


def journal_files(disk: Disk, directory: str) -> list[int]:
    """The first sequences of the files there are, ascending."""
    names = [name.removesuffix(SUFFIX) for name in disk.list(directory) if name.endswith(SUFFIX)]
    return sorted(int(name) for name in names if len(name) == _DIGITS and name.isascii() and name.isdigit())


def read_file(disk: Disk, directory: str, sequence: int) -> bytes:
    """b"" if the file does not exist."""
    return read_whole(disk, join(directory, file_name(sequence))) or b""


def make_file(disk: Disk, directory: str, sequence: int) -> File:
    """Create a file with room for FILE_BYTES; its name and its room are durable."""
    file = disk.open(join(directory, file_name(sequence)), create=True)
    try:
        write_fully(file, bytes(FILE_BYTES), 0)
        file.truncate(FILE_BYTES)
        file.fsync()
        disk.sync_directory(directory)
    except OSError:
        file.close()
        raise
    return file


def read_incarnation(disk: Disk, directory: str, made: str) -> str:
    """The permanent id of this journal; `made` for a new one."""
    found = (read_whole(disk, join(directory, INCARNATION)) or b"").decode(errors="replace").strip()
    if len(found) == len(made) and found.isalnum():
        return found
    replace_file(disk, directory, INCARNATION, made.encode() + b"\n")
    return made
