"""Audit acts on whole logs of a directory, and recovery that waits for the audit before it truncates."""

from __future__ import annotations

import asyncio

from common.ports import Disk
from records.audit_event import AuditKind
from storage.audit.audit_trail import Act, AgreedActs, AuditPermits, AuditTrail, NotAgreed, audited, require
from storage.directory.continued_run import NO_RUN
from storage.directory.directory_files import DirectoryState
from storage.disk.open_files import OpenFiles
from storage.log.loaded_log import LoadedLog
from storage.log.partition_log import PartitionLog
from storage.recovery.recovery import RecoveryInput, load_log


def unclean_start(state: DirectoryState) -> Act:
    kept = state.continues != NO_RUN
    cause = "killed, the page cache has lived on" if kept else "no clean stop"
    return Act(AuditKind.UNCLEAN_START, cause=cause, after={"partitions": len(state.partitions), "kept": kept})


def set_aside(log: PartitionLog) -> Act:
    return _leaves(AuditKind.LOG_SET_ASIDE, log, "its topic id is not that of the metadata")


def deleted(log: PartitionLog) -> Act:
    return _leaves(AuditKind.LOG_DELETED, log, "the metadata has no such replica here")


def _leaves(kind: AuditKind, log: PartitionLog, cause: str) -> Act:
    before = {"log_start_offset": log.log_start_offset, "log_end_offset": log.log_end_offset}
    return Act(kind, log.topic, log.topic_id, log.partition, cause, before=before)


async def load_logs(
    disk: Disk, open_files: OpenFiles, audit: AuditTrail, given: list[RecoveryInput]
) -> list[LoadedLog]:
    """Load all logs, in a thread. A log that must be truncated is read again when the audit has recorded that.

    Raises OSError.
    """
    found: list[LoadedLog] = []
    agreed: list[Act] = []
    while given:
        loaded, pending = await asyncio.to_thread(_load, disk, open_files, AgreedActs(audit, agreed), given)
        found += loaded
        given = [one for one, _ in pending]
        for _, act in pending:  # all are announced before the first wait
            audit.announce(act)
        for _, act in pending:
            await audited(lambda act=act: require(audit, act))  # type: ignore[misc]
            agreed.append(act)
    return found


def _load(
    disk: Disk, open_files: OpenFiles, audit: AuditPermits, given: list[RecoveryInput]
) -> tuple[list[LoadedLog], list[tuple[RecoveryInput, Act]]]:
    loaded: list[LoadedLog] = []
    pending: list[tuple[RecoveryInput, Act]] = []
    for one in given:
        try:
            loaded.append(load_log(disk, open_files, audit, one))
        except NotAgreed as error:
            pending.append((error.given or one, error.act))
    return loaded, pending


def noted_start(log: PartitionLog) -> int | None:
    """The log start if it must be checkpointed, because no segment's name implies it."""
    is_noted = log.config.may_begin_in_tier or log.log_start_offset > log.segments[0].base_offset
    return log.log_start_offset if is_noted and not log.closed else None
