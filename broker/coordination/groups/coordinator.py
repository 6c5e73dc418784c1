"""The group coordinator of one broker: routes requests to the shard of their group. Replies are typed values."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from broker.coordination.groups.config import GroupConfig
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.membership import MEMBERS_AT_ONCE
from broker.coordination.groups.offsets import TopicOffsets
from broker.coordination.groups.values import (
    CommitRequest,
    CommittedOffset,
    GroupDescription,
    JoinReply,
    JoinRequest,
    ListedGroup,
    MemberHeartbeat,
    MemberIdentity,
    PendingCommitRequest,
    SyncReply,
    SyncRequest,
)
from broker.coordination.placement import keeping_partition
from broker.coordination.runtime import CoordinatorRuntime
from broker.coordination.shard import CoordinatorRecord, Now, Parked, Ticket
from broker.partitions.transactional_appends import Permission
from common.decision import Decision
from common.errors import ErrorCode, ProtocolError
from common.pacing import Lane, Work
from kraft.image.key_ranges import Keeping, keeping
from kraft.image.metadata import MetadataImage
from kraft.records import KeysPhase
from kraft.topic_names import GROUP_TOPIC
from tiering.exports.exports import batched

Reply = TypeVar("Reply")

OFFSETS_AT_ONCE = 200
OFFSET_COST, TOPIC_COST = 4, 2
LANE = "groups"  # requests of clients, each group in turn
EXPORT_LANE = "export of groups"
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

    topic = GROUP_TOPIC

    def partition_of(self, group_id: str) -> int:
        """The partition that holds the group; COORDINATOR_NOT_AVAILABLE if there is none.

        During a handover no broker serves the group: its new broker answers COORDINATOR_LOAD_IN_PROGRESS, others
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
        """Returns when the rebalance ends. Raises errors of the request; the reply's `error` concerns the member."""

        def decide(shard: GroupShard, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, JoinReply | Parked]:
            return shard.join(request, now, ticket)

        return await self._runtime.write_or_park(GROUP_TOPIC, self.partition_of(request.group_id), decide)

    async def sync(self, request: SyncRequest) -> SyncReply:
        def decide(shard: GroupShard, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, SyncReply | Parked]:
            return shard.sync(request, now, ticket)

        return await self._runtime.write_or_park(GROUP_TOPIC, self.partition_of(request.group_id), decide)

    async def heartbeat(self, request: MemberHeartbeat) -> ErrorCode:
        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, ErrorCode]:
            return shard.heartbeat(request, now)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(request.group_id), decide, soft=True)

    async def leave(self, group_id: str, leaving: tuple[MemberIdentity, ...]) -> tuple[ErrorCode, ...]:
        """One code per member, in order. Large numbers leave in portions."""
        codes: list[ErrorCode] = []
        for some in list(batched(leaving, MEMBERS_AT_ONCE)) or [[]]:
            try:
                if codes:
                    # a decision without records does not wait for anything
                    await self._runtime.rest(Lane(LANE, group_id))
                codes += await self._leave_some(group_id, tuple(some))
            except ProtocolError as error:
                if not codes:
                    raise
                codes += [error.code] * (len(leaving) - len(codes))
                break
        return tuple(codes)

    async def _leave_some(self, group_id: str, leaving: tuple[MemberIdentity, ...]) -> tuple[ErrorCode, ...]:
        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
            return shard.leave(group_id, leaving, now)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(group_id), decide)

    # offsets -----------------------------------------------------------------------------------------------

    async def commit(self, request: CommitRequest) -> tuple[ErrorCode, ...]:
        """One code per offset, in order. Many offsets are committed some at a time."""
        codes: list[ErrorCode] = []
        for part in list(batched(request.offsets, OFFSETS_AT_ONCE)) or [[]]:
            try:
                codes += await self._commit_part(request._replace(offsets=tuple(part)))
            except ProtocolError as error:
                if not codes:
                    raise
                codes += [error.code] * (len(request.offsets) - len(codes))
                break
        return tuple(codes)

    async def _commit_part(self, request: CommitRequest) -> tuple[ErrorCode, ...]:
        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
            return shard.commit(request, now)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(request.group_id), decide)

    async def commit_pending(self, request: PendingCommitRequest, permission: Permission) -> tuple[ErrorCode, ...]:
        """As `commit`, in the transaction of a producer that has a permission for the group's partition: the offsets
        count when it commits. Raises also errors of a permission that is void."""
        codes: list[ErrorCode] = []
        for part in list(batched(request.commit.offsets, OFFSETS_AT_ONCE)) or [[]]:
            commit = request.commit._replace(offsets=tuple(part))
            codes += await self._commit_pending_part(request._replace(commit=commit), permission)
        return tuple(codes)

    async def _commit_pending_part(
        self, request: PendingCommitRequest, permission: Permission
    ) -> tuple[ErrorCode, ...]:
        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
            return shard.commit_pending(request, now)

        index = self.partition_of(request.commit.group_id)
        return await self._runtime.write(GROUP_TOPIC, index, decide, permission=permission)

    async def fetch_offsets(self, group_id: str, wanted: Wanted, *, stable: bool) -> list[list[CommittedOffset | None]]:
        """In the order of `wanted`; None where nothing was committed, and with `stable` UNSTABLE where an open
        transaction may change the offset."""

        def query(shard: GroupShard, _: Now) -> Work[list[list[CommittedOffset | None]]]:
            found: list[list[CommittedOffset | None]] = []
            for topic, partitions in wanted:
                row: list[CommittedOffset | None] = []
                for some in batched(partitions, OFFSETS_AT_ONCE):
                    row += [shard.fetch_offset(group_id, topic, partition, stable=stable) for partition in some]
                    yield TOPIC_COST + len(some) * OFFSET_COST
                found.append(row)
            return found

        return await self._runtime.read_slowly(GROUP_TOPIC, self.partition_of(group_id), query, Lane(LANE, group_id))

    async def fetch_all_offsets(self, group_id: str, *, stable: bool) -> dict[str, TopicOffsets]:
        """All that were committed, as `fetch_offsets`."""

        def query(shard: GroupShard, _: Now) -> Work[dict[str, TopicOffsets]]:
            return shard.fetch_offsets(group_id, stable=stable)

        return await self._runtime.read_slowly(GROUP_TOPIC, self.partition_of(group_id), query, Lane(LANE, group_id))

    async def delete_offsets(self, group_id: str, partitions: tuple[tuple[str, int], ...]) -> tuple[ErrorCode, ...]:
        codes = await self._delete_some(group_id, partitions[:OFFSETS_AT_ONCE])
        while (at := len(codes)) < len(partitions):
            try:
                codes += await self._delete_some(group_id, partitions[at : at + OFFSETS_AT_ONCE])
            except ProtocolError as error:
                if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                    raise
                codes += (ErrorCode.NONE,) * (len(partitions) - at)  # it went with its last offset
        return codes

    async def _delete_some(self, group_id: str, partitions: tuple[tuple[str, int], ...]) -> tuple[ErrorCode, ...]:
        def decide(shard: GroupShard, _: Now, __: Ticket) -> Decision[CoordinatorRecord, tuple[ErrorCode, ...]]:
            return shard.delete_offsets(group_id, partitions)

        return await self._runtime.write(GROUP_TOPIC, self.partition_of(group_id), decide)

    def topics_deleted(self) -> None:
        """Offsets of topics that the image no longer has are removed soon; the caller does not wait.

        A shard that is hosted elsewhere now removes them at its next retention. Until then they are not returned,
        because they have another topic id.
        """

        def act(shard: GroupShard, now: Now) -> list[CoordinatorRecord]:
            return shard.topics_deleted(now)

        self._runtime.notify(GROUP_TOPIC, act)

    async def remove_keys(self, index: int, prefixes: tuple[str, ...], most: int) -> int:
        """Remove at most `most` groups whose ids begin with `prefixes` from one partition. Returns how many there were
        before."""

        def decide(shard: GroupShard, now: Now, _: Ticket) -> Decision[CoordinatorRecord, int]:
            return shard.remove_groups(prefixes, most, now)

        await self.rest()  # members may be removed without a record, which does not wait for anything
        return await self._runtime.write(GROUP_TOPIC, index, decide)

    # exporting ---------------------------------------------------------------------------------------------

    def hosted(self) -> list[int]:
        """The partitions of `__consumer_offsets` whose shards serve here, in order."""
        return self._runtime.active(GROUP_TOPIC)

    async def read_shard(self, index: int, query: Callable[[GroupShard, Now], Reply]) -> Reply:
        """`query` on one shard here, returned when what it saw is committed."""
        return await self._runtime.read(GROUP_TOPIC, index, query)

    async def read_shard_slowly(self, index: int, query: Callable[[GroupShard, Now], Work[Reply]]) -> Reply:
        """As `read_shard`, as the node's own work and in slices."""
        return await self._runtime.read_slowly(GROUP_TOPIC, index, query, EXPORT_LANE, own=True)

    async def rest(self) -> None:
        """Wait for the next turn of the node's own work."""
        await self._runtime.rest(EXPORT_LANE, own=True)

    # administration ----------------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> GroupDescription:
        def query(shard: GroupShard, _: Now) -> GroupDescription:
            return shard.describe(group_id)

        return await self._runtime.read(GROUP_TOPIC, self.partition_of(group_id), query)

    async def list_groups(self, prefix: str = "") -> list[ListedGroup]:
        """Groups of all shards here whose ids begin with `prefix`.

        Raises COORDINATOR_LOAD_IN_PROGRESS while a shard is loading or a tenant's groups are being handed over.
        """

        def query(shard: GroupShard, _: Now) -> Work[list[ListedGroup]]:
            return shard.list_groups(prefix)

        tenant = self._image().tenants.owner(prefix)
        copies = tenant is not None and tenant.keys_phase is KeysPhase.COPYING
        if copies or self._runtime.is_loading(GROUP_TOPIC):
            raise ProtocolError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
        found: list[ListedGroup] = []
        for index in self._runtime.active(GROUP_TOPIC):
            try:
                found.extend(await self._runtime.read_slowly(GROUP_TOPIC, index, query, Lane(LANE, prefix)))
            except ProtocolError as error:
                if error.code is not ErrorCode.NOT_COORDINATOR:  # otherwise its new coordinator lists them
                    raise
        return found

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Offsets are removed in portions, the group with the last of them. A group that gets members meanwhile stays,
        without its offsets."""

        def decide(shard: GroupShard, _: Now, __: Ticket) -> Decision[CoordinatorRecord, ErrorCode | None]:
            return shard.delete_group(group_id)

        while True:
            code = await self._runtime.write(GROUP_TOPIC, self.partition_of(group_id), decide)
            if code is not None:
                return code
