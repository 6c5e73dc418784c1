"""Leaderships go back to the preferred replicas, some at a time, once those are active and in sync again.

A broker that returns is not flooded: each step moves a bounded number, then there is a pause.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from common.decision import Decision
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty
from kraft.controller.driver import ControllerDriver
from kraft.controller.elections import changes_to_preferred_leaders
from kraft.controller.policy import ControllerPolicy
from kraft.image.metadata import MetadataImage
from kraft.records import MetadataRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderReturnConfig:
    """The settings that set the first two stand beside."""

    enabled: bool = True  # auto.leader.rebalance.enable
    interval_s: float = 300.0  # leader.imbalance.check.interval.seconds
    moves_per_step: int = 250
    step_pause_s: float = 0.5


class LeaderReturn:
    """Owns one task."""

    def __init__(self, driver: ControllerDriver, policy: ControllerPolicy, config: LeaderReturnConfig) -> None:
        self._driver = driver
        self._policy = policy
        self._config = config
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._config.enabled:
            self._task = asyncio.create_task(self._run(), name=duty("leader-return"))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            more = self._driver.is_active and await self._step()
            await asyncio.sleep(self._config.step_pause_s if more else self._config.interval_s)

    async def _step(self) -> bool:
        """Whether a whole step's worth was moved, so that there may be more."""
        limit = self._config.moves_per_step

        def decide(image: MetadataImage) -> Decision[MetadataRecord, int]:
            changes: list[MetadataRecord] = list(changes_to_preferred_leaders(image, self._policy, limit))
            return Decision(len(changes), changes)

        try:
            moved: int = await self._driver.write(decide)
        except (ProtocolError, OutcomeUnknown):
            return False
        if moved:
            log.info("leaderships returned", extra={"count": moved})
        return moved >= limit
