"""Copies of bytes between files, inside the kernel where it can: the blocking calls.

On ext4 and tmpfs `copy_file_range` copies within the page cache, on btrfs and XFS it shares the blocks. `sendfile`
copies within the page cache between different file systems too. Both release the GIL.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from common.machine_disk import MachineFile
from common.ports import File
from object_store.limits import MIB
from object_store.store import FileRange

STEP_BYTES = 8 * MIB  # between two checks for cancellation
READ_STEP_BYTES = MIB
NOT_THIS_WAY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


@dataclass(frozen=True, slots=True)
class SystemCalls:
    """The calls on which the safety and the speed of a directory store depend, and in which file systems differ.

    All raise OSError.
    """

    fsync: Callable[[int], None] = os.fsync
    link: Callable[[str, str], None] = os.link
    rename: Callable[[str, str], None] = os.rename
    sendfile: Callable[[int, int, int, int], int] = os.sendfile
    """From the second file to the first: position and count of bytes; returns how many were sent."""
    copy_file_range: Callable[[int, int, int, int], int] = os.copy_file_range
    """From the first file to the second: count of bytes and position; returns how many were copied."""


class SourceEnded(Exception):
    """The file is shorter than its range."""


class CopyCancelled(Exception):
    """The caller cancelled the copy."""


def append_bytes(fd: int, data: bytes) -> None:
    """Write all of `data` at the file's position. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:STEP_BYTES]) :]


def append_range(calls: SystemCalls, fd: int, part: FileRange, cancelled: Callable[[], bool]) -> None:
    """Write a range of another file at this file's position. Raises OSError, SourceEnded, CopyCancelled."""
    position, end = part.position, part.position + part.length
    ways: list[Callable[[int, int], int]] = [partial(_read_and_append, fd, part.file)]
    if isinstance(part.file, MachineFile):
        ways += [partial(calls.sendfile, fd, part.file.fd), partial(_copy_in_kernel, calls, part.file.fd, fd)]
    while position < end:
        if cancelled():
            raise CopyCancelled
        try:
            count = ways[-1](position, min(end - position, STEP_BYTES))
        except OSError as error:
            if len(ways) == 1 or error.errno not in NOT_THIS_WAY:
                raise
            ways.pop()
            continue
        if count == 0:
            raise SourceEnded(f"the file to be stored ends at {position}, not {end}")
        position += count


def _copy_in_kernel(calls: SystemCalls, source: int, fd: int, position: int, count: int) -> int:
    return calls.copy_file_range(source, fd, count, position)


def _read_and_append(fd: int, file: File, position: int, count: int) -> int:
    data = file.pread(min(count, READ_STEP_BYTES), position)
    append_bytes(fd, data)
    return len(data)
