"""The demonstration of a fleet: what its story shows, and that a claim that does not hold ends it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable

import pytest

from bench.demo_fleet.story import ClaimFailed, Story, in_a_line
from bench.paced_load import quantile, quantiles

TABLE = "broker  state\n0       healthy\n1       slow\n\n"


class Answers:
    """Gives what a cluster's commands printed, one after the other; the last one again and again."""

    def __init__(self, printed: Iterable[str]) -> None:
        self._printed = deque(printed)
        self.asked: list[tuple[str, ...]] = []

    def command_of(self, group: str, *words: str) -> str:
        self.asked.append((group, *words))
        return self._printed.popleft() if len(self._printed) > 1 else self._printed[0]


class Clock:
    """A pause takes no time, and counts as its length."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds


def story_of(*printed: str) -> tuple[Story, list[str], Answers]:
    lines: list[str] = []
    clock, answers = Clock(), Answers(printed)
    return Story(answers, lines.append, clock.now, clock.pause), lines, answers


def test_a_command_is_shown_with_the_rows_that_are_wanted() -> None:
    story, lines, answers = story_of(TABLE)
    story.show("brokers", "health", rows=lambda line: line.startswith("1"))
    assert lines == ["    $ tidelog brokers health", "      broker  state", "      1       slow"]
    assert answers.asked == [("brokers", "health")]


def test_a_claim_is_a_line_or_the_end() -> None:
    story, lines, _ = story_of("")
    story.claim(True, "it is so")
    assert lines == ["  ✓ it is so"]
    with pytest.raises(ClaimFailed, match="this does not hold: it is otherwise"):
        story.claim(False, "it is otherwise")
    assert lines == ["  ✓ it is so"]


def test_a_claim_about_times_is_told_alone_where_times_are_not_judged() -> None:
    lines: list[str] = []
    story = Story(Answers([""]), lines.append, judges_times=False)
    story.claim(False, "it takes 2 ms", of_times=True)
    assert lines == ["  ✗ it takes 2 ms"]
    with pytest.raises(ClaimFailed, match="nothing is lost"):
        story.claim(False, "nothing is lost")
    judging, _, _ = story_of("")
    with pytest.raises(ClaimFailed, match="2 ms"):
        judging.claim(False, "it takes 2 ms", of_times=True)


def test_waiting_ends_when_it_is_found_or_too_late() -> None:
    story, _, _ = story_of("")
    looks = iter([None, None, "found"])
    assert story.until("something", lambda: next(looks), limit_s=5.0) == "found"
    with pytest.raises(ClaimFailed, match="not within 5 s: something else"):
        story.until("something else", lambda: None, limit_s=5.0)


def test_the_newest_wanted_event_is_shown_once_the_audit_has_it() -> None:
    def event(second: int, cause: str) -> str:
        return json.dumps(
            {"event": "broker_changed", "wall_ms": second * 1000, "source": "metadata", "cause": cause,
             "actor": "controller-1000", "before": {"health": "healthy"}, "after": {"health": "slow", "broker_id": 1}}
        )  # fmt: skip

    early = event(1, "fenced")
    story, lines, answers = story_of(early, "\n".join([early, event(2, "slower"), event(3, "slower")]))
    found = story.show_audit("broker_changed", lambda one: one["cause"] == "slower", limit_s=5.0)
    assert found["wall_ms"] == 3000
    assert answers.asked == [("audit", "--kind", "broker_changed", "--json")] * 2
    assert lines == [
        "    $ tidelog audit --kind broker_changed",
        "      00:00:03 broker_changed because slower, by controller-1000: health=healthy -> slow broker_id=1",
    ]


def test_an_event_without_cause_and_actor_is_a_line_too() -> None:
    assert in_a_line({"event": "e", "wall_ms": 0, "source": "metadata"}) == "00:00:00 e, by metadata: "


def test_quantiles_are_of_what_was_measured() -> None:
    values = [float(one) for one in range(1, 101)]
    assert [quantile(values, share) for share in (50, 99, 100)] == [51.0, 100.0, 100.0]
    assert quantiles(values) == {"records": 100, "p50_ms": 51.0, "p95_ms": 96.0, "p99_ms": 100.0}
    assert quantiles([]) == {"records": 0}
