"""The active controller's work on many partitions: one committed piece after another.

Partitions that brokers must leave are derived from the image before each piece. Partitions to check after an event
(those without a leader when a broker returns, reassignments when settings change) are a set of the image at that event;
a new controller checks all of them once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain, islice

from msgspec import Struct

from common.decision import Decision
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_task
from kraft.batches import MetadataRecord
from kraft.controller.broker_health import concerned_by
from kraft.controller.broker_removal import gone, removal_piece
from kraft.controller.driver import ControllerDriver
from kraft.controller.elections import (
    changes_where_brokers_are_unfit,
    changes_where_isr_suffices,
    changes_where_leaders_lack,
    standing_of,
)
from kraft.controller.policy import MIN_ISR, UNCLEAN_ELECTION, ControllerPolicy
from kraft.controller.reassignment import changes_where_moves_may_end
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import EMPTY_IMAGE, MetadataImage
from kraft.image.partition_index import PartitionKey
from kraft.records import Cause, PartitionChangeRecord

Look = Callable[[MetadataImage, ControllerPolicy, Iterable[PartitionKey]], list[PartitionChangeRecord]]


class PieceworkConfig(Struct, frozen=True):
    """Seconds. `unfit_look_s`: how often to check whether others can take over from brokers without room or health, if
    the metadata has changed."""

    retry_s: float = 0.1
    unfit_look_s: float = 5.0


class _Walk:
    """Partitions to check, in pieces; a piece that was not committed is checked again."""

    def __init__(self, keys: Iterable[PartitionKey], look: Look) -> None:
        self._keys = iter(keys)
        self._look = look
        self._piece: list[PartitionKey] = []

    def decide(self, image: MetadataImage, policy: ControllerPolicy) -> Decision[MetadataRecord, int]:
        """The reply is the number of partitions checked; 0 at the end."""
        if not self._piece:
            self._piece = list(islice(self._keys, policy.piece_records_max))
        records: list[MetadataRecord] = list(self._look(image, policy, self._piece))
        return Decision(len(self._piece), records)

    def committed(self) -> None:
        self._piece = []


class Piecework:
    """Owns one task. Report every metadata change to it, on every controller."""

    def __init__(self, driver: ControllerDriver, policy: ControllerPolicy, config: PieceworkConfig) -> None:
        self._driver = driver
        self._policy = policy
        self._config = config
        self._walks: list[_Walk] = []
        self._unfit_known = EMPTY_IMAGE  # image in which brokers without room or health were last checked
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Called during the replay: only takes notes."""
        if not self._driver.is_active or not (delta.brokers_changed or delta.configs_changed):
            return
        index = image.topics.index
        if any(_is_active_now(delta, image, broker_id) for broker_id in delta.brokers_changed):
            self._walk(index.leaderless, partial(changes_where_leaders_lack, cause=Cause.BROKER_UNFENCED))
        if any(_rules_differ(delta, image, name) for name in (MIN_ISR, UNCLEAN_ELECTION)):
            self._walk(index.leaderless, partial(changes_where_leaders_lack, cause=Cause.REQUESTED_ELECTION))
            self._walk(index.moving, changes_where_moves_may_end)
        self._changed.set()

    def became_active(self) -> None:
        index = self._driver.image.topics.index
        self._walks, self._unfit_known = [], EMPTY_IMAGE
        self._walk(index.unsettled, changes_where_isr_suffices)
        self._walk(index.leaderless, partial(changes_where_leaders_lack, cause=Cause.REQUESTED_ELECTION))
        self._walk(index.moving, changes_where_moves_may_end)
        self._changed.set()

    def _walk(self, keys: Iterable[PartitionKey], look: Look) -> None:
        self._walks.append(_Walk(keys, look))

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=duty("piecework"))

    async def stop(self) -> None:
        await end_task(self._task)
        self._task = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        unfit_due_s = 0.0
        while True:
            self._changed.clear()
            image = self._driver.image
            unfit = [broker for broker in image.brokers.values() if broker.is_active and not broker.is_fit]
            if not unfit:
                self._unfit_known = EMPTY_IMAGE
            if self._driver.is_active:
                try:
                    if await self._step():
                        continue
                except (ProtocolError, OutcomeUnknown):
                    await asyncio.sleep(self._config.retry_s)
                    continue
                if unfit and loop.time() >= unfit_due_s and self._others_may_take_over(image):
                    unfit_due_s = loop.time() + self._config.unfit_look_s
                    keys = chain.from_iterable(concerned_by(image, broker) for broker in unfit)
                    self._walk(keys, changes_where_brokers_are_unfit)
                    continue
            try:
                async with asyncio.timeout(self._config.unfit_look_s if unfit else None):
                    await self._changed.wait()
            except TimeoutError:
                pass

    def _others_may_take_over(self, image: MetadataImage) -> bool:
        """Whether anything relevant has changed since the last check."""
        known, self._unfit_known = self._unfit_known, image
        return not (known.topics is image.topics and known.brokers is image.brokers and known.configs is image.configs)

    async def _step(self) -> bool:
        """Whether something was committed or checked, so that there may be more."""
        if gone(standing_of(self._driver.image)):
            left: int = await self._driver.write(self._removal)
            if left:
                return True
        if not self._walks:
            return False
        walk = self._walks[0]
        looked_at: int = await self._driver.write(lambda image: walk.decide(image, self._policy))
        walk.committed()
        if not looked_at and walk in self._walks:
            self._walks.remove(walk)
        return True

    def _removal(self, image: MetadataImage) -> Decision[MetadataRecord, int]:
        records: list[MetadataRecord] = list(removal_piece(image, self._policy))
        return Decision(len(records), records)


def _is_active_now(delta: MetadataDelta, image: MetadataImage, broker_id: int) -> bool:
    before = delta.brokers_changed[broker_id]
    return image.is_active(broker_id) and not (before is not None and before.is_active)


def _rules_differ(delta: MetadataDelta, image: MetadataImage, name: str) -> bool:
    base = delta.base.configs
    return any(base.of(*key).get(name) != image.configs.of(*key).get(name) for key in delta.configs_changed)
