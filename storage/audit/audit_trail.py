"""What the logs owe the audit: before anything is cut, removed or no longer served, an event that says so is durable.

A log asks its trail for leave. The first time it is refused, and the event is on its way to the device; the caller
comes again, at once when `AuditPending` tells it, and finds the very same act permitted. Nothing blocks meanwhile, and
acts that ask in the same turn of the loop share one fsync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from common.errors import ErrorCode, ProtocolError

T = TypeVar("T")


class Act(NamedTuple):
    """What is about to happen, see `records.audit_event`. Equal acts are one act."""

    event: str
    topic: str = ""
    topic_id: bytes = b""
    partition: int = -1
    cause: str = ""
    actor: str = ""
    leader_epoch: int = -1
    before: Mapping[str, Any] = {}
    after: Mapping[str, Any] = {}


class AuditPermits(Protocol):
    """As much of a trail as a thread has, too: it waits for nothing."""

    def note(self, event: str, /, **fields: object) -> None:
        """One line for something that changes nothing of what is served; from any thread."""
        ...

    def permits(self, act: Act) -> bool:
        """Whether the event of `act` is durable; if so, it is to be done at once."""
        ...


class AuditTrail(AuditPermits, Protocol):
    """The loop's. An act that it does not permit is being written."""

    def announce(self, act: Act) -> None:
        """Have the event of `act` written, unless it is already; something else is still in the way of `act`."""
        ...

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back, in a later turn of the loop, once all that was asked for is durable."""
        ...


class AuditPending(ProtocolError):
    """Nothing was done: the event of `act` is not durable yet. Try again `when_durable`."""

    def __init__(self, trail: AuditTrail, act: Act) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, "the audit of this act is being written")
        self.trail = trail
        self.act = act

    def then(self, callback: Callable[[], None]) -> None:
        """Call back, in a later turn of the loop, when the act is permitted."""
        self.trail.when_durable(callback)

    async def wait(self) -> None:
        """Until the act is permitted."""
        done = asyncio.Event()
        self.trail.when_durable(done.set)
        await done.wait()


def require(trail: AuditTrail, act: Act) -> None:
    """Raises AuditPending unless `act` is to be done now."""
    if not trail.permits(act):
        raise AuditPending(trail, act)


async def audited(act: Callable[[], T]) -> T:
    """Call `act`, and again as soon as its event is durable. It decides afresh each time."""
    while True:
        try:
            return act()
        except AuditPending as pending:
            await pending.wait()


class NotAgreed(Exception):
    """A thread was to do `act`, whose event is not durable, and did not. `given`: what to try again with, if any."""

    def __init__(self, act: Act, given: Any = None) -> None:
        super().__init__(f"{act.event} is not agreed on")
        self.act = act
        self.given = given


def require_agreed(permits: AuditPermits, act: Act) -> None:
    """Raises NotAgreed unless `act` is to be done now."""
    if not permits.permits(act):
        raise NotAgreed(act)


class AgreedActs:
    """What a thread may do: only what was agreed on before, see `require_agreed`."""

    def __init__(self, trail: AuditPermits, agreed: list[Act]) -> None:
        self._trail = trail
        self._agreed = agreed

    def note(self, event: str, /, **fields: object) -> None:
        self._trail.note(event, **fields)

    def permits(self, act: Act) -> bool:
        return act in self._agreed


class NoTrail:
    """Of a directory that no audit follows: a tool's."""

    def note(self, event: str, /, **fields: object) -> None:
        pass

    def announce(self, act: Act) -> None:
        pass

    def permits(self, act: Act) -> bool:
        return True

    def when_durable(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)
