"""A controller and two brokers of ours in one process, with the same settings as the nodes of Apache Kafka."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from broker.config import BrokerConfig
from broker.coordination.groups.config import GroupConfig
from broker.coordination.shard import CoordinatorRecord, Now, Ticket
from broker.coordination.transactions.config import TransactionConfig
from broker.coordination.transactions.transaction_shard import TransactionShard
from broker.listeners import Listen
from broker.node import BrokerNode
from broker.partitions.config import LogDuties
from broker.partitions.partition import FIRST_BATCH_PATIENCE_S
from common.decision import Decision
from common.ports import Address, Clock
from kraft.controller.node import ControllerConfig, ControllerNode
from kraft.controller.policy import ControllerPolicy
from kraft.topic_names import TRANSACTION_TOPIC
from tests.broker.lab_client import LabClient
from tests.broker.replication_lab import SECRET
from tests.broker.reserved_port import LOCALHOST, ReservedPort
from tests.broker.transaction_oracle.client import Caller, Stage, StageClock
from tests.broker.transaction_oracle.stage import (
    IDS,
    USED_IDS,
    are_led,
    create_topics,
    have_coordinators,
    planted,
    until,
)
from tests.virtual_time import lab_ports
from wire.buffers import BufferPool
from wire.listeners import ListenerConfig, ListenerKind
from wire.tick import Tick
from wire.watch import Watch

CLEANUP_MS, CALL_S = 50, 30.0


class Cluster:
    """Use as an asynchronous context."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held = [ReservedPort() for _ in range(6)]
        self._clients: list[LabClient] = []
        self._brokers: list[BrokerNode] = []
        self._clock: Clock | None = None  # the first broker's
        self.fatal: list[str] = []

    async def __aenter__(self) -> Cluster:
        consensus, self._listener, *self._addresses = ((LOCALHOST, port.number) for port in self._held)
        config = ControllerConfig(
            100,
            {100: consensus},
            ListenerConfig("INTERNAL", self._listener, self._listener, ListenerKind.INTERNAL),
            SECRET,
            policy=ControllerPolicy(default_replication_factor=1, min_insync_replicas=1),
        )
        self._controller = ControllerNode(lab_ports(self._root / "controller"), config, self.fatal.append)
        await self._controller.start()
        await self._start_broker()
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()
        for broker in self._brokers:
            await broker.stop()
        await self._controller.stop()
        for port in self._held:
            port.close()
        assert not self.fatal

    async def _start_broker(self) -> None:
        number = len(self._brokers)
        clients, internal = self._addresses[2 * number : 2 * number + 2]
        config = BrokerConfig(
            number,
            (Listen("PLAINTEXT", clients, clients), Listen("INTERNAL", internal, internal, "internal")),
            {100: self._listener},
            SECRET,
            duties=LogDuties(free_bytes_min=0, log_cleaner_enable=False),
            groups=GroupConfig(offsets_topic_num_partitions=1, offsets_topic_replication_factor=1),
            transactions=TransactionConfig(
                state_partitions=1, state_replication_factor=1, state_min_isr=1, timeouts_interval_ms=CLEANUP_MS
            ),
        )
        ports = lab_ports(self._root / f"broker-{number}")
        self._clock = self._clock or ports.clock
        node = BrokerNode(ports, config, self.fatal.append)
        self._brokers.append(node)
        await node.start()
        await node.wait_ready()

    async def connect(self) -> Caller:
        return await self._opened(self._addresses[0], None)

    async def connect_as_node(self) -> Caller:
        return await self._opened(self._addresses[1], SECRET)

    async def _opened(self, address: Address, secret: bytes | None) -> Caller:
        client = await LabClient.connect(lab_ports(self._root), address, Tick(), BufferPool(), Watch(), secret)
        self._clients.append(client)
        return _Caller(client)

    async def furnish(self) -> Stage:
        wire = await self.connect()
        await have_coordinators(wire)
        await self._plant()
        await self._start_broker()
        await create_topics(wire)
        await self._brokers.pop().stop()
        await until(lambda: are_led(wire, leaders={0, -1}))
        await asyncio.sleep(FIRST_BATCH_PATIENCE_S)  # a new leader is wary of producers that it does not know
        clock = self._clock
        assert clock is not None
        return Stage(
            self.connect, self.connect_as_node, StageClock(clock.wall_ms, asyncio.sleep), iter(IDS), iter(USED_IDS)
        )

    async def _plant(self) -> None:
        records = planted()

        def decide(shard: TransactionShard, now: Now, ticket: Ticket) -> Decision[CoordinatorRecord, None]:
            return Decision(None, records)

        await self._brokers[0].coordinators.runtime.write(TRANSACTION_TOPIC, 0, decide)


class _Caller:
    def __init__(self, client: LabClient) -> None:
        self._client = client
        self.close = client.close

    async def call(self, message: Any, version: int) -> Any:
        return await self._client.call(message, version, CALL_S)
