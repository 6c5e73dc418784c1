"""Replaces segments by a compacted one, safely against a crash at any point.

The names are Apache Kafka's. New files are written and fsynced as `.cleaned`; while one of them exists, the old
segments are valid. All are renamed to `.swap`: from then on the new segment is valid, whatever is left of the old ones.
The old files become `.deleted`, the new ones lose their suffix, and the directory is fsynced.
"""

from collections.abc import Iterable, Sequence

from common.ports import Disk
from storage.log.log_files import LogFiles
from storage.segments.batch_walk import walk
from storage.segments.segment import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    Segment,
    file_stem,
)

CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
_OFFSET_DIGITS = 20


def swap_files(disk: Disk, files: LogFiles, replaced: Sequence[Segment]) -> None:
    """Let the `.cleaned` files replace those of `replaced`, on the loop without an await. OSError."""
    stem = replaced[0].stem
    fresh = [stem + suffix for suffix in SEGMENT_SUFFIXES if disk.exists(stem + suffix + CLEANED_SUFFIX)]
    for path in fresh:
        disk.rename(path + CLEANED_SUFFIX, path + SWAP_SUFFIX)
    for segment in replaced:
        segment.retire()
        gone = SEGMENT_SUFFIXES if segment is replaced[0] else (*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX)
        for suffix in gone:
            files.discard(segment.stem + suffix)
    for path in fresh:
        disk.rename(path + SWAP_SUFFIX, path)


def remove_cleaned(disk: Disk, stem: str) -> None:
    """Delete what a pass has written so far. OSError if a file cannot be removed."""
    for suffix in SEGMENT_SUFFIXES:
        if disk.exists(stem + suffix + CLEANED_SUFFIX):
            disk.remove(stem + suffix + CLEANED_SUFFIX)


def settle(disk: Disk, directory: str, names: Iterable[str]) -> list[str]:
    """Finish or undo what a crash interrupted, before a partition's directory is read. Returns the resulting names.

    `names`: the files in `directory`. Also removes deleted files. Runs in a thread; OSError, and
    ProtocolError(KAFKA_STORAGE_ERROR) if a swapped segment does not consist of batches.
    """
    present = dict.fromkeys(sorted(names))
    unfinished = [_base_of(name) for name in present if name.endswith(CLEANED_SUFFIX)]
    void_from = min(unfinished, default=None)
    changed = False
    for name in list(present):
        is_void = name.endswith(SWAP_SUFFIX) and void_from is not None and _base_of(name) >= void_from
        if name.endswith((CLEANED_SUFFIX, DELETED_SUFFIX)) or is_void:
            disk.remove(f"{directory}/{name}")
            del present[name]
            changed = True
    for name in [name for name in present if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]:
        base = _base_of(name)
        end = _end_offset(disk, f"{directory}/{name}", base)
        for old in list(present):
            stem, _, _ = old.partition(".")
            is_segment = old.endswith(SEGMENT_SUFFIXES) and len(stem) == _OFFSET_DIGITS and stem.isdigit()
            if is_segment and (base == int(stem) or base <= int(stem) < end):
                disk.remove(f"{directory}/{old}")
                del present[old]
    for name in [name for name in present if name.endswith(SWAP_SUFFIX)]:
        final = name.removesuffix(SWAP_SUFFIX)
        disk.rename(f"{directory}/{name}", f"{directory}/{final}")
        del present[name]
        present[final] = None
        changed = True
    if changed:
        disk.sync_directory(directory)
    return sorted(present)


def _base_of(name: str) -> int:
    """-1 for a file that is not part of a segment."""
    stem, _, _ = name.partition(".")
    return int(stem) if stem.isdigit() else -1


def _end_offset(disk: Disk, path: str, base_offset: int) -> int:
    """The offset after the last batch of a segment file."""
    end = base_offset
    file = disk.open(path)
    try:
        for _, header in walk(file, 0, file.size()):
            end = header.next_offset
    finally:
        file.close()
    return end


def cleaned_path(directory: str, base_offset: int, suffix: str) -> str:
    """The path of one of the new segment's files during a pass."""
    return file_stem(directory, base_offset) + suffix + CLEANED_SUFFIX
