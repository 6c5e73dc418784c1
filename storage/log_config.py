"""The settings of one topic that its logs obey, under Kafka's names and with Kafka 4.1's defaults."""

from dataclasses import dataclass
from typing import NamedTuple

from records.batch import ProduceLimits

FOREVER_MS = 2**63 - 1
DAY_MS = 86_400_000
AS_TOTAL = -2
UNLIMITED = -1


class RetentionLimits(NamedTuple):
    """How much of a log is kept; -1 is without bound."""

    ms: int
    bytes: int


KEEP_ALL = RetentionLimits(UNLIMITED, UNLIMITED)


@dataclass(slots=True, frozen=True)
class LogConfig:
    """Field names are topic config names with underscores; sizes in bytes, times in milliseconds, -1 no limit."""

    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * DAY_MS
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10 << 20
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    cleanup_policy: tuple[str, ...] = ("delete",)
    delete_retention_ms: int = DAY_MS
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = FOREVER_MS
    max_message_bytes: int = 1_048_588
    message_timestamp_type: str = "CreateTime"
    message_timestamp_before_max_ms: int = FOREVER_MS
    message_timestamp_after_max_ms: int = 3_600_000
    compression_type: str = "producer"
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    flush_messages: int = 2**63 - 1
    flush_ms: int = FOREVER_MS
    file_delete_delay_ms: int = 60_000
    min_insync_replicas: int = 1
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False  # of a tiered topic: no more segments are copied
    local_retention_ms: int = AS_TOTAL  # of a tiered topic: what its replicas keep on their disks
    local_retention_bytes: int = AS_TOTAL
    tier_roll_ms: int = 600_000  # tidelog.tier.roll.ms: the age at which a tiered topic's segment is closed
    tidelog_records_check: str = "head"
    producer_id_expiration_ms: int = DAY_MS
    producers_max: int = 10_000  # producers remembered per partition

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def checks_all_records(self) -> bool:
        """Whether each record of a produced batch is looked at, in a thread; else `records.framing` looks."""
        return self.tidelog_records_check == "all"

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def retention_limits(self) -> RetentionLimits:
        """Of the whole topic, the tier included."""
        return RetentionLimits(self.retention_ms, self.retention_bytes) if self.deletes else KEEP_ALL

    @property
    def local_limits(self) -> RetentionLimits:
        """Of what one replica holds of a tiered topic. They hold under any policy: nothing is lost by them.

        While copying is disabled they are those of the whole topic."""
        total = self.retention_limits
        if self.remote_log_copy_disable:
            return total
        return RetentionLimits(
            total.ms if self.local_retention_ms == AS_TOTAL else self.local_retention_ms,
            total.bytes if self.local_retention_bytes == AS_TOTAL else self.local_retention_bytes,
        )

    @property
    def bounds_compaction_lag(self) -> bool:
        """Whether records must get out of the active segment, which is never compacted, within some time."""
        return self.is_compacted and self.max_compaction_lag_ms != FOREVER_MS

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is closed."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.bounds_compaction_lag else self.segment_ms

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    def produce_limits(self, *, transactional: bool = False) -> ProduceLimits:
        """What `records.batch.check_produced` asks for; make it once per config, not per request."""
        return ProduceLimits(
            batch_bytes_max=self.max_message_bytes,
            timestamp_before_max_ms=self.message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.message_timestamp_after_max_ms,
            log_append_time=self.log_append_time,
            transactional=transactional,
        )
