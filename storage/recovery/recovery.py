"""Opens a partition's directory: quickly after a clean stop, batch by batch after any other.

Everything here runs in a thread and only uses the disk and its arguments. After an unclean stop every segment from the
recovery point on is scanned: sizes, magic, CRC, increasing offsets. The log ends with the last sound batch; everything
after it is truncated, later segments are removed, and indexes, producer state, leader epochs and aborted transactions
are rebuilt from the batches. Segments below the recovery point were fsynced with their indexes and are trusted.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace

from msgspec import Struct, structs

from common.errors import ProtocolError
from common.identifiers import ZERO_UUID
from common.ports import Disk
from common.whole_files import TEMPORARY_SUFFIX, join, read_whole
from records.audit_event import AuditKind
from storage.audit.audit_trail import Act, AuditPermits, NotAgreed, require_agreed
from storage.disk import checkpoint_files
from storage.disk.checkpoint_files import LEADER_EPOCHS, PARTITION_METADATA
from storage.disk.open_files import OpenFiles
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.loaded_log import LoadedLog, empty_log
from storage.log.log_config import LogConfig
from storage.log.segment_swap import CLEANED_SUFFIX, SWAP_SUFFIX, settle
from storage.producers.producer_replay import load_newest, replay_segments
from storage.recovery.log_scan import LogScan, remove_segment_files
from storage.segments.segment import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    Segment,
    SegmentIndexes,
    file_stem,
)
from storage.segments.segment_scan import trusted_part

OFFSET_DIGITS = 20
_LEFTOVERS = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX, TEMPORARY_SUFFIX)


class RecoveryInput(Struct, frozen=True):
    """The directory's knowledge of one partition before its files are read."""

    directory: str
    topic: str
    partition: int
    config: LogConfig
    clean: bool  # the last run stopped cleanly
    recovery_point: int
    high_watermark: int  # from the checkpoint: the log reached at least this offset
    # compaction may have left gaps between segments up to here; it only processes what is on the device
    gaps_below: int
    log_start_offset: int
    now_ms: int
    is_damaged: bool = False  # an earlier attempt found damage in trusted bytes
    # called in the thread before anything is changed because of a loss: the next start may not be able to see it
    on_loss: Callable[[], None] = lambda: None


def first_to_scan(base_offsets: list[int], recovery_point: int) -> int:
    """The number of the first segment that may have an unflushed byte: the one with the recovery point."""
    first = 0
    while first + 1 < len(base_offsets) and base_offsets[first + 1] <= recovery_point:
        first += 1
    return first


def load_log(disk: Disk, open_files: OpenFiles, audit: AuditPermits, given: RecoveryInput) -> LoadedLog:
    """Open the partition in `given.directory`. OSError if the disk fails.

    The topic id is ZERO_UUID if the metadata file is missing or damaged; the caller decides about such a log. If
    trusted bytes are damaged, everything is scanned. Raises NotAgreed before a truncation that `audit` does not permit
    yet: then call it again, with the error's `given` if it has one.
    """
    try:
        return _load(disk, open_files, audit, given)
    except ProtocolError as error:
        audit.note("damage_below_recovery_point", topic=given.topic, partition=given.partition, error=error.message)
    given.on_loss()
    given = structs.replace(given, clean=False, recovery_point=0, is_damaged=True)
    try:
        return _load(disk, open_files, audit, given)
    except NotAgreed as error:  # after a first truncation the damage is not visible any more
        raise NotAgreed(error.act, given) from None


def _load(disk: Disk, open_files: OpenFiles, audit: AuditPermits, given: RecoveryInput) -> LoadedLog:
    names = disk.list(given.directory)
    if any(name.endswith(_LEFTOVERS) for name in names):
        names = _settle(disk, given.directory, names)
    names = _without_strays(disk, given.directory, names)
    empty = empty_log(
        open_files,
        given.directory,
        given.topic,
        given.partition,
        _topic_id(disk, given.directory, names),
        given.config,
        given.now_ms,
        given.log_start_offset,
    )
    found = replace(
        empty,
        snapshots=[int(stem) for stem in _stems(names, SNAPSHOT_SUFFIX)],
        is_new=not given.clean,  # a killed run may have created it without flushing
        names_changed=False,
    )
    bases = [int(stem) for stem in _stems(names, LOG_SUFFIX)]
    loaded = _load_segments(disk, open_files, audit, given, found, names, bases) if bases else found
    if not any(segment.size for segment in loaded.segments):  # a clean stop flushes nothing of a log without records
        loaded = replace(loaded, is_new=True, names_changed=True)
    return _without_old_snapshots(disk, loaded)


