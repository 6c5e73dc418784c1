"""Leaderships go back to the preferred replicas, some at a time, once those are active and in sync again.

This happens at intervals, and once more when the whole cluster has been restarted: the broker that stopped last or
returned first leads everything then, and waiting would help no client. So the leaders return as soon as all brokers
have registered again and every replica is in sync; the decision about each move is the same. A broker that
returns is not flooded: each step moves a bounded number, then there is a pause.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from common.decision import Decision
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty
from common.pacing import Work
from kraft.controller.driver import ControllerDriver
from kraft.controller.elections import return_leaders
from kraft.controller.policy import ControllerPolicy
from kraft.image.delta import MetadataDelta
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
    restart_look_s: float = 0.5  # how often a restarted cluster is looked at, until it is whole


class LeaderReturn:
    """Owns one task. Tell it of every change of the metadata, on every controller: which one will be active when a
    cluster starts is not known before."""

    def __init__(self, driver: ControllerDriver, policy: ControllerPolicy, config: LeaderReturnConfig) -> None:
        self._driver = driver
        self._policy = policy
        self._config = config
        self._all_were_down = False
        self._since = -1  # brokers whose epoch is larger have registered under this leadership
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.brokers_changed:
            self._note_brokers(image)
        if self._all_were_down and not self._driver.is_active and _is_whole(image):
            self._all_were_down = False  # the controller that is active returns the leaders; who follows it need not

    def became_active(self) -> None:
        image = self._driver.image
        self._since = image.offset
        self._note_brokers(image)

    def _note_brokers(self, image: MetadataImage) -> None:
        if not any(broker.is_active for broker in image.brokers.values()):
            self._all_were_down = True
        self._changed.set()

    def start(self) -> None:
        if self._config.enabled:
            self._task = asyncio.create_task(self._run(), name=duty("leader-return"))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + self._config.interval_s
        while True:
            image = self._driver.image
            restarted = self._driver.is_active and self._has_restarted(image)
            if loop.time() >= due_s or (restarted and _is_whole(image)):
                if restarted:
                    self._all_were_down, self._since = False, image.offset
                await self._return_all()
                due_s = loop.time() + self._config.interval_s
                continue
            self._changed.clear()
            left_s = due_s - loop.time()
            try:
                async with asyncio.timeout(min(left_s, self._config.restart_look_s) if restarted else left_s):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def _return_all(self) -> None:
        while self._driver.is_active:
            if not await self._step():
                return
            await asyncio.sleep(self._config.step_pause_s)

    def _has_restarted(self, image: MetadataImage) -> bool:
        """Whether every broker has been away and is back."""
        if not _all_are_active(image):
            return False
        return self._all_were_down or all(broker.epoch > self._since for broker in image.brokers.values())

    async def _step(self) -> bool:
        """Whether a whole step's worth was moved, so that there may be more."""
        limit = self._config.moves_per_step

        def decide(image: MetadataImage) -> Work[Decision[MetadataRecord, int]]:
            changes = yield from return_leaders(image, self._policy, limit)
            return Decision(len(changes), list(changes))

        try:
            moved: int = await self._driver.write(decide)
        except (ProtocolError, OutcomeUnknown):
            return False
        if moved:
            log.info("leaderships returned", extra={"count": moved})
        return moved >= limit


def _is_whole(image: MetadataImage) -> bool:
    """Whether every broker is active, and every replica in sync."""
    return not image.topics.index.short and _all_are_active(image)


def _all_are_active(image: MetadataImage) -> bool:
    """Of brokers, of which there have to be some: none yet is no restart of all."""
    return bool(image.brokers) and all(broker.is_active for broker in image.brokers.values())
