"""Brokers of the replication laboratory with a tier: one bucket in memory, one shard, and calls that can be stopped."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from broker.partitions.partition import Partition
from broker.tier.config import TierConfig
from broker.tier.proposals import Proposals
from broker.tier.service import TierService
from broker.tier.services import TierServices
from common.errors import OutcomeUnknown
from common.ports import Ports
from object_store.store import ObjectStore
from storage.indexes.offset_index import OffsetIndex
from tests.broker.replication_lab import NOW_MS, TOPIC, TOPIC_ID, Lab, LabBroker, eventually
from tests.object_store.faulty_store import FaultyStore
from tests.object_store.memory_store import MemoryStore
from tests.virtual_time import lab_ports
from tiering.bucket.cluster_file import FIRST_INCARNATION, ClusterGuard
from tiering.bucket.keys import PartitionPath, SegmentKey, TierRoot
from tiering.bucket.segment import OFFSET_INDEX, TieredSegment
from tiering.manifests.manifest_publisher import ManifestPublisher, PublisherLimits
from tiering.manifests.manifest_writer import ManifestServices
from tiering.shard.partition_tier import PartitionTier
from tiering.shard.shard_changes import Moment
from tiering.shard.shard_protocol import Claim, ClaimReply, Done, Mutation, Refused, Reply, Request
from tiering.shard.tier_shard import TierShard

ROOT = TierRoot("cluster-1")
PATH = PartitionPath(TOPIC, TOPIC_ID, 0)
QUICK = TierConfig(
    uri="memory:", interval_ms=10, retention_interval_ms=20, delete_delay_ms=0, backoff_min_ms=5, backoff_max_ms=20
)
Hook = Callable[[str], Awaitable[None]]
TINY = {
    "remote_storage_enable": "true", "segment_bytes": "1024", "index_interval_bytes": "0", "retention_ms": "-1",
}  # fmt: skip


class Bucket:
    """What all brokers share: the objects, and the committed state of the shard."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.shard = TierShard()
        self.offset = 0
        self.now_ms = NOW_MS + 1_000_000
        self.requests: list[Request] = []

    def ask(self, request: Request, topic_id: bytes = TOPIC_ID) -> Reply:
        self.requests.append(request)
        decision = self.shard.decide(topic_id, 0, request, Moment(self.now_ms, self.offset))
        for record in decision.records:
            self.shard.replay(*record)
            self.offset += 1
        return decision.reply

    @property
    def tier(self) -> PartitionTier:
        return self.shard.partitions.get((TOPIC_ID, 0)) or PartitionTier(TOPIC_ID, 0)

    def count(self, kind: type[Request]) -> int:
        return sum(isinstance(request, kind) for request in self.requests)

    def segment_keys(self) -> list[str]:
        return [key for key in sorted(self.store.objects) if isinstance(ROOT.parse_key(key), SegmentKey)]

    def check(self) -> None:
        """No range twice, no hole above the log start, each object whole and where its entry says."""
        tier = self.tier
        end_offset: int | None = None
        for segment in tier.segments(0):
            if end_offset is not None:
                assert segment.base_offset == end_offset
            end_offset = segment.end_offset
            assert len(self.object(segment)) == segment.object_bytes

    def object(self, segment: TieredSegment) -> bytes:
        return self.store.objects[ROOT.segment_key(PATH, segment.id)][0]

    def log_bytes(self) -> bytes:
        """All that the tier holds, in order."""
        return b"".join(self.object(segment)[: segment.log_bytes] for segment in self.tier.segments(0))

    def index_positions(self, segment: TieredSegment) -> list[int]:
        part = segment.sections[OFFSET_INDEX]
        data = self.object(segment)[part.position : part.position + part.length]

        def pread(size: int, at: int) -> bytes:
            return data[at : at + size]

        return [entry.position for entry in OffsetIndex.load(segment.base_offset, pread, len(data)).entries(pread)]


