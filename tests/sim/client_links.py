"""How a simulated client reaches the cluster: metadata, one connection per broker, coordinators; all with timeouts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, NamedTuple

from common.errors import ErrorCode, MalformedFrame
from common.ports import Address, Ports
from tests.sim.history import History, TopicPartition
from wire.buffers import BufferPool
from wire.client import CallTimeout, ClientConnection, ConnectionLost
from wire.messages import ApiVersionsRequest, FindCoordinatorRequest, ListOffsetsRequest, MetadataRequest
from wire.tick import Tick
from wire.watch import Watch

CALL_TIMEOUT_S = 1.2
CONNECT_TIMEOUT_S = 0.5
PAUSE_S = 0.08
EARLIEST, LATEST = -2, -1


class Unreachable(Exception):
    """No answer; whether the call took effect is not known."""


class Leader(NamedTuple):
    node: int
    epoch: int


class Flight:
    """Requests that are in flight together: they go over one connection, or are lost. A client with one connection per
    broker sends none of them over a later one, where it would overtake a request that is lost."""

    def __init__(self) -> None:
        self._connection: ClientConnection | None = None
        self._is_lost = False

    async def join(self, connecting: Awaitable[ClientConnection]) -> ClientConnection:
        """Raises Unreachable."""
        try:
            connection = await connecting
        except Unreachable:
            self._is_lost = True
            raise
        if self._is_lost or (self._connection is not None and self._connection is not connection):
            raise Unreachable("a request before it is lost")
        self._connection = connection
        return connection


class ClusterLinks:
    """One client's view of the cluster."""

    def __init__(self, ports: Ports, bootstrap: Mapping[int, Address], history: History, client_id: str) -> None:
        self.ports, self.history, self.client_id = ports, history, client_id
        self.brokers: dict[int, Address] = dict(bootstrap)
        self.leaders: dict[TopicPartition, Leader] = {}
        self.topic_ids: dict[str, Any] = {}
        self._bootstrap = dict(bootstrap)
        self._tick, self._pool, self._watch = Tick(), BufferPool(), Watch()
        self._connections: dict[int, ClientConnection] = {}
        self._connecting: dict[int, asyncio.Lock] = {}

    async def call(
        self, node: int, request: Any, version: int, timeout_s: float = CALL_TIMEOUT_S, flight: Flight | None = None
    ) -> Any:
        """Raises Unreachable; the connection is given up then, as the order of what follows is not known."""
        connecting = self._connection(node)
        connection = await (connecting if flight is None else flight.join(connecting))
        try:
            return await connection.call(request, version, timeout_s)
        except (ConnectionLost, CallTimeout, MalformedFrame) as error:
            self.drop(node, connection)
            raise Unreachable(f"broker {node}: {error}") from error

    def drop(self, node: int, connection: ClientConnection) -> None:
        if self._connections.get(node) is connection:
            del self._connections[node]
        connection.close()

    async def _connection(self, node: int) -> ClientConnection:
        async with self._connecting.setdefault(node, asyncio.Lock()):
            connection = self._connections.get(node)
            if connection is not None and not connection.is_closed:
                return connection
            address = self.brokers.get(node)
            if address is None:
                raise Unreachable(f"broker {node} has no address")
            try:
                connection = await ClientConnection.connect(
                    self.ports,
                    address,
                    self._tick,
                    self._pool,
                    self._watch,
                    client_id=self.client_id,
                    timeout_s=CONNECT_TIMEOUT_S,
                )
            except (ConnectionLost, TimeoutError, OSError) as error:
                raise Unreachable(f"broker {node}: {error}") from error
            self._connections[node] = connection
            return connection

    async def refresh(self, topics: Sequence[str]) -> bool:
        """Ask any broker for metadata; whether one answered. A leader of an older epoch than known is not taken."""
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(topic_id=None, name=name) for name in topics],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=False,
        )
        node = self.ports.random.choice(sorted(self._bootstrap))
        try:
            response = await self.call(node, request, 12)
        except Unreachable:
            return False
        for broker in response.brokers:
            self.brokers[broker.node_id] = (broker.host, broker.port)
        for topic in response.topics:
            if topic.error_code != ErrorCode.NONE:
                continue
            self.topic_ids[topic.name] = topic.topic_id
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                known = self.leaders.get(key)
                if known is None or partition.leader_epoch >= known.epoch:
                    self.leaders[key] = Leader(partition.leader_id, partition.leader_epoch)
        return True

    def learn_leader(self, key: TopicPartition, node: int, epoch: int) -> None:
        """A hint that came with an error (KIP-951)."""
        known = self.leaders.get(key)
        if node >= 0 and (known is None or epoch > known.epoch):
            self.leaders[key] = Leader(node, epoch)
            self.history.counts["leader hints taken"] += 1

    async def offset(self, key: TopicPartition, timestamp: int) -> int:
        """The leader's answer to ListOffsets; -1 when it has none. Raises Unreachable."""
        leader = self.leaders.get(key)
        if leader is None or leader.node < 0:
            raise Unreachable("no leader is known")
        topic = ListOffsetsRequest.ListOffsetsTopic
        row = topic.ListOffsetsPartition(partition_index=key[1], current_leader_epoch=leader.epoch, timestamp=timestamp)
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=0, topics=[topic(name=key[0], partitions=[row])], timeout_ms=1_000
        )
        answer = (await self.call(leader.node, request, 7)).topics[0].partitions[0]
        if answer.error_code != ErrorCode.NONE:
            self.history.counts[f"list offsets: {ErrorCode(answer.error_code).name}"] += 1
            return -1
        return int(answer.offset)

    async def coordinator(self, key: str, key_type: int = 0) -> int:
        """The broker that coordinates the group `key`; with type 1, the transactional id. Raises Unreachable."""
        node = self.ports.random.choice(sorted(self._bootstrap))
        response = await self.call(node, FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]), 4)
        found = response.coordinators[0]
        if found.error_code != ErrorCode.NONE:
            raise Unreachable(f"no coordinator of {key}: {ErrorCode(found.error_code).name}")
        self.brokers[found.node_id] = (found.host, found.port)
        return int(found.node_id)

    async def feature_level(self, name: str) -> int:
        """As some broker knows it. Raises Unreachable."""
        request = ApiVersionsRequest(client_software_name="sim", client_software_version="1")
        response = await self.call(self.ports.random.choice(sorted(self._bootstrap)), request, 3)
        return next((level.max_version_level for level in response.finalized_features if level.name == name), 0)

    async def pause(self, seconds: float = PAUSE_S) -> None:
        await asyncio.sleep(seconds * (0.5 + self.ports.random.random()))

    def close(self) -> None:
        for connection in list(self._connections.values()):
            connection.close()
        self._connections.clear()
        self._watch.close()
