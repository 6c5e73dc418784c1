"""The group coordinator of one broker: finds the shard of a group and asks it. All replies are typed values."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.offsets import TopicOffsets
from broker.coordination.groups.values import (
    CommitRequest,
    CommittedOffset,
    GroupDescription,
    HeartbeatRequest,
    JoinReply,
    JoinRequest,
    ListedGroup,
    MemberIdentity,
    SyncReply,
    SyncRequest,
)
from broker.coordination.placement import keeping_partition
from broker.coordination.runtime import CoordinatorRuntime
from broker.coordination.shard import CoordinatorRecord, Now, Parked, Ticket
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from kraft.controller.topic_names import GROUP_TOPIC
from kraft.image.key_ranges import Keeping, keeping
from kraft.image.metadata import MetadataImage
from kraft.records import KeysPhase

Reply = TypeVar("Reply")
Wanted = Sequence[tuple[str, Sequence[int]]]
"""(topic, partitions)."""


class GroupCoordinator:
    """Every method raises ProtocolError: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE."""

    def __init__(
        self,
        runtime: CoordinatorRuntime,
        config: GroupConfig,
        image: Callable[[], MetadataImage],
        rng: random.Random,
    ) -> None:
        self._runtime = runtime
        self._image = image

        def topic_id_of(name: str) -> bytes | None:
            topic = image().topics.get(name)
            return None if topic is None else topic.topic_id

        def make_shard(index: int) -> GroupShard:
            def keeping_of(group_id: str) -> Keeping:
                topic = image().topics.get(GROUP_TOPIC)
                return Keeping.SERVED if topic is None else keeping(topic, image().tenants.owner(group_id), index)

            return GroupShard(config, rng, topic_id_of, keeping_of)

        runtime.host(GROUP_TOPIC, make_shard)

    def partition_of(self, group_id: str) -> int:
        """The partition that keeps the group; COORDINATOR_NOT_AVAILABLE while there is none.

        While the group is handed over, nobody serves it: COORDINATOR_LOAD_IN_PROGRESS where it goes, else
        NOT_COORDINATOR.
        """
        image = self._image()
        topic, index = image.topics.get(GROUP_TOPIC), keeping_partition(image, GROUP_TOPIC, group_id)
        if topic is None or index is None:
            raise ProtocolError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if keeping(topic, image.tenants.owner(group_id), index) is not Keeping.SERVED:
            comes = self._runtime.leads(GROUP_TOPIC, index)
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if comes else ErrorCode.NOT_COORDINATOR)
        return index

    # members -----------------------------------------------------------------------------------------------

    async def join(self, request: JoinRequest) -> JoinReply:
        """Answered when the rebalance ends. Raises what concerns the request; a reply's `error` the member."""

        def decide(shard: GroupShard, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, JoinReply | Parked]:
            return shard.join(request, now, ticket)

        return await self._runtime.write_or_park(GROUP_TOPIC, self.partition_of(request.group_id), decide)

    async def sync(self, request: SyncRequest) -> SyncReply:
        def decide(shard: GroupShard, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, SyncReply | Parked]:
            return shard.sync(request, now, ticket)

        return await self._runtime.write_or_park(GROUP_TOPIC, self.partition_of(request.group_id), decide)

    async def heartbeat(self, request: HeartbeatRequest) -> ErrorCode:
        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, ErrorCode]:
            return shard.heartbeat(request, now)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(request.group_id), decide, soft=True)

    async def leave(self, group_id: str, leaving: tuple[MemberIdentity, ...]) -> tuple[ErrorCode, ...]:
        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
            return shard.leave(group_id, leaving, now)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(group_id), decide)

    # offsets -----------------------------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> tuple[ErrorCode, ...]:
        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
            return shard.commit(request, now)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(request.group_id), decide)

    async def fetch_offsets(self, group_id: str, wanted: Wanted) -> list[list[CommittedOffset | None]]:
        """In the order of `wanted`; None where nothing was committed."""

        def query(shard: GroupShard, _: Now) -> list[list[CommittedOffset | None]]:
            return [
                [shard.fetch_offset(group_id, topic, partition) for partition in partitions]
                for topic, partitions in wanted
            ]

        return await self._runtime.read(GROUP_TOPIC, self.partition_of(group_id), query)

    async def fetch_all_offsets(self, group_id: str) -> dict[str, TopicOffsets]:
        def query(shard: GroupShard, _: Now) -> dict[str, TopicOffsets]:
            return shard.fetch_offsets(group_id)

        return await self._runtime.read(GROUP_TOPIC, self.partition_of(group_id), query)

    async def delete_offsets(self, group_id: str, partitions: tuple[tuple[str, int], ...]) -> tuple[ErrorCode, ...]:
        def decide(shard: GroupShard, _: Now, __: Ticket) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
            return shard.delete_offsets(group_id, partitions)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(group_id), decide)

    def topics_deleted(self, deleted: Mapping[str, bytes]) -> None:
        """Offsets in them (name → id) go, without anybody waiting.

        A shard that cannot now, or that is elsewhere when this broker hears of it, does it at its next retention. What
        is still there then was committed for another topic id, so it is shown to nobody.
        """

        def decide(shard: GroupShard, _: Now, __: Ticket) -> Decision[CoordinatorRecord, None]:
            return shard.delete_topics(deleted)

        for index in self._runtime.active(GROUP_TOPIC):
            self._runtime.write_unattended(GROUP_TOPIC, index, decide)

    async def remove_groups(self, index: int, prefixes: tuple[str, ...], most: int) -> int:
        """In one partition here, at most so many of those whose ids begin so; how many there were before that."""

        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, int]:
            return shard.remove_groups(prefixes, most, now)

        return await self._runtime.write(GROUP_TOPIC, index, decide)

    # exporting ---------------------------------------------------------------------------------------------

    def hosted(self) -> list[int]:
        """The partitions of `__consumer_offsets` whose shards serve here, in order."""
        return self._runtime.active(GROUP_TOPIC)

    async def read_shard(self, index: int, query: Callable[[GroupShard, Now], Reply]) -> Reply:
        """`query` on one shard here, once what it saw is committed."""
        return await self._runtime.read(GROUP_TOPIC, index, query)

    # administration ----------------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupDescription:
        def query(shard: GroupShard, _: Now) -> GroupDescription:
            return shard.describe(group_id)

        return await self._runtime.read(GROUP_TOPIC, self.partition_of(group_id), query)

    async def list_groups(self, prefix: str = "") -> list[ListedGroup]:
        """Groups of every shard here whose ids begin with `prefix`.

        Raises COORDINATOR_LOAD_IN_PROGRESS while some are not known yet, or a tenant's are being handed over.
        """

        def query(shard: GroupShard, _: Now) -> list[ListedGroup]:
            return shard.list_groups(prefix)

        tenant = self._image().tenants.owner(prefix)
        copies = tenant is not None and tenant.keys_phase is KeysPhase.COPYING
        if copies or self._runtime.is_loading(GROUP_TOPIC):
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        found: list[ListedGroup] = []
        for index in self._runtime.active(GROUP_TOPIC):
            try:
                found.extend(await self._runtime.read(GROUP_TOPIC, index, query))
            except ProtocolError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:  # else its new coordinator lists them
                    raise
        return found

    async def delete_group(self, group_id: str) -> ErrorCode:
        def decide(shard: GroupShard, _: Now, __: Ticket) -> Decision[CoordinatorRecord, ErrorCode]:
            return shard.delete_group(group_id)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(group_id), decide)
