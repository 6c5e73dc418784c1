"""A tenant's keys that move between two cells of three brokers each, without a runtime or a network.

Each broker has an image that may lag; the newest one is the truth about who leads. What a deposed leader decides is
never committed.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from broker.coordination.key_moves import KeyHandover, KeyMovesConfig
from broker.coordination.key_store import KeyStore
from broker.coordination.moving_keys import MovingKeys
from broker.coordination.placement import keeping_partition
from broker.coordination.shard import Now
from broker.handlers.internal import ImportKeys
from common.errors import ErrorCode, ProtocolError
from common.pacing import at_once
from kraft.batches import MetadataRecord
from kraft.controller.key_moves import KeyReports, KeyStep, Report, key_step
from kraft.image.delta import replayed
from kraft.image.key_ranges import Keeping, keeping
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.image.tenants import TenantImage
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import Cause, PartitionChangeRecord, TenantState
from tests.kraft.decisions import decide_move_tenant
from tests.kraft.images import POLICY, new_topic
from tests.kraft.tenants import cells_of_three, created, with_topics
from wire.client import ConnectionLost
from wire.messages import MoveTenantRequest, raw_uuid

PARTITIONS = 5  # of each topic, in each cell
Place = tuple[str, int]


class MovingWorld(ABC):
    """`topics`: those that exist. Tenant `a` lives in the first cell."""

    kinds: tuple[MovingKeys[Any], ...] = ()
    topics: tuple[str, ...] = ()

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        image = cells_of_three()
        for topic in self.topics:
            image, (result,) = with_topics(image, new_topic(topic, PARTITIONS, 3))
            assert result.error_code == 0
        image, reply = created(image, "a", cell="east")
        self.tenant_id: str = reply.tenant_id
        self.images = [image]
        self.seen = dict.fromkeys(range(6), 0)  # broker → the image that it has
        self.reports = KeyReports()
        self.underway: list[tuple[int, bytes, list[Report]]] = []
        self.acting: int | None = None
        self.now = Now(0.0, 0)
        places = [(topic, index) for topic in self.topics for index in image.topics.by_name[topic].partitions]
        self.shards: dict[Place, Any] = {place: self.make_shard(*place) for place in places}
        self.brokers = {broker: Broker(self, broker) for broker in self.seen}

    @property
    def image(self) -> MetadataImage:
        return self.images[-1]

    @property
    def tenant(self) -> TenantImage:
        return self.image.tenants[self.tenant_id]

    @abstractmethod
    def make_shard(self, topic: str, index: int) -> Any:
        """An empty one that serves."""

    def replay(self, place: Place, records: list[Any]) -> None:
        for record in records:
            self.shards[place].replay(record.key, record.value)

    def keeping_of(self, topic: str, index: int) -> Callable[[str], Keeping]:
        """What the broker that acts knows."""

        def keeping_there(key: str) -> Keeping:
            image = self.acting_image()
            return keeping(image.topics.by_name[topic], image.tenants.owner(key), index)

        return keeping_there

    def acting_image(self) -> MetadataImage:
        return self.image if self.acting is None else self.image_of(self.acting)

    def image_of(self, broker: int) -> MetadataImage:
        return self.images[self.seen[broker]]

    def partition(self, place: Place, broker: int | None = None) -> PartitionImage:
        """As the broker knows it; None stands for the truth."""
        image = self.image if broker is None else self.image_of(broker)
        return image.topics.by_name[place[0]].partitions[place[1]]

    def commit_metadata(self, records: list[MetadataRecord]) -> None:
        if records:
            before = self.tenant
            self.images.append(replayed(self.image, records))
            self.reports.applied(before, self.tenant, self.now.monotonic_s)

    def pass_s(self, seconds: float) -> None:
        """For controllers; transactions do not time out meanwhile."""
        self.now = self.now._replace(monotonic_s=self.now.monotonic_s + seconds)

    def leads(self, broker: int, place: Place) -> bool:
        return self.partition(place, broker).leader == broker

    def append(self, broker: int, place: Place, act: Callable[[Any, Now], Any]) -> Any:
        """Decide as a broker that takes itself for the leader. A deposed leader's records are never committed."""
        self.now = self.now._replace(monotonic_s=self.now.monotonic_s + 0.001, wall_ms=self.now.wall_ms + 1)
        self.acting = broker
        try:
            decision = act(self.shards[place], self.now)
            if self.partition(place).leader != broker:
                raise ProtocolError(ErrorCode.NOT_COORDINATOR)
            self.replay(place, decision.records)
            return decision.reply
        finally:
            self.acting = None

    # what happens ------------------------------------------------------------------------------------------

    def catch_up(self, broker: int) -> None:
        if self.seen[broker] == len(self.images) - 1:
            return
        self.seen[broker] += 1
        self.brokers[broker].keeping_changed()

    def elect(self, place: Place) -> None:
        """Another replica leads from now on; it knows of its election, and so of all that was committed before."""
        partition = self.partition(place)
        leader = self.random.choice([r for r in partition.replicas if r != partition.leader])
        record = PartitionChangeRecord(partition.topic_id, place[1], leader=leader, cause=Cause.BROKER_FENCED)
        self.commit_metadata([record])
        while self.seen[leader] < len(self.images) - 1:
            self.catch_up(leader)

    def controller(self) -> None:
        tenant = self.tenant
        if tenant.state is TenantState.MOVING:
            step = self.key_step(tenant)
            if step.record is not None:
                self.commit_metadata([step.record])
            elif step.settled:
                done = replace(tenant, state=TenantState.ACTIVE, cell=tenant.home, target_cell=None)
                self.commit_metadata([done.record()])

    def key_step(self, tenant: TenantImage) -> KeyStep:
        return key_step(self.image, tenant, self.reports, self.now.monotonic_s)

    def move(self, cell: str) -> None:
        request = MoveTenantRequest(tenant="a", cell=cell)
        self.commit_metadata(decide_move_tenant(self.image, request, POLICY, self.random).records)

    def asked_for(self, broker: int, topic: str, name: str) -> int | None:
        """The partition in which the broker would serve the key now."""
        image = self.image_of(broker)
        index = keeping_partition(image, topic, name)
        served = index is not None and self.keeps(broker, topic, index, name) is Keeping.SERVED
        return index if served else None

    def keeps(self, broker: int, topic: str, index: int, name: str) -> Keeping:
        image = self.image_of(broker)
        return keeping(image.topics.by_name[topic], image.tenants.owner(name), index)

    def serving(self, topic: str, name: str) -> tuple[int, int] | None:
        """Any broker that takes the key for its own, and the key's partition there."""
        brokers = list(self.brokers)
        self.random.shuffle(brokers)
        for broker in brokers:
            index = self.asked_for(broker, topic, name)
            if index is not None and self.leads(broker, (topic, index)):
                return broker, index
        return None

    async def work(self, broker: int) -> None:
        """One round of what the broker does for keys that move."""
        for handover in self.brokers[broker].handovers:
            await handover.advance(self.tenant_id)

    def deliver(self, *, all_of_them: bool = False) -> None:
        self.random.shuffle(self.underway)
        while self.underway:
            broker, topic_id, reports = self.underway.pop()
            self.reports.take(self.image, broker, topic_id, reports, self.now.monotonic_s)
            if not all_of_them:
                return

    async def act(self, act: str, broker: int) -> None:
        """What happens in every play; `broker` is whose turn it is."""
        if act == "see":
            self.catch_up(broker)
        elif act == "work":
            await self.work(broker)
        elif act == "report":
            self.deliver()
        elif act == "controller":
            self.controller()
        elif act == "restart":
            self.reports.restart(self.now.monotonic_s)
        elif act == "elect":
            self.elect(self.random.choice(list(self.shards)))
        elif act == "wait":
            self.pass_s(self.random.choice([1.0, 4.0, 11.0]))
        elif act == "move":
            self.move(self.random.choice(["east", "west"]))
        else:
            raise ValueError(act)

    @abstractmethod
    def client(self) -> None:
        """Something that a client does, while everything settles."""

    @abstractmethod
    def check(self) -> None:
        """What must be true at any time."""

    async def settle(self) -> None:
        for _ in range(400):
            for broker in self.brokers:
                while self.seen[broker] < len(self.images) - 1:
                    self.catch_up(broker)
                await self.work(broker)
                self.client()
            self.deliver(all_of_them=True)
            self.pass_s(1.0)
            self.controller()
            self.check()
            if self.tenant.state is TenantState.ACTIVE:
                return
        raise AssertionError("the move never ends")


