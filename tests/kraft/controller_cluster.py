"""Controllers and the broker side of the metadata, as real nodes over loopback, for the end-to-end tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common.identifiers import random_uuid
from common.pacing import Pacer
from common.ports import Address
from kraft.controller.liveness import LivenessConfig
from kraft.controller.node import ControllerConfig, ControllerNode
from kraft.controller.policy import ControllerPolicy
from kraft.features import SUPPORTED_FEATURES
from kraft.links import NodeLinks
from kraft.observers.broker_lifecycle import BrokerLifecycle, LifecycleConfig, Registration
from kraft.observers.controller_channel import ChannelConfig, ControllerChannel
from kraft.observers.observer import MetadataObserver, ObserverConfig
from kraft.quorum.quorum import QuorumConfig
from kraft.records import Endpoint
from tests.virtual_time import lab_ports
from wire.buffers import BufferPool
from wire.codec import decode_response, encode_request
from wire.listeners import ListenerConfig, ListenerKind
from wire.messages import EnvelopeRequest
from wire.tick import Tick
from wire.watch import Watch

SECRET = b"a secret of at least thirty-two bytes"
POLICY = ControllerPolicy(num_partitions=3, default_replication_factor=3, min_insync_replicas=2)


def free_addresses(count: int) -> list[Address]:
    """Ports of loopback that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses: list[Address] = [s.getsockname()[:2] for s in sockets]
    for s in sockets:
        s.close()
    return addresses


async def until(holds: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait, by looking often, until `holds()`."""
    async with asyncio.timeout(timeout_s):
        while not holds():  # noqa: ASYNC110  nobody tells of what is looked at
            await asyncio.sleep(0.005)


class BrokerSide:
    """What a broker runs of `kraft`. Make a new one for each life; `previous_epoch` as from a clean-stop marker."""

    def __init__(
        self, root: Path, broker_id: int, controllers: dict[int, Address], previous_epoch: int = -1, rack: str = "r"
    ) -> None:
        self.ports = lab_ports(root / f"broker-{broker_id}")
        self.watch = Watch()
        self.fatal: list[str] = []
        links = NodeLinks(self.ports, Tick(), BufferPool(), self.watch, f"broker-{broker_id}", SECRET)
        config = ObserverConfig(broker_id, "metadata", fetch_wait_s=0.3)
        self.observer = MetadataObserver(self.ports, links, controllers, config, Pacer(), self.fatal.append)

        def channel() -> ControllerChannel:
            hint = lambda: self.observer.image.leader_id  # noqa: E731
            return ControllerChannel(links, controllers, self.ports.random, ChannelConfig(), hint)

        self.channel, self._heartbeats = channel(), channel()
        self._broker_id, self._previous_epoch, self._rack = broker_id, previous_epoch, rack
        self.lifecycle: BrokerLifecycle | None = None

    async def start(self, *, unfence: bool = True) -> None:
        await self.observer.start()
        assert await self.observer.wait_until(lambda image: image.cluster_id is not None, 10)
        registration = Registration(
            self._broker_id,
            self.observer.image.cluster_id or "",
            random_uuid(self.ports.random),
            (Endpoint("PLAINTEXT", "127.0.0.1", 9092 + self._broker_id),),
            self._rack,
            (bytes([self._broker_id + 1] * 16),),
            self._previous_epoch,
            SUPPORTED_FEATURES,
        )
        self.lifecycle = BrokerLifecycle(
            self.ports,
            self._heartbeats,
            registration,
            LifecycleConfig(heartbeat_interval_s=0.1),
            lambda: self.observer.image.offset,
            self.fatal.append,
        )
        lifecycle = self.lifecycle
        self.observer.subscribe(lambda _delta, _image: lifecycle.metadata_advanced())
        await lifecycle.start()
        if unfence:
            lifecycle.logs_recovered()
            async with asyncio.timeout(10):
                await lifecycle.wait_unfenced()

    async def forward(self, request: Any, version: int) -> Any:
        """The controller's response to a client's request, once the local image has its result."""
        frame = encode_request(request, version, 0, "test")
        envelope = EnvelopeRequest(request_data=frame[4:], request_principal=b"User:test", client_host_address=bytes(4))
        answer = await self.channel.call(envelope, 0, timeout_s=10, repeatable=False)
        assert answer.error_code == 0
        assert await self.observer.wait_for(answer.committed_offset, 5)
        return decode_response(request.API_KEY, version, answer.response_data or b"")[1]

    @property
    def epoch(self) -> int:
        assert self.lifecycle is not None
        return self.lifecycle.broker_epoch

    async def stop(self) -> None:
        """As a crash looks to the controller: no goodbye."""
        if self.lifecycle is not None:
            await self.lifecycle.stop()
        await self._heartbeats.close()
        await self.channel.close()
        await self.observer.stop()
        self.watch.close()


class ControllerCluster:
    """Controllers 100, 101, …"""

    def __init__(
        self, root: Path, count: int = 3, policy: ControllerPolicy = POLICY, session_timeout_s: float = 1.0
    ) -> None:
        self.root, self.policy = root, policy
        self.session_timeout_s = session_timeout_s
        addresses = free_addresses(2 * count)
        self.voters = {100 + i: addresses[i] for i in range(count)}
        self.controllers = {100 + i: addresses[count + i] for i in range(count)}
        self.nodes: dict[int, ControllerNode] = {}
        self.fatal: list[str] = []

    async def start(self) -> None:
        await asyncio.gather(*(self.start_node(node_id) for node_id in self.voters))
        await until(lambda: self.active() is not None)

    async def start_node(self, node_id: int) -> None:
        config = ControllerConfig(
            node_id,
            self.voters,
            ListenerConfig("CONTROLLER", self.controllers[node_id], None, ListenerKind.INTERNAL),
            SECRET,
            policy=self.policy,
            liveness=LivenessConfig(session_timeout_s=self.session_timeout_s, suspicion_s=0.2),
            quorum=QuorumConfig(transfer_timeout_s=0.2),
        )
        node = ControllerNode(lab_ports(self.root / f"controller-{node_id}"), config, self.fatal.append)
        self.nodes[node_id] = node
        await node.start()

    async def stop_node(self, node_id: int) -> None:
        await self.nodes.pop(node_id).stop()

    def active(self) -> ControllerNode | None:
        return next((node for node in self.nodes.values() if node.driver.is_active), None)

    async def stop(self) -> None:
        for node_id in list(self.nodes):
            await self.stop_node(node_id)
