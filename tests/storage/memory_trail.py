"""An audit in memory. By itself it permits everything at once; a `slow` one makes each act wait until it is flushed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from storage.audit.audit_trail import Act


class MemoryTrail:
    """`lines` are (event, fields) of notes and of permitted acts, in order."""

    def __init__(self, *, slow: bool = False) -> None:
        self.lines: list[tuple[str, dict[str, object]]] = []
        self.acts: list[Act] = []
        self.slow = slow
        self.waiting: list[Act] = []
        self._durable: list[Act] = []
        self._callbacks: list[Callable[[], None]] = []

    @property
    def events(self) -> list[str]:
        return [event for event, _ in self.lines]

    def note(self, event: str, /, **fields: object) -> None:
        self.lines.append((event, fields))

    def announce(self, act: Act) -> None:
        if act not in self.waiting and act not in self._durable:
            self.waiting.append(act)

    def permits(self, act: Act) -> bool:
        if self.slow:
            if act not in self._durable:
                self.announce(act)
                return False
            self._durable.remove(act)
        self.acts.append(act)
        self.lines.append((str(act.event), act._asdict()))
        return True

    def when_durable(self, callback: Callable[[], None]) -> None:
        if not self.waiting:
            asyncio.get_running_loop().call_soon(callback)
        else:
            self._callbacks.append(callback)

    def flush(self) -> None:
        """What waits is durable now."""
        self._durable += self.waiting
        self.waiting = []
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
