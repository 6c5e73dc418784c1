"""Audit before action: an event must be durable before a log truncates, deletes or stops serving anything.

A log asks its trail for permission. The first time this is denied, and the event is written. When it is durable (see
`AuditPending`), the caller retries and the same act is permitted. Nothing blocks meanwhile, and acts that ask in the
same turn of the loop share one fsync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, TypeVar

from common.errors import ErrorCode, ProtocolError

T = TypeVar("T")


class Act(NamedTuple):
    """An intended change, see `records.audit_event`. Equal acts are one act."""

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
    """The part of a trail that threads may use: it never waits."""

    def note(self, event: str, /, **fields: object) -> None:
        """Log one line about something that does not change what is served; from any thread."""
        ...

    def permits(self, act: Act) -> bool:
        """Whether the event of `act` is durable; if so, do the act at once."""
        ...


class AuditTrail(AuditPermits, Protocol):
    """The trail for the event loop. It writes the event of an act that it does not permit yet."""

    def announce(self, act: Act) -> None:
        """Write the event of `act` if it is not written yet; the act itself waits for something else."""
        ...

    def when_durable(self, callback: Callable[[], None]) -> None:
        """Call back, in a later turn of the loop, when everything announced is durable."""
        ...


class AuditPending(ProtocolError):
    """Nothing was done, because the event of `act` is not durable yet. Retry after `when_durable`."""

    def __init__(self, trail: AuditTrail, act: Act) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, "the audit of this act is being written")
        self.trail = trail
        self.act = act

    def then(self, callback: Callable[[], None]) -> None:
        """Call back, in a later turn of the loop, when the act is permitted."""
        self.trail.when_durable(callback)

    async def wait(self) -> None:
        """Wait until the act is permitted."""
        done = asyncio.Event()
        self.trail.when_durable(done.set)
        await done.wait()


def require(trail: AuditTrail, act: Act) -> None:
    """Raises AuditPending unless `act` may be done now."""
    if not trail.permits(act):
        raise AuditPending(trail, act)


def inform(trail: AuditTrail, act: Act) -> None:
    """Write the event of an act that does not wait for it, because it changes nothing that is stored. A trail that
    fails stops the node by itself."""

    def logged() -> None:
        with suppress(ProtocolError):
            trail.permits(act)

    with suppress(ProtocolError):
        trail.announce(act)
        trail.when_durable(logged)


async def audited(act: Callable[[], T]) -> T:
    """Call `act`, and again as soon as its event is durable. It decides again each time."""
    while True:
        try:
            return act()
        except AuditPending as pending:
            await pending.wait()


class NotAgreed(Exception):
    """A thread did not do `act`, because its event is not durable. `given`: input for the retry, if any."""

    def __init__(self, act: Act, given: Any = None) -> None:
        super().__init__(f"{act.event} is not permitted yet")
        self.act = act
        self.given = given


def require_agreed(permits: AuditPermits, act: Act) -> None:
    """Raises NotAgreed unless `act` may be done now."""
    if not permits.permits(act):
        raise NotAgreed(act)


class AgreedActs:
    """The acts that a thread may do: those that were permitted before, see `require_agreed`."""

    def __init__(self, trail: AuditPermits, agreed: list[Act]) -> None:
        self._trail = trail
        self._agreed = agreed

    def note(self, event: str, /, **fields: object) -> None:
        self._trail.note(event, **fields)

    def permits(self, act: Act) -> bool:
        return act in self._agreed


class NoTrail:
    """For a directory without an audit, such as a tool's."""

    def note(self, event: str, /, **fields: object) -> None:
        pass

    def announce(self, act: Act) -> None:
        pass

    def permits(self, act: Act) -> bool:
        return True

    def when_durable(self, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_soon(callback)
