"""A broker process.

Start: read the local copy of the metadata, recover the log directory, and register with the controller meanwhile. When
the image has this broker's registration, replicas take their roles and the listeners open; then the controller may
unfence the broker. Stop: leadership moves away first, then everything is flushed and the clean-stop marker is written.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType

from broker.apis import COMPILED_NAMES, routes
from broker.audit.plane import AuditPlane, open_journal
from broker.config import BrokerConfig
from broker.coordinators import Coordinators
from broker.data_plane import DataPlane, Machinery
from broker.dispatch import Dispatcher
from broker.dynamic_settings import DynamicSettings
from broker.handler_set import handlers
from broker.handlers.telemetry import TelemetryHandlers
from broker.listeners import secured
from broker.membership import Membership
from broker.network_probes import NetworkProbes
from broker.node_metrics import register_metrics
from broker.partitions.hosted import HostedPartitions
from broker.quotas.client_throttle import ClientThrottle
from broker.quotas.tenant_shares import TenantShares
from broker.replication.cold_plane import ColdPlane
from broker.requests.context import RequestChain
from broker.requests.forwarding import Forwarder, ForwardLimits
from broker.security.plane import Security
from broker.security.usage import UsageBook
from broker.telemetry.telemetry import ClientTelemetry
from broker.tenancy.rewriter import TenantNames
from broker.tenancy.scope import ProxyAddress
from broker.tier.opening import OpenStore
from broker.tier.plane import TierPlane
from broker.usage_plane import UsagePlane
from common.metrics import Metrics
from common.pacing import Pacer, Strain
from common.ports import Address, Ports
from kraft.image.delta import MetadataDelta
from kraft.image.difference import differing
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.links import NodeLinks
from kraft.observers.controller_channel import ChannelConfig, ControllerChannel
from kraft.observers.observer import MetadataObserver, ObserverConfig
from kraft.records import Cause
from object_store.opening import open_store
from storage.audit.audit_journal import AuditJournal
from storage.directory.log_directory import LogDirectory
from wire.buffers import BufferPool
from wire.listeners import ListenerConfig
from wire.server import Server
from wire.tick import Tick
from wire.tls import LoadedTls
from wire.violation_log import ViolationLog
from wire.watch import Watch

logger = logging.getLogger(__name__)

METADATA_DIRECTORY = "__cluster_metadata-0"
METADATA_WAIT_S = 1.0
CLOSE_GRACE_S = 0.2


class BrokerNode:
    """Create it while its event loop runs. `fatal` is called with a message when the node must stop. `certificates`:
    see `load_certificates`."""

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        fatal: Callable[[str], None],
        open_store: OpenStore = open_store,
        certificates: Mapping[str, LoadedTls] = MappingProxyType({}),
    ) -> None:
        client_ports = ports
        listeners, ports = secured(config.listeners, ports, certificates)
        self._ports = ports
        self._config = config
        self._fatal = fatal
        self._open_store = open_store
        self.tier: TierPlane | None = None
        self.cold: ColdPlane | None = None
        self._stopping = False
        self._recovered = (0, 0)
        self._missed: list[tuple[MetadataDelta, MetadataImage]] | None = None  # changes until the first roles are taken
        self.metrics = Metrics()
        limits = config.limits.connection
        self._watch = Watch()
        self.pacer = Pacer(strain=Strain(ports.clock.monotonic, ports.displaced, ports.offer))
        pool = BufferPool(limits.queued_max_request_bytes, limits.reply_bytes_max)
        machinery = Machinery(ports, Tick(ports.clock.monotonic, ports.thread_cpu_s), pool, self._watch, self.pacer)
        links = _links(config, machinery)
        journal = open_journal(ports, config.node_id, config.audit, self._disk_passes)
        self.logs = LogDirectory(
            ports, "", config.node_id, journal, config.duties, pacer=self.pacer, on_failed=self._storage_failed
        )
        self.observer = self._make_observer(links)
        self._channel, self._heartbeats = (
            ControllerChannel(links, config.controllers, ports.random, ChannelConfig(), self._active_controller)
            for _ in range(2)
        )
        self.membership = self._make_membership(machinery)
        usage = UsageBook()
        self.pacer.tell(usage.spent)
        self.throttle = ClientThrottle(config.quotas, ports.clock.monotonic)
        self.shares = self._make_shares(journal)
        self.security = self._make_security(usage)
        chain = self._make_chain()
        self.data_plane = DataPlane(
            config=config, machinery=machinery, logs=self.logs, channel=self._channel,
            broker_epoch=self._broker_epoch, chain=chain
        )  # fmt: skip
        forwarder = self._forwarder = self._make_forwarder()
        self.coordinators = Coordinators(
            config=config,
            machinery=machinery,
            data_plane=self.data_plane,
            forwarder=forwarder,
            links=links,
            lifecycle=lambda: self.membership.lifecycle,
        )
        self.audit = self._make_audit(journal, links)
        self.telemetry = self._make_telemetry()
        self.dispatcher = self._make_dispatcher(chain)
        self.server = self._make_server(listeners, machinery)
        self._probes = self._make_probes(client_ports, listeners, machinery)
        self.usage = self._make_usage(usage, machinery)
        self._dynamic = DynamicSettings(config, self.data_plane, self.server)
        self._register_metrics()

    @property
    def partitions(self) -> HostedPartitions:
        return self.data_plane.partitions

    @property
    def addresses(self) -> dict[str, Address]:
        """The bound address of each listener by name."""
        return self.server.addresses

    def _register_metrics(self) -> None:
        register_metrics(self.metrics, self)
        self.security.register(self.metrics)
        self.usage.register(self.metrics)
        self._probes.register(self.metrics)
        self.audit.register(self.metrics)
        self.telemetry.register(self.metrics)

    # start -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Register, recover and listen; see `wait_ready`. Raises StorageFailure, RegistrationRefused, OSError."""
        self.server.check_addresses()
        await self.observer.start()
        while not await self.observer.wait_until(lambda image: image.cluster_id is not None, METADATA_WAIT_S):
            logger.info("waiting for the controllers", extra={"reason": self.observer.trouble})
        cluster_id = self.observer.image.cluster_id or ""
        await self.logs.open(cluster_id)
        self._make_tier(cluster_id)
        before = self.observer.image.brokers.get(self._config.node_id)
        if before is not None and before.health.cause is Cause.NO_CLIENT_TRAFFIC:
            self.membership.network.begin_silent()
        broker_epoch = await self.membership.register(cluster_id, lambda: self.partitions.applied_offset, self._recover)
        self.logs.begin_run(broker_epoch)
        while not await self.observer.wait_for(broker_epoch, METADATA_WAIT_S):
            logger.info("waiting for metadata", extra={"wanted": broker_epoch, "have": self.observer.image.offset})
        await self._take_roles()
        self.data_plane.start()
        self.usage.start()
        self.coordinators.start()
        self.audit.start()
        if self.tier is not None and self.cold is not None:
            await self.cold.start()
            await self.tier.start()
        self.server.start()
        self._probes.start()
        self.membership.logs_recovered()

    async def wait_ready(self) -> None:
        """Wait until the controller has unfenced this broker."""
        await self.membership.wait_unfenced()

    async def _recover(self) -> None:
        image, settings = self.observer.image, self.data_plane.settings
        threads = settings.under(image, self._config.duties).recovery_threads
        await self.logs.recover(lambda topic: settings.config_of(image, topic), self._recovering, threads)

    def _make_observer(self, links: NodeLinks) -> MetadataObserver:
        config = self._config
        return MetadataObserver(
            ports=self._ports,
            links=links,
            controllers=config.controllers,
            config=ObserverConfig(config.node_id, METADATA_DIRECTORY, config.cluster_id or None),
            pacer=self.pacer,
            on_fatal=self._fatal,
            on_disk_failed=self.logs.fail,
        )

    def _make_probes(self, ports: Ports, listeners: list[ListenerConfig], machinery: Machinery) -> NetworkProbes:
        """`ports` with the network of clients."""
        config = self._config
        return NetworkProbes(
            ports=ports,
            tick=machinery.tick,
            pool=machinery.pool,
            watch=machinery.watch,
            listeners=listeners,
            image=lambda: self.observer.image,
            node_id=config.node_id,
            secret=config.secret,
            silence_s=config.health.network_silence_ms / 1000,
        )

    def _make_membership(self, machinery: Machinery) -> Membership:
        return Membership(
            ports=self._ports,
            config=self._config,
            channel=self._heartbeats,
            logs=self.logs,
            moved_bytes=lambda: machinery.pool.moved,
            client_frames=lambda: self.dispatcher.client_requests,
            fatal=self._fatal,
        )

    def _make_usage(self, book: UsageBook, machinery: Machinery) -> UsagePlane:
        queues = (
            lambda: self.logs.waited_s,
            lambda: self.security.verifications.waited_s,
            lambda: self.server.openings_waited_s,
        )
        return UsagePlane(
            ports=self._ports,
            config=self._config,
            machinery=machinery,
            book=book,
            bounds=self.throttle,
            shares=self.shares,
            hosted=self.partitions,
            logs=self.logs,
            channel=self._channel,
            broker_epoch=self._broker_epoch,
            image=lambda: self.observer.image,
            queues=queues,
            trail=self.audit.journal,
        )

    def _make_shares(self, trail: AuditJournal) -> TenantShares:
        config = self._config
        return TenantShares(
            bounds=self.throttle, image=lambda: self.observer.image, now=self._ports.clock.monotonic,
            settings=config.shares, defaults=config.tenants, trail=trail, broker_id=config.node_id,
        )  # fmt: skip

    def _make_security(self, usage: UsageBook) -> Security:
        config = self._config
        return Security(
            config=config.security,
            ports=self._ports,
            image=lambda: self.observer.image,
            secret=config.secret,
            frame_bytes_max=config.limits.connection.frame_bytes_max,
            broker_id=config.node_id,
            usage=usage,
            limits=self.shares,
        )

    def _make_forwarder(self) -> Forwarder:
        roles = self.partitions.roles
        return Forwarder(
            channel=self._channel,
            observer=self.observer,
            clock=self._ports.clock,
            limits=ForwardLimits.within(self._config.limits.connection.frame_bytes_max),
            pacer=self.pacer,
            roles=roles,
        )

    def _make_chain(self) -> RequestChain:
        config = self._config
        proxies = ProxyAddress(config.proxy_domain, config.proxy_port)
        names = TenantNames(lambda: self.observer.image, proxies, COMPILED_NAMES)
        return RequestChain(names, self.throttle)

    def _make_dispatcher(self, chain: RequestChain) -> Dispatcher:
        return Dispatcher(
            produce=self.data_plane.produce,
            fetch=self.data_plane.fetch,
            routes=routes(self._handlers()),
            chain=chain,
            fatal=self._fatal,
            pacer=self.pacer,
            security=self.security,
            answer_bytes_max=self._config.limits.connection.answer_bytes_max,
        )

    def _make_server(self, listeners: list[ListenerConfig], machinery: Machinery) -> Server:
        limits = self._config.limits
        return Server(
            ports=self._ports,
            listeners=listeners,
            handler=self.dispatcher.frame,
            closed=self.dispatcher.closed,
            violated=ViolationLog(logger, limits.connection.violation_lines_max).report,
            limits=limits,
            tick=machinery.tick,
            pool=machinery.pool,
            watch=machinery.watch,
            secret=self._config.secret,
            cluster=self._config.cluster_id,
            began=self.dispatcher.began,
        )

    def _make_audit(self, journal: AuditJournal, links: NodeLinks) -> AuditPlane:
        config = self._config
        return AuditPlane(
            ports=self._ports,
            node_id=config.node_id,
            config=config.audit,
            journal=journal,
            hosted=self.partitions,
            topics=self.coordinators.internal_topics,
            links=links,
            listener_name=config.internal_listener.name,
        )

    def _make_telemetry(self) -> ClientTelemetry:
        clock = self._ports.clock
        return ClientTelemetry(lambda: self.observer.image, self._config.telemetry, lambda: 1000 * clock.monotonic())

    def _make_tier(self, cluster_id: str) -> None:
        config = self._config.tier
        if not config.uri:
            return
        client, shards = self.coordinators.tier_client, self.coordinators.tiers
        self.tier = TierPlane(
            ports=self._ports,
            config=config,
            hosted=self.partitions,
            client=client,
            coordinator=shards,
            groups=self.coordinators.groups,
            cluster_id=cluster_id,
            broker_epoch=self._broker_epoch,
            audit=self.audit.journal,
            open_store=self._open_store,
            pacer=self.pacer,
        )
        self.tier.register(self.metrics)
        self.audit.export_to(self.tier, config.export_interval_ms / 1000)
        reads, free_bytes_min = self._config.tier_reads, 2 * self._config.duties.free_bytes_min
        tier = self.tier
        self.cold = ColdPlane(
            ports=self._ports,
            reads=reads,
            free_bytes_min=free_bytes_min,
            store=tier.store,
            root=tier.root,
            views=tier.service,
        )
        self.data_plane.fetch.reader.read_tier_through(self.cold.reading)
        self.cold.register(self.metrics)
        tier.service.erasure.forget_through(self.cold.remote.cache.forget_all)

    async def _take_roles(self) -> None:
        """Take all roles in slices, because for a starting broker everything changes at once. Later changes wait."""
        image, self._missed = self.observer.image, []
        self.observer.subscribe(self._metadata_changed)
        delta = await self.pacer.run(differing(EMPTY_IMAGE, image), "start", own=True)
        missed, self._missed = [(delta, image), *self._missed], None
        for step in missed:
            self._metadata_changed(*step)
        await self.partitions.roles.wait_applied()
        while (waits := await self.pacer.run(self.partitions.set_aside_strays(), "start", own=True)) is not None:
            await waits.wait()
        self.partitions.roles.subscribe(self.membership.metadata_advanced)

    def _metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if self._missed is not None:
            self._missed.append((delta, image))
            return
        self.security.metadata_changed(delta, image)
        self.throttle.metadata_changed(delta, image)
        self.shares.metadata_changed(delta, image)
        self._dynamic.metadata_changed(delta, image)
        self.partitions.apply(delta, image)
        self.coordinators.metadata_changed(delta, image)
        self.membership.metadata_changed(delta, image)

    # stop --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Controlled shutdown: hand over leadership, flush, write the clean-stop marker. Also stops a broker that is
        starting."""
        if self._stopping:
            return
        self._stopping = True
        if self._config.replication.controlled_shutdown_enable:
            await self.membership.shut_down()
        self.server.stop_accepting()
        await self._probes.stop()
        await self.usage.stop()
        await self.audit.stop()
        if self.tier is not None:
            await self.tier.stop()
        await self.coordinators.stop()
        await self.dispatcher.stop()
        await self.data_plane.stop()
        await self.server.close(CLOSE_GRACE_S)
        if self.cold is not None:
            await self.cold.stop()
        await self.membership.reported()
        if self.logs.offline is None and self.membership.broker_epoch >= 0:
            await self.logs.close_clean(self.membership.broker_epoch)
        else:
            await self.logs.close()
        await self.audit.close()
        await self.membership.stop()
        await self.observer.stop()
        await self._channel.close()
        await self._heartbeats.close()
        self._watch.close()

    # health ------------------------------------------------------------------------------------------------

    def ready_problem(self) -> str | None:
        """Why this broker does not serve; None if it does."""
        problem = self.health_problem()
        if problem is not None:
            return problem
        lifecycle = self.membership.lifecycle
        if lifecycle is None or lifecycle.broker_epoch < 0:
            done, total = self._recovered
            return f"starting, {done} of {total} logs recovered"
        if lifecycle.fenced:
            return "fenced"
        return "stopping" if self._stopping else None

    def health_problem(self) -> str | None:
        """Why this process should be replaced; None if it works."""
        offline = self.logs.offline
        return None if offline is None else f"the log directory is offline: {offline}"

    async def withdraw(self) -> str:
        """The storage is stuck: see `Membership.withdraw`."""
        return await self.membership.withdraw()

    def _disk_passes(self, what: str, error: OSError) -> bool:
        return self.logs.passes(what, error)  # which keep the journal, and so are made after it

    def _storage_failed(self, reason: str) -> None:
        self.partitions.go_offline()
        self.membership.give_up(reason)

    # parts -------------------------------------------------------------------------------------------------

    def _handlers(self) -> list[object]:
        telemetry = TelemetryHandlers(self.telemetry, self._ports.random, self._config.telemetry.max_bytes)
        others = handlers(
            config=self._config,
            ports=self._ports,
            data_plane=self.data_plane,
            coordinators=self.coordinators,
            forwarder=self._forwarder,
            audit=self.audit,
            tier=lambda: self.tier,
            cold=lambda: self.cold.reading if self.cold is not None else None,
            remote_list_offsets_ms=lambda: self._dynamic.tier_reads.remote_list_offsets_request_timeout_ms,
            tls_contexts=lambda: self.server.tls_contexts,
            membership=self.membership,
        )
        return [telemetry, *others]

    def _broker_epoch(self) -> int:
        return self.membership.broker_epoch

    def _active_controller(self) -> int:
        return self.observer.image.leader_id

    def _recovering(self, done: int, total: int) -> None:
        self._recovered = (done, total)


def _links(config: BrokerConfig, machinery: Machinery) -> NodeLinks:
    return NodeLinks(
        machinery.ports,
        machinery.tick,
        machinery.pool,
        machinery.watch,
        f"broker-{config.node_id}",
        config.secret,
        config.cluster_id,
    )
