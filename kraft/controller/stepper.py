"""Runs work of the active controller that takes many commits: one step after another, while it is active.

An act decides each step on the committed image, so any controller can continue what another one began. The stepper does
the rest: the commit, the pause after it, the wait for a change, the end with the leadership.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from common.decision import Decision
from common.errors import OutcomeUnknown, ProtocolError
from common.lifecycle import duty, end_task
from common.pacing import Work
from kraft.batches import MetadataRecord
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""A step that could not be committed is decided again after this time, or when something changes."""


@dataclass(frozen=True, slots=True)
class Step:
    """`records` are committed together; empty if the act must wait. `problem`: why it cannot continue, logged once."""

    records: list[MetadataRecord] = field(default_factory=list)
    problem: str = ""


S = TypeVar("S", bound=Step)


class Act(ABC, Generic[S]):
    """Work of the active controller. A subclass defines the next step, and when there may be one.

    `name`: of its task; `pause_s`: minimal time between two steps. Create it while its event loop runs.
    """

    name: str
    pause_s: float

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """Set it when a new step may be due."""

    @abstractmethod
    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Take note of a metadata change, on every controller and during the replay: keep it short."""

    def became_active(self, image: MetadataImage) -> None:
        """This controller has become active. Forget notes of earlier leaderships."""

    def due(self, image: MetadataImage) -> Sequence[str]:
        """The subjects that need a step now, such as tenant ids; each gets its own."""
        return ("",)

    @abstractmethod
    def step(self, image: MetadataImage, subject: str) -> S | Work[S]:
        """The next step. It must have no effect itself, because it may be decided again, by another controller too."""

    def committed(self, subject: str, step: S) -> None:
        """The step's records are in the image; also called for a step without records."""

    def look_s(self, image: MetadataImage) -> float | None:
        """Seconds until `due` is called again even if nothing changes; None for never."""
        return None


class Driver(Protocol):
    """`kraft.controller.driver.ControllerDriver` as a stepper uses it."""

    @property
    def image(self) -> MetadataImage: ...

    async def write(self, decide: Callable[[MetadataImage], Any]) -> Any: ...


class Stepper(Generic[S]):
    """Runs one act, in a task that lives while this controller is active."""

    def __init__(self, driver: Driver, act: Act[S]) -> None:
        self._driver = driver
        self._act = act
        self._problems: dict[str, str] = {}
        self._task: asyncio.Task[None] | None = None

    def activity_changed(self, is_active: bool) -> None:
        """A step in progress is dropped when the leadership ends."""
        if self._task is not None:
            self._task.cancel()
        if is_active:
            self._act.became_active(self._driver.image)
            self._task = asyncio.create_task(self._run(), name=duty(self._act.name))

    async def stop(self) -> None:
        await end_task(self._task)

    async def _run(self) -> None:
        act = self._act
        while True:
            act.changed.clear()
            went_on, failed = await self._round()
            if not went_on:
                limit_s = act.look_s(self._driver.image)
                if failed:
                    limit_s = RETRY_S if limit_s is None else min(limit_s, RETRY_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(limit_s):
                        await act.changed.wait()
            await asyncio.sleep(act.pause_s)

    async def _round(self) -> tuple[bool, bool]:
        """Take a step for each subject. Returns whether one had records, and whether one was not committed."""
        went_on = failed = False
        problems: dict[str, str] = {}
        for subject in self._act.due(self._driver.image):
            step = await self._commit(subject)
            if step is None:
                failed = True
                continue
            self._act.committed(subject, step)
            went_on = went_on or bool(step.records)
            if step.problem:
                problems[subject] = step.problem
                if self._problems.get(subject) != step.problem:
                    extra = {"act": self._act.name, "subject": subject, "reason": step.problem}
                    log.warning("the controller cannot continue a task", extra=extra)
        self._problems = problems
        return went_on, failed

    async def _commit(self, subject: str) -> S | None:
        """The next step after its commit; None if that failed or its outcome is unknown."""

        def decide(image: MetadataImage) -> Work[Decision[MetadataRecord, S]]:
            step = self._act.step(image, subject)
            if not isinstance(step, Step):
                step = yield from step
            return Decision(step, step.records)

        try:
            step: S = await self._driver.write(decide)
        except (ProtocolError, OutcomeUnknown):
            return None
        return step
