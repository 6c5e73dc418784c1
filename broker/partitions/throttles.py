"""Replication throttles (KIP-73): how fast replicas that catch up may be served, and may fetch.

Each broker has a rate for what it sends as a leader and one for what it fetches as a follower; each topic names the
replicas that keep to them. All bytes of these replicas are counted, but only those that are not in sync are held back:
an in-sync replica never waits, so that no replica leaves the ISR because of a throttle.

The rate holds over a second: a bucket that holds what one second gives. A fetch that took more leaves a debt, which is
forgiven beyond what the rate gives in `DEBT_S`, as Kafka forgets what is older than its window: so even the smallest
rate lets something through from time to time.

Without throttled replicas all this costs one look at an empty dictionary per fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from broker.partitions.replica import Replica, Watcher
from common.node_settings.replication import ReplicationSettings
from common.settings import LONG_MAX, overridden
from common.token_bucket import TokenBucket
from common.topic_settings import TopicSettings
from kraft.image.configs import CLUSTER_DEFAULT, ResourceKey
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.records import ResourceType

_UNTHROTTLED = TopicSettings()
ALL = "*"
BURST_S = 1.0
DEBT_S = 11.0
LOOK_AGAIN_S = 1.0  # the rate may have been changed meanwhile


class ReplicationQuota:
    """One direction of one broker. `topics`: by topic name the throttled partitions, None for all of them."""

    __slots__ = ("_bucket", "_held", "_now", "_timer", "topics")

    def __init__(self, now: Callable[[], float]) -> None:
        self.topics: dict[str, frozenset[int] | None] = {}
        self._now = now
        self._bucket = _bucket(LONG_MAX, now())
        self._held: dict[Watcher, Replica] = {}  # at most as many as followers keep places
        self._timer: asyncio.TimerHandle | None = None

    def throttle(self, topic: str, listed: tuple[str, ...], node_id: int) -> None:
        """Those partitions of the topic of which `listed` (`partition:broker`, or `*`) names this broker's replica."""
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
        """`size` bytes went through."""
        self._bucket.spend(size, self._now())

    @property
    def is_exceeded(self) -> bool:
        self._bucket.refill(self._now())
        return self._bucket.level <= 0.0

    def next_look(self) -> float:
        """When to ask again while the quota is exceeded; loop seconds."""
        bucket, now = self._bucket, self._now()
        bucket.refill(now)
        wait_s = bucket.wait_s() if bucket.rate > 0 else LOOK_AGAIN_S
        return now + min(max(wait_s, 0.001), LOOK_AGAIN_S)

    def hold(self, reader: Watcher, partition: Replica) -> None:
        """Tell `reader` of `partition`, as if that had grown, once the quota is exceeded no longer."""
        self._held[reader] = partition
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(self.next_look(), self._release)

    def _release(self) -> None:
        self._timer = None
        held, self._held = self._held, {}
        for reader, partition in held.items():
            reader.partition_changed(partition, committed=False)  # who is still held says so again

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held.clear()


def _bucket(rate: float, now: float) -> TokenBucket:
    return TokenBucket(rate, rate * BURST_S, now, rate * DEBT_S)


class ReplicationThrottles:
    """Both directions, kept as the metadata has them."""

    def __init__(
        self, node_id: int, now: Callable[[], float], rates: Callable[[MetadataImage], ReplicationSettings]
    ) -> None:
        """`rates`: this broker's settings under an image."""
        self._node_id = node_id
        self._rates = rates
        self.leader = ReplicationQuota(now)
        self.follower = ReplicationQuota(now)
        self._set_rates(EMPTY_IMAGE)

    def close(self) -> None:
        """Stop all notifications."""
        self.leader.close()
        self.follower.close()

    def configure(self, changed: Iterable[ResourceKey], image: MetadataImage) -> None:
        """Take over the settings of the resources that `changed`."""
        for resource_type, name in changed:
            if resource_type is ResourceType.TOPIC:
                topic = overridden(_UNTHROTTLED, image.configs.topic(name))
                self.leader.throttle(name, topic.leader_replication_throttled_replicas, self._node_id)
                self.follower.throttle(name, topic.follower_replication_throttled_replicas, self._node_id)
            elif name in (CLUSTER_DEFAULT, str(self._node_id)):
                self._set_rates(image)

    def _set_rates(self, image: MetadataImage) -> None:
        broker = self._rates(image)
        self.leader.set_rate(broker.leader_replication_throttled_rate)
        self.follower.set_rate(broker.follower_replication_throttled_rate)
