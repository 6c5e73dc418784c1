"""The leader that each following replica is fetched from: one `LeaderLink` per leader, created on first use."""

from __future__ import annotations

import asyncio

from broker.partitions.hosted import HostedPartitions
from broker.partitions.partition import Partition
from broker.partitions.replica import NO_LEADER, Role
from broker.replication.leader_link import LeaderLink, LinkServices
from common.ports import Address


class Fetchers:
    """Implements `Following`. Links live as long as the broker: there are at most as many as brokers."""

    def __init__(self, services: LinkServices, hosted: HostedPartitions, listener: str) -> None:
        """`listener`: name of the internal listener."""
        self._services = services
        self._hosted = hosted
        self._listener = listener
        self._links: dict[int, LeaderLink] = {}
        self._of: dict[Partition, LeaderLink] = {}
        self._paused: dict[Partition, int] = {}  # number of pauses in effect
        self._stopped = False

    def follow(self, partition: Partition) -> None:
        leader = partition.leader_id
        before = self._of.get(partition)
        if before is not None and before.leader != leader:
            before.remove(partition)
            del self._of[partition]
        if leader in (NO_LEADER, partition.node_id) or partition in self._paused or self._stopped:
            return
        link = self._links.get(leader)
        if link is None:
            link = self._links[leader] = LeaderLink(
                self._services, leader, self._address_of, self._hosted.throttles.follower
            )
        self._of[partition] = link
        link.add(partition)

    def unfollow(self, partition: Partition) -> None:
        link = self._of.pop(partition, None)
        if link is not None:
            link.remove(partition)

    def pause(self, partition: Partition) -> None:
        self._paused[partition] = self._paused.get(partition, 0) + 1
        self.unfollow(partition)

    def resume(self, partition: Partition) -> None:
        count = self._paused.pop(partition) - 1
        if count:
            self._paused[partition] = count
        elif partition.role is Role.FOLLOWER:
            self.follow(partition)

    def written(self, partition: Partition) -> None:
        link = self._of.get(partition)
        if link is not None:
            link.written(partition)

    def brokers_changed(self) -> None:
        for link in self._links.values():
            link.reconnect()

    def is_doubted(self, broker: int) -> bool:
        """Whether that broker has just closed its connection as a leader, see `LeaderLink.is_doubted`."""
        link = self._links.get(broker)
        return link is not None and link.is_doubted

    @property
    def received_bytes(self) -> int:
        """Bytes of fetch responses from all leaders so far."""
        return sum(link.received_bytes for link in self._links.values())

    @property
    def lagging_count(self) -> int:
        """Number of following replicas that are not being fetched."""
        return len(self._hosted) - len(self._hosted.led) - len(self._of)

    @property
    def held_up_count(self) -> int:
        """Number of following replicas whose leader rejects them or sends what cannot be appended."""
        return sum(link.followed.held_up_count for link in self._links.values())

    async def stop(self) -> None:
        self._stopped = True
        links = list(self._links.values())
        await asyncio.gather(*[link.stop() for link in links])
        self._links.clear()
        self._of.clear()

    def _address_of(self, leader: int) -> Address | None:
        broker = self._hosted.image.brokers.get(leader)
        return broker.address(self._listener) if broker is not None else None
