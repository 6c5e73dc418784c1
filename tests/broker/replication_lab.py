"""Brokers in one process over real sockets and disks, led by metadata that the test itself decides."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

from broker.apis import routes
from broker.config import BrokerConfig
from broker.data_plane import DataPlane, Machinery
from broker.dispatch import Dispatcher
from broker.handlers.list_offsets import ListOffsets
from broker.handlers.log_dirs import AlterReplicaLogDirs, DescribeLogDirs
from broker.handlers.log_offsets import DeleteRecords, OffsetForLeaderEpoch
from broker.handlers.producers import DescribeProducers
from broker.listeners import Listen
from broker.partitions.config import LogDuties
from broker.partitions.partition import Partition
from broker.quotas.client_throttle import ClientThrottle
from broker.replication.config import ReplicationConfig
from broker.requests.context import RequestChain
from common.errors import ErrorCode
from common.node_settings.monitoring import MonitoringSettings
from common.pacing import Pacer, at_once
from common.ports import Ports
from kraft.batches import MetadataRecord
from kraft.image.delta import MetadataDelta
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.observers.controller_channel import ControllerUnavailable
from kraft.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Endpoint,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    ResourceType,
    TopicRecord,
)
from records.builder import build_batch
from records.compression import Compression
from records.record import Record, decode_records
from storage.directory.log_directory import LogDirectory
from tests.broker.lab_client import LabClient
from tests.broker.open_chain import KeepNames, idempotence
from tests.broker.reserved_port import LOCALHOST, ReservedPort
from tests.storage.memory_trail import MemoryTrail
from tests.virtual_time import lab_ports
from wire.buffers import BufferPool
from wire.connection import Connection
from wire.listeners import ListenerConfig, ListenerKind
from wire.messages import (
    AllocateProducerIdsResponse,
    AlterPartitionResponse,
    FetchRequest,
    ListOffsetsRequest,
    ProduceRequest,
    raw_uuid,
    schema_uuid,
)
from wire.server import Server, ServerLimits
from wire.tick import Tick
from wire.watch import Watch

SECRET = b"the secret of a laboratory"
TOPIC = "flights"
TOPIC_ID = bytes(range(16))
NOW_MS = 1_700_000_000_000
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PATIENCE_S = 30.0  # for what has to come, on a machine that does other things as well
NEVER_MS = 60_000  # a wait that a test would not see the end of

ListOffsetsPartition = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition


class Controller:
    """Decides what the test tells it to, and what brokers ask for."""

    def __init__(self) -> None:
        self.image: MetadataImage = EMPTY_IMAGE
        self.brokers: dict[int, LabBroker] = {}
        self.reachable = True
        self.publishes = True
        self.refusal: ErrorCode | None = None
        self.alterations: list[Any] = []
        self._producer_ids = 1_000

    def change(self, *records: MetadataRecord) -> None:
        """Commit `records`, and have every broker that is up apply them."""
        delta = MetadataDelta(self.image)
        delta.replay_all(records)
        self.image = delta.image()
        if self.publishes:
            for broker in self.brokers.values():
                broker.plane.partitions.apply(delta, self.image)

    def publish(self) -> None:
        """Bring every broker up to the present image."""
        for broker in self.brokers.values():
            broker.catch_up(self.image)

    def create_topic(self, replicas: tuple[int, ...], *, isr: tuple[int, ...] | None = None, **configs: str) -> None:
        self.change(
            TopicRecord(TOPIC, TOPIC_ID),
            *[
                ConfigRecord(ResourceType.TOPIC, TOPIC, name.replace("_", "."), value)
                for name, value in configs.items()
            ],
            PartitionRecord(TOPIC_ID, 0, replicas, replicas if isr is None else isr, replicas[0], 0, 0),
        )

    def elect(self, leader: int, isr: tuple[int, ...] | None = None) -> None:
        self.change(PartitionChangeRecord(TOPIC_ID, 0, isr=isr, leader=leader))

    @property
    def isr(self) -> tuple[int, ...]:
        partition = self.image.partition(TOPIC_ID, 0)
        assert partition is not None
        return partition.isr

    async def call(self, request: Any, version: int, *, timeout_s: float, repeatable: bool = True) -> Any:
        await asyncio.sleep(0)
        if not self.reachable:
            raise ControllerUnavailable("cut off")
        if request.name == "AllocateProducerIdsRequest":
            self._producer_ids += 10
            return AllocateProducerIdsResponse(
                error_code=0, producer_id_start=self._producer_ids - 10, producer_id_len=10
            )
        self.alterations.append(request)
        return self._alter(request)

    def _alter(self, request: Any) -> Any:
        topics = []
        for topic in request.topics:
            rows = []
            for asked in topic.partitions:
                topic_id = raw_uuid(topic.topic_id)
                present = self.image.partition(topic_id, asked.partition_index)
                row = AlterPartitionResponse.TopicData.PartitionData
                assert present is not None
                if self.refusal is not None:
                    rows.append(row(partition_index=asked.partition_index, error_code=self.refusal, isr=[]))
                elif present.partition_epoch != asked.partition_epoch:
                    error = ErrorCode.INVALID_UPDATE_VERSION
                    rows.append(row(partition_index=asked.partition_index, error_code=error, isr=[]))
                else:
                    isr = tuple(state.broker_id for state in asked.new_isr_with_epochs)
                    self.change(PartitionChangeRecord(topic_id, asked.partition_index, isr=isr))
                    after = self.image.partition(topic_id, asked.partition_index)
                    assert after is not None
                    rows.append(
                        row(
                            partition_index=asked.partition_index,
                            error_code=0,
                            leader_id=after.leader,
                            leader_epoch=after.leader_epoch,
                            isr=list(isr),
                            partition_epoch=after.partition_epoch,
                        )
                    )
            topics.append(AlterPartitionResponse.TopicData(topic_id=topic.topic_id, partitions=rows))
        return AlterPartitionResponse(throttle_time_ms=0, error_code=0, topics=topics)


class LabBroker:
    """The data plane of one broker, with its listeners."""

    def __init__(self, lab: Lab, node_id: int, replication: ReplicationConfig, rack: str) -> None:
        self.lab = lab
        self.node_id = node_id
        self.rack = rack
        self.audit = MemoryTrail()
        self.audited = self.audit.lines
        self.broker_epoch = -1
        self._replication = replication
        self.ports = (ReservedPort(), ReservedPort())
        self.after_frame: Callable[[], None] = lambda: None
        """Called behind each frame's handler, before this turn of the loop ends."""
        self.violations: list[str] = []
        self.fatal: list[str] = []

    async def start(self) -> None:
        client_port, internal_port = (port.number for port in self.ports)
        listeners = (
            Listen("CLIENTS", (LOCALHOST, client_port), (LOCALHOST, client_port), "operator"),
            Listen("NODES", (LOCALHOST, internal_port), (LOCALHOST, internal_port), "internal"),
        )
        config = BrokerConfig(
            self.node_id, listeners, {}, SECRET, self.rack, replication=self._replication,
            duties=LogDuties(free_bytes_min=0, log_cleaner_enable=False), monitoring=self.lab.monitoring,
        )  # fmt: skip
        ports = self.lab.ports(self.lab.root / f"broker-{self.node_id}")
        self.machinery = Machinery(ports, Tick(), BufferPool(), Watch(), Pacer())
        self.logs = LogDirectory(ports, "", self.node_id, self.audit, config.duties)
        await self.logs.open(CLUSTER_ID)
        self.throttle = ClientThrottle(config.quotas, ports.clock.monotonic)
        chain = RequestChain(KeepNames(), self.throttle)
        self.plane = DataPlane(config, self.machinery, self.logs, self.lab.controller, lambda: self.broker_epoch, chain)
        self.lab.prepare(self)
        image = self.lab.controller.image
        await self.logs.recover(lambda topic: self.plane.settings.config_of(image, topic))
        handlers = [
            ListOffsets(self.plane.partitions, lambda: self.plane.fetch.reader.cold),
            DeleteRecords(self.plane.partitions),
            idempotence(self.plane, self.machinery, config, lambda: self.lab.controller.image),
            OffsetForLeaderEpoch(self.plane.partitions),
            DescribeLogDirs(self.plane.partitions, ports.disk, "data"),
            AlterReplicaLogDirs(self.plane.partitions, "data"),
            DescribeProducers(self.plane.partitions),
        ]
        pacer = self.machinery.pacer
        dispatcher = self.dispatcher = Dispatcher(
            self.plane.produce, self.plane.fetch, routes(handlers), chain, self.fatal.append, pacer
        )
        self.server = Server(
            ports,
            [ListenerConfig(one.name, one.address, one.advertised, ListenerKind(one.kind)) for one in listeners],
            self._frame,
            dispatcher.closed,
            self._violated,
            ServerLimits(),
            self.machinery.tick,
            self.machinery.pool,
            self.machinery.watch,
            secret=SECRET,
        )
        self.broker_epoch = self.lab.controller.image.next_offset
        self.lab.controller.change(
            RegisterBrokerRecord(
                self.node_id,
                bytes(16),
                tuple(Endpoint(one.name, *one.advertised) for one in listeners),
                self.rack or None,
                fenced=False,
            )
        )
        self.plane.partitions.apply(
            at_once(differing(EMPTY_IMAGE, self.lab.controller.image)), self.lab.controller.image
        )
        self.lab.controller.brokers[self.node_id] = self
        self.plane.start()
        self.server.start()

    def catch_up(self, image: MetadataImage) -> None:
        self.plane.partitions.apply(at_once(differing(self.plane.partitions.image, image)), image)

    def pause_fetching(self) -> None:
        """The partition copies nothing from its leader until `resume_fetching`."""
        self.plane.fetchers.pause(self.partition)

    def resume_fetching(self) -> None:
        self.plane.fetchers.resume(self.partition)

    async def stop(self, *, clean: bool = True) -> None:
        self.lab.controller.brokers.pop(self.node_id, None)
        await self.plane.stop()
        await self.server.close()
        if clean:
            await self.logs.close_clean(self.broker_epoch)
        else:
            await self.logs.close()
        self.machinery.watch.close()

    def _frame(self, connection: Connection, buffer: bytearray, view: memoryview, at: int, end: int) -> None:
        self.dispatcher.frame(connection, buffer, view, at, end)
        self.after_frame()

    def _violated(self, _: Connection, reason: str) -> None:
        self.violations.append(reason)

    @property
    def partition(self) -> Partition:
        found = self.plane.partitions.get(TOPIC, 0)
        assert found is not None
        return found

    async def connect(self, *, internal: bool = False) -> LabClient:
        connection = await LabClient.connect(
            self.machinery.ports,
            (LOCALHOST, self.ports[1 if internal else 0].number),
            self.machinery.tick,
            self.machinery.pool,
            self.machinery.watch,
            SECRET if internal else None,
        )
        self.lab.connections.append(connection)
        return connection

    def values(self) -> list[bytes | None]:
        """Every record's value in this broker's log, committed or not."""
        return values_of(self.bytes())

    def bytes(self) -> bytes:
        log, data = self.partition.log, b""
        offset = log.log_start_offset
        while offset < log.readable_end_offset:
            region = log.read(offset, 1 << 20, log.readable_end_offset)
            assert region is not None
            data += region.read()
            region.release()
            offset = decode_all(data)[-1].offset + 1
        return data


