"""Registrations and heartbeats at the active controller, and fencing of silent brokers.

Most heartbeats change nothing durable and are answered from the committed image. They are answered only while a
majority of the voters answers this node, so that a controller that is cut off keeps no broker unfenced.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from common.decision import Decision
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_tasks
from common.node_settings.controllers import ControllerSettings
from common.ports import Ports
from common.settings import same, seconds
from kraft.batches import MetadataRecord
from kraft.controller.attribution import attributed
from kraft.controller.broker_loads import BrokerLoads
from kraft.controller.broker_removal import is_listed
from kraft.controller.brokers import decide_heartbeat, decide_registration, decide_unregister, fence
from kraft.controller.driver import ControllerDriver, Quorum, not_controller
from kraft.controller.policy import ControllerPolicy
from kraft.controller.sessions import BrokerSessions, Session
from kraft.image.metadata import MetadataImage
from kraft.records import Cause
from wire.messages import (
    BrokerHeartbeatRequest,
    BrokerHeartbeatResponse,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)

log = logging.getLogger(__name__)

LATE_S_MIN = 0.05
"""Below this, a late timer only shows a busy machine, on which messages were still read."""


@dataclass(frozen=True, slots=True)
class LivenessConfig:
    """Seconds."""

    session_timeout_s: float = same(ControllerSettings, "broker_session_timeout_ms", seconds)
    suspicion_s: float = same(ControllerSettings, "broker_suspicion_ms", seconds)
    probe_pause_s: float = 0.03
    """Between two probes whether a suspected broker's process still listens."""
    late_s: float = 0.5
    """A timer that fires this late shows a stall of this process, not the brokers' silence."""
    retry_s: float = 0.1


