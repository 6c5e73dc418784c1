"""A broker's standing with the controller: registration, heartbeats, fencing and the controlled way out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from common.ports import Ports
from kraft.controller_channel import ControllerChannel
from kraft.records import Endpoint


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
    """What a broker says of itself. `previous_broker_epoch` is that of a run that stopped cleanly, else -1."""

    broker_id: int
    cluster_id: str
    incarnation: bytes
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    log_dirs: tuple[bytes, ...]
    previous_broker_epoch: int
    features: Mapping[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class LifecycleConfig:
    """Seconds."""

    heartbeat_interval_s: float = 0.5
    call_timeout_s: float = 1.5
    registration_pause_s: float = 0.2
    shutdown_timeout_s: float = 20.0
    shutdown_poll_s: float = 0.05


class BrokerLifecycle:
    """Owns one task. `metadata_offset` tells how far the local image is."""

    def __init__(
        self,
        ports: Ports,
        channel: ControllerChannel,
        registration: Registration,
        config: LifecycleConfig,
        metadata_offset: Callable[[], int],
        on_fatal: Callable[[str], None],
        on_reregistered: Callable[[int], None] | None = None,
    ) -> None:
        """`on_fatal` gets a sentence when the controller refuses this broker for good (another process has its id,
        another cluster). `on_reregistered` gets a new broker epoch when the controller had forgotten the old one."""
        self.state = BrokerState.STARTING
        self.broker_epoch = -1
        self.fenced = True

    async def start(self) -> int:
        """Register, retrying until the controller answers; then heartbeats begin. Returns the broker epoch."""
        raise NotImplementedError

    def logs_recovered(self) -> None:
        """From now on the broker asks to be unfenced."""
        raise NotImplementedError

    async def wait_unfenced(self) -> None:
        raise NotImplementedError

    async def shut_down(self) -> bool:
        """Ask for a controlled shutdown and wait until the leaderships have moved; False after the timeout."""
        raise NotImplementedError

    def storage_failed(self, log_dirs: tuple[bytes, ...]) -> None:
        """Report that log directories went offline; the controller takes this broker out of all leaderships."""
        raise NotImplementedError

    async def stop(self) -> None:
        """End the heartbeats; idempotent."""
        raise NotImplementedError