class Lab:
    """A few brokers and a controller; use as an asynchronous context."""

    def __init__(
        self,
        root: Path,
        count: int = 3,
        racks: tuple[str, ...] = (),
        ports: Callable[[Path], Ports] = lab_ports,
        **replication: int | bool,
    ) -> None:
        """`ports` makes the world of a broker in one life; its directory is named after it."""
        self.root = root
        self.ports = ports
        self.controller = Controller()
        self.connections: list[LabClient] = []
        self.monitoring = MonitoringSettings()
        config = ReplicationConfig(**({"replica_fetch_wait_max_ms": 100} | replication))  # type: ignore[arg-type]
        self.brokers = [LabBroker(self, node, config, racks[node] if racks else "") for node in range(count)]

    def __getitem__(self, node: int) -> LabBroker:
        return self.brokers[node]

    async def __aenter__(self) -> Self:
        for broker in self.brokers:
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for connection in self.connections:
            connection.close()
        for broker in self.brokers:
            if self.controller.brokers.get(broker.node_id) is broker:
                await broker.stop()
            for port in broker.ports:
                port.close()

    def prepare(self, broker: LabBroker) -> None:
        """Its data plane is made, and has no role yet."""

    def fence(self, node: int) -> None:
        broker = self.controller.image.brokers[node]
        self.controller.change(BrokerRegistrationChangeRecord(node, broker.epoch, fenced=True))


