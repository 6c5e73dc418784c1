"""Atomic replacement of files in a log's directory, by threads, while the directory may be renamed.

The loop first closes a log and then renames its directory; another log may at once be created under the same name. So a
path may lead into another log's directory, and a thread must not create a file by its path alone.
"""

from typing import Protocol

from common.ports import Buffer, Disk
from common.whole_files import TEMPORARY_SUFFIX, write_whole


class Owner(Protocol):
    """The log that owns a file."""

    @property
    def closed(self) -> bool: ...


def replace_own_file(disk: Disk, path: str, data: Buffer, log: Owner, mark: str = "") -> None:
    """Write a temporary file, fsync it, and rename it to `path`, unless the log is closed. The new name is not durable
    yet.

    If the log is still open after the temporary file was opened, that file is in the log's own directory. If the
    directory is renamed after that, the file moves with it, and the final rename fails. `mark` distinguishes temporary
    files of different threads. Runs in a thread. Raises OSError, which says nothing about the disk if the log is
    closed.
    """
    temporary = f"{path}{mark}{TEMPORARY_SUFFIX}"
    write_whole(disk, temporary, data)
    if log.closed:
        disk.remove(temporary)  # it may be in the directory of another log with this name
    else:
        disk.rename(temporary, path)
