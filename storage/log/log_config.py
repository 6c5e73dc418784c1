"""The effective settings of a topic's logs."""

from dataclasses import dataclass
from typing import NamedTuple

from common.node_settings.tier import TierSettings
from common.node_settings.topics import BrokerLogSettings
from common.settings import LONG_MAX, same
from common.topic_settings import TopicSettings
from records.batch import ProduceLimits

FOREVER_MS = LONG_MAX
AS_TOTAL = -2
UNLIMITED = -1


class RetentionLimits(NamedTuple):
    """How much of a log is kept; -1: no limit."""

    ms: int
    bytes: int


KEEP_ALL = RetentionLimits(UNLIMITED, UNLIMITED)


@dataclass(slots=True, frozen=True)
class LogConfig(TopicSettings):
    """A topic's settings, and the broker's settings that apply to each log. Sizes in bytes, times in milliseconds."""

    producer_id_expiration_ms: int = same(BrokerLogSettings, "producer_id_expiration_ms")
    producers_max: int = same(BrokerLogSettings, "producers_per_partition_max")
    tier_roll_ms: int = same(TierSettings, "roll_ms")  # the age at which a tiered topic's segment is closed

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def checks_all_records(self) -> bool:
        """Whether a thread checks each record of a produced batch; otherwise `records.framing` checks."""
        return self.tidelog_records_check == "all"

    @property
    def inspects_records(self) -> bool:
        """Whether a produced batch must be decompressed: to find null keys, to recompress it, or to check each
        record."""
        return self.is_compacted or self.compression_type != "producer" or self.checks_all_records

    @property
    def deletes(self) -> bool:
        """Whether retention by time and size applies."""
        return "delete" in self.cleanup_policy

    @property
    def may_begin_in_tier(self) -> bool:
        """Whether a log may begin below its first segment: also until a disabled tier is emptied."""
        return self.remote_storage_enable or self.tidelog_tier_generation > 0

    @property
    def retention_limits(self) -> RetentionLimits:
        """Limits of the whole topic, including the tier."""
        return RetentionLimits(self.retention_ms, self.retention_bytes) if self.deletes else KEEP_ALL

    @property
    def local_limits(self) -> RetentionLimits:
        """Limits of a replica's local part of a tiered topic. They apply under any policy, because nothing is lost by
        them.

        While copying is disabled they are those of the whole topic.
        """
        total = self.retention_limits
        if self.remote_log_copy_disable:
            return total
        return RetentionLimits(
            total.ms if self.local_retention_ms == AS_TOTAL else self.local_retention_ms,
            total.bytes if self.local_retention_bytes == AS_TOTAL else self.local_retention_bytes,
        )

    @property
    def bounds_compaction_lag(self) -> bool:
        """Whether records must leave the active segment, which is never compacted, within some time."""
        return self.is_compacted and self.max_compaction_lag_ms != FOREVER_MS

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is closed."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.bounds_compaction_lag else self.segment_ms

    @property
    def log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    def produce_limits(self) -> ProduceLimits:
        """Limits for `records.batch.check_produced`; create it once per config, not per request."""
        return ProduceLimits(
            batch_bytes_max=self.max_message_bytes,
            timestamp_before_max_ms=self.message_timestamp_before_max_ms,
            timestamp_after_max_ms=self.message_timestamp_after_max_ms,
            log_append_time=self.log_append_time,
        )
