"""What the active controller does in many commits: one step after another, for as long as it is active.

An act decides each step on the committed image, so whichever controller is active goes on where another one stopped.
Whatever else such work needs is here: the commit, the pause after it, the wait for a change, the end with the
leadership.
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
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.records import MetadataRecord

log = logging.getLogger(__name__)

RETRY_S = 1.0
"""A step that could not be committed is decided again after so long, or when something changes."""


@dataclass(frozen=True, slots=True)
class Step:
    """`records` are committed together: none while the act has to wait. `problem`: why it cannot go on; it is logged
    once."""

    records: list[MetadataRecord] = field(default_factory=list)
    problem: str = ""


S = TypeVar("S", bound=Step)


class Act(ABC, Generic[S]):
    """Work of the active controller. A subclass says what the next step is, and when there may be one.

    `name` is its task's, `pause_s` the least time between two steps. Make it while its event loop runs.
    """

    name: str
    pause_s: float

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        """To be set when a step may be due that was not before."""

    @abstractmethod
    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        """Note a change of the metadata, on every controller and within the replay: keep it short."""

    def became_active(self, image: MetadataImage) -> None:
        """This controller has become the active one. Forget what was noted under an earlier leadership."""

    def due(self, image: MetadataImage) -> Sequence[str]:
        """For what a step is to be taken now, each by itself: tenants by their ids, say."""
        return ("",)

    @abstractmethod
    def step(self, image: MetadataImage, subject: str) -> S | Work[S]:
        """The next step. It changes nothing: it may be decided again, by another controller too."""

    def committed(self, subject: str, step: S) -> None:
        """The step's records are in the image now; also called for a step that has none."""

    def look_s(self, image: MetadataImage) -> float | None:
        """Seconds until `due` is asked again though nothing changes; None for never."""
        return None


class Driver(Protocol):
    """What a stepper needs of `kraft.controller.driver.ControllerDriver`."""

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
        """A step under way is given up with the leadership."""
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
        """Take a step for each subject: whether one of them had records, and whether one was not committed."""
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
                    log.warning("the controller cannot go on with something", extra=extra)
        self._problems = problems
        return went_on, failed

    async def _commit(self, subject: str) -> S | None:
        """The next step, committed; None when that failed or is not known."""

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
