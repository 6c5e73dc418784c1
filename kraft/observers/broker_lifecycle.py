"""A broker's registration with the controller: registration, heartbeats, fencing and controlled shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from common.errors import ErrorCode, OutcomeUnknown
from common.identifiers import ZERO_UUID
from common.lifecycle import duty, end_task
from common.node_settings.controllers import ControllerSettings
from common.node_settings.replication import ReplicationSettings
from common.ports import Ports
from common.settings import same, seconds
from kraft.observers.controller_channel import ControllerChannel, ControllerUnavailable
from kraft.records import Endpoint
from wire.messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse, BrokerRegistrationRequest, schema_uuid

log = logging.getLogger(__name__)

REGISTRATION_VERSION = 4
HEARTBEAT_VERSION = 1
_WRONG_FOR_GOOD: Mapping[int, str] = {
    ErrorCode.INCONSISTENT_CLUSTER_ID: "it belongs to another cluster",
    ErrorCode.INVALID_REGISTRATION: "its id, rack, cell or listeners are not valid",
    ErrorCode.UNSUPPORTED_VERSION: "it lacks a feature level that the cluster has finalised",
}


class RegistrationRefused(Exception):
    """The controller rejects this broker permanently; the text has the reason."""


class BrokerState(StrEnum):
    """STARTING → RECOVERING (registered, fenced) → RUNNING (unfenced; fenced again and back at need) → STOPPING →
    STOPPED."""

    STARTING = "starting"
    RECOVERING = "recovering"
    RUNNING = "running"
    STOPPING = "shutting down"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Registration:
    """A broker's registration data. `previous_broker_epoch`: epoch of the last run if it lost nothing that it had
    appended (it stopped cleanly, or was killed and the page cache survived), else -1. `start_id`: of the starts since
    that run, whose epochs are unknown because they were killed; a zero uuid if there is no such run."""

    broker_id: int
    cluster_id: str
    incarnation: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    log_dirs: tuple[bytes, ...]
    previous_broker_epoch: int
    features: Mapping[str, tuple[int, int]]
    cell: str | None = None
    start_id: bytes = ZERO_UUID


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """Seconds."""

    heartbeat_interval_s: float = same(ControllerSettings, "broker_heartbeat_interval_ms", seconds)
    call_timeout_s: float = 1.5
    registration_pause_s: float = 0.1
    duplicate_patience_s: float = 10.0  # longer than any session of this broker's last run can last
    shutdown_timeout_s: float = same(ReplicationSettings, "controlled_shutdown_timeout_ms", seconds)
    shutdown_poll_s: float = 0.05
    retry_s: float = 0.05


class BrokerLoad(NamedTuple):
    """Bytes per second received and sent, and CPU share of one processor (1.0: all of it)."""

    bytes_per_second: int = 0
    cpu_share: float = 0.0


class BrokerLifecycle:
    """Owns one task. Needs its own channel, because the controller treats the end of its connection as a sign of
    failure.

    `metadata_offset` returns the local image's offset. Every heartbeat is answered or abandoned within
    `call_timeout_s`; after a failure the next one follows at once.
    """

    def __init__(
        self,
        ports: Ports,
        channel: ControllerChannel,
        registration: Registration,
        config: LifecycleConfig,
        metadata_offset: Callable[[], int],
        on_fatal: Callable[[str], None],
        lacks_room: Callable[[], bool] = lambda: False,
        load: Callable[[], BrokerLoad] = BrokerLoad,
        lacks_clients: Callable[[float], bool] = lambda answered_s: False,
    ) -> None:
        """`on_fatal` gets a message when the controller rejects this broker permanently: another process has its id, it
        belongs to another cluster, it was unregistered. Before each heartbeat, `lacks_room` returns whether other
        brokers should lead because this broker's disk is full, `load` the load since the last call, and
        `lacks_clients` whether clients do not reach this broker; it gets the seconds for which heartbeats were
        answered."""
        self.state = BrokerState.STARTING
        self.broker_epoch = -1
        self.fenced = True
        self._channel = channel
        self._registration = registration
        self._config = config
        self._metadata_offset = metadata_offset
        self._on_fatal = on_fatal
        self._lacks_room = lacks_room
        self._load = load
        self._lacks_clients = lacks_clients
        self._answered_since: float | None = None  # loop seconds; None after a heartbeat without an answer
        self._wants_unfence = False
        self._wants_shutdown = False
        self._unfenced_at = float(
            "-inf"
        )  # loop seconds: when the last heartbeat that found this broker unfenced was sent
        self._offline: tuple[bytes, ...] = ()
        self._withdraws = False
        self._end_heard = asyncio.Event()  # a controller knows that this process is going to end
        self._may_stop = asyncio.Event()
        self._unfenced = asyncio.Event()
        self._hurry = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Register, retrying until the controller answers; then heartbeats begin. Returns the broker epoch.

        Raises RegistrationRefused.
        """
        loop = asyncio.get_running_loop()
        duplicate_until = 0.0
        while self.broker_epoch < 0:
            try:
                answer = await self._channel.call(
                    self._registration_request(), REGISTRATION_VERSION, timeout_s=self._config.call_timeout_s
                )
            except (ControllerUnavailable, OutcomeUnknown) as error:
                log.warning("not registered yet", extra={"reason": str(error)})
                await asyncio.sleep(self._config.registration_pause_s)
                continue
            if answer.error_code == ErrorCode.NONE:
                self.broker_epoch = answer.broker_epoch
                break
            reason = _WRONG_FOR_GOOD.get(answer.error_code)
            if reason is not None:
                raise RegistrationRefused(f"broker {self._registration.broker_id} cannot register: {reason}")
            if answer.error_code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                duplicate_until = duplicate_until or loop.time() + self._config.duplicate_patience_s
                if loop.time() > duplicate_until:
                    raise RegistrationRefused(
                        f"broker {self._registration.broker_id} cannot register: another process has this node.id, "
                        "and it is alive"
                    )
            await asyncio.sleep(self._config.registration_pause_s)
        self.state = BrokerState.RECOVERING
        self._task = asyncio.create_task(self._beat(), name=duty("broker-heartbeat"))
        return self.broker_epoch

    async def register_unclean(self, incarnation: bytes) -> int:
        """Register again as a broker that has lost records, because recovery found more loss than the first
        registration reported. Returns the new broker epoch when the first session is over. Raises
        RegistrationRefused."""
        await self.stop()
        self._registration = replace(
            self._registration, incarnation=incarnation, previous_broker_epoch=-1, start_id=ZERO_UUID
        )
        self.broker_epoch = -1
        return await self.start()

    def logs_recovered(self) -> None:
        """Request to be unfenced from now on."""
        self._wants_unfence = True
        self._hurry.set()

    async def wait_unfenced(self) -> None:
        """Wait until the broker was unfenced for the first time."""
        await self._unfenced.wait()

    async def shut_down(self) -> bool:
        """Request a controlled shutdown and wait until the leaderships have moved; False after the timeout."""
        self.state = BrokerState.STOPPING
        self._wants_shutdown = True
        self._hurry.set()
        if self._task is None:
            return False
        try:
            async with asyncio.timeout(self._config.shutdown_timeout_s):
                await self._may_stop.wait()
        except TimeoutError:
            return False
        return True

    async def storage_failed(self, log_dirs: tuple[bytes, ...]) -> bool:
        """Report failed log directories; the controller moves all leaderships away from this broker.

        Returns True when a controller has answered, False after a call's timeout. Call it before the process ends,
        because otherwise the leaderships stay until the session expires.
        """
        self._offline = log_dirs
        return await self._report_end()

    async def withdraw(self) -> str:
        """Ask to be fenced, because the disk does not answer and this process wants to end. Leaderships move at once.

        Returns "", or why this broker is not fenced and must go on: the controller keeps one that would be missed.
        """
        wanted_unfence, self._withdraws = self._wants_unfence, True
        self._end_heard.clear()
        answered = await self._report_end()
        if answered and self.fenced:
            return ""
        self._withdraws, self._wants_unfence = False, wanted_unfence
        return "another broker is down or unhealthy" if answered else "no controller has answered"

    async def _report_end(self) -> bool:
        self._wants_unfence = False
        self._hurry.set()
        if self._task is None or self._task.done():
            return False
        try:
            async with asyncio.timeout(self._config.call_timeout_s):
                await self._end_heard.wait()
        except TimeoutError:
            return False
        return True

    def unfenced_within(self, seconds: float) -> bool:
        """Whether a heartbeat sent within the last `seconds` found this broker unfenced."""
        return self._unfenced_at >= asyncio.get_running_loop().time() - seconds

    def metadata_advanced(self) -> None:
        """The local image moved: if the unfencing waits for that, report it at once."""
        if self.fenced and self._wants_unfence and self._metadata_offset() >= self.broker_epoch:
            self._hurry.set()

    async def stop(self) -> None:
        """Stop the heartbeats; idempotent."""
        task, self._task = self._task, None
        await end_task(task)
        self.state = BrokerState.STOPPED

    async def _beat(self) -> None:
        while True:
            self._hurry.clear()
            wait_s = self._config.heartbeat_interval_s
            tells_end = bool(self._offline) or self._withdraws
            sent_at = asyncio.get_running_loop().time()
            try:
                answer = await self._channel.call(
                    self._heartbeat_request(), HEARTBEAT_VERSION, timeout_s=self._config.call_timeout_s
                )
            except (ControllerUnavailable, OutcomeUnknown) as error:
                log.warning("no answer to a heartbeat", extra={"reason": str(error)})
                wait_s = self._config.retry_s
                self._answered_since = None
            else:
                if not self._heard(answer):
                    return
                if self._answered_since is None:
                    self._answered_since = sent_at
                if not self.fenced and not answer.error_code:
                    self._unfenced_at = sent_at
                if tells_end and not answer.error_code:
                    self._end_heard.set()
                if self._wants_shutdown:
                    wait_s = self._config.shutdown_poll_s
            try:
                async with asyncio.timeout(wait_s):
                    await self._hurry.wait()
            except TimeoutError:
                pass

    def _heard(self, answer: BrokerHeartbeatResponse) -> bool:
        """Process a response. Returns False if this broker has lost its registration."""
        code = answer.error_code
        if code in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED):
            why = "another process registered its id" if code == ErrorCode.STALE_BROKER_EPOCH else "it was unregistered"
            self.fenced = True
            if self._wants_shutdown:
                self._may_stop.set()
            else:
                self._on_fatal(f"broker {self._registration.broker_id} has to stop: {why}")
            return False
        if code:
            return True
        self.fenced = bool(answer.is_fenced)
        if not self.fenced:
            self._unfenced.set()
            if self.state is BrokerState.RECOVERING:
                self.state = BrokerState.RUNNING
        if self._wants_shutdown and answer.should_shut_down:
            self._may_stop.set()
        return True

    def _heartbeat_request(self) -> BrokerHeartbeatRequest:
        load, since = self._load(), self._answered_since
        answered_s = asyncio.get_running_loop().time() - since if since is not None else 0.0
        return BrokerHeartbeatRequest(
            broker_id=self._registration.broker_id,
            broker_epoch=self.broker_epoch,
            current_metadata_offset=self._metadata_offset(),
            want_fence=not self._wants_unfence,
            want_shut_down=self._wants_shutdown,
            offline_log_dirs=[schema_uuid(directory) for directory in self._offline],
            lacks_room=self._lacks_room(),
            storage_stuck=self._withdraws,
            no_client_traffic=self._lacks_clients(answered_s),
            bytes_per_second=load.bytes_per_second,
            cpu_share=load.cpu_share,
        )

    def _registration_request(self) -> BrokerRegistrationRequest:
        given = self._registration
        request = BrokerRegistrationRequest
        return request(
            broker_id=given.broker_id,
            cluster_id=given.cluster_id,
            incarnation_id=schema_uuid(given.incarnation),
            listeners=[
                request.Listener(name=e.name, host=e.host, port=e.port, security_protocol=e.security_protocol)
                for e in given.endpoints
            ],
            features=[
                request.Feature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in given.features.items()
            ],
            rack=given.rack,
            is_migrating_zk_broker=False,
            log_dirs=[schema_uuid(directory) for directory in given.log_dirs],
            previous_broker_epoch=given.previous_broker_epoch,
            cell=given.cell,
            start_id=schema_uuid(given.start_id),
        )
