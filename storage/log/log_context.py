"""Shared state of all logs of one log directory: ports, open files, writer, flusher, disk health."""

import asyncio
import random
from dataclasses import dataclass, field

from common.directory_config import DirectoryConfig
from common.pacing import Pacer
from common.ports import Clock, Disk
from storage.audit.audit_trail import AuditTrail
from storage.disk.checkpoint_files import TopicPartition
from storage.disk.checkpoints import Checkpoints
from storage.disk.directory_health import DirectoryHealth
from storage.disk.log_flusher import LogFlusher
from storage.disk.log_writer import LogWriter
from storage.disk.open_files import OpenFiles
from storage.disk.trash import Trash
from storage.log.aborted_look_ups import AbortedLookUps
from storage.producers.producer_bound import ProducerBound
from storage.producers.producer_reload import ProducerReloads
from storage.producers.snapshot_writes import SnapshotWrites


@dataclass(slots=True)
class LogContext:
    """Passed to every log of a directory."""

    disk: Disk
    clock: Clock
    rng: random.Random
    audit: AuditTrail
    config: DirectoryConfig
    health: DirectoryHealth
    open_files: OpenFiles
    writer: LogWriter
    flusher: LogFlusher
    trash: Trash
    pacer: Pacer  # the node's
    checkpoints: Checkpoints
    reloads: ProducerReloads
    snapshots: SnapshotWrites
    aborted_look_ups: AbortedLookUps = field(default_factory=AbortedLookUps)
    producers: ProducerBound = field(default_factory=lambda: ProducerBound(DirectoryConfig().producers_max, 0))
    beginnings: dict[str, asyncio.Task[None]] = field(default_factory=dict)  # in progress, by directory: `tier_start`
    rolled: dict[TopicPartition, None] = field(default_factory=dict)
    """Tiered logs that have rolled a segment or have new settings. The tier removes them."""
    transactional: dict[TopicPartition, None] = field(default_factory=dict)
    """Logs in which a transaction has begun, gone on or ended, or that may be led now. Who looks at them removes
    them."""
    compacted: dict[TopicPartition, None] = field(default_factory=dict)
    """Open logs with cleanup.policy compact, for the cleaner."""