class LabCalls:
    """A broker's way to the shard. `before` and `after` see each request's name; `lost` answers are lost."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.before: Hook | None = None
        self.after: Hook | None = None
        self.lost = 0

    async def call(self, request: Request) -> Reply:
        name = type(request).__name__
        await asyncio.sleep(0)
        if self.before is not None:
            await self.before(name)
        reply = self._bucket.ask(msgspec.msgpack.decode(msgspec.msgpack.encode(request), type=type(request)))
        if self.after is not None:
            await self.after(name)
        if self.lost:
            self.lost -= 1
            raise OutcomeUnknown("an answer was lost")
        return reply

    async def claim(
        self, topic_id: bytes, partition: int, claim: Claim, timeout_s: float | None = None
    ) -> PartitionTier | Refused:
        reply = await self.call(claim)
        assert isinstance(reply, (ClaimReply, Refused))
        return reply if isinstance(reply, Refused) else await self.describe(topic_id, partition)

    async def change(self, view: PartitionTier, request: Mutation, timeout_s: float | None = None) -> Done | Refused:
        reply = await self.call(request)
        assert isinstance(reply, (Done, Refused))
        if isinstance(reply, Done):
            view.become(await self.describe(view.topic_id, view.partition))
        return reply

    async def refresh(self, view: PartitionTier, timeout_s: float | None = None) -> None:
        view.become(await self.describe(view.topic_id, view.partition))

    async def describe(self, topic_id: bytes, partition: int, timeout_s: float | None = None) -> PartitionTier:
        tier = PartitionTier(topic_id, partition)
        known = self._bucket.shard.partitions.get((topic_id, partition))
        if known is not None:
            tier.replay(known.to_records())
        return tier


class BrokerTier:
    """The tier's side of one broker in one life."""

    def __init__(self, broker: LabBroker, bucket: Bucket, config: TierConfig) -> None:
        self.calls = LabCalls(bucket)
        self.store = FaultyStore(bucket.store, random.Random(1))
        ports = broker.machinery.ports
        store: ObjectStore = self.store
        guard = ClusterGuard(store, ROOT, lambda: hosted.image.incarnation or FIRST_INCARNATION, ports.clock)
        self.publisher = ManifestPublisher(
            ManifestServices(store, ROOT, guard, ports.clock, random.Random(2)),
            PublisherLimits(interval_s=0.0, backoff_min_s=0.01, backoff_max_s=0.02),
        )
        hosted = broker.plane.partitions
        services = TierServices(
            ports, hosted, store, ROOT, self.calls, guard, self.publisher, lambda: broker.broker_epoch, broker.audit,
            broker.machinery.pacer,
        )  # fmt: skip
        self.service = TierService(services, config)
        self.proposals = Proposals(services, self.service, config)
        """Not started: tests have it `run_round`."""
        hosted.set_tier(self.service)
        self.publisher.start()
        self.service.start()

    async def stop(self) -> None:
        await self.service.stop()
        await self.publisher.stop()

    def freeze_at(self, point: str) -> asyncio.Event:
        """Stop whoever comes to `point`, for ever; the event is set then. "before StartCopy", "after put", …"""
        when, name = point.split()
        reached = asyncio.Event()

        async def hook(at: str, _: str = "") -> None:
            if at == name:
                reached.set()
                await asyncio.Event().wait()

        async def store_hook(at: str, key: str) -> None:
            if "/manifest" not in key and "cluster.json" not in key:
                await hook(at)

        setattr(self.calls, when, hook)
        setattr(self.store, when, store_hook)
        return reached


class TierLab(Lab):
    """As `Lab`; `tiers` by broker, of its present life."""

    def __init__(
        self, root: Path, count: int = 1, config: TierConfig = QUICK, ports: Callable[[Path], Ports] = lab_ports
    ) -> None:
        super().__init__(root, count, ports=ports)
        self.bucket = Bucket()
        self.config = config
        self.tiers: dict[int, BrokerTier] = {}

    def prepare(self, broker: LabBroker) -> None:
        self.tiers[broker.node_id] = BrokerTier(broker, self.bucket, self.config)

    def create_tiered(self, *replicas: int, **configs: str) -> None:
        """The topic, with segments of a few records."""
        self.controller.create_topic(replicas, isr=None, **(TINY | configs))

    async def __aexit__(self, *what: object) -> None:
        for tier in self.tiers.values():
            await tier.stop()
        await super().__aexit__(*what)

    async def kill(self, node: int) -> None:
        """Nothing that it was doing comes to its end."""
        await self.tiers[node].stop()
        await self.brokers[node].stop(clean=False)

    def partition(self, node: int = 0) -> Partition:
        return self.brokers[node].partition

    def view(self, node: int = 0) -> PartitionTier | None:
        return self.tiers[node].service.view(self.partition(node))

    async def copied(self, node: int = 0) -> None:
        """Until all closed segments of the leader `node` are in the tier."""

        def done() -> bool:
            view = self.view(node)
            return view is not None and view.tier_end_offset == self.partition(node).log.active.base_offset

        await eventually(done, "all closed segments are copied")

    async def drop_local(self, node: int = 0, *, log_append_time: bool = False) -> int:
        """As the broker's duty does from time to time, at a time soon after that of all batches: the clients' is long
        past, with `log_append_time` it is the machine's."""
        partition = self.partition(node)
        await partition.log.flush_closed()
        now_ms = self[node].machinery.ports.clock.wall_ms() + 1 if log_append_time else self.bucket.now_ms
        return partition.log.delete_old_segments(now_ms, partition.high_watermark, partition.tier_end_offset)
