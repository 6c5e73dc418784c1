"""A broker without data: what a broker runs of `kraft`, and nothing else, so that a few hold thousands of partitions.

It registers, sends heartbeats, follows the metadata, listens so that a controller's probe finds it, and as a leader
lets every active replica back into the ISR, because a replica without data has always caught up.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from common.errors import ErrorCode, OutcomeUnknown
from common.identifiers import random_uuid
from common.pacing import Pacer
from common.ports import Address, Ports
from kraft.features import SUPPORTED_FEATURES
from kraft.image.metadata import MetadataImage
from kraft.image.partitions import PartitionImage
from kraft.links import NodeLinks
from kraft.observers.broker_lifecycle import BrokerLifecycle, LifecycleConfig, Registration
from kraft.observers.controller_channel import ChannelConfig, ControllerChannel, ControllerUnavailable
from kraft.observers.observer import MetadataObserver, ObserverConfig
from kraft.records import Endpoint
from tests.sim.cluster_settings import INTERNAL_PORT, SECRET, broker_name, voters
from wire.buffers import BufferPool
from wire.codec import encode_request
from wire.messages import AlterPartitionRequest, CreateTopicsRequest, EnvelopeRequest, schema_uuid
from wire.tick import Tick
from wire.watch import Watch

ALTER_PARTITION_VERSION, CREATE_TOPICS_VERSION = 3, 7
ALTERED_MAX = 200  # partitions in one request
CREATED_MAX = 5  # topics in one request
CALL_S, PAUSE_S = 2.0, 0.1


class DatalessBroker:
    def __init__(
        self,
        ports: Ports,
        broker_id: int,
        fatal: Callable[[str], None],
        cell: str | None = None,
        lifecycle: LifecycleConfig | None = None,
        fetch_wait_s: float = 0.3,
    ) -> None:
        self._ports, self._broker_id, self._fatal, self._cell = ports, broker_id, fatal, cell
        self._times = lifecycle or LifecycleConfig(heartbeat_interval_s=0.2, call_timeout_s=0.45)
        controllers = voters(INTERNAL_PORT)
        links = NodeLinks(ports, Tick(), BufferPool(), Watch(), broker_name(broker_id), SECRET)
        config = ObserverConfig(broker_id, "metadata", fetch_wait_s=fetch_wait_s)
        self.observer = MetadataObserver(ports, links, controllers, config, Pacer(), fatal)
        self._channel, self._heartbeats = (
            ControllerChannel(links, controllers, ports.random, ChannelConfig(), self._active_controller)
            for _ in range(2)
        )
        self._lifecycle: BrokerLifecycle | None = None
        self._moved = asyncio.Event()

    @property
    def image(self) -> MetadataImage:
        return self.observer.image

    def _active_controller(self) -> int:
        return self.image.leader_id

    async def run(self) -> None:
        """Until it is cancelled or dies."""
        address = (broker_name(self._broker_id), INTERNAL_PORT)
        self._ports.network.listen(address, lambda socket: socket.abort())
        await self.observer.start()
        while not await self.observer.wait_until(lambda image: image.cluster_id is not None, CALL_S):
            pass
        lifecycle = self._lifecycle = self._make_lifecycle(address)

        def advanced(_delta: object, _image: MetadataImage) -> None:
            lifecycle.metadata_advanced()
            self._moved.set()

        self.observer.subscribe(advanced)
        await lifecycle.start()
        lifecycle.logs_recovered()
        while True:
            await self._moved.wait()
            self._moved.clear()
            while request := self._whole_isrs():
                with contextlib.suppress(ControllerUnavailable, OutcomeUnknown):
                    await self._channel.call(request, ALTER_PARTITION_VERSION, timeout_s=CALL_S)
                await asyncio.sleep(PAUSE_S)

    def _make_lifecycle(self, address: Address) -> BrokerLifecycle:
        registration = Registration(
            self._broker_id,
            self.image.cluster_id or "",
            random_uuid(self._ports.random),
            (Endpoint("INTERNAL", *address),),
            None,
            (bytes([self._broker_id + 1] * 16),),
            -1,
            SUPPORTED_FEATURES,
            cell=self._cell,
        )
        offset = lambda: self.image.offset  # noqa: E731
        return BrokerLifecycle(self._ports, self._heartbeats, registration, self._times, offset, self._fatal)

    def _whole_isrs(self) -> Any:
        """A request that lets active replicas into the ISRs of partitions that this broker leads; None if all are."""
        image, topics = self.image, dict[bytes, Any]()
        for partition in islice(self._incomplete(), ALTERED_MAX):
            topic = topics.get(partition.topic_id)
            if topic is None:
                topic = AlterPartitionRequest.TopicData(topic_id=schema_uuid(partition.topic_id), partitions=[])
                topics[partition.topic_id] = topic
            state = AlterPartitionRequest.TopicData.PartitionData.BrokerState
            topic.partitions.append(
                AlterPartitionRequest.TopicData.PartitionData(
                    partition_index=partition.partition,
                    leader_epoch=partition.leader_epoch,
                    new_isr_with_epochs=[
                        state(broker_id=member, broker_epoch=image.brokers[member].epoch)
                        for member in partition.replicas
                        if member in partition.isr or image.is_active(member)
                    ],
                    leader_recovery_state=0,
                    partition_epoch=partition.partition_epoch,
                )
            )
        if not topics or self._lifecycle is None:
            return None
        epoch = self._lifecycle.broker_epoch
        return AlterPartitionRequest(broker_id=self._broker_id, broker_epoch=epoch, topics=list(topics.values()))

    def _incomplete(self) -> Iterator[PartitionImage]:
        image = self.image
        for key in image.topics.index.led_by(self._broker_id):
            partition = image.partition(*key)
            if partition is not None and _lacks_active(image, partition):
                yield partition

    async def create_topics(self, names: Sequence[str], partitions: int, replicas: int) -> None:
        """Until the metadata hold them."""
        creatable = CreateTopicsRequest.CreatableTopic
        while missing := [name for name in names if name not in self.image.topics.ids]:
            topics = [
                creatable(name=name, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=[])
                for name in missing[:CREATED_MAX]
            ]
            request = CreateTopicsRequest(topics=topics, timeout_ms=1_000, validate_only=False)
            await self.ask(request, CREATE_TOPICS_VERSION)
            await asyncio.sleep(PAUSE_S)

    async def ask(self, request: Any, version: int) -> None:
        """Send a client's request on to the controller, and wait for what it committed, if it answers."""
        frame = encode_request(request, version, 0, "test")
        envelope = EnvelopeRequest(request_data=frame[4:], request_principal=b"User:test", client_host_address=bytes(4))
        with contextlib.suppress(ControllerUnavailable, OutcomeUnknown):
            answer = await self._channel.call(envelope, 0, timeout_s=CALL_S, repeatable=False)
            if answer.error_code == ErrorCode.NONE:
                await self.observer.wait_for(answer.committed_offset, CALL_S)


def _lacks_active(image: MetadataImage, partition: PartitionImage) -> bool:
    return any(image.is_active(member) for member in partition.replicas if member not in partition.isr)
