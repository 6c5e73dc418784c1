"""Copies of bytes between files, inside the kernel where it can: the blocking calls.

On ext4 and tmpfs `copy_file_range` copies within the page cache, on btrfs and XFS it shares the blocks. `sendfile`
copies within the page cache between different file systems too. Both release the GIL.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from common.machine_disk import MachineFile
from object_store.limits import MIB
from object_store.store import FileRange

STEP_BYTES = 8 * MIB  # between two checks for cancellation
READ_STEP_BYTES = MIB
NOT_THIS_WAY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


class SourceEnded(Exception):
    """The file is shorter than its range."""


class CopyCancelled(Exception):
    """The caller cancelled the copy."""


def append_bytes(fd: int, data: bytes) -> None:
    """Write all of `data` at the file's position. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:STEP_BYTES]) :]


def append_range(fd: int, part: FileRange, cancelled: Callable[[], bool]) -> None:
    """Write a range of another file at this file's position. Raises OSError, SourceEnded, CopyCancelled."""
    position, end = part.position, part.position + part.length
    ways = [_by_reading]
    if isinstance(part.file, MachineFile):
        ways = [_by_reading, _by_sendfile, _by_copy_file_range]
    while position < end:
        if cancelled():
            raise CopyCancelled
        try:
            count = ways[-1](fd, part, position, min(end - position, STEP_BYTES))
        except OSError as error:
            if len(ways) == 1 or error.errno not in NOT_THIS_WAY:
                raise
            ways.pop()
            continue
        if count == 0:
            raise SourceEnded(f"the file to be stored ends at {position}, not {end}")
        position += count


def _by_copy_file_range(fd: int, part: FileRange, position: int, count: int) -> int:
    assert isinstance(part.file, MachineFile)
    return os.copy_file_range(part.file.fd, fd, count, offset_src=position)


def _by_sendfile(fd: int, part: FileRange, position: int, count: int) -> int:
    assert isinstance(part.file, MachineFile)
    return os.sendfile(fd, part.file.fd, position, count)


def _by_reading(fd: int, part: FileRange, position: int, count: int) -> int:
    data = part.file.pread(min(count, READ_STEP_BYTES), position)
    append_bytes(fd, data)
    return len(data)