class BrokerLiveness:
    """Owns the fencing task, and one task per suspected broker."""

    def __init__(
        self,
        ports: Ports,
        quorum: Quorum,
        driver: ControllerDriver,
        policy: ControllerPolicy,
        config: LivenessConfig,
        listener: str = "",
        heard: Callable[[int, bool], None] = lambda broker_id, is_silent: None,
    ) -> None:
        """`listener`: name of the brokers' internal listener. `heard` is called at each heartbeat with whether clients
        have been silent at that broker for long."""
        self._clock = ports.clock
        self._network = ports.network
        self._listener = listener
        self._heard = heard
        self._quorum = quorum
        self._driver = driver
        self._policy = policy
        self._config = config
        self._sessions = BrokerSessions(config.session_timeout_s, config.suspicion_s)
        self.loads = BrokerLoads()
        self._moved_by: dict[int, int] = {}  # broker in controlled shutdown → offset at which its moves are known
        self._fenced_by: dict[int, int] = {}  # fenced broker → offset that it must reach before it is unfenced
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._probes: dict[int, asyncio.Task[None]] = {}
        self.fenced_count = 0

    def start(self) -> None:
        self._task = asyncio.create_task(self._watch(), name=duty("broker-liveness"))

    async def stop(self) -> None:
        await end_tasks([*self._probes.values(), *([self._task] if self._task is not None else [])])
        self._probes.clear()
        self._task = None

    def became_active(self) -> None:
        """Give every broker a whole session timeout. A broker that died with the last controller has no connection here
        that could close, so all brokers are probed until they are heard."""
        image = self._driver.image
        unfenced = [(broker.broker_id, broker.epoch) for broker in image.unfenced_brokers()]
        self._sessions.restart(unfenced, self._clock.monotonic())
        self._moved_by.clear()
        self._fenced_by.clear()
        self.loads.restart()
        self._changed.set()
        for broker_id, broker_epoch in unfenced:
            self._look_at(broker_id, broker_epoch, self._config.suspicion_s)

    def _look_at(self, broker_id: int, broker_epoch: int, pause_s: float) -> None:
        if broker_id not in self._probes:
            probe = self._probe(broker_id, broker_epoch, pause_s)
            self._probes[broker_id] = asyncio.create_task(probe, name=f"probe-{broker_id}")

    def connection_closed(self, connection: int) -> None:
        """The connection, on which heartbeats may have come, has closed."""
        if self._task is None:  # stopped: the listener closes its connections later
            return
        for broker_id, broker_epoch in self._sessions.connection_closed(connection, self._clock.monotonic()):
            self._look_at(broker_id, broker_epoch, self._config.probe_pause_s)
        self._changed.set()

    async def _probe(self, broker_id: int, broker_epoch: int, pause_s: float) -> None:
        """Probe whether a suspected broker's process still listens; a refused connection proves that it does not."""
        try:
            while self._sessions.is_suspected(broker_id, broker_epoch, self._clock.monotonic()):
                broker = self._driver.image.brokers.get(broker_id)
                address = (
                    broker.address(self._listener) if broker is not None and broker.epoch == broker_epoch else None
                )
                if address is None:
                    return
                try:
                    async with asyncio.timeout(self._config.suspicion_s):
                        (await self._network.connect(address)).abort()
                except ConnectionRefusedError:
                    self._sessions.found_gone(broker_id, broker_epoch, self._clock.monotonic())
                    self._changed.set()
                    return
                except OSError:  # may be unreachable from this controller only
                    pass
                await asyncio.sleep(pause_s)  # while a process dies, its listener may outlive its connections
        finally:
            self._probes.pop(broker_id, None)

    def heard(self) -> list[tuple[int, Session]]:
        """The sessions of the brokers, by id, that have been heard in this leadership."""
        return self._sessions.of_heard()

    async def register(self, request: BrokerRegistrationRequest) -> BrokerRegistrationResponse:
        """Raises ProtocolError and OutcomeUnknown as `ControllerDriver.write`."""

        def decide(image: MetadataImage) -> Decision[MetadataRecord, BrokerRegistrationResponse]:
            has_session = self._sessions.is_live(request.broker_id, self._clock.monotonic())
            return decide_registration(image, request, self._policy, has_session=has_session)

        reply = await self._driver.write(decide)
        if reply.error_code == 0:
            self._moved_by.pop(request.broker_id, None)
            log.info("broker registered", extra={"broker": request.broker_id, "broker_epoch": reply.broker_epoch})
        return reply

    async def unregister(self, request: UnregisterBrokerRequest, actor: str = "") -> UnregisterBrokerResponse:
        def decide(image: MetadataImage) -> Decision[MetadataRecord, UnregisterBrokerResponse]:
            return decide_unregister(image, request, self._policy)

        reply = await self._driver.write(attributed(decide, actor))
        self._sessions.forget(request.broker_id)
        return reply

    async def heartbeat(self, request: BrokerHeartbeatRequest, connection: int) -> BrokerHeartbeatResponse:
        """Raises NOT_CONTROLLER if this controller is not active or has no contact to a majority."""
        if not (self._driver.is_active and self._quorum.has_quorum_contact()):
            raise not_controller()
        image = self._driver.image
        decision = self._decide(image, request)
        broker = image.brokers.get(request.broker_id)
        if broker is not None and broker.epoch == request.broker_epoch:
            self._sessions.heard(
                broker.broker_id,
                broker.epoch,
                request.current_metadata_offset,
                connection,
                self._clock.monotonic(),
                image.next_offset,
            )
            self.loads.heard(
                broker.broker_id, broker.epoch, request.bytes_per_second, request.cpu_share, self._clock.monotonic()
            )
            self._heard(broker.broker_id, request.no_client_traffic)
            self._changed.set()
        if not decision.records:
            return decision.reply
        reply = await self._driver.write(lambda newest: self._decide(newest, request))
        if not reply.is_fenced:
            self._fenced_by.pop(request.broker_id, None)
        return reply

    def _decide(
        self, image: MetadataImage, request: BrokerHeartbeatRequest
    ) -> Decision[MetadataRecord, BrokerHeartbeatResponse]:
        return decide_heartbeat(
            image,
            request,
            self._policy,
            moves_seen=self._moves_seen(request.broker_id),
            fencing_seen=self._fencing_seen(request.broker_id, request.current_metadata_offset),
            now_ms=self._clock.wall_ms(),
        )

    def _fencing_seen(self, broker_id: int, known_offset: int) -> bool:
        image = self._driver.image
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.fenced:
            self._fenced_by.pop(broker_id, None)
            return True
        if is_listed(image, broker_id):
            return False
        return known_offset >= self._fenced_by.setdefault(broker_id, image.offset)

    def _moves_seen(self, broker_id: int) -> bool:
        image = self._driver.image
        broker = image.brokers.get(broker_id)
        if broker is None or not broker.in_controlled_shutdown:
            self._moved_by.pop(broker_id, None)
            return False
        if is_listed(image, broker_id):
            return False
        offset = self._moved_by.setdefault(broker_id, image.offset)
        return self._sessions.all_have_seen(offset, [b.broker_id for b in image.brokers.values() if b.is_active])

    async def _watch(self) -> None:
        """Fence at each deadline. After a stall of this process, all brokers get a new timeout instead."""
        while True:
            self._changed.clear()
            deadline = self._sessions.next_deadline() if self._driver.is_active else None
            now = self._clock.monotonic()
            if deadline is None or deadline > now:
                wait_s = None if deadline is None else deadline - now
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                    continue
                except TimeoutError:
                    now = self._clock.monotonic()
            if deadline is not None and now - deadline > self._config.late_s:
                log.warning("stalled: sessions start over", extra={"late_s": round(now - deadline, 3)})
                self.became_active()
                continue
            if deadline is not None and now - deadline > LATE_S_MIN:  # their heartbeats may wait in the sockets
                self._sessions.forgive_stall(now - deadline, now)
            await self._fence_expired(now)

    async def _fence_expired(self, now: float) -> None:
        for broker_id, broker_epoch, cause in self._sessions.expired(now):
            broker = self._driver.image.brokers.get(broker_id)
            if broker is None or broker.epoch != broker_epoch or broker.fenced:
                self._sessions.forget(broker_id)
                continue
            try:
                await self._driver.write(self._fencing(broker_id, broker_epoch, cause))
            except (ProtocolError, OutcomeUnknown):
                await asyncio.sleep(self._config.retry_s)
                return

    def _fencing(
        self, broker_id: int, broker_epoch: int, cause: Cause
    ) -> Callable[[MetadataImage], Decision[MetadataRecord, None]]:
        def decide(image: MetadataImage) -> Decision[MetadataRecord, None]:
            broker = image.brokers.get(broker_id)
            # The broker may have been heard, or have registered again, while this waited.
            if broker is None or not self._sessions.is_expired(broker_id, broker_epoch, self._clock.monotonic()):
                return Decision(None)
            if broker.epoch != broker_epoch or broker.fenced:
                return Decision(None)
            self.fenced_count += 1
            log.warning("broker fenced", extra={"broker": broker_id, "cause": cause.name})
            return Decision(None, fence(image, broker, self._policy, cause))

        return decide
