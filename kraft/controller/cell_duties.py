"""The active controller's work on cells: each gets its ranges of the internal topics, with replicas on its brokers."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass

from common.decision import Decision
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_task
from kraft.controller.driver import ControllerDriver
from kraft.controller.key_ranges import RangeStep, range_step
from kraft.controller.policy import ControllerPolicy
from kraft.controller.topic_names import KEYED_TOPICS
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import KeyRangeRecord, MetadataRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CellDutiesConfig:
    """Seconds. `look_s`: how often replicas that could not be moved are looked at again."""

    look_s: float = 2.0
    step_pause_s: float = 0.1


class CellDuties:
    """Owns one task. Tell it of every change of the metadata, on every controller."""

    def __init__(
        self, driver: ControllerDriver, policy: ControllerPolicy, rng: random.Random, config: CellDutiesConfig
    ) -> None:
        self._driver = driver
        self._policy = policy
        self._random = rng
        self._config = config
        self._problem = ""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.brokers_changed or delta.features_changed or delta.ranges_changed or _concerns(delta, image):
            self._changed.set()

    def became_active(self) -> None:
        self._changed.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=duty("cells"))

    async def stop(self) -> None:
        await end_task(self._task)
        self._task = None

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            step = await self._advance() if self._driver.is_active else RangeStep()
            if not step.records:
                try:
                    async with asyncio.timeout(self._config.look_s if step.waits else None):
                        await self._changed.wait()
                except TimeoutError:
                    pass
            await asyncio.sleep(self._config.step_pause_s)

    async def _advance(self) -> RangeStep:
        """Commit the next step; one that waits where that failed."""

        def decide(image: MetadataImage) -> Decision[MetadataRecord, RangeStep]:
            step = range_step(image, self._policy, self._random)
            return Decision(step, step.records)

        try:
            step: RangeStep = await self._driver.write(decide)
        except (ProtocolError, OutcomeUnknown):
            return RangeStep(waits=True)
        for record in step.records:
            if isinstance(record, KeyRangeRecord):
                log.info("cell got a range", extra={"cell": record.cell, "first": record.first, "count": record.count})
        if step.problem and step.problem != self._problem:  # once for each reason
            log.warning("a cell's range cannot move to its brokers", extra={"reason": step.problem})
        self._problem = step.problem
        return step


def _concerns(delta: MetadataDelta, image: MetadataImage) -> bool:
    """Whether an internal topic of which cells have ranges changed."""
    changed = dict.fromkeys(topic_id for topic_id, _ in delta.partitions_changed)
    names = (topic.name for topic_id in changed if (topic := image.topics.get_by_id(topic_id)) is not None)
    return any(name in KEYED_TOPICS for name in names)
