"""A broker's membership of its cluster: the registration, and the heartbeats with what they report of the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from broker.config import BrokerConfig
from broker.heartbeat_report import LoadMeter, RoomWatch
from broker.lost_brokers import LostBrokers
from broker.network_probes import probe_id
from broker.network_watch import NetworkWatch
from common.identifiers import random_uuid
from common.lifecycle import duty, end_task
from common.ports import Ports
from kraft.features import SUPPORTED_FEATURES
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.observers.broker_lifecycle import BrokerLifecycle, LifecycleConfig, Registration
from kraft.observers.controller_channel import ControllerChannel
from kraft.records import Endpoint
from storage.directory.log_directory import LogDirectory

logger = logging.getLogger(__name__)

# after a restart, the old session ends within one session timeout; a new controller starts it once more
SESSIONS_UNTIL_DUPLICATE = 3


class Membership:
    """Create it while the event loop runs. `lifecycle` is None until `register`."""

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        channel: ControllerChannel,
        logs: LogDirectory,
        moved_bytes: Callable[[], int],
        client_frames: Callable[[], int],
        fatal: Callable[[str], None],
    ) -> None:
        """`channel` is for heartbeats alone. `moved_bytes` counts what all connections received and sent,
        `client_frames` the frames that did not come from other nodes. `fatal` is called with a message when
        the node must stop."""
        now = asyncio.get_running_loop().time
        self.lifecycle: BrokerLifecycle | None = None
        self.room = RoomWatch(logs.context.health, now)
        self.network = NetworkWatch(
            config.health.network_silence_ms / 1000, now, client_frames, probe_id(config.secret, config.node_id)
        )
        self.lost = LostBrokers(config.sessions.broker_session_timeout_ms / 1000, now)
        self._load = LoadMeter(now, ports.cpu_s, moved_bytes)
        self._ports = ports
        self._config = config
        self._channel = channel
        self._logs = logs
        self._fatal = fatal
        self._giving_up: asyncio.Task[None] | None = None

    @property
    def broker_epoch(self) -> int:
        """The epoch of the registration, -1 before it."""
        return self.lifecycle.broker_epoch if self.lifecycle is not None else -1

    async def register(
        self, cluster_id: str, applied_offset: Callable[[], int], recovery: Callable[[], Awaitable[None]]
    ) -> int:
        """Register while `recovery` of the log directory runs, which is open. Returns the broker epoch.

        `applied_offset` returns the metadata offset up to which roles are taken. Registers again when recovery found
        that records were lost. Raises RegistrationRefused, and as `recovery`.
        """
        lifecycle = self.lifecycle = self._make_lifecycle(cluster_id, applied_offset)
        claimed = self._logs.continues
        registering = asyncio.create_task(lifecycle.start(), name="register")
        try:
            await recovery()
            broker_epoch = await registering
            if self._logs.continues != claimed:
                broker_epoch = await lifecycle.register_unclean(random_uuid(self._ports.random))
        finally:
            registering.cancel()
            await asyncio.gather(registering, return_exceptions=True)
        return broker_epoch

    def logs_recovered(self) -> None:
        """Request to be unfenced from now on."""
        if self.lifecycle is not None:
            self.lifecycle.logs_recovered()

    async def wait_unfenced(self) -> None:
        """Wait until the controller has unfenced this broker for the first time."""
        if self.lifecycle is not None:
            await self.lifecycle.wait_unfenced()

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.lost.metadata_changed(delta, image)
        self.metadata_advanced()

    def metadata_advanced(self) -> None:
        """Roles are taken for another metadata offset."""
        if self.lifecycle is not None:
            self.lifecycle.metadata_advanced()

    def give_up(self, reason: str) -> None:
        """The only log directory failed, so the broker has nothing to serve: report it, so that leaderships move, then
        stop the node."""
        self._giving_up = asyncio.create_task(self._give_up(reason), name=duty("give-up"))

    async def _give_up(self, reason: str) -> None:
        try:
            lifecycle = self.lifecycle
            if lifecycle is not None and not await lifecycle.storage_failed((self._logs.directory_id,)):
                logger.warning("the failure of the log directory was not reported to a controller")
        finally:
            self._fatal(f"the log directory failed: {reason}")

    async def withdraw(self) -> str:
        """The storage is stuck: see `BrokerLifecycle.withdraw`. A broker without a registration may end."""
        return await self.lifecycle.withdraw() if self.lifecycle is not None else ""

    # stop --------------------------------------------------------------------------------------------------

    async def shut_down(self) -> None:
        """Request a controlled shutdown and wait until leaderships have moved, or its timeout has passed."""
        if self.lifecycle is not None and not await self.lifecycle.shut_down():
            logger.warning("leadership has not moved in time")

    async def reported(self) -> None:
        """Wait until a failure of the log directory, if there was one, is reported or cannot be."""
        if self._giving_up is not None:
            await self._giving_up

    async def stop(self) -> None:
        """Stop the heartbeats. A log directory that fails when it is closed is not reported any more: leaderships have
        moved, and the next start finds out."""
        await end_task(self._giving_up)
        if self.lifecycle is not None:
            await self.lifecycle.stop()

    def _make_lifecycle(self, cluster_id: str, applied_offset: Callable[[], int]) -> BrokerLifecycle:
        config, sessions = self._config, self._config.sessions
        registration = Registration(
            config.node_id,
            cluster_id,
            random_uuid(self._ports.random),
            tuple(
                Endpoint(listen.name, listen.advertised[0], listen.advertised[1], int(listen.protocol))
                for listen in config.listeners
            ),
            config.rack or None,
            (self._logs.directory_id,),
            self._logs.continues.broker_epoch,
            SUPPORTED_FEATURES,
            config.cell,
            self._logs.continues.start_id,
        )
        return BrokerLifecycle(
            ports=self._ports,
            channel=self._channel,
            registration=registration,
            config=LifecycleConfig(
                heartbeat_interval_s=sessions.broker_heartbeat_interval_ms / 1000,
                call_timeout_s=sessions.broker_session_timeout_ms / 2000,
                shutdown_timeout_s=config.replication.controlled_shutdown_timeout_ms / 1000,
                duplicate_patience_s=SESSIONS_UNTIL_DUPLICATE * sessions.broker_session_timeout_ms / 1000,
            ),
            metadata_offset=applied_offset,
            on_fatal=self._fatal,
            lacks_room=self.room.look,
            load=self._load.look,
            lacks_clients=self.network.look,
        )
