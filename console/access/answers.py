"""Answers that are kept for a moment, so that several panels and tabs of a session ask the cluster once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Any, TypeVar

ANSWERS_MAX = 64
PATIENCE, PATIENCE_S_MAX = 100.0, 120.0
SOON_S = 0.15
"""How long a page waits for a new answer where it can show an old one."""

T = TypeVar("T")


class Answers:
    """Of one session. Who asks while an answer is on its way waits for the same one."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Task[Any]]] = OrderedDict()
        self._renewing: dict[Hashable, asyncio.Task[Any]] = {}
        self._took_s: dict[Hashable, float] = {}
        self._good_s: dict[Hashable, float] = {}

    async def get(
        self,
        key: Hashable,
        fresh_s: float,
        ask: Callable[[], Awaitable[T]],
        *,
        stale_s: float = 0.0,
        is_patient: bool = False,
    ) -> T:
        """An answer of at most this age. One up to `stale_s` old is returned too if a new one does not come soon.
        `is_patient`: what took long is good for longer, so that pages that are only open cost little.

        Raises what `ask` raises; no error is kept.
        """
        if is_patient:
            fresh_s = max(fresh_s, min(PATIENCE * self._took_s.get(key, 0.0), PATIENCE_S_MAX))
        self._good_s[key] = max(fresh_s, stale_s, self._good_s.get(key, 0.0))
        found = self._kept.get(key)
        age_s = self._now() - found[0] if found is not None else 0.0
        if found is None or (found[1].done() and age_s >= max(fresh_s, stale_s)):
            found = self._asked(key, ask)
        elif found[1].done() and age_s >= fresh_s:
            found = await self._renewed(key, ask, found)
        if key in self._kept:
            self._kept.move_to_end(key)
        task = found[1]
        try:
            answer: T = await asyncio.shield(task)
        except BaseException:
            if task.done() and self._kept.get(key, (0.0, None))[1] is task:
                self._drop(key)
            raise
        return answer

    def _asked(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> tuple[float, asyncio.Task[Any]]:
        found = self._now(), asyncio.ensure_future(self._timed(key, ask))
        self._kept[key] = found
        while len(self._kept) > ANSWERS_MAX:
            self._drop(next(iter(self._kept)))
        return found

    def drop_old(self) -> None:
        """Those that no question gets any more: one may have thousands of rows, and its session may last for hours."""
        now = self._now()
        for key, (began_s, task) in list(self._kept.items()):
            is_used = not task.done() or key in self._renewing
            if not is_used and now - began_s >= self._good_s.get(key, 0.0):
                self._drop(key)

    def __len__(self) -> int:
        return len(self._kept)

    def _drop(self, key: Hashable) -> None:
        self._kept.pop(key, None)
        self._took_s.pop(key, None)
        self._good_s.pop(key, None)

    async def _renewed(
        self, key: Hashable, ask: Callable[[], Awaitable[T]], old: tuple[float, asyncio.Task[Any]]
    ) -> tuple[float, asyncio.Task[Any]]:
        """The new answer, or `old` if it does not come soon, or never."""
        task = self._renewing.get(key) or self._renew(key, ask)
        await asyncio.wait({task}, timeout=SOON_S)
        return self._kept.get(key, old)

    def _renew(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> asyncio.Task[T]:
        began_s, task = self._now(), asyncio.ensure_future(self._timed(key, ask))
        self._renewing[key] = task

        def ended(task: asyncio.Task[Any]) -> None:
            if self._renewing.get(key) is not task:
                return  # forgotten meanwhile
            del self._renewing[key]
            if task.cancelled() or task.exception() is not None:
                self._drop(key)  # the next question hears why
            else:
                self._kept[key] = began_s, task

        task.add_done_callback(ended)
        return task

    def forget(self) -> None:
        """After something has been changed: all is asked again."""
        self._kept.clear()
        self._renewing.clear()
        self._took_s.clear()
        self._good_s.clear()

    async def _timed(self, key: Hashable, ask: Callable[[], Awaitable[T]]) -> T:
        began_s = self._now()
        answer = await ask()
        if key in self._kept or key in self._renewing:
            self._took_s[key] = self._now() - began_s
        return answer
