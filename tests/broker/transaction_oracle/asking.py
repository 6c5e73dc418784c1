"""Asking every question in every state; what a table of answers looks like in a file: `write` and `read`."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from tests.broker.transaction_oracle.client import Client, Known, Stage, compared
from tests.broker.transaction_oracle.questions import QUESTIONS, Question, pair_of
from tests.broker.transaction_oracle.states import (
    GONE,
    LOOKED_AT,
    POLL_S,
    QUIET,
    ROTATED,
    STATES,
    UNKNOWN,
    WAIT_S,
    NotMade,
    Scene,
    is_last,
    recorded_as,
)
from tests.broker.transaction_oracle.views import VIEWS, producer_row

Key = tuple[str, str]
"""A question and the epoch with which it is asked; of what onlookers are told, without an epoch."""
Answers = dict[Key, dict[str, str]]
"""By question, and by state."""

TRIES = 5
MARKERS_S = 0.5  # until the markers that can be written are, also those of offsets
SETTLED = 2  # times that a state is seen before it counts as final
SETS = {"all": list(STATES), "not the last epoch": [state for state in STATES if not is_last(state)]}
OTHERS = "*"  # in a file: all states that are not in another line


async def ask_all(stage: Stage, *, at_once: int = len(STATES)) -> Answers:
    """Every state has a client of its own; `at_once` of them ask at the same time."""
    turns = asyncio.Semaphore(at_once)

    async def ask_in(state: str) -> dict[tuple[str, str, str], str]:
        async with turns:
            return await _ask_in(stage, state)

    found = await asyncio.gather(*map(ask_in, STATES))
    answers: Answers = {}
    for by_key in found:
        for (state, *key), answer in by_key.items():
            answers.setdefault((key[0], key[1]), {})[state] = answer
    order = {(question.label, epoch): None for question in QUESTIONS for epoch in question.epochs}
    order |= {(view, ""): None for view in VIEWS}
    return {key: answers[key] for key in order if key in answers}


async def _ask_in(stage: Stage, state: str) -> dict[tuple[str, str, str], str]:
    client = Client(await stage.connect(), await stage.connect_as_node(), stage.clock)
    examiner = _Examiner(stage, client, state)
    await examiner.look()
    for question in QUESTIONS:
        if question.at_last or not is_last(state):
            for epoch in question.epochs:
                await examiner.ask(question, epoch)
    client.close()
    return examiner.found


class _Examiner:
    """Asks in one state, in as few scenes as the answers allow."""

    def __init__(self, stage: Stage, client: Client, state: str) -> None:
        self._stage = stage
        self._client = client
        self._state = state
        self._numbers = count()
        self._scene: Scene | None = None  # nothing has happened in it
        self.found: dict[tuple[str, str, str], str] = {}

    async def look(self) -> None:
        """What onlookers are told, of a partition that is the scene's alone."""
        scene = await self._made(LOOKED_AT, with_offsets=True)
        await self._client.pause(MARKERS_S)
        for label, view in VIEWS.items():
            self.found[self._state, label, ""] = await view(self._client, scene)

    async def ask(self, question: Question, epoch: str) -> None:
        if question.is_quiet:
            self._scene = await self._made(QUIET)
        scene = self._scene or await self._made()
        self._scene = scene
        pair = pair_of(epoch, scene)
        if pair is None:
            return
        self._scene = None
        answer = await question.ask(self._client, scene, pair)
        told = answer.code
        if answer.pair is not None:
            told = f"{told}, {compared(answer.pair, scene.known.pair)}"
        if question.place is not None:
            row = await self._client.producer(question.place(scene), pair.id)
            told = f"{told}; {producer_row(row, scene)}"
        moves = question.ends and answer.code in ("NONE", "CONCURRENT_TRANSACTIONS")
        after = await (self._at_rest(scene) if moves else self._client.describe(scene.name))
        if not after.is_as(scene.known):
            told = f"{told}; then {after.state}, {compared(after.pair, scene.known.pair)}"
        self.found[self._state, question.label, epoch] = told
        if after.is_as(scene.known) and answer.code != "NONE" and not question.is_spent:
            self._scene = scene

    async def _at_rest(self, scene: Scene) -> Known:
        """The coordinator's state, when nothing goes on any more."""
        before, times = await self._client.describe(scene.name), 1
        async with asyncio.timeout(WAIT_S):
            while times < SETTLED:
                await self._client.pause(POLL_S)
                known = await self._client.describe(scene.name)
                is_passing = known.is_prepared and GONE not in known.partitions
                times = times + 1 if known.is_as(before) and not is_passing else 1
                before = known
        return before

    async def _made(self, held: int | None = None, *, with_offsets: bool = False) -> Scene:
        reasons: list[str] = []
        topic, ids = topic_of(self._state), self._stage.used_ids if is_last(self._state) else self._stage.ids
        for _ in range(TRIES):
            number = next(self._numbers) % ROTATED
            first = QUIET + 1
            scene = Scene(
                f"{self._state} {next(self._numbers)}" if self._state == UNKNOWN else next(ids),
                (topic, first + number if held is None else held),
                (topic, first + number + ROTATED),
                with_offsets=with_offsets,
            )
            try:
                await STATES[self._state](self._stage, self._client, scene)
            except NotMade as reason:
                reasons.append(str(reason))
                continue
            scene.known = await self._client.describe(scene.name)
            assert scene.known.state == recorded_as(self._state), (self._state, scene)
            return scene
        raise AssertionError(f"no transaction becomes {self._state}: {reasons}")


def topic_of(state: str) -> str:
    """The topic of the transaction that is looked at."""
    return f"of.{list(STATES).index(state)}"


TOPICS = tuple(map(topic_of, STATES))


def write(answers: Answers, path: Path) -> None:
    """Of each question a line, and below it one for each answer: the answer, and the states in which it is given."""
    lines: list[str] = []
    for (label, epoch), by_state in answers.items():
        by_answer: dict[str, list[str]] = {}
        for state, answer in by_state.items():
            by_answer.setdefault(answer, []).append(state)
        most = max(by_answer.values(), key=len)
        lines.append(f"{label}\t{epoch}\t{_titled(list(by_state))}\n")
        lines += (
            f"\t{answer}\t{OTHERS if states is most else '; '.join(states)}\n" for answer, states in by_answer.items()
        )
    path.write_text("".join(lines))


def _titled(states: list[str]) -> str:
    return next((title for title, all_of in SETS.items() if all_of == states), "; ".join(states))


def read(path: Path) -> Answers:
    found: Answers = {}
    asked: list[str] = []
    by_state: dict[str, str] = {}
    for line in path.read_text().splitlines():
        first, *rest = line.split("\t")
        if first:
            epoch, states = rest
            asked = SETS.get(states) or states.split("; ")
            by_state = found[first, epoch] = {}
            continue
        answer, states = rest
        if states == OTHERS:
            by_state.update((state, answer) for state in asked if state not in by_state)
        else:
            by_state.update(dict.fromkeys(states.split("; "), answer))
    return found
