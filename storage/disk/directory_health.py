"""The state of a log directory's disk, shared by all its logs: works, has room, or offline."""

import asyncio
import enum
import logging
from collections.abc import Callable

from common.disk_errors import NO_FILES, NO_ROOM
from common.disk_operations import DiskOperations
from common.errors import ErrorCode, ProtocolError

COMPLAINT_PAUSE_S = 1.0
OUT_OF_FILES_PAUSE_S = 0.5  # interval of retries in threads
DAMAGED_LOGS_MAX = 1_000  # number of logs whose failed reads are counted

_logger = logging.getLogger(__name__)


def is_out_of_files(error: OSError) -> bool:
    """Whether the process or the system has no file descriptors left: temporary, and not the disk's fault."""
    return error.errno in NO_FILES


class SyncFailed(OSError):
    """An fsync failed. Whatever the reason was, the kernel may have dropped the pages: permanent."""


class FreeSpace(enum.Enum):
    """Room on the device, from plenty to none."""

    PLENTY = "plenty"
    THROTTLED = "throttled"
    REFUSED = "refused"


class DirectoryHealth:
    """The hot path reads only `refuses_appends`, which is derived from the other two."""

    __slots__ = (
        "_announced",
        "_complained_s",
        "_damaged",
        "_on_failed",
        "free_space",
        "is_closing",
        "offline",
        "operations",
        "refusals",
        "refuses_appends",
    )

    def __init__(self) -> None:
        self.offline: str | None = None  # the reason, once the directory has failed
        self.free_space = FreeSpace.PLENTY
        self.refuses_appends = False
        self.refusals = 0  # number of times that room ran out; a check that began earlier does not count
        self.operations = DiskOperations()
        self.is_closing = False  # then no one waits for room
        self._on_failed: Callable[[str], None] | None = None
        self._announced = False
        self._complained_s = float("-inf")
        self._damaged: dict[str, int] = {}

    def notify(self, on_failed: Callable[[str], None]) -> None:
        """Call `on_failed` once, with the reason, when the directory goes offline."""
        self._on_failed = on_failed

    def begin_closing(self) -> None:
        self.is_closing = True

    def refused(self, what: str, error: OSError) -> ProtocolError:
        """The error for `what` after `error`. Takes the directory offline, unless only files or room ran out."""
        if not self.passes(what, error):
            self.fail(f"{what}: {error}")
            return self.error()
        out_of_files = is_out_of_files(error)
        message = "no more files can be opened" if out_of_files else "the device is full"
        return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def passes(self, what: str, error: OSError) -> bool:
        """Whether `what` may be retried after `error`, because the disk has not failed. On a full device nothing is
        appended until the next check finds room."""
        if is_out_of_files(error):
            self.out_of_files(what)
            return True
        if error.errno not in NO_ROOM or isinstance(error, SyncFailed) or self.is_closing:
            return False
        self.update_free_space(FreeSpace.REFUSED)
        self._complain("the device is full", what)
        return True

    def out_of_files(self, what: str) -> None:
        """Log it now and then. The caller rejects the request or retries."""
        self._complain("no more files can be opened", what)

    def damaged(self, directory: str, what: str) -> None:
        """Log, at growing intervals, that a trusted part of a log is not a batch; readers may retry for ever."""
        times = self._damaged.get(directory, 0) + 1
        if len(self._damaged) < DAMAGED_LOGS_MAX or times > 1:
            self._damaged[directory] = times
        if times & (times - 1) == 0:
            _logger.error("a log is damaged", extra={"directory": directory, "cause": what, "times": times})

    def _complain(self, event: str, what: str) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._complained_s >= COMPLAINT_PAUSE_S:
            self._complained_s = now_s
            _logger.error(event, extra={"wanted": what})

    def fail(self, reason: str) -> None:
        """Take the directory offline permanently; `on_failed` is called once, in a later turn of the loop."""
        if self.offline is None:
            self.offline = reason
            self.refuses_appends = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        if not self._announced and self._on_failed is not None:
            self._announced = True
            self._on_failed(self.offline or "")

    def update_free_space(self, state: FreeSpace) -> None:
        self.free_space = state
        self.refusals += state is FreeSpace.REFUSED
        self.refuses_appends = self.offline is not None or state is FreeSpace.REFUSED

    def error(self) -> ProtocolError:
        """The error while the directory rejects appends."""
        if self.offline is not None:
            return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is nearly full")
