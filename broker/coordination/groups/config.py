"""Settings of groups, and constants."""

from dataclasses import dataclass

from common.node_settings.groups import GroupSettings


@dataclass(frozen=True, slots=True)
class GroupConfig(GroupSettings):
    """Times in milliseconds.

    `new_member_join_timeout_ms` bounds how long a member that has no id yet may wait in JoinGroup; it and
    `group_record_bytes_max`, the longest group record that is written, are constants in Kafka too.
    `transaction_groups_max` and `transaction_offsets_max`: what one transaction may have pending in a partition of
    `__consumer_offsets`. Its marker ends all of it in one turn of the loop. `pending_producers_max`: how many may have
    an offset pending in the same topic and partition of a group. A tombstone removes all of them.
    """

    new_member_join_timeout_ms: int = 300_000
    group_record_bytes_max: int = 1_000_000
    transaction_groups_max: int = 1_000
    transaction_offsets_max: int = 20_000
    pending_producers_max: int = 100
    expiries_per_turn_max: int = 1_000
    timers_per_turn_max: int = 100
