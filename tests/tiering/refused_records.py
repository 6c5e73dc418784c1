"""Records that a log refuses after the shard has replayed them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from tiering.shard.partition_tier import PartitionTier
from tiering.shard.tier_records import TierRecord
from tiering.shard.tier_shard import PartitionId, TierShard

STATE = [name for name in PartitionTier.__slots__ if name != "_recent"]


def state_of(shard: TierShard) -> dict[PartitionId, list[object]]:
    return {identity: [copy.copy(getattr(tier, name)) for name in STATE] for identity, tier in shard.partitions.items()}


def check_taken_back(shard: TierShard, records: Sequence[TierRecord]) -> None:
    """Any beginning of the records of a decision can be taken back, and the shard is then what it was."""
    was = state_of(shard)
    for count in {1, (len(records) + 1) // 2, len(records)} if records else set():
        before = []
        for record in records[:count]:
            before.append(shard.before(*record))
            shard.replay(*record)
        for one in before[::-1]:
            assert one is not None
            shard.undo(one)
        assert state_of(shard) == was
