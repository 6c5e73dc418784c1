"""The process of a proxy that follows the metadata, reports health and watches certificates. It serves no client.

So the image of a large cluster is in memory once instead of in each worker. Workers get only new routes, and go on with
the last ones while the steward is down.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from common.metrics import Metrics
from common.pacing import Pacer, Work
from common.ports import Ports
from kraft.links import NodeLinks
from kraft.observers.observer import MetadataObserver, ObserverConfig
from proxy.certificates import ExpiryWatch
from proxy.config import ProxyConfig
from proxy.counters import COUNT, add_counters, register_counters
from proxy.metadata_routes import ObservedRoutes, raise_failure
from proxy.route_file import IDENTITY_BYTES, LANE, RouteReader, RouteWriter
from proxy.routing import RoutingTable
from proxy.shared_state import SharedState, Slot
from proxy.worker import STEWARD_SLOT
from wire.buffers import BufferPool
from wire.tick import Tick
from wire.tls import CertificateWatch, SecuredNetwork, TlsContexts
from wire.watch import Watch

logger = logging.getLogger(__name__)

METADATA_DIRECTORY = "__cluster_metadata-0"
REQUEST_BYTES_MAX, REPLY_BYTES_MAX = 64 << 20, 64 << 20
EXPIRY_LOOK_S = 60.0
RETIRED_SLOT = 1  # the counters of ended workers; the parent writes it
WORKER_SLOTS = 2  # the first slot of a worker


class Steward:
    """Made while its event loop runs. `fatal` is called when the local metadata belongs to another quorum."""

    def __init__(self, ports: Ports, config: ProxyConfig, shared: SharedState, fatal: Callable[[str], None]) -> None:
        self.metrics = Metrics()
        contexts = [TlsContexts(config.links_tls, ports.clock)] if config.links_tls is not None else []
        self._certificates = CertificateWatch(contexts, config.certificate_check_s)
        if contexts:
            ports = replace(ports, network=SecuredNetwork(ports.network, contexts[0]))
        self._ports, self._config, self._shared = ports, config, shared
        self._loop = asyncio.get_running_loop()
        links = NodeLinks(
            ports,
            Tick(),
            BufferPool(REQUEST_BYTES_MAX, REPLY_BYTES_MAX),
            Watch(),
            f"proxy-{config.node_id}",
            config.secret,
        )
        observer = ObserverConfig(config.node_id, METADATA_DIRECTORY)
        self._pacer = Pacer()
        self.observer = MetadataObserver(ports, links, config.controllers, observer, self._pacer, fatal)
        self._routes = ObservedRoutes(self.observer, config.broker_listener, self._pacer)
        self._routes.on_change(self._changed)
        self._known: RoutingTable | None = None
        self._writer = RouteWriter(ports.disk, lambda: ports.random.randbytes(IDENTITY_BYTES))
        self._number = 0  # of the newest table that was written
        self._unwritten: dict[str, None] = {}  # tenants whose routes have changed since
        self._is_writing = False
        self._later: asyncio.Future[None] | None = None  # the writing, while it takes more than a slice
        chains = [one for one in (config.certificate, config.broker_certificate) if one is not None]
        self._expiry = [ExpiryWatch(one, config.certificate_warn_days) for one in chains]
        self._timer: asyncio.TimerHandle | None = None
        register_counters(self.metrics, self.totals)
        self.metrics.gauge(
            "tidelog_proxy_certificate_ends_seconds", lambda: min((one.ends_s for one in self._expiry), default=0.0)
        )
        self.metrics.gauge("tidelog_proxy_tenants", lambda: self._known_count(tenants=True))
        self.metrics.gauge("tidelog_proxy_brokers", lambda: self._known_count(tenants=False))
        self.metrics.gauge("tidelog_proxy_workers", lambda: len(self._workers()))

    async def start(self) -> None:
        """Raises StorageFailure when the local copy of the metadata cannot be read."""
        self._look_at_certificates()
        self._certificates.start()
        await self._load()
        await self.observer.start()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._certificates.stop()
        await self.observer.stop()
        self._routes.stop()
        if self._later is not None:
            self._later.cancel()
        self._writer.close()

    async def _load(self) -> None:
        """Read an earlier steward's table."""
        reader = RouteReader(self._ports.disk)
        none = reader.table
        try:
            await self._pacer.run(reader.reading({}), LANE, own=True)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            if not isinstance(error, FileNotFoundError):
                logger.error("the routing table cannot be read", extra={"problem": str(error)})
        if reader.table is not none:
            self._known, self._number = reader.table, reader.table.generation

    def ready_problem(self) -> str | None:
        """Why this proxy cannot serve; None when it can."""
        if self._known is None:
            return "no metadata yet: no controller could be reached"
        if not self._workers():
            return "no worker serves"
        return None

    def health_problem(self) -> str | None:
        return None

    def totals(self) -> list[int]:
        slots = [self._shared.slots[RETIRED_SLOT], *self._workers()]
        return add_counters(slot.read_counters(COUNT) for slot in slots)

    def _workers(self) -> list[Slot]:
        return [slot for slot in self._shared.slots[WORKER_SLOTS:] if slot.in_use]

    def _known_count(self, *, tenants: bool) -> int:
        if self._known is None:
            return 0
        return len(self._known.tenants if tenants else self._known.brokers)

    def _changed(self, table: RoutingTable, changed: Mapping[str, None]) -> None:
        self._unwritten.update(changed)
        if self.observer.image.cluster_id is None:
            return
        self._known = table
        if not self._is_writing:
            self._is_writing = True
            outcome = self._pacer.start(self._writing(), LANE, own=True)
            if isinstance(outcome, asyncio.Future):
                self._later = outcome
                outcome.add_done_callback(raise_failure)

    def _writing(self) -> Work[None]:
        """Write the newest table, and those that come meanwhile."""
        written = None
        try:
            while (table := self._known) is not None and table is not written:
                changed, self._unwritten = self._unwritten, {}
                self._number += 1
                written = table
                try:
                    yield from self._writer.writing(replace(table, generation=self._number), changed)
                except OSError as error:
                    logger.error("new routes cannot be written", extra={"problem": str(error)})
                    continue
                self._shared.slots[STEWARD_SLOT].write_counters([self._number])
                logger.info("routes changed", extra={"tenants": len(table.tenants), "brokers": len(table.brokers)})
        finally:
            self._is_writing = False

    def _look_at_certificates(self) -> None:
        for one in self._expiry:
            one.look(self._ports.clock.wall_ms() / 1000)
        self._timer = self._loop.call_later(EXPIRY_LOOK_S, self._look_at_certificates)
