"""Replication throttles (KIP-73): rate limits for serving and fetching replicas that catch up.

Each broker has a rate for what it sends as leader and one for what it fetches as follower; each topic lists its
throttled replicas. All bytes of these replicas are counted, but only those out of sync are held back, so that no
replica leaves the ISR because of a throttle.

The rate applies over one second: the bucket holds one second's bytes. A larger fetch leaves a debt, limited to what the
rate gives in `DEBT_S`, as Kafka forgets what is older than its window. So even the lowest rate lets something through
now and then.

Without throttled replicas the cost is one check of an empty dictionary per fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from broker.partitions.replica import Replica, Watcher
from common.node_settings.replication import ReplicationSettings
from common.pacing import Work
from common.settings import LONG_MAX, overridden, settings_of
from common.token_bucket import TokenBucket
from common.topic_settings import TopicSettings
from kraft.image.configs import CLUSTER_DEFAULT, ResourceKey
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import ResourceType

_UNTHROTTLED = TopicSettings()
_LISTS = [
    settings_of(TopicSettings)[field].setting.name
    for field in ("leader_replication_throttled_replicas", "follower_replication_throttled_replicas")
]
ALL = "*"
BURST_S = 1.0
DEBT_S = 11.0
RESOURCES_AT_ONCE, RESOURCE_COST = 100, 2  # whose settings are applied; units of `common.pacing` for each
LOOK_AGAIN_S = 1.0  # check again after this, because the rate may have changed


class ReplicationQuota:
    """One direction of one broker. `topics`: the throttled partitions by topic name; None means all partitions."""

    __slots__ = ("_bucket", "_held", "_now", "_timer", "topics")

    def __init__(self, now: Callable[[], float]) -> None:
        self.topics: dict[str, frozenset[int] | None] = {}
        self._now = now
        self._bucket = _bucket(LONG_MAX, now())
        self._held: dict[Watcher, Replica] = {}  # bounded by the number of followers' fetch positions
        self._timer: asyncio.TimerHandle | None = None

    def throttle(self, topic: str, listed: tuple[str, ...], node_id: int) -> None:
        """Throttle this broker's replicas of the topic that `listed` (`partition:broker`, or `*`) names."""
        self.topics.pop(topic, None)
        if ALL in listed:
            self.topics[topic] = None
            return
        pairs = [entry.split(":") for entry in listed]
        mine = frozenset(int(partition) for partition, broker in pairs if int(broker) == node_id)
        if mine:
            self.topics[topic] = mine

    def covers(self, partition: Replica) -> bool:
        """Whether this broker's replica of the partition is throttled."""
        if partition.topic not in self.topics:
            return False
        throttled = self.topics[partition.topic]
        return throttled is None or partition.index in throttled

    def set_rate(self, bytes_per_second: float) -> None:
        if bytes_per_second != self._bucket.rate:
            self._bucket = _bucket(bytes_per_second, self._now())

    def record(self, size: int) -> None:
        """Count `size` bytes that were transferred."""
        self._bucket.spend(size, self._now())

    @property
    def is_exceeded(self) -> bool:
        self._bucket.refill(self._now())
        return self._bucket.level <= 0.0

    def next_look(self) -> float:
        """When to check an exceeded quota again; loop seconds."""
        bucket, now = self._bucket, self._now()
        bucket.refill(now)
        wait_s = bucket.wait_s() if bucket.rate > 0 else LOOK_AGAIN_S
        return now + min(max(wait_s, 0.001), LOOK_AGAIN_S)

    def hold(self, reader: Watcher, partition: Replica) -> None:
        """Notify `reader` of `partition`, as if it had grown, when the quota is no longer exceeded."""
        self._held[reader] = partition
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self.next_look(), self._release)

    def _release(self) -> None:
        self._timer = None
        held, self._held = self._held, {}
        for reader, partition in held.items():
            reader.partition_changed(partition, committed=False)  # a reader that is still throttled calls `hold` again

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()


def _bucket(rate: float, now: float) -> TokenBucket:
    return TokenBucket(rate, rate * BURST_S, now, rate * DEBT_S)


class ReplicationThrottles:
    """Both directions, with the settings of the metadata."""

    def __init__(
        self, node_id: int, now: Callable[[], float], rates: Callable[[MetadataImage], ReplicationSettings]
    ) -> None:
        """`rates`: returns this broker's settings under an image."""
        self._node_id = node_id
        self._rates = rates
        self.leader = ReplicationQuota(now)
        self.follower = ReplicationQuota(now)
        self._set_rates(EMPTY_IMAGE)

    def close(self) -> None:
        """Stop all notifications."""
        self.leader.close()
        self.follower.close()

    def configuring(self, changed: Iterable[ResourceKey], image: MetadataImage) -> Work[None]:
        """Apply the settings of the `changed` resources."""
        for number, (resource_type, name) in enumerate(changed, 1):
            if resource_type is ResourceType.TOPIC:
                self._throttle(name, image.configs.topic(name))
            elif name in (CLUSTER_DEFAULT, str(self._node_id)):
                self._set_rates(image)
            if number % RESOURCES_AT_ONCE == 0:
                yield RESOURCES_AT_ONCE * RESOURCE_COST

    def _throttle(self, topic: str, overrides: Mapping[str, str]) -> None:
        is_listed = any(name in overrides for name in _LISTS)
        if is_listed or topic in self.leader.topics or topic in self.follower.topics:
            settings = overridden(_UNTHROTTLED, overrides)
            self.leader.throttle(topic, settings.leader_replication_throttled_replicas, self._node_id)
            self.follower.throttle(topic, settings.follower_replication_throttled_replicas, self._node_id)

    def _set_rates(self, image: MetadataImage) -> None:
        broker = self._rates(image)
        self.leader.set_rate(broker.leader_replication_throttled_rate)
        self.follower.set_rate(broker.follower_replication_throttled_rate)
