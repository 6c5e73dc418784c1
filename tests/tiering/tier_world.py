"""A bucket in memory, a shard, and leaders that publish into it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.object_store.memory_store import MemoryStore
from tests.tiering.segments import segment
from tiering.bucket.cluster_file import ClusterGuard
from tiering.bucket.keys import PartitionPath, TierRoot
from tiering.bucket.segment import SegmentState
from tiering.manifests.manifest_writer import ManifestServices
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_changes import Moment
from tiering.shard.shard_protocol import (
    Claim,
    ClaimReply,
    DropPartition,
    FinishCopy,
    MoveLogStart,
    Reply,
    Request,
    StartCopy,
    StartDelete,
)
from tiering.shard.tier_shard import TierShard

TOPIC_ID = bytes(range(16))
ROOT = TierRoot("cluster-1")
PATH = PartitionPath("flights", TOPIC_ID, 0)


class WorldClock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return int(self.now_s * 1000)


class TierWorld:
    """One cluster's view of a bucket; another world may share `store` and `clock`."""

    def __init__(self, store: MemoryStore | None = None, clock: WorldClock | None = None, incarnation: int = 1) -> None:
        self.clock = clock or WorldClock()
        self.store = store or MemoryStore(self.clock.wall_ms)
        self.shard = TierShard()
        self.offset = 0
        self.guard = ClusterGuard(self.store, ROOT, lambda: incarnation, self.clock)
        self.services = ManifestServices(self.store, ROOT, self.guard, self.clock, random.Random(5))

    def ask(self, request: Request) -> Reply:
        decision = self.shard.decide(TOPIC_ID, 0, request, Moment(self.clock.wall_ms(), self.offset))
        for record in decision.records:
            self.shard.replay(*record)
            self.offset += 1
        return decision.reply

    def claim(self, leader_epoch: int, broker_id: int = 1) -> PartitionTier:
        """A view of its own, as a leader would have it."""
        reply = self.ask(Claim(leader_epoch, broker_id, 10, "flights", metadata_offset=1))
        assert isinstance(reply, ClaimReply), reply
        return self.view()

    def view(self) -> PartitionTier:
        tier = PartitionTier(TOPIC_ID, 0)
        tier.replay(self.tier.to_records())
        return tier

    @property
    def tier(self) -> PartitionTier:
        return self.shard.partitions[TOPIC_ID, 0]

    def copy(self, bases: Sequence[int], size: int, leader_epoch: int = 1, broker_id: int = 1) -> None:
        for base in bases:
            started, finished = (
                segment(base, base + size, state=state, leader_epoch=leader_epoch, broker_id=broker_id)
                for state in (SegmentState.COPY_STARTED, SegmentState.COPY_FINISHED)
            )
            self.ask(StartCopy(leader_epoch, 10, started))
            reply = self.ask(FinishCopy(leader_epoch, 10, finished))
            assert not hasattr(reply, "error"), reply

    async def upload(self) -> None:
        """Give every finished segment its object."""
        for found in self.tier.segments(0):
            await self.store.put(ROOT.segment_key(PATH, found.id), b"x" * 10)

    def move_log_start(self, offset: int, leader_epoch: int = 1) -> None:
        self.ask(MoveLogStart(leader_epoch, 10, offset, "retention"))

    def start_delete(self, leader_epoch: int = 1) -> None:
        self.ask(StartDelete(leader_epoch, 10, [found.id for found in self.tier.segments_below_log_start()]))

    def drop(self) -> None:
        self.ask(DropPartition(5))
