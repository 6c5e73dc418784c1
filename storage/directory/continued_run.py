"""Which earlier run a start goes on with: one of which no record is lost. Blocking calls.

After a clean stop the marker names that run. A killed run has left a note, which names the page cache that has what it
appended. A start registers at the controllers before it knows its own broker epoch. If it dies then, no file names that
epoch. So it notes an id before it registers, registers with it, and the next start shows the same id.
"""

import contextlib
import random
from typing import NamedTuple

from common.identifiers import ZERO_UUID, random_uuid
from common.ports import Disk
from common.whole_files import join, read_whole, write_fully
from storage.disk import checkpoint_files
from storage.disk.checkpoint_files import RUN, RunNote
from storage.disk.directory_health import DirectoryHealth


class ContinuedRun(NamedTuple):
    """`broker_epoch` of the last run that is known to have registered; -1 if records may be lost since. `start_id`: all
    starts since then have it in common. One of them may have registered."""

    broker_epoch: int = -1
    start_id: bytes = ZERO_UUID


NO_RUN = ContinuedRun()


def run_to_continue(clean_epoch: int | None, kept: ContinuedRun | None, rng: random.Random) -> ContinuedRun:
    """`clean_epoch`: of the clean-stop marker, -1 if its writer had none. `kept`: from a valid note."""
    kept_epoch, start_id = kept or NO_RUN
    broker_epoch = kept_epoch if clean_epoch is None or clean_epoch < 0 else clean_epoch
    if broker_epoch < 0:
        return NO_RUN
    return ContinuedRun(broker_epoch, random_uuid(rng) if start_id == ZERO_UUID else start_id)


def note_start(disk: Disk, path: str, continues: ContinuedRun) -> None:
    """Note that a start goes on with that run, before it registers. Without the note, a kill counts as unclean until
    the start has succeeded."""
    if continues != NO_RUN:
        with contextlib.suppress(OSError):
            write_run(disk, path, continues)


def write_run(disk: Disk, path: str, run: ContinuedRun) -> None:
    """Record which run appends from here on, and to which page cache; it replaces the note before in one write.

    Deliberately not fsynced: if this note is lost, so may be appended records, and the stop counts as unclean.
    """
    file = disk.open(join(path, RUN), create=True)
    try:
        note = RunNote(disk.cache_identity(), file.identity().inode, *run)
        write_fully(file, checkpoint_files.encode_run(note), 0)
    finally:
        file.close()


def withdraw_run(disk: Disk, path: str) -> None:
    """Invalidate the note. Raises OSError if the disk accepts no change at all."""
    with contextlib.suppress(FileNotFoundError):
        try:
            disk.remove(join(path, RUN))
        except FileNotFoundError:
            raise
        except OSError:  # it may reject names but still accept bytes
            file = disk.open(join(path, RUN))
            try:
                file.truncate(0)
            finally:
                file.close()


def read_run(disk: Disk, path: str) -> ContinuedRun | None:
    """The killed run, if this very disk has everything that it appended.

    A disk restored from a copy has another file, or one that was changed after its content was written.
    """
    data = read_whole(disk, join(path, RUN))
    note = checkpoint_files.decode_run(data) if data is not None else None
    if note is None or not note.cache or note.cache != disk.cache_identity():
        return None
    file = disk.open(join(path, RUN))
    try:
        identity = file.identity()
    finally:
        file.close()
    is_original = identity.inode == note.inode and identity.changed_ns == identity.modified_ns
    return ContinuedRun(note.broker_epoch, note.start_id) if is_original else None


class RunInProgress:
    """The note of this process's own run, in the log directory `path`."""

    def __init__(self, disk: Disk, path: str, health: DirectoryHealth) -> None:
        self._disk, self._path, self._health = disk, path, health
        self._unnoted: ContinuedRun | None = None

    def begin(self, broker_epoch: int) -> None:
        """On a full device the run stays without a note, so that a kill counts as unclean, until `note` finds room."""
        self._unnoted = ContinuedRun(broker_epoch)
        self.note()

    def note(self) -> None:
        """Write the note if it is missing. It is as true later: all that this process has appended is in this page
        cache, or the directory is offline."""
        if self._unnoted is None or self._health.offline is not None:
            return
        try:
            write_run(self._disk, self._path, self._unnoted)
        except OSError as error:
            self._health.refused("noting the run", error)
        else:
            self._unnoted = None
