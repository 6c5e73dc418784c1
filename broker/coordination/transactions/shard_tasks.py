"""Tasks that run while a shard has work of their kind. Each shard has its own, so that one which commits late, because
a follower is silent, delays no other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from common.lifecycle import duty, end_tasks


class ShardTasks:
    """At most one per name."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._stopped = False

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call it after adding work; `work` returns when it finds none. Begins nothing after `stop`."""
        task = self._tasks.get(name)
        if self._stopped or (task is not None and not task.done()):
            return
        task = self._tasks[name] = asyncio.get_running_loop().create_task(work(), name=duty(name))
        task.add_done_callback(lambda ended: self._forget(name, ended))

    def _forget(self, name: str, ended: asyncio.Task[None]) -> None:
        if self._tasks.get(name) is ended:  # otherwise the next one has begun before this was called
            del self._tasks[name]

    async def stop(self) -> None:
        self._stopped = True
        await end_tasks(tuple(self._tasks.values()))
