"""A demonstration as a story: what happens, the command that shows it, and the claims that must hold."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

Found = TypeVar("Found")
LOOK_S = 1.0


class ClaimFailed(Exception):
    """Something did not happen, or not in time; the text says what."""


class Commands(Protocol):
    """A cluster that is asked by `tidelog GROUP …`."""

    def command_of(self, group: str, *words: str) -> str: ...


class Story:
    """`write` takes one line. `now` and `pause` are there for tests. Without `judges_times`, claims about how long
    clients waited are told and not judged: on a machine that does other work they say little."""

    def __init__(
        self,
        cluster: Commands,
        write: Callable[[str], None],
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
        *,
        judges_times: bool = True,
    ) -> None:
        self._cluster = cluster
        self._write = write
        self._now = now
        self._pause = pause
        self._judges_times = judges_times
        self._acts = 0

    def act(self, title: str) -> None:
        self._acts += 1
        self._write("")
        self._write(f"{self._acts}. {title}")

    def say(self, line: str) -> None:
        self._write(f"  {line}")

    def ask(self, group: str, *words: str) -> Any:
        """What a command answers with --json; nothing is shown."""
        return json.loads(self._cluster.command_of(group, *words, "--json"))

    def run(self, group: str, *words: str) -> str:
        """An operator's command, which is shown, but not what it prints."""
        self._shown(group, words)
        return self._cluster.command_of(group, *words)

    def show(self, group: str, *words: str, rows: Callable[[str], bool] | None = None) -> str:
        """A command and what it prints: all of it, or the head of a table and its `rows`."""
        self._shown(group, words)
        printed = self._cluster.command_of(group, *words)
        lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
        for number, line in enumerate(lines):
            if rows is None or not number or rows(line):
                self._write(f"      {line}")
        return printed

    def show_audit(self, kind: str, wanted: Callable[[dict[str, Any]], bool], limit_s: float) -> dict[str, Any]:
        """`tidelog audit --kind`, with the newest event that is wanted, once the audit has it."""
        self._shown("audit", ("--kind", kind))

        def newest() -> dict[str, Any] | None:
            lines = self._cluster.command_of("audit", "--kind", kind, "--json").splitlines()
            return next((event for event in map(json.loads, reversed(lines)) if wanted(event)), None)

        event = self.until(f"the audit has an event {kind} about it", newest, limit_s)
        self._write(f"      {in_a_line(event)}")
        return event

    def until(self, what: str, look: Callable[[], Found | None], limit_s: float, pause_s: float = LOOK_S) -> Found:
        """Look until something is found; ClaimFailed after `limit_s`."""
        deadline = self._now() + limit_s
        while (found := look()) is None:
            if self._now() >= deadline:
                raise ClaimFailed(f"not within {limit_s:.0f} s: {what}")
            self._pause(pause_s)
        return found

    def claim(self, holds: bool, text: str, *, of_times: bool = False) -> None:
        """A line of the story that must be true. `of_times`: it is about how long clients waited."""
        if not holds and (self._judges_times or not of_times):
            raise ClaimFailed(f"this does not hold: {text}")
        self._write(f"  {'✓' if holds else '✗'} {text}")

    def _shown(self, group: str, words: tuple[str, ...]) -> None:
        self._write(f"    $ {' '.join(('tidelog', group, *words))}")


def in_a_line(event: dict[str, Any]) -> str:
    """An event of the audit: when, what, why, by whom, and what changed."""
    changed = event.get("after") or {}
    before = event.get("before") or {}
    details = " ".join(f"{name}={_change(before.get(name), value)}" for name, value in changed.items())
    cause = f" because {event['cause']}" if event.get("cause") else ""
    at = time.strftime("%H:%M:%S", time.gmtime(event["wall_ms"] / 1000))
    return f"{at} {event['event']}{cause}, by {event.get('actor') or event['source']}: {details}"


def _change(before: Any, after: Any) -> str:
    return str(after) if before is None or before == after else f"{before} -> {after}"
