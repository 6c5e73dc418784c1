"""The active controller's work on cells: each gets ranges of the internal topics, with replicas on its brokers."""

from __future__ import annotations

import logging
import random

from common.pacing import Work
from kraft.controller.key_ranges import RangeStep, range_step
from kraft.controller.policy import ControllerPolicy
from kraft.controller.stepper import Act
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import KeyRangeRecord
from kraft.topic_names import CLIENT_KEY_TOPICS

log = logging.getLogger(__name__)


LOOK_S = 2.0  # interval of retries for replicas that could not be moved


class CellDuties(Act[RangeStep]):
    name, pause_s = "cells", 0.1

    def __init__(self, policy: ControllerPolicy, rng: random.Random) -> None:
        super().__init__()
        self._policy = policy
        self._random = rng
        self._waits = False

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        if delta.brokers_changed or delta.features_changed or delta.ranges_changed or _concerns(delta, image):
            self.changed.set()

    def step(self, image: MetadataImage, subject: str) -> Work[RangeStep]:
        return range_step(image, self._policy, self._random)

    def committed(self, subject: str, step: RangeStep) -> None:
        self._waits = step.waits
        for record in step.records:
            if isinstance(record, KeyRangeRecord):
                log.info("cell got a range", extra={"cell": record.cell, "first": record.first, "count": record.count})

    def look_s(self, image: MetadataImage) -> float | None:
        return LOOK_S if self._waits else None


def _concerns(delta: MetadataDelta, image: MetadataImage) -> bool:
    """Whether an internal topic with ranges has changed."""
    if not delta.partitions_changed:
        return False
    ids = [topic_id for name in CLIENT_KEY_TOPICS if (topic_id := image.topics.ids.get(name)) is not None]
    return any(image.topics.by_id[one] is not delta.base.topics.by_id.get(one) for one in ids)
