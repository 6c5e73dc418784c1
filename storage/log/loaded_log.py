"""The result of opening a partition's directory, from which a log is created."""

from dataclasses import dataclass, field

from storage.disk.open_files import OpenFiles
from storage.log.leader_epochs import LeaderEpochCache
from storage.log.log_config import LogConfig
from storage.log.log_ends import LogEnds
from storage.producers.producer_state import ProducerStates
from storage.segments.segment import Segment


@dataclass(slots=True, frozen=True)
class LoadedLog:
    """Offsets as in `PartitionLog`; `segments` in order, the last is the active one."""

    topic: str
    partition: int
    topic_id: bytes
    directory: str
    config: LogConfig
    segments: list[Segment]
    log_start_offset: int
    log_end_offset: int
    recovery_point: int
    epochs: LeaderEpochCache
    producers: ProducerStates
    snapshots: list[int] = field(default_factory=list)  # offsets of the producer snapshots on disk
    lost_records: bool = False  # appended records are gone, for which a kill of the process is no explanation
    is_new: bool = False  # the directory was just created, nothing of it is on the device
    names_changed: bool = True  # whether names in it are not on the device
    is_flushed: bool = True  # the recovery has cut or rebuilt nothing in place that is not on the device

    @property
    def ends(self) -> LogEnds:
        return LogEnds(
            self.log_start_offset,
            self.log_end_offset,
            self.recovery_point,
            counts_flushed=self.config.flush_messages == 1,
            is_cut=not self.is_flushed,
        )


def empty_log(
    open_files: OpenFiles,
    directory: str,
    topic: str,
    partition: int,
    topic_id: bytes,
    config: LogConfig,
    now_ms: int,
    start_offset: int = 0,
) -> LoadedLog:
    """A log without a record; its first file appears with the first append."""
    producers = ProducerStates(config.producer_id_expiration_ms, config.producers_max)
    producers.reset(start_offset)
    return LoadedLog(
        topic,
        partition,
        topic_id,
        directory,
        config,
        [Segment.fresh(open_files, directory, start_offset, now_ms)],
        start_offset,
        start_offset,
        start_offset,
        LeaderEpochCache(),
        producers,
        is_new=True,
    )
