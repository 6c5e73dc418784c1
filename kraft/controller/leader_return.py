"""Return of leaderships to preferred replicas, some at a time, once those are active and in sync.

This happens at intervals, and additionally when the whole cluster has been restarted: then the broker that stopped last
or returned first leads everything, and waiting would not help. So leaders return as soon as all brokers have registered
again and every replica is in sync; the decision about each move is the same. To protect a returning broker, each step
moves a bounded number, then there is a pause.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from common.node_settings.replication import ReplicationSettings
from common.pacing import Work
from common.ports import Clock
from common.settings import same
from kraft.controller.driver import ControllerDriver
from kraft.controller.elections import return_leaders
from kraft.controller.policy import ControllerPolicy
from kraft.controller.stepper import Act, Step
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderReturnConfig:
    """When leadership returns to preferred replicas, and in what steps."""

    enabled: bool = same(ReplicationSettings, "auto_leader_rebalance_enable")
    interval_s: float = same(ReplicationSettings, "leader_imbalance_check_interval_seconds", float)
    moves_per_step: int = 250
    step_pause_s: float = 0.5
    restart_look_s: float = 0.5  # interval of checks of a restarted cluster until it is complete


class LeaderReturn(Act[Step]):
    """Records on every controller whether all brokers were down, because it is not known before which controller
    becomes active."""

    name = "leader-return"

    def __init__(
        self, driver: ControllerDriver, policy: ControllerPolicy, clock: Clock, config: LeaderReturnConfig
    ) -> None:
        super().__init__()
        self.pause_s = config.step_pause_s
        self._driver = driver
        self._policy = policy
        self._clock = clock
        self._config = config
        self._all_were_down = False
        self._since = -1  # brokers with a larger epoch have registered under this leadership
        self._is_returning = False  # until a step finds fewer moves than it may make
        self._due_s = 0.0

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.brokers_changed:
            self._note_brokers(image)
            self.changed.set()
        if self._all_were_down and not self._driver.is_active and _is_whole(image):
            self._all_were_down = False  # the active controller returns the leaders; a later one need not

    def became_active(self, image: MetadataImage) -> None:
        self._since = image.offset
        self._note_brokers(image)
        self._end()

    def _note_brokers(self, image: MetadataImage) -> None:
        if not any(broker.is_active for broker in image.brokers.values()):
            self._all_were_down = True

    def due(self, image: MetadataImage) -> Sequence[str]:
        restarted = self._has_restarted(image)
        if self._clock.monotonic() >= self._due_s or (restarted and _is_whole(image)):
            self._is_returning = True
            if restarted:
                self._all_were_down, self._since = False, image.offset
        return ("",) if self._is_returning else ()

    def step(self, image: MetadataImage, subject: str) -> Work[Step]:
        changes = yield from return_leaders(image, self._policy, self._config.moves_per_step)
        return Step(list(changes))

    def committed(self, subject: str, step: Step) -> None:
        if step.records:
            log.info("leaderships returned", extra={"count": len(step.records)})
        if len(step.records) < self._config.moves_per_step:
            self._end()

    def look_s(self, image: MetadataImage) -> float | None:
        left_s = max(0.0, self._due_s - self._clock.monotonic())
        return min(left_s, self._config.restart_look_s) if self._has_restarted(image) else left_s

    def _end(self) -> None:
        self._is_returning, self._due_s = False, self._clock.monotonic() + self._config.interval_s

    def _has_restarted(self, image: MetadataImage) -> bool:
        """Whether every broker was down and is back."""
        if not _all_are_active(image):
            return False
        return self._all_were_down or all(broker.epoch > self._since for broker in image.brokers.values())


def _is_whole(image: MetadataImage) -> bool:
    """Whether every broker is active, and every replica in sync."""
    return not image.topics.index.short and _all_are_active(image)


def _all_are_active(image: MetadataImage) -> bool:
    """False without brokers: a cluster without brokers was not restarted."""
    return bool(image.brokers) and all(broker.is_active for broker in image.brokers.values())
