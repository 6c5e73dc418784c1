"""Probes of other brokers' client listeners, so that an idle broker differs from one that clients do not reach.

Every broker connects to the next three, by id, at the address that clients get, and asks for ApiVersions, which needs
no login. So each broker is probed by three others, and the cost does not grow with the cluster. The client id of a
probe is a digest with the cluster secret, so that no client can pretend to be one.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from dataclasses import replace

from common.errors import MalformedFrame
from common.lifecycle import duty, end_task
from common.metrics import Metrics
from common.ports import Address, Ports
from kraft.image.brokers import BrokerImage
from kraft.image.metadata import MetadataImage
from wire.buffers import BufferPool
from wire.client import CallTimeout, ClientConnection, ConnectionLost, TooManyCalls
from wire.listeners import ListenerConfig, ListenerKind, ProxyForm
from wire.messages import ApiVersionsRequest
from wire.tick import Tick
from wire.tls import SecuredNetwork
from wire.watch import Watch

PROBED = 3
PER_SILENCE = 6  # probes of one broker by another within the silence that counts
TIMEOUT_S = 2.0
API_VERSIONS_VERSION = 0


def probe_id(secret: bytes, broker_id: int) -> str:
    """The client id of probes of that broker."""
    return "tidelog-probe-" + hmac.new(secret, b"probe %d" % broker_id, hashlib.sha256).hexdigest()[:32]


def next_brokers(image: MetadataImage, broker_id: int, count: int = PROBED) -> list[BrokerImage]:
    """The next unfenced brokers by id, the lowest after the highest; never this one."""
    others = sorted(b.broker_id for b in image.brokers.values() if not b.fenced and b.broker_id != broker_id)
    after = [other for other in others if other > broker_id] + [other for other in others if other < broker_id]
    return [image.brokers[other] for other in after[:count]]


def probed_listeners(listeners: Sequence[ListenerConfig]) -> list[ListenerConfig]:
    """The listeners by which others can be probed, those without TLS first. One that proxies stand before, and end TLS
    for, takes connections of proxies alone."""
    open_to_all = [
        one for one in listeners if one.kind is not ListenerKind.INTERNAL and one.proxies is not ProxyForm.TERMINATED
    ]
    return sorted(open_to_all, key=lambda one: one.protocol.uses_tls)


class NetworkProbes:
    """Owns one task. Brokers' listeners of one name have the same protocol, as everywhere in a cluster."""

    def __init__(
        self,
        ports: Ports,
        tick: Tick,
        pool: BufferPool,
        watch: Watch,
        listeners: Sequence[ListenerConfig],
        image: Callable[[], MetadataImage],
        node_id: int,
        secret: bytes,
        silence_s: float,
    ) -> None:
        """`ports` have the plain network, which clients use; `silence_s` is that of `NetworkWatch`."""
        self._ports = ports
        self._tick, self._pool, self._watch = tick, pool, watch
        self._listeners = probed_listeners(listeners)
        self._image = image
        self._node_id = node_id
        self._secret = secret
        self._interval_s = silence_s / PER_SILENCE
        self._task: asyncio.Task[None] | None = None
        self.outcomes = {"answered": 0, "unanswered": 0}

    def start(self) -> None:
        if self._interval_s > 0 and self._listeners:
            self._task = asyncio.create_task(self._probe_for_ever(), name=duty("network-probes"))

    async def stop(self) -> None:
        task, self._task = self._task, None
        await end_task(task)

    async def _probe_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await asyncio.gather(*[self.probe(broker) for broker in next_brokers(self._image(), self._node_id)])

    def register(self, metrics: Metrics) -> None:
        """Probes by their outcome."""
        metrics.family(
            "tidelog_network_probes_total",
            lambda: [({"outcome": outcome}, float(count)) for outcome, count in self.outcomes.items()],
        )

    async def probe(self, broker: BrokerImage) -> bool:
        """Whether the broker has answered."""
        listener, address = self._where(broker)
        answered = listener is not None and address is not None and await self._ask(broker.broker_id, listener, address)
        self.outcomes["answered" if answered else "unanswered"] += 1
        return answered

    def _where(self, broker: BrokerImage) -> tuple[ListenerConfig | None, Address | None]:
        for listener in self._listeners:
            address = broker.address(listener.name)
            if address is not None:
                return listener, address
        return None, None

    async def _ask(self, broker_id: int, listener: ListenerConfig, address: Address) -> bool:
        ports = self._ports
        if listener.tls is not None:
            ports = replace(ports, network=SecuredNetwork(ports.network, listener.tls))
        client: ClientConnection | None = None
        try:
            client = await ClientConnection.connect(
                ports,
                address,
                self._tick,
                self._pool,
                self._watch,
                client_id=probe_id(self._secret, broker_id),
                timeout_s=TIMEOUT_S,
            )
            await client.call(ApiVersionsRequest(), API_VERSIONS_VERSION, TIMEOUT_S)
        except (ConnectionLost, CallTimeout, TooManyCalls, MalformedFrame):
            return False
        finally:
            if client is not None:
                client.close()
        return True
