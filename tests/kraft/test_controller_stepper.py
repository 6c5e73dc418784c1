"""Acts of many commits under a driver that fails, that loses its leadership, and of which nothing is known."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.decision import Decision
from common.errors import ErrorCode, OutcomeUnknown, ProtocolError
from common.pacing import Work, at_once
from kraft.batches import MetadataRecord
from kraft.controller.stepper import RETRY_S, Act, Step, Stepper
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from tests.sim.loop import run

PAUSE_S, COMMIT_S = 0.1, 0.01
Counts = dict[str, int]


class CountingDriver:
    """Its image is a count for each name, its records are names to be counted. `outcomes` are those of its next writes:
    whether the records take effect, and what is raised then."""

    def __init__(self, outcomes: Sequence[tuple[bool, type[Exception] | None]]) -> None:
        self.counts: Counts = {}
        self.is_active = False
        self.under_way = 0
        self.writes: list[float] = []
        self._outcomes = list(outcomes)

    @property
    def image(self) -> MetadataImage:
        return cast(MetadataImage, dict(self.counts))

    async def write(self, decide: Callable[[MetadataImage], Any]) -> Any:
        assert self.is_active and not self.under_way
        self.under_way += 1
        try:
            self.writes.append(asyncio.get_running_loop().time())
            takes_effect, error = self._outcomes.pop(0) if self._outcomes else (True, None)
            await asyncio.sleep(COMMIT_S)
            decision: Decision[Any, Any] = at_once(decide(self.image))
            if takes_effect:
                for name in decision.records:
                    self.counts[name] = self.counts.get(name, 0) + 1
            if error is not None:
                raise error() if error is not ProtocolError else ProtocolError(ErrorCode.NOT_CONTROLLER)
            return decision.reply
        finally:
            self.under_way -= 1


class Counting(Act[Step]):
    """Brings each name to its target, one at a time, and then only waits."""

    name, pause_s = "counting", PAUSE_S

    def __init__(self, targets: Counts) -> None:
        super().__init__()
        self.targets = targets
        self.beginnings = 0
        self.committed_steps: list[tuple[str, Step]] = []

    def applied(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.changed.set()

    def became_active(self, image: MetadataImage) -> None:
        self.beginnings += 1

    def due(self, image: MetadataImage) -> Sequence[str]:
        return list(self.targets)

    def step(self, image: MetadataImage, subject: str) -> Step | Work[Step]:
        counts = cast(Counts, image)
        left = counts.get(subject, 0) < self.targets[subject]
        step = Step([cast(MetadataRecord, subject)] if left else [], problem="" if left else "at its end")
        return self._work(step) if subject > "b" else step

    def _work(self, step: Step) -> Work[Step]:
        yield 1
        return step

    def committed(self, subject: str, step: Step) -> None:
        self.committed_steps.append((subject, step))


OUTCOMES = st.sampled_from([
    (True, None), (True, OutcomeUnknown), (False, OutcomeUnknown), (False, ProtocolError),
])  # fmt: skip


@dataclass(frozen=True)
class Leadership:
    """How long it lasts, and how long another node has it then."""

    held_s: float
    lost_s: float


LEADERSHIPS = st.builds(Leadership, st.floats(0, 0.5), st.floats(0, 0.05))


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 4), min_size=1),
    st.lists(OUTCOMES, max_size=8),
    st.lists(LEADERSHIPS, max_size=4),
)
def test_every_act_comes_to_its_end_whatever_fails(
    targets: Counts, outcomes: list[tuple[bool, type[Exception] | None]], leaderships: list[Leadership]
) -> None:
    """Each step is taken once and none too many, and only while this controller is active."""

    async def scene() -> None:
        driver, act = CountingDriver(outcomes), Counting(targets)
        stepper = Stepper(driver, act)
        for leadership in leaderships:
            driver.is_active = True
            stepper.activity_changed(True)
            await asyncio.sleep(leadership.held_s)
            driver.is_active = False
            stepper.activity_changed(False)
            await asyncio.sleep(leadership.lost_s)
            assert not driver.under_way
        driver.is_active = True
        stepper.activity_changed(True)
        await asyncio.sleep((PAUSE_S + RETRY_S) * (len(outcomes) + max(targets.values()) + 2))
        assert driver.counts == {name: count for name, count in targets.items() if count}
        assert act.beginnings == len(leaderships) + 1
        known = len(driver.writes)
        await asyncio.sleep(60)
        assert len(driver.writes) == known  # nothing changes, so nothing is asked
        await stepper.stop()

    run(scene())


def test_a_change_leads_to_a_step_and_a_pause_follows_each_round() -> None:
    async def scene() -> None:
        driver, act = CountingDriver([]), Counting({"a": 3, "c": 1})
        driver.is_active = True
        stepper = Stepper(driver, act)
        stepper.activity_changed(True)
        await asyncio.sleep(10)
        rounds = driver.writes[::2]  # two names in each
        assert len(rounds) == 4 and all(later - one >= PAUSE_S for one, later in pairwise(rounds))
        assert [subject for subject, step in act.committed_steps if step.records] == ["a", "c", "a", "a"]
        act.targets["a"] = 4
        await asyncio.sleep(10)
        assert driver.counts["a"] == 3
        act.changed.set()
        await asyncio.sleep(1)
        assert driver.counts["a"] == 4
        await stepper.stop()

    run(scene())


def test_a_reason_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scene() -> None:
        driver, act = CountingDriver([]), Counting({"a": 0, "b": 2})
        driver.is_active = True
        stepper = Stepper(driver, act)
        stepper.activity_changed(True)
        for _ in range(3):
            await asyncio.sleep(5)
            act.changed.set()
        await stepper.stop()

    run(scene())
    reasons = [(record.act, record.subject, record.reason) for record in caplog.records]  # type: ignore[attr-defined]
    assert reasons == [("counting", "a", "at its end"), ("counting", "b", "at its end")]


def test_a_bound_on_waiting_asks_again_though_nothing_changes() -> None:
    class Looking(Counting):
        def look_s(self, image: MetadataImage) -> float | None:
            return 2.0

    async def scene() -> None:
        driver, act = CountingDriver([]), Looking({"a": 0})
        driver.is_active = True
        stepper = Stepper(driver, act)
        stepper.activity_changed(True)
        await asyncio.sleep(21)
        assert len(driver.writes) == 10
        await stepper.stop()

    run(scene())
