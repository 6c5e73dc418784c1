"""A controller process: quorum, state machine, driver and the internal listener."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from common.identifiers import parse_uuid
from common.metrics import Metrics
from common.node_settings.controllers import ControllerSettings
from common.node_settings.shares import ShareSettings
from common.pacing import Pacer, Strain
from common.ports import Address, Ports
from common.settings import same, seconds
from kraft.controller.balance_duties import BalanceDuties
from kraft.controller.balance_status import BalanceStatus
from kraft.controller.cell_duties import CellDuties
from kraft.controller.driver import ControllerDriver, DriverConfig
from kraft.controller.health_duties import HealthConfig, HealthDuties
from kraft.controller.leader_return import LeaderReturn, LeaderReturnConfig
from kraft.controller.liveness import BrokerLiveness, LivenessConfig
from kraft.controller.metadata_fetch import MetadataFetch
from kraft.controller.node_metrics import register_metrics
from kraft.controller.piecework import Piecework, PieceworkConfig
from kraft.controller.policy import ControllerPolicy
from kraft.controller.quorum_description import QuorumView
from kraft.controller.quota_coordinator import QuotaCoordinator
from kraft.controller.reported_usage import ReportedUsage
from kraft.controller.requests import ControllerRequests
from kraft.controller.state_machine import MetadataStateMachine
from kraft.controller.stepper import Act, Stepper
from kraft.controller.tenant_duties import TenantDuties
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.metadata_log import MetadataLog
from kraft.quorum.quorum import QuorumConfig, RaftQuorum
from wire.buffers import BufferPool
from wire.listeners import ListenerConfig
from wire.mutual_network import MutualNetwork
from wire.server import Server, ServerLimits
from wire.tick import Tick
from wire.tls import SecuredNetwork, TlsConfig, TlsContexts
from wire.violation_log import ViolationLog
from wire.watch import Watch

log = logging.getLogger(__name__)

CLOSE_GRACE_S = 0.2
READY_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """`voters`: consensus addresses of all voters, including this one; `listener`: internal. `directory` is relative to
    the node's disk. `cluster` binds the nodes' proofs to one cluster. `tls`: for the listener and the links between
    voters."""

    node_id: int
    voters: Mapping[int, Address]
    listener: ListenerConfig
    secret: bytes
    tls: TlsConfig | None = None
    directory: str = "__cluster_metadata-0"
    cluster: str = ""
    policy: ControllerPolicy = field(default_factory=ControllerPolicy)
    driver: DriverConfig = field(default_factory=DriverConfig)
    liveness: LivenessConfig = field(default_factory=LivenessConfig)
    leader_return: LeaderReturnConfig = field(default_factory=LeaderReturnConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    quorum: QuorumConfig = field(default_factory=QuorumConfig)
    limits: ServerLimits = field(default_factory=ServerLimits)
    shares: ShareSettings = field(default_factory=ShareSettings)
    usage_report_interval_s: float = same(ControllerSettings, "usage_report_interval_ms", seconds)
    tail_batches_max: int = same(ControllerSettings, "metadata_tail_batches_max")
    tail_bytes_max: int = same(ControllerSettings, "metadata_tail_bytes_max")


class ControllerNode:
    """Create it while its event loop runs. `fatal` is called with a message when the node must stop."""

    def __init__(self, ports: Ports, config: ControllerConfig, fatal: Callable[[str], None]) -> None:
        listener, ports, voters_ports = _secured(config, ports)
        self._clock = ports.clock
        self._config = config
        self.pacer = Pacer(strain=Strain(ports.clock.monotonic, ports.displaced, ports.offer))
        self.machine = MetadataStateMachine(MetadataLog(config.tail_batches_max, config.tail_bytes_max))
        self.quorum = RaftQuorum(
            ports=voters_ports,
            node_id=config.node_id,
            voters=dict(config.voters),
            directory=config.directory,
            secret=config.secret,
            state_machine=self.machine,
            config=config.quorum,
            pacer=self.pacer,
            fatal=fatal,
        )
        self.machine.subscribe(self._applied)
        self.driver = ControllerDriver(
            ports=ports,
            node_id=config.node_id,
            quorum=self.quorum,
            machine=self.machine,
            policy=config.policy,
            config=config.driver,
            pacer=self.pacer,
            on_active=self._activity_changed,
            fatal=fatal,
        )
        self.health = HealthDuties(config.policy, ports.clock, config.health, config.usage_report_interval_s)
        self.liveness = self._make_liveness(ports)
        self._piecework = Piecework(self.driver, config.policy, PieceworkConfig())
        self._clock = ports.clock
        self.usage = ReportedUsage(config.usage_report_interval_s)
        self.quotas = QuotaCoordinator(self.usage, config.policy, config.shares)
        tenants = TenantDuties(self.driver, config.policy, ports.random, ports.clock)
        balance = BalanceStatus()
        self.balance = BalanceDuties(config.policy, ports, balance, self.usage, self.liveness.loads)
        acts: list[Act[Any]] = [tenants, CellDuties(config.policy, ports.random), self.health, self.balance]
        if config.leader_return.enabled:
            acts.append(LeaderReturn(self.driver, config.policy, ports.clock, config.leader_return))
        followers = [self._piecework.applied, self.usage.applied, self.quotas.applied, *(act.applied for act in acts)]
        for applied in followers:
            self.machine.subscribe(applied)
        self._steppers = [Stepper(self.driver, act) for act in acts]
        self._requests = ControllerRequests(
            driver=self.driver,
            liveness=self.liveness,
            fetch=MetadataFetch(self.machine, self.pacer, self._in_touch),
            policy=config.policy,
            tenants=tenants,
            usage=self.usage,
            balance=balance,
            health=self.health,
            quotas=self.quotas,
            rng=ports.random,
            clock=ports.clock,
            quorum_view=self._quorum_view,
            pacer=self.pacer,
        )
        self._watch = Watch()
        self.metrics = Metrics()
        register_metrics(self.metrics, self)
        self.server = self._make_server(ports, listener)
        self.server.register_certificates(self.metrics)

    def _quorum_view(self) -> QuorumView:
        clock = self._clock
        return QuorumView(
            image=self.machine.image,
            log=self.machine.log,
            voters=self._config.voters,
            followers=self.quorum.followers(),
            brokers=self.liveness.heard(),
            wall_ms=clock.wall_ms(),
            now_s=clock.monotonic(),
        )

    def _make_liveness(self, ports: Ports) -> BrokerLiveness:
        config = self._config
        return BrokerLiveness(
            ports=ports,
            quorum=self.quorum,
            driver=self.driver,
            policy=config.policy,
            config=config.liveness,
            listener=config.listener.name,
            heard=self.health.heard,
        )

    def _make_server(self, ports: Ports, listener: ListenerConfig) -> Server:
        connection = self._config.limits.connection
        return Server(
            ports=ports,
            listeners=[listener],
            handler=self._requests.frame,
            closed=self._requests.closed,
            violated=ViolationLog(log, connection.violation_lines_max).report,
            limits=self._config.limits,
            tick=Tick(),
            pool=BufferPool(connection.queued_max_request_bytes, connection.reply_bytes_max),
            watch=self._watch,
            secret=self._config.secret,
            cluster=self._config.cluster,
        )

    async def start(self) -> None:
        """Listen, recover and join; returns when this voter votes. Raises as `RaftQuorum.start`, and OSError."""
        self.liveness.loads.measured_by(lambda broker_id: self.usage.load_of(broker_id, self.now_s()))
        self.server.check_addresses()
        await self.driver.start()
        self.liveness.start()
        self._piecework.start()
        await self.quorum.start()
        self.server.start()

    async def wait_ready(self) -> None:
        """Wait until this voter has applied everything that a leader has committed. Then another voter may be stopped:
        any that is elected serves at once."""
        while self.ready_problem() is not None:  # noqa: ASYNC110  at a start alone; neither has an event
            await asyncio.sleep(READY_POLL_S)

    def ready_problem(self) -> str | None:
        """Why this controller is not ready; None if it is."""
        if self.quorum.leader_id is None:
            return "this voter knows no leader of the quorum"
        if not self.quorum.has_caught_up:
            return "this voter has not applied all committed metadata yet"
        return None if self.machine.image.cluster_id is not None else "no metadata has been committed yet"

    def health_problem(self) -> str | None:
        """A controller whose journal fails stops at once, so one that answers is healthy."""
        return None

    async def stop(self) -> None:
        """Resign, hand over the leadership and stop."""
        self.server.stop_accepting()
        for stepper in self._steppers:
            await stepper.stop()
        await self._piecework.stop()
        await self.liveness.stop()
        await self.driver.stop()
        await self.quorum.stop()
        await self._requests.stop()
        await self.server.close(CLOSE_GRACE_S)
        self._watch.close()

    @property
    def image(self) -> MetadataImage:
        """The committed metadata that this voter has applied."""
        return self.machine.image

    @property
    def policy(self) -> ControllerPolicy:
        return self._config.policy

    def now_s(self) -> float:
        """The monotonic clock's, by which brokers' reports are dated."""
        return self._clock.monotonic()

    @property
    def address(self) -> Address:
        """The bound address of the internal listener."""
        return self.server.addresses[self._config.listener.name]

    def _applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if image.cluster_id is not None and delta.base.cluster_id is None:
            self.quorum.adopt_cluster_id(parse_uuid(image.cluster_id))

    def _activity_changed(self, is_active: bool) -> None:
        self.usage.restart(self.now_s())
        self.quotas.restart(self.now_s())
        if is_active:
            self.liveness.became_active()
            self._piecework.became_active()
        for stepper in self._steppers:
            stepper.activity_changed(is_active)

    def _in_touch(self) -> bool:
        return self.quorum.has_quorum_contact() if self.quorum.is_leader else self.quorum.leader_id is not None


def _secured(config: ControllerConfig, ports: Ports) -> tuple[ListenerConfig, Ports, Ports]:
    """The listener, the ports for links, and the ports for voters: plaintext, or both over TLS."""
    if config.tls is None:
        return config.listener, ports, ports
    contexts = TlsContexts(config.tls, ports.clock)
    return (
        replace(config.listener, tls=contexts),
        replace(ports, network=SecuredNetwork(ports.network, contexts)),
        replace(ports, network=MutualNetwork(ports.network, contexts)),
    )
