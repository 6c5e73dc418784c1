"""What governs groups: the values of Kafka's settings, plain."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Times in milliseconds; the names are Kafka's with underscores.

    `new_member_join_timeout_ms` bounds how long a member that has no id yet may wait in JoinGroup; it and
    `group_record_bytes_max`, the longest group record that is written, are constants in Kafka too.
    """

    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = (1 << 31) - 1
    offsets_retention_ms: int = 10_080 * 60_000
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4_096
    new_member_join_timeout_ms: int = 300_000
    group_record_bytes_max: int = 1_000_000
    expiries_per_turn_max: int = 1_000
    timers_per_turn_max: int = 100
