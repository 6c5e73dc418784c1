"""Looks now and then at how far the groups that this broker coordinates lag, for its metrics.

Ends come from this broker's own replicas where it has one, and from the partitions' leaders otherwise, many in a
request. Everything is the node's own work, in slices; a scrape reads what the last look found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from broker.broker_link import BrokerLink
from broker.coordination.groups.coordinator import GroupCoordinator
from broker.coordination.groups.group_shard import GroupShard
from broker.coordination.groups.lag import OFFSET_COST, OFFSETS_AT_ONCE, GroupLag, LagBook
from broker.coordination.groups.offsets import split_place
from broker.coordination.shard import Now
from broker.partitions.hosted import HostedPartitions
from broker.partitions.replica import Role
from common.errors import MalformedFrame, ProtocolError
from common.lifecycle import duty, end_task
from common.metrics import Metrics, Samples
from common.node_settings.monitoring import MonitoringSettings
from common.pacing import Pacer, Work
from kraft.image.metadata import MetadataImage
from kraft.image.tenants import local_name
from tiering.exports.exports import batched
from wire.client import CallTimeout, ConnectionLost, TooManyCalls
from wire.messages import ListOffsetsRequest

VERSION, CALL_TIMEOUT_S = 5, 5.0
LATEST, CONSUMER, UNCOMMITTED, ANY_EPOCH = -1, -1, 0, -1
PLACES_AT_ONCE = 500  # of one request to a leader
GROUP_COST = 5
LABEL_LENGTH_MAX = 200
LANE = "lag of groups"
GONE = -1
_Topic = ListOffsetsRequest.ListOffsetsTopic
_Asked = _Topic.ListOffsetsPartition


class GroupLagWatch:
    """Owns one task between `start` and `stop`. `now` is a monotonic clock in seconds."""

    def __init__(
        self,
        groups: GroupCoordinator,
        hosted: HostedPartitions,
        new_link: Callable[[], BrokerLink],
        pacer: Pacer,
        now: Callable[[], float],
        settings: MonitoringSettings,
    ) -> None:
        self._groups = groups
        self._hosted = hosted
        self._new_link = new_link
        self._pacer = pacer
        self._now = now
        self._settings = settings
        self.book = LagBook(settings.groups_max)
        self._ends: dict[bytes, int] = {}  # of one look: of partitions of which this broker has no replica
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._settings.groups_max:
            self._task = asyncio.create_task(self._run(), name=duty("group-lag"))

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._settings.groups_interval_ms / 1000)
            await self.look()

    async def look(self) -> None:
        """One look; groups of a shard that goes meanwhile are left out."""
        indexes = self._groups.hosted()
        missing: dict[bytes, None] = {}
        for index in indexes:
            await self._read(index, lambda shard: self._places(shard, missing))
        await self._ask(missing)
        self.book.begin(self._now())
        for index in indexes:
            await self._read(index, self._measured)
        await self._pacer.run(self.book.finish(), LANE, own=True)
        self._ends = {}

    async def _read(self, index: int, work: Callable[[GroupShard], Work[None]]) -> None:
        def query(shard: GroupShard, _: Now) -> Work[None]:
            return work(shard)

        try:
            await self._groups.read_shard_slowly(index, query)
        except ProtocolError:  # it has another coordinator now, or is loaded
            return

    def _places(self, shard: GroupShard, missing: dict[bytes, None]) -> Work[None]:
        """Add what this broker has no replica of."""
        for group in shard.offsets.groups():
            for places in batched(shard.offsets.places(group), OFFSETS_AT_ONCE):
                missing.update((place, None) for place in places if self._own_end(place) is None)
                yield len(places) * OFFSET_COST
            yield GROUP_COST

    def _measured(self, shard: GroupShard) -> Work[None]:
        for group in shard.names(("",)):
            if group is not None and shard.is_exported(group):
                yield from self.book.add(group, shard.offsets.items(group), self._end_of)
            yield GROUP_COST

    def _end_of(self, place: bytes) -> int | None:
        end = self._own_end(place)
        return self._ends.get(place) if end is None else end

    def _own_end(self, place: bytes) -> int | None:
        """As this broker knows it: by its own replica, or because there is no such partition."""
        topic, index = split_place(place)
        partition = self._hosted.get(topic, index)
        if partition is not None and partition.role in (Role.LEADER, Role.FOLLOWER):
            return partition.high_watermark
        image = self._hosted.image.topics.get(topic)
        return GONE if image is None or index not in image.partitions else None

    async def _ask(self, missing: dict[bytes, None]) -> None:
        """Ask leaders for the ends of these partitions; those that do not answer stay unknown."""
        by_leader = await self._pacer.run(self._led(missing), LANE, own=True)
        for leader, places in by_leader.items():
            link = self._new_link()
            try:
                for some in batched(places, PLACES_AT_ONCE):
                    await self._ask_some(link, leader, some)
                    await self._pacer.rest(LANE, own=True)
            except (ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame):
                continue
            finally:
                link.drop()

    def _led(self, missing: dict[bytes, None]) -> Work[dict[int, list[bytes]]]:
        """By their leaders; those without one are left out."""
        image, found = self._hosted.image, dict[int, list[bytes]]()
        for places in batched(missing, OFFSETS_AT_ONCE):
            for place in places:
                leader = _leader_of(image, place)
                if leader is not None:
                    found.setdefault(leader, []).append(place)
            yield len(places) * OFFSET_COST
        return found

    async def _ask_some(self, link: BrokerLink, leader: int, places: list[bytes]) -> None:
        asked: dict[str, dict[int, bytes]] = {}
        for place in places:
            topic, index = split_place(place)
            asked.setdefault(topic, {})[index] = place
        rows = [
            _Topic(
                name=topic,
                partitions=[
                    _Asked(partition_index=index, current_leader_epoch=ANY_EPOCH, timestamp=LATEST) for index in indexes
                ],
            )
            for topic, indexes in asked.items()
        ]
        request = ListOffsetsRequest(replica_id=CONSUMER, isolation_level=UNCOMMITTED, topics=rows)
        response = await (await link.to(leader)).call(request, VERSION, CALL_TIMEOUT_S)
        for row in response.topics:
            for partition in row.partitions:
                place = asked.get(row.name, {}).get(partition.partition_index, b"")
                if place and not partition.error_code:
                    self._ends[place] = partition.offset

    # metrics -----------------------------------------------------------------------------------------------

    def register(self, metrics: Metrics) -> None:
        """As of the last look; nothing before the first."""
        metrics.family("tidelog_groups", lambda: self._total(0))
        metrics.family("tidelog_groups_lagging", lambda: self._total(1))
        metrics.family("tidelog_groups_lag_records", lambda: self._total(2))
        metrics.family("tidelog_groups_lag_seconds", lambda: self._total(3))
        metrics.family("tidelog_groups_lag_unknown_partitions", lambda: self._total(4))
        metrics.family("tidelog_group_lag_records", lambda: self._named(lambda lag: lag.records))
        metrics.family("tidelog_group_lag_seconds", lambda: self._named(lambda lag: lag.seconds))

    def _total(self, number: int) -> Samples:
        totals = self.book.totals
        return [] if totals is None else [({}, float(totals[number]))]

    def _named(self, value: Callable[[GroupLag], float]) -> Iterator[tuple[dict[str, str], float]]:
        """Ids that are the same up to the bound of a label are one, the largest of them."""
        found: dict[tuple[str, str], float] = {}
        for lag in self.book.named:
            owner = self._hosted.image.tenants.owner(lag.group)
            name = lag.group if owner is None else local_name(lag.group)
            key = "" if owner is None else owner.id, name[:LABEL_LENGTH_MAX]
            found[key] = max(found.get(key, 0.0), value(lag))
        for (tenant, group), largest in found.items():
            yield {"tenant": tenant, "group": group}, largest


def _leader_of(image: MetadataImage, place: bytes) -> int | None:
    topic, index = split_place(place)
    known = image.topics.get(topic)
    partition = None if known is None else known.partitions.get(index)
    return partition.leader if partition is not None and partition.has_leader else None