async def eventually(holds: Callable[[], object], what: str = "", timeout_s: float = PATIENCE_S) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not holds():  # noqa: ASYNC110  what is awaited has no event
                await asyncio.sleep(0.005)
    except TimeoutError:
        raise AssertionError(f"never came true: {what or holds}") from None


def batch(*values: bytes, compression: Compression = Compression.NONE, **fields: Any) -> bytes:
    keys = fields.pop("keys", None)
    records = [
        Record(number, NOW_MS + number, keys[number] if keys is not None else b"key", value)
        for number, value in enumerate(values)
    ]
    return bytes(build_batch(records, compression=compression, **fields))


def decode_all(data: bytes) -> list[Record]:
    view, at, found = memoryview(data), 0, []
    while at + 12 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        if at + size > len(data):
            break
        found += decode_records(view, at, size, inflated_bytes_max=1 << 24)
        at += size
    return found


def values_of(data: bytes) -> list[bytes | None]:
    return [record.value for record in decode_all(data)]


async def produce(
    connection: LabClient,
    data: bytes,
    *,
    acks: int = -1,
    timeout_ms: int = 5_000,
    version: int = 12,
    topic: str = TOPIC,
    index: int = 0,
    transactional_id: str | None = None,
) -> Any:
    """The row of the one partition."""
    response = await produce_for(
        connection, data, acks=acks, timeout_ms=timeout_ms, version=version, topic=topic, index=index,
        transactional_id=transactional_id,
    )  # fmt: skip
    return response.responses[0].partition_responses[0]


