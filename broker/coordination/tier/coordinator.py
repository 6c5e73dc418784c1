"""The tier shards that this broker hosts: one per partition of `__tier_state` that it leads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from broker.coordination.placement import tier_partition_for
from broker.coordination.runtime import CoordinatorRuntime
from broker.coordination.shard import Answer, CoordinatorRecord, Now, Ticket, replay_each
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Work
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.topic_names import TIER_TOPIC
from tiering.shard.partition_tier import PartitionTier, TierBefore
from tiering.shard.shard_changes import Moment
from tiering.shard.shard_protocol import Describe, DropPartition, Reply, Request
from tiering.shard.tier_shard import PartitionId, TierShard

DROPPED_AT_ONCE = 100  # partitions of deleted topics; each is one decision of its shard
LOOKED_AT_ONCE = 200
LANE = "deleted-tiers"


class HostedTierShard:
    """A tier shard for the runtime: without timers, and every request is answered at once."""

    def __init__(self) -> None:
        self.tiers = TierShard()

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.tiers.replay(key, value)

    def replay_all(self, records: list[tuple[bytes, bytes | None]]) -> int:
        return replay_each(self, records)

    def held_bytes(self) -> int:
        return 0  # no standbys of tier shards are kept

    def loaded(self, now: Now) -> list[CoordinatorRecord]:
        return []

    def next_deadline(self) -> float | None:
        return None

    def expire(self, now: Now) -> list[CoordinatorRecord]:
        return []

    def take_answers(self) -> list[Answer]:
        return []

    def before(self, record: CoordinatorRecord) -> TierBefore | None:
        return self.tiers.before(record.key, record.value)

    def undo(self, before: list[TierBefore | None], now: Now) -> None:
        for one in before:
            if one is not None:
                self.tiers.undo(one)

    def decide(
        self, topic_id: bytes, partition: int, request: Request, now: Now
    ) -> Decision[CoordinatorRecord, Reply]:  # fmt: skip
        decision = self.tiers.decide(topic_id, partition, request, Moment(now.wall_ms, now.next_offset))
        return Decision(decision.reply, [CoordinatorRecord(*record) for record in decision.records])


class TierCoordinator:
    """Routes requests to the shard of a partition. Methods raise ProtocolError: NOT_COORDINATOR,
    COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE."""

    def __init__(self, runtime: CoordinatorRuntime, image: Callable[[], MetadataImage]) -> None:
        self._runtime = runtime
        self._image = image
        runtime.host(TIER_TOPIC, lambda _: HostedTierShard())

    def shard_of(self, topic_id: bytes, partition: int) -> int:
        """The partition of `__tier_state`; COORDINATOR_NOT_AVAILABLE if that topic does not exist."""
        topic = self._image().topics.get(TIER_TOPIC)
        if topic is None or not topic.partitions:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return tier_partition_for(topic_id, partition, len(topic.partitions))

    async def call(self, topic_id: bytes, partition: int, request: Request) -> Reply:
        """The shard's reply, returned when everything that it says is committed."""
        shard = self.shard_of(topic_id, partition)
        if isinstance(request, Describe):

            def query(hosted: HostedTierShard, now: Now) -> Reply:
                return hosted.decide(topic_id, partition, request, now).reply

            return await self._runtime.read(TIER_TOPIC, shard, query)

        def decide(hosted: HostedTierShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, Reply]:
            return hosted.decide(topic_id, partition, request, now)

        return await self._runtime.write(TIER_TOPIC, shard, decide)

    # deleted topics ----------------------------------------------------------------------------------------

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Drop some partitions of deleted topics at once, without waiting; `drop_missing` finds the others."""
        deleted = ((topic_id, index) for topic_id, topic in delta.topics_deleted.items() for index in topic.partitions)
        for topic_id, partition in islice(deleted, DROPPED_AT_ONCE):
            self._drop(topic_id, partition, image.offset)

    async def drop_missing(self) -> None:
        """Drop every partition here whose topic was deleted.

        A topic counts as deleted only if the local metadata is at least as new as that of the leader that claimed; an
        unknown newer topic keeps its data.
        """
        for index in self.hosted():
            image = self._image()

            def is_missing(identity: PartitionId, tier: PartitionTier, known: MetadataImage = image) -> bool:
                return (
                    not tier.is_dropped
                    and known.topics.get_by_id(identity[0]) is None
                    and 0 <= tier.record.metadata_offset <= known.offset
                )

            try:
                missing = await self._found(index, is_missing)
            except ProtocolError:  # another broker leads the shard by now, and drops them
                continue
            for number, (topic_id, partition) in enumerate(missing, 1):
                self._drop(topic_id, partition, image.offset)
                if number % DROPPED_AT_ONCE == 0:
                    await self._runtime.rest(LANE, own=True)

    def _drop(self, topic_id: bytes, partition: int, metadata_offset: int) -> None:
        try:
            shard = self.shard_of(topic_id, partition)
        except ProtocolError:
            return

        def decide(hosted: HostedTierShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, Reply]:
            return hosted.decide(topic_id, partition, DropPartition(metadata_offset), now)

        self._runtime.write_unattended(TIER_TOPIC, shard, decide)

    # what is hosted here -----------------------------------------------------------------------------------

    def hosted(self) -> list[int]:
        """The partitions of `__tier_state` whose shards serve here, in order."""
        return self._runtime.active(TIER_TOPIC)

    async def dropped(self, index: int) -> list[PartitionId]:
        """Partitions of deleted topics that one shard here still has, returned when that is committed."""
        return await self._found(index, lambda _, tier: tier.is_dropped)

    async def _found(self, index: int, is_wanted: Callable[[PartitionId, PartitionTier], bool]) -> list[PartitionId]:
        def query(hosted: HostedTierShard, _: Now) -> Work[list[PartitionId]]:
            found = []
            for number, (identity, tier) in enumerate(list(hosted.tiers.partitions.items()), 1):
                if is_wanted(identity, tier):
                    found.append(identity)
                if number % LOOKED_AT_ONCE == 0:
                    yield LOOKED_AT_ONCE
            return found

        return await self._runtime.read_slowly(TIER_TOPIC, index, query, LANE, own=True)
