"""Probes whether a leader's process still listens after its connection has closed. A refused connection proves that it
does not, so that voters need not wait for the timeout. A leader that is cut off, or whose machine is down, never
answers: then the timeout decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from msgspec import Struct

from common.ports import Address, Network


class SuspicionConfig(Struct, frozen=True):
    """Seconds."""

    connect_timeout_s: float = 0.3
    pause_s: float = 0.02
    """Between two probes: while a process dies, its listener may outlive its connections."""
    looks_max: int = 50


class Suspicion:
    """Owns at most one task. `is_open(leader)` returns whether its state still matters; `gone(leader)` is called when
    its process has ended."""

    def __init__(
        self,
        network: Network,
        addresses: Mapping[int, Address],
        config: SuspicionConfig,
        is_open: Callable[[int], bool],
        gone: Callable[[int], None],
    ) -> None:
        self._network = network
        self._addresses = addresses
        self._config = config
        self._is_open = is_open
        self._gone = gone
        self._task: asyncio.Task[None] | None = None

    def begin(self, leader: int) -> None:
        """The connection to `leader` has closed."""
        self.cancel()
        self._task = asyncio.get_running_loop().create_task(self._look(leader), name=f"probe-{leader}")

    def cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def stop(self) -> None:
        task = self._task
        self.cancel()
        if task is not None:
            await asyncio.gather(task, return_exceptions=True)

    async def _look(self, leader: int) -> None:
        for _ in range(self._config.looks_max):
            if not self._is_open(leader):
                return
            try:
                async with asyncio.timeout(self._config.connect_timeout_s):
                    (await self._network.connect(self._addresses[leader])).abort()
            except ConnectionRefusedError:
                self._gone(leader)
                return
            except OSError:  # TimeoutError is one
                pass
            await asyncio.sleep(self._config.pause_s)