async def produce_for(
    connection: LabClient,
    data: bytes,
    *,
    acks: int = -1,
    timeout_ms: int = 5_000,
    version: int = 12,
    topic: str = TOPIC,
    index: int = 0,
    transactional_id: str | None = None,
    patience_s: float = 10.0,
) -> Any:
    """The whole response."""
    name = ProduceRequest.TopicProduceData
    row = name.PartitionProduceData(index=index, records=data)
    of_topic = (
        name(topic_id=schema_uuid(TOPIC_ID), partition_data=[row])
        if version >= 13
        else name(name=topic, partition_data=[row])
    )
    request = ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=timeout_ms, topic_data=[of_topic])
    return await connection.call(request, version, patience_s)


async def fetch(
    connection: LabClient,
    offset: int,
    *,
    version: int = 12,
    max_wait_ms: int = 500,
    min_bytes: int = 1,
    max_bytes: int = 1 << 20,
    partition_max_bytes: int = 1 << 20,
    isolation: int = 0,
    session_id: int = 0,
    session_epoch: int = -1,
    current_leader_epoch: int = -1,
    rack: str = "",
    replica: int = -1,
    replica_epoch: int = -1,
    partitions: list[tuple[int, int]] | None = None,
    forgotten: list[int] | None = None,
) -> Any:
    """The whole response; `partitions` are (index, offset), the one at `offset` by default."""
    topic = FetchRequest.FetchTopic
    rows = [
        topic.FetchPartition(
            partition=index,
            current_leader_epoch=current_leader_epoch,
            fetch_offset=at,
            last_fetched_epoch=-1,
            log_start_offset=-1,
            partition_max_bytes=partition_max_bytes,
        )
        for index, at in ([(0, offset)] if partitions is None else partitions)
    ]
    named = {"topic_id": schema_uuid(TOPIC_ID)} if version >= 13 else {"topic": TOPIC}
    request = FetchRequest(
        cluster_id=None,
        replica_id=replica,
        replica_state=FetchRequest.ReplicaState(replica_id=replica, replica_epoch=replica_epoch),
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[topic(partitions=rows, **named)] if rows else [],
        forgotten_topics_data=[FetchRequest.ForgottenTopic(partitions=forgotten, **named)] if forgotten else [],
        rack_id=rack,
    )
    return await connection.call(request, version, 10.0)


def row_of(response: Any) -> Any:
    return response.responses[0].partitions[0]


async def list_offset(connection: LabClient, timestamp: int, version: int = 9, **fields: int) -> Any:
    request = ListOffsetsRequest(
        replica_id=fields.get("replica_id", -1),
        isolation_level=fields.get("isolation_level", 0),
        topics=[
            ListOffsetsRequest.ListOffsetsTopic(
                name=TOPIC,
                partitions=[ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=timestamp)],
            )
        ],
    )
    return (await connection.call(request, version, 10.0)).topics[0].partitions[0]


async def within(seconds: float, awaited: Awaitable[Any]) -> Any:
    async with asyncio.timeout(seconds):
        return await awaited