def _settle(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Finish or undo what a crash interrupted."""
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(join(directory, name))
    return settle(disk, directory, [name for name in names if not name.endswith(TEMPORARY_SUFFIX)])


def _without_strays(disk: Disk, directory: str, names: list[str]) -> list[str]:
    """Remove what a removed segment left: indexes without a log, and if no log is left, also producers and leader
    epochs. Returns the other names.

    It comes first, because a new segment of that base offset would inherit them.
    """
    logs = _stems(names, LOG_SUFFIX)
    strays = {
        stem + suffix
        for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
        for stem in set(_stems(names, suffix)).difference(logs)
    }
    if not logs:
        strays.update(stem + SNAPSHOT_SUFFIX for stem in _stems(names, SNAPSHOT_SUFFIX))
        strays.update(name for name in names if name == LEADER_EPOCHS)
    for name in sorted(strays):
        disk.remove(join(directory, name))
    return [name for name in names if name not in strays]


def _stems(names: list[str], suffix: str) -> list[str]:
    """Of the files whose name is twenty digits and `suffix`, in offset order."""
    length = OFFSET_DIGITS + len(suffix)
    return [n[:OFFSET_DIGITS] for n in names if len(n) == length and n.endswith(suffix) and n[:OFFSET_DIGITS].isdigit()]


def _topic_id(disk: Disk, directory: str, names: list[str]) -> bytes:
    if PARTITION_METADATA not in names:
        return ZERO_UUID
    try:
        return checkpoint_files.decode_partition_metadata(read_whole(disk, join(directory, PARTITION_METADATA)) or b"")
    except ValueError:
        return ZERO_UUID


def _load_segments(
    disk: Disk,
    open_files: OpenFiles,
    audit: AuditPermits,
    given: RecoveryInput,
    found: LoadedLog,
    names: list[str],
    bases: list[int],
) -> LoadedLog:
    epochs = _read_epochs(disk, given.directory, names)
    found = replace(
        found,
        segments=[_trusted_segment(disk, open_files, given, names, base) for base in bases],
        # The tier holds what is below the first segment of a tiered log, and knows the log start if none was
        # checkpointed.
        log_start_offset=max(given.log_start_offset, 0 if given.config.may_begin_in_tier else bases[0]),
        epochs=found.epochs if epochs is None else epochs,
    )
    loaded, is_damaged = None, False
    if given.clean and epochs is not None:
        try:
            loaded = _read_end(disk, open_files, found, given.now_ms)
        except (ValueError, ProtocolError):
            is_damaged = True
            given.on_loss()
    if loaded is None:
        is_trusted = epochs is not None and not given.clean and not given.is_damaged
        recovery_point = given.recovery_point if is_trusted else 0
        found.epochs.not_saved()
        scan = LogScan(disk, open_files, audit, given.now_ms, found, given.gaps_below, given.on_loss)
        scan.run(first_to_scan(bases, recovery_point), recovery_point, is_damaged=not is_trusted)
        loaded = replace(
            found,
            segments=scan.segments,
            snapshots=scan.snapshots,
            log_end_offset=scan.log_end_offset,
            recovery_point=recovery_point if scan.cut_segment is None else min(recovery_point, scan.cut_segment),
            lost_records=is_damaged or given.is_damaged or scan.lost_records,
            is_flushed=scan.is_flushed,
            names_changed=True,
        )
    if loaded.log_end_offset < max(given.high_watermark, given.recovery_point):
        given.on_loss()
        loaded = replace(loaded, lost_records=True)
    if loaded.log_end_offset < loaded.log_start_offset:
        loaded = _start_over(disk, open_files, audit, given, loaded)
    loaded.epochs.truncate_from_end(loaded.log_end_offset)
    loaded.epochs.truncate_from_start(loaded.log_start_offset)
    return replace(loaded, recovery_point=min(loaded.recovery_point, loaded.log_end_offset))


def _read_epochs(disk: Disk, directory: str, names: list[str]) -> LeaderEpochCache | None:
    """None if the file is damaged or missing: a log that was never flushed has none, and is scanned completely
    anyway."""
    if LEADER_EPOCHS not in names:
        return None
    try:
        return LeaderEpochCache.decode(read_whole(disk, join(directory, LEADER_EPOCHS)) or b"")
    except ValueError:
        return None


def _trusted_segment(
    disk: Disk, open_files: OpenFiles, given: RecoveryInput, names: list[str], base_offset: int
) -> Segment:
    """A segment as long as its file; its indexes are loaded on first use."""
    stem = file_stem(given.directory, base_offset)
    size = disk.file_size(stem + LOG_SUFFIX)
    has_transactions = f"{base_offset:0{OFFSET_DIGITS}d}{TRANSACTION_INDEX_SUFFIX}" in names
    return Segment(
        open_files,
        stem,
        base_offset,
        size=size,
        created_ms=given.now_ms,
        transaction_bytes=disk.file_size(stem + TRANSACTION_INDEX_SUFFIX) if has_transactions else None,
    )


def _read_end(disk: Disk, open_files: OpenFiles, found: LoadedLog, now_ms: int) -> LoadedLog:
    """After a clean stop: the log's end from the last segment's indexes and the few batches after them."""
    segment = found.segments[-1]
    part = trusted_part(disk, segment, None)
    segment.adopt_indexes(SegmentIndexes(open_files, segment.stem, part.offsets, part.times), part.largest)
    loaded = replace(found, log_end_offset=part.end_offset, recovery_point=part.end_offset)
    if loaded.snapshots:
        load_newest(disk, loaded, part.end_offset, now_ms)
        replay_segments(disk, loaded, loaded.segments, segment.size)
    else:
        loaded.producers.reset(part.end_offset)
    return loaded


def _start_over(
    disk: Disk, open_files: OpenFiles, audit: AuditPermits, given: RecoveryInput, loaded: LoadedLog
) -> LoadedLog:
    """Start over, because the log start is above everything that is left: nothing of it may be served."""
    act = Act(
        AuditKind.LOG_STARTED_OVER,
        given.topic,
        loaded.topic_id,
        given.partition,
        "the log start lies past all that is left",
        before={"log_start_offset": loaded.log_start_offset, "log_end_offset": loaded.log_end_offset},
        after={"log_start_offset": loaded.log_start_offset, "log_end_offset": loaded.log_start_offset},
    )
    require_agreed(audit, act)
    for offset in loaded.snapshots:  # otherwise the next start would restore producers that this one forgets
        _remove_if_there(disk, file_stem(given.directory, offset) + SNAPSHOT_SUFFIX)
    for segment in reversed(loaded.segments):
        remove_segment_files(disk, segment)
    start = loaded.log_start_offset
    segment = Segment.fresh(open_files, given.directory, start, given.now_ms)
    disk.open(segment.stem + LOG_SUFFIX, create=True).close()  # its name preserves the log's end
    segment.made_files()
    loaded.producers.reset(start)
    point = start if loaded.recovery_point == loaded.log_end_offset else loaded.recovery_point
    return replace(loaded, segments=[segment], snapshots=[], log_end_offset=start, recovery_point=point)


def _without_old_snapshots(disk: Disk, loaded: LoadedLog) -> LoadedLog:
    """Remove snapshots at which no segment begins, except the newest."""
    bases = {segment.base_offset for segment in loaded.segments}
    newest = max((offset for offset in loaded.snapshots if offset <= loaded.log_end_offset), default=-1)
    kept = [offset for offset in loaded.snapshots if offset == newest or (offset in bases and offset <= newest)]
    for offset in loaded.snapshots:
        if offset not in kept:
            _remove_if_there(disk, file_stem(loaded.directory, offset) + SNAPSHOT_SUFFIX)
    return replace(loaded, snapshots=kept)


def _remove_if_there(disk: Disk, path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        disk.remove(path)
