"""Committed offsets of the groups of one shard, and which of them have lived long enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from broker.coordination.groups.classic_group import CONSUMER_PROTOCOL_TYPE, ClassicGroup
from broker.coordination.groups.records import offset_record
from broker.coordination.groups.tenant_index import ByTenant
from broker.coordination.groups.values import NO_TIME, CommittedOffset, GroupState
from broker.coordination.shard import CoordinatorRecord
from common.identifiers import ZERO_UUID

TOPIC_IDS_SHARED_MAX = 10_000

TopicOffsets = dict[int, CommittedOffset]


class CommittedOffsets:
    """Changed by replay alone. A group or topic without offsets has no entry."""

    def __init__(self) -> None:
        self._by_group: ByTenant[dict[str, TopicOffsets]] = ByTenant()
        self._topic_ids: dict[bytes, bytes] = {}  # one object for all offsets in a topic

    def put(self, group_id: str, topic: str, partition: int, committed: CommittedOffset | None) -> None:
        """None removes it."""
        if committed is not None:
            topic_id = committed.topic_id
            shared = self._topic_ids.get(topic_id)
            if shared is not None and shared is not topic_id:
                committed = committed._replace(topic_id=shared)
            elif shared is None and len(self._topic_ids) < TOPIC_IDS_SHARED_MAX:
                self._topic_ids[topic_id] = topic_id
            self._by_group.setdefault(group_id, {}).setdefault(topic, {})[partition] = committed
            return
        topics = self._by_group.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
        if not topics:
            del self._by_group[group_id]

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._by_group.get(group_id, {}).get(topic, {}).get(partition)

    def of(self, group_id: str) -> dict[str, TopicOffsets]:
        """Topic → partition → offset; not to be changed."""
        return self._by_group.get(group_id, {})

    def has(self, group_id: str) -> bool:
        return group_id in self._by_group

    def groups(self, prefix: str = "") -> list[str]:
        """Those whose ids begin with `prefix`."""
        return self._by_group.with_prefix(prefix)

    def topics(self) -> Iterator[tuple[str, str]]:
        """Each (group, topic) with offsets."""
        for group_id, topics in self._by_group.items():
            for topic in topics:
                yield group_id, topic

    # removal -----------------------------------------------------------------------------------------------

    def tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Records that remove every offset of the group."""
        return [
            offset_record(group_id, topic, partition, None)
            for topic, partitions in self.of(group_id).items()
            for partition in partitions
        ]

    def topic_tombstones(self, deleted: Mapping[str, bytes]) -> list[CoordinatorRecord]:
        """Records that remove the offsets in these topics (name → id), in all groups.

        Offsets without an id are an older version's, or have an expiry of their own: they go with the name.
        """
        return [
            offset_record(group_id, topic, partition, None)
            for group_id, topic in self.topics()
            if topic in deleted
            for partition, committed in self._by_group[group_id][topic].items()
            if committed.topic_id in (ZERO_UUID, deleted[topic])
        ]

    def orphans(self, group_id: str, topic_id_of: Callable[[str], bytes | None]) -> list[CoordinatorRecord]:
        """Tombstones of the group's offsets in topics that are gone, also if another one has the name now."""
        records = []
        for topic, partitions in self.of(group_id).items():
            topic_id = topic_id_of(topic)
            for partition, committed in partitions.items():
                if topic_id is None or committed.topic_id not in (ZERO_UUID, topic_id):
                    records.append(offset_record(group_id, topic, partition, None))
        return records

    def expired(
        self, group_id: str, group: ClassicGroup | None, retention_ms: int, now_ms: int
    ) -> list[CoordinatorRecord]:
        """Tombstones of what `retention_ms` lets go.

        The time runs from the last commit for groups that only commit, and in a stable group for topics that nobody
        subscribes to (KIP-496); from the moment the last member left for groups that had members (KIP-211).
        """
        emptied_at: int | None = None
        if group is not None and group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                emptied_at = group.state_timestamp if group.state_timestamp != NO_TIME else None
            elif group.state is not GroupState.STABLE or group.protocol_type != CONSUMER_PROTOCOL_TYPE:
                return []
        records = []
        for topic, partitions in self.of(group_id).items():
            if group is not None and group.members and group.is_subscribed_to(topic):
                continue
            for partition, committed in partitions.items():
                if committed.expire_timestamp != NO_TIME:
                    over = now_ms >= committed.expire_timestamp
                else:
                    since = committed.commit_timestamp if emptied_at is None else emptied_at
                    since = max(since, committed.commit_timestamp)
                    over = now_ms - since >= retention_ms
                if over:
                    records.append(offset_record(group_id, topic, partition, None))
        return records