class Broker:
    """`KeyStore` and `KeyHandover` of one broker, over the world's partitions."""

    def __init__(self, world: MovingWorld, broker: int) -> None:
        def image() -> MetadataImage:
            return world.image_of(broker)

        self.world, self.id = world, broker
        self.stores = [KeyStore(self, image, kind) for kind in world.kinds]  # type: ignore[arg-type]
        self.importing = ImportKeys(self.stores, image)
        self.handovers = [
            KeyHandover(
                store,
                image,
                self,
                lambda: self,  # type: ignore[arg-type,return-value]
                lambda: (broker, world.image_of(broker).brokers[broker].epoch),
                KeyMovesConfig(resend_s=0),  # nothing goes on in the world while one of them waits
            )
            for store in self.stores
        ]
        self._peer = -1

    def keeping_changed(self) -> None:
        prefix = self.world.tenant.prefix
        for store in self.stores:
            store.keeping_changed(prefix)

    # as the runtime

    def leader_epoch(self, topic: str, index: int) -> int | None:
        partition = self.world.partition((topic, index), self.id)
        return partition.leader_epoch if partition.leader == self.id else None

    def notify(self, topic: str, act: Callable[[Any, Now], Any]) -> None:
        for place, shard in self.world.shards.items():
            if place[0] == topic and self.world.leads(self.id, place):
                self.world.acting = self.id
                assert not act(shard, self.world.now)
                self.world.acting = None

    async def write(self, topic: str, index: int, decide: Any) -> Any:
        if not self.world.leads(self.id, (topic, index)):
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        return self.world.append(self.id, (topic, index), lambda shard, now: decide(shard, now, 0))

    async def read(self, topic: str, index: int, query: Any) -> Any:
        if not self.world.leads(self.id, (topic, index)):
            raise ProtocolError(ErrorCode.NOT_COORDINATOR)
        return query(self.world.shards[topic, index], self.world.now)

    async def read_slowly(self, topic: str, index: int, work: Any, lane: str, *, own: bool) -> Any:
        return at_once(await self.read(topic, index, work))

    # as a link to another broker, and as the channel to the controller

    async def to(self, broker: int) -> Any:
        if self.world.random.random() < 0.1:
            raise ConnectionLost("cut")
        self._peer = broker
        return SimpleNamespace(call=self._import)

    async def _import(self, request: Any, version: int, timeout_s: float) -> Any:
        answer = await self.world.brokers[self._peer].importing.handle(None, request)  # type: ignore[arg-type]
        if self.world.random.random() < 0.1:
            raise ConnectionLost("the answer is lost")
        return answer

    def drop(self) -> None:
        pass

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        reports = [
            Report(row.tenant, row.keys_epoch, row.phase, tuple((p.partition_index, p.leader_epoch) for p in rows))
            for row in request.tenants
            for rows in [row.partitions]
        ]
        self.world.underway.append((request.broker_id, raw_uuid(request.topic_id), reports))
        if self.world.random.random() < 0.2:
            raise ControllerUnavailable("away")
