"""What all logs of one log directory share: the ports, the bounded cache of open files, the state of the disk."""

import asyncio
import enum
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from common.errors import ErrorCode, ProtocolError
from common.ports import Clock, Disk
from storage.open_files import OPEN_FILES_MAX, OpenFiles


class Audit(Protocol):
    """Writes one structured line and flushes it before it returns; also called from threads during recovery."""

    def __call__(self, event: str, **fields: object) -> None: ...


@dataclass(slots=True, frozen=True)
class DirectoryConfig:
    """Limits of one log directory; sizes in bytes, times as their suffix says."""

    open_files_max: int = OPEN_FILES_MAX
    slow_write_s: float = 0.1  # a write that took longer sends the following ones to a thread
    unwritten_bytes_max: int = 64 << 20  # copied bytes that may wait for that thread
    free_bytes_min: int = 1 << 30  # log.dir.free.bytes.min: below it appends are refused
    free_bytes_throttled: int = 2 << 30  # below it the broker slows its producers down
    free_space_check_ms: int = 1_000
    flush_interval_ms: int = 1_000  # how often flush.ms and closed segments are looked at
    checkpoint_interval_ms: int = 60_000  # log.flush.offset.checkpoint.interval.ms
    recovery_chunk_logs: int = 64  # logs per turn of the recovery thread


class FreeSpace(enum.Enum):
    """Room on the device, in the order of growing distress."""

    PLENTY = "plenty"
    THROTTLED = "throttled"
    REFUSED = "refused"


class DirectoryHealth:
    """Whether the disk works and has room. `refuses_appends` is what the hot path looks at."""

    __slots__ = ("_announced", "free_space", "offline", "on_failed", "refuses_appends")

    def __init__(self) -> None:
        self.offline: str | None = None  # the reason, once the directory has failed
        self.free_space = FreeSpace.PLENTY
        self.refuses_appends = False
        self.on_failed: Callable[[str], None] | None = None
        self._announced = False

    def fail(self, reason: str) -> None:
        """Take the directory offline for good; `on_failed` is called once, in a later turn of the loop."""
        if self.offline is None:
            self.offline = reason
            self.refuses_appends = True
            asyncio.get_running_loop().call_soon(self._announce)

    def _announce(self) -> None:
        if not self._announced and self.on_failed is not None:
            self._announced = True
            self.on_failed(self.offline or "")

    def update_free_space(self, state: FreeSpace) -> None:
        self.free_space = state
        self.refuses_appends = self.offline is not None or state is FreeSpace.REFUSED

    def error(self) -> ProtocolError:
        """What an append or read is answered with while the directory refuses it."""
        if self.offline is not None:
            return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is offline")
        return ProtocolError(ErrorCode.KAFKA_STORAGE_ERROR, "the log directory is nearly full")


@dataclass(slots=True)
class LogContext:
    """Handed to every log of a directory."""

    disk: Disk
    clock: Clock
    rng: random.Random
    audit: Audit
    config: DirectoryConfig
    open_files: OpenFiles
    health: DirectoryHealth = field(default_factory=DirectoryHealth)
