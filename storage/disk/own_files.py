"""Files that a thread writes into a log's directory, which may be moved away meanwhile.

A log is closed first and its directory renamed then, both on the loop; another log may begin under the name at once. So
a path says nothing about whose directory it leads to, and no file may get its name by the path alone.
"""

from typing import Protocol

from common.ports import Buffer, Disk
from common.whole_files import TEMPORARY_SUFFIX, write_whole


class Owner(Protocol):
    """A log."""

    @property
    def closed(self) -> bool: ...


def replace_own_file(disk: Disk, path: str, data: Buffer, log: Owner, mark: str = "") -> None:
    """Write a temporary file, fsync it, rename it to `path`, unless the log is closed; its name is not durable yet.

    While the log is open after the temporary file was opened, that file lies in its own directory. If the directory is
    renamed from then on, the file goes with it, and the rename finds none. `mark` tells the temporary file from those
    of other threads. In a thread. OSError, which says nothing about the disk once the log is closed.
    """
    temporary = f"{path}{mark}{TEMPORARY_SUFFIX}"
    write_whole(disk, temporary, data)
    if log.closed:
        disk.remove(temporary)  # it may lie in the directory of another log of this name
    else:
        disk.rename(temporary, path)
