"""Starts a replica at the tier's end: what is before is in the object store, and its leader epochs and producers are
installed as if the replica had read it.

The first segment's `.log` gets its name last. A start that does not find it knows that the beginning was not finished:
the log is then empty at its log start, and the replica starts at the tier's end again.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, Protocol

from common.errors import ProtocolError
from common.outlasting import outlast
from common.whole_files import join
from storage.audit.audit_trail import AuditPending
from storage.disk.checkpoint_files import LEADER_EPOCHS
from storage.disk.own_files import replace_own_file
from storage.log.log_config import LogConfig
from storage.log.log_context import LogContext
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import LOG_SUFFIX, SNAPSHOT_SUFFIX

UNFINISHED = "where it begins is not durable yet"
ROOM_PAUSE_S = 0.5  # between two attempts while the device is full
_MARK = ".beginning"


class TierProducers(NamedTuple):
    """The producers as of the tier's end, and the snapshot that they were read from."""

    states: ProducerStates
    snapshot: bytes


def read_producers(config: LogConfig, snapshot: bytes, offset: int, now_ms: int) -> TierProducers:
    """For a log with `config` that starts at `offset`. Run it in a thread: a hundred thousand producers take a third of
    a second. Raises ValueError if the snapshot is damaged."""
    states = ProducerStates(config.producer_id_expiration_ms, config.producers_max)
    states.load_snapshot(snapshot, offset, now_ms)
    return TierProducers(states, snapshot)


class Beginning(NamedTuple):
    """What must be made durable when a log starts at the tier's end, beside the snapshot of its producers."""

    stem: str  # of its first segment's files
    epochs: bytes


class BeginningLog(Protocol):
    """A log that begins where the tier ends."""

    context: LogContext

    @property
    def closed(self) -> bool: ...

    @property
    def directory(self) -> str: ...

    def bar(self, reason: str) -> None: ...

    def unbar(self) -> None: ...

    def plan_beginning(self) -> Beginning: ...


async def begin(log: BeginningLog, producer_snapshot: bytes, start: Callable[[], None]) -> None:
    """Call `start`, which calls `log.start_at` with the producers of this snapshot, and make the new beginning durable;
    before that nothing is appended.

    An earlier beginning in the directory, of this log or another one with its name, ends first, because its thread may
    still write there. A cancelled caller also waits for the thread's end; if there was no room, the attempt is repeated
    without it. Raises errors of `start`, and ProtocolError.
    """
    beginnings, directory = log.context.beginnings, log.directory
    while True:
        await settled(log)
        try:
            start()
            break
        except AuditPending as pending:
            await pending.wait()
    log.bar(UNFINISHED)
    at_rest = asyncio.Event()
    task = beginnings[directory] = asyncio.create_task(_finish(log, producer_snapshot, at_rest), name="begin-from-tier")

    def ended(task: asyncio.Task[None]) -> None:
        del beginnings[directory]
        at_rest.set()
        if not task.cancelled():
            task.exception()  # the directory's health has it too

    task.add_done_callback(ended)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await outlast(asyncio.ensure_future(at_rest.wait()))
        raise


async def settled(log: BeginningLog) -> None:
    """Return when no beginning is being written any more for this log, or an earlier one with its name."""
    beginnings = log.context.beginnings
    while (task := beginnings.get(log.directory)) is not None:
        await asyncio.wait([task])


async def _finish(log: BeginningLog, producer_snapshot: bytes, at_rest: asyncio.Event) -> None:
    while True:
        try:
            await make_durable(log, producer_snapshot)
        except ProtocolError:
            if log.context.health.offline is not None:
                raise
        else:
            log.unbar()
            return
        at_rest.set()
        await asyncio.sleep(ROOM_PAUSE_S)
        at_rest.clear()


async def make_durable(log: BeginningLog, producer_snapshot: bytes) -> None:
    """Make the snapshot, the epochs and then the first segment's name durable, unless the log is closed meanwhile.
    Nothing may be appended before. Raises ProtocolError."""
    context, disk = log.context, log.context.disk
    stem, epochs = log.plan_beginning()
    await context.flusher.turn_over()  # a flush may be about to overwrite the epochs' file with older content

    def put(path: str, data: bytes) -> None:
        if not log.closed:
            replace_own_file(disk, path, data, log, _MARK)

    def write() -> None:
        put(stem + SNAPSHOT_SUFFIX, producer_snapshot)  # no flush writes it: flushes only look above the recovery point
        put(join(log.directory, LEADER_EPOCHS), epochs)
        put(stem + LOG_SUFFIX, b"")
        if not log.closed:
            disk.sync_directory(log.directory)

    try:
        await asyncio.to_thread(write)
    except OSError as error:
        if not log.closed:  # closed: its directory has another name
            raise context.health.refused(f"start {log.directory} from the tier", error) from error
