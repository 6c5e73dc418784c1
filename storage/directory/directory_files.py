"""The names and small files of a log directory, read at the start. Blocking calls, for a thread."""

import contextlib
import random

from msgspec import Struct, field

from common.errors import StorageFailure
from common.identifiers import random_uuid
from common.ports import Disk
from common.whole_files import join, read_whole, replace_file
from storage.directory.continued_run import ContinuedRun, note_start, read_run, run_to_continue
from storage.disk import checkpoint_files
from storage.disk.checkpoint_files import (
    CLEAN_STOP,
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    MetaProperties,
    TopicPartition,
)

DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
NAME_BYTES_MAX = 255
_METADATA_LOG = "__cluster_metadata"


class DirectoryState(Struct, frozen=True):
    """The state left by the last run."""

    meta: MetaProperties
    clean_epoch: int | None  # broker epoch in the clean-stop marker; None: no marker, so logs are recovered
    continues: ContinuedRun  # the run before this one, if nothing that it appended is lost
    recovery_points: dict[TopicPartition, int] = field(default_factory=dict)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    log_starts: dict[TopicPartition, int] = field(default_factory=dict)
    cleaned: dict[TopicPartition, int] = field(default_factory=dict)  # end of the last compaction of each
    partitions: list[tuple[str, TopicPartition]] = field(default_factory=list)  # (name of its directory, partition)
    deleted: list[str] = field(default_factory=list)  # names of directories that were renamed for removal
    strays: int = 0  # directories that were set aside as strays


def read_directory(disk: Disk, path: str, cluster_id: str, node_id: int, rng: random.Random) -> DirectoryState:
    """Read everything, create `meta.properties` if there is none, and replace the clean-stop marker by the run's note.

    StorageFailure if the directory belongs to another cluster or node, or cannot be used.
    """
    try:
        disk.make_directory(path)
        meta = _own_directory(disk, path, cluster_id, node_id, rng)
        clean_epoch, kept = _read_clean_stop(disk, path), read_run(disk, path)
        continues = run_to_continue(clean_epoch, kept, rng)
        note_start(disk, path, continues)
        _remove_clean_stop(disk, path)
        recovery_points = _read_offsets(disk, path, RECOVERY_POINTS)
        high_watermarks = _read_offsets(disk, path, HIGH_WATERMARKS)
        log_starts = _read_offsets(disk, path, LOG_STARTS)
        cleaned = _read_offsets(disk, path, CLEANER_OFFSETS)
        names = disk.list(path)
    except OSError as error:
        raise StorageFailure(f"the log directory cannot be used: {error}") from error
    parsed = [(name, parse_name(name)) for name in names]
    return DirectoryState(
        meta,
        clean_epoch,
        continues,
        recovery_points,
        high_watermarks,
        log_starts,
        cleaned,
        partitions=[(name, who) for name, who in parsed if who is not None],
        deleted=[name for name, who in parsed if who is None and name.endswith(DELETE_SUFFIX)],
        strays=sum(name.endswith(STRAY_SUFFIX) for name in names),
    )


def _own_directory(disk: Disk, path: str, cluster_id: str, node_id: int, rng: random.Random) -> MetaProperties:
    data = read_whole(disk, join(path, META_PROPERTIES))
    if data is None:
        meta = MetaProperties(cluster_id, node_id, random_uuid(rng))
        replace_file(disk, path, META_PROPERTIES, checkpoint_files.encode_meta_properties(meta))
        return meta
    try:
        meta = checkpoint_files.decode_meta_properties(data)
    except ValueError as error:
        raise StorageFailure(f"{META_PROPERTIES}: {error}") from error
    if meta.cluster_id != cluster_id:
        raise StorageFailure(f"the log directory belongs to cluster {meta.cluster_id}, not to {cluster_id}")
    if meta.node_id != node_id:
        raise StorageFailure(f"the log directory belongs to node {meta.node_id}, not to {node_id}")
    return meta


def _read_clean_stop(disk: Disk, path: str) -> int | None:
    """The broker epoch of the marker; None if there is no sound one."""
    data = read_whole(disk, join(path, CLEAN_STOP))
    try:
        return checkpoint_files.decode_clean_stop(data) if data is not None else None
    except ValueError:
        return None


def _remove_clean_stop(disk: Disk, path: str) -> None:
    """Durably, before anything is appended: a crash of this run must not look like a clean stop."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(join(path, CLEAN_STOP))
        disk.sync_directory(path)


def _read_offsets(disk: Disk, path: str, name: str) -> dict[TopicPartition, int]:
    """Empty if the file is missing or damaged: then logs are scanned from their start."""
    data = read_whole(disk, join(path, name))
    try:
        return checkpoint_files.decode_offsets(data) if data is not None else {}
    except ValueError:
        return {}


def directory_name(topic: str, partition: int) -> str:
    return f"{topic}-{partition}"


def parse_name(name: str) -> TopicPartition | None:
    """The partition whose directory has the name `name`; None for any other name."""
    topic, separator, partition = name.rpartition("-")
    if not separator or not topic or topic == _METADATA_LOG or not (partition.isascii() and partition.isdigit()):
        return None
    if name != directory_name(topic, int(partition)):
        return None
    return topic, int(partition)


def renamed(topic: str, partition: int, unique: bytes, suffix: str) -> str:
    """`<topic>-<partition>.<32 hex digits><suffix>`, with the topic shortened if the name would be too long."""
    end = f"-{partition}.{unique.hex()}{suffix}"
    return topic[: NAME_BYTES_MAX - len(end)] + end
