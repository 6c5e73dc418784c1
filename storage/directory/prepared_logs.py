"""Creates directories of new logs in a thread, before the logs are created.

Creating a directory and a file in it takes a millisecond of CPU on some file systems (ext4 with many block groups). On
the loop, the logs of ten thousand new topics would delay every record that is produced meanwhile.
"""

import asyncio
from collections.abc import Callable, Mapping

from common.ports import Disk, File
from common.whole_files import join, write_fully
from storage.directory.directory_files import directory_name
from storage.disk.checkpoint_files import PARTITION_METADATA, TopicPartition, encode_partition_metadata
from storage.disk.directory_health import DirectoryHealth


def make_log_directory(disk: Disk, directory: str, topic_id: bytes, open_file: Callable[[str], File]) -> None:
    """A log's directory and its partition.metadata, not durable yet. Raises OSError."""
    disk.make_directory(directory)
    file = open_file(join(directory, PARTITION_METADATA))
    try:
        file.truncate(0)
        write_fully(file, encode_partition_metadata(topic_id), 0)
    finally:
        file.close()


class PreparedLogs:
    """One per log directory; calls on the loop."""

    __slots__ = ("_disk", "_health", "_logs", "_made", "_path", "_work")

    def __init__(self, disk: Disk, path: str, health: DirectoryHealth, logs: Mapping[TopicPartition, object]) -> None:
        """`logs`: those of the directory that are in use."""
        self._disk = disk
        self._path = path
        self._health = health
        self._logs = logs
        self._made: dict[str, bytes] = {}  # directory → topic id
        self._work: asyncio.Future[dict[str, bytes]] | None = None

    async def make(self, wanted: Mapping[TopicPartition, bytes]) -> None:
        """Create the directories of logs with these topic ids, none of which may be created before this returns.

        Logs that the disk rejects are left out; creating them will raise the error.
        """
        if self._health.offline is not None:
            return
        new = {join(self._path, directory_name(*who)): wanted[who] for who in wanted if who not in self._logs}
        self._work = asyncio.ensure_future(asyncio.to_thread(self._make, new))
        # a thread cannot be cancelled, and the log directory waits for it
        self._made |= await asyncio.shield(self._work)

    def _make(self, wanted: Mapping[str, bytes]) -> dict[str, bytes]:
        made: dict[str, bytes] = {}
        for directory, topic_id in wanted.items():
            try:
                make_log_directory(self._disk, directory, topic_id, lambda path: self._disk.open(path, create=True))
            except OSError:
                break
            made[directory] = topic_id
        return made

    def take(self, directory: str, topic_id: bytes) -> bool:
        """Whether it is prepared; from now on it belongs to a log."""
        return self._made.pop(directory, None) == topic_id

    def discard(self) -> None:
        """Remove unused ones: their topics were deleted meanwhile."""
        left, self._made = self._made, {}
        for directory in left:
            try:
                self._disk.remove_tree(directory)
            except OSError:
                continue  # the next start sets it aside

    @property
    def is_busy(self) -> bool:
        """Whether a thread is creating directories."""
        return self._work is not None and not self._work.done()

    async def idle(self) -> None:
        """Return when no thread is creating directories."""
        if self._work is not None:
            await asyncio.wait((self._work,))
