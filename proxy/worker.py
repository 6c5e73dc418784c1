"""One of the processes that share a proxy's port, with its listener, certificates and counters."""

from __future__ import annotations

import asyncio
from typing import Any

from common.pacing import Pacer
from common.ports import Ports
from common.settings import INT_MAX
from proxy.certificates import Context, ReloadedContext, broker_context, server_context
from proxy.config import ProxyConfig
from proxy.counters import worker_counters
from proxy.failures import FailureLog
from proxy.handshake_queue import HandshakeQueue
from proxy.host_addresses import HostAddresses
from proxy.limits import Counts
from proxy.listener import ProxyListener
from proxy.opening import Reception
from proxy.relay import Room
from proxy.route_file import FileRoutes
from proxy.server_tls import Places
from proxy.shared_state import SharedState
from proxy.sockets import RawSocket
from proxy.timers import Timers

STEWARD_SLOT = 0  # its first counter is the number of the routing table in force
PUBLISH_S = 0.5


class ProxyWorker:
    """Made while its event loop runs. Raises CertificateProblem."""

    def __init__(self, ports: Ports, config: ProxyConfig, sock: RawSocket, shared: SharedState, slot: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._config, self._shared, self._slot = config, shared, slot
        self._now_s = lambda: ports.clock.wall_ms() / 1000
        self.routes = FileRoutes(ports.disk, lambda: shared.slots[STEWARD_SLOT].read_counters(1)[0], Pacer())
        self._failures = FailureLog()
        self._contexts: list[ReloadedContext[Any]] = []
        self._reception = self._make_reception()
        self._listener = ProxyListener(self._loop, sock, self._reception)
        self._timers = Timers(self._loop)

    async def start(self) -> None:
        """Read the routes, then accept connections."""
        await self.routes.start()
        self._listener.start()
        self._timers.every(PUBLISH_S, self._publish)
        self._timers.every(self._config.certificate_check_s, self._look_at_certificates)

    def reload(self) -> None:
        """Read the certificates again, also when their files look unchanged."""
        for context in self._contexts:
            context.look(anyway=True)

    async def drain(self) -> None:
        """Stop accepting and close all connections slowly. Afterwards this worker may end."""
        await self._listener.drain()
        self._publish()
        self._timers.cancel()
        self.routes.stop()
        await self._reception.hosts.stop()

    def hurry(self) -> None:
        """Close connections that still drain at once."""
        self._listener.close()

    def _make_reception(self) -> Reception:
        config, limits = self._config, self._config.limits
        client = broker = None
        if config.certificate is not None:
            files = config.certificate
            client = self._followed(
                ReloadedContext(lambda: server_context(files), files, self._use_client, self._now_s)
            )
        if config.broker_certificate is not None:
            to_broker, authority = config.broker_certificate, config.broker_authority
            broker = self._followed(
                ReloadedContext(
                    lambda: broker_context(to_broker, authority, check_hostname=config.check_hostname),
                    to_broker,
                    self._use_broker,
                    self._now_s,
                    [authority],
                )
            )
        return Reception(
            ready=self._loop,
            now=self._loop.time,
            routes=self.routes,
            domain=config.domain,
            limits=limits,
            rules=config.rules,
            client_context=client.context if client is not None else None,
            broker_context=broker.context if broker is not None else None,
            header=config.header,
            addresses=self._counts() if limits.address_connections < INT_MAX else Counts(),
            tenants=self._counts(),
            failures=self._failures,
            handshake_queue=HandshakeQueue(self._loop),
            room=Room(),
            hosts=HostAddresses(),
            quick_places=Places(limits.quick),
        )

    def _counts(self) -> Counts:
        return Counts(lambda key: self._shared.elsewhere(self._slot, key), self._shared.slots[self._slot].write)

    def _followed(self, context: ReloadedContext[Context]) -> ReloadedContext[Context]:
        self._contexts.append(context)
        return context

    def _use_client(self, context: object) -> None:
        self._reception.client_context = self._contexts[0].context

    def _use_broker(self, context: object) -> None:
        self._reception.broker_context = self._contexts[-1].context

    def _look_at_certificates(self) -> None:
        for context in self._contexts:
            context.look()

    def _publish(self) -> None:
        failures = sum(context.failures for context in self._contexts)
        self._shared.slots[self._slot].write_counters(
            worker_counters(self._listener, self._reception, self._failures, failures)
        )
