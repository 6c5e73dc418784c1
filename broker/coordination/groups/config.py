"""Settings of groups, and constants."""

from dataclasses import dataclass

from common.node_settings.groups import GroupSettings


@dataclass(frozen=True, slots=True)
class GroupConfig(GroupSettings):
    """Times in milliseconds.

    `new_member_join_timeout_ms` bounds how long a member that has no id yet may wait in JoinGroup; it and
    `group_record_bytes_max`, the longest group record that is written, are constants in Kafka too.
    """

    new_member_join_timeout_ms: int = 300_000
    group_record_bytes_max: int = 1_000_000
    expiries_per_turn_max: int = 1_000
    timers_per_turn_max: int = 100
