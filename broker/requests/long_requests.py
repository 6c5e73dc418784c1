"""Produce and Fetch requests of so many partitions that they are served in slices of the node's pacer.

The two handlers serve an ordinary request in one go, where its frame lies, and hand a longer one back. Its connection
is muted until it has taken effect. Its frame stays where it lies until it was read. It has one of a few places while
its values are in memory, as other long requests have.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from broker.requests.admission import Admission
from broker.security.session import ClientSession
from common.pacing import Pacer, Work
from wire.connection import Connection
from wire.outgoing import Part, Reply

T = TypeVar("T")


class LongRequest:
    """One such request: its place in its connection's order of replies, its frame, its turns. Call `end` at last.

    Its maker mutes the connection.
    """

    def __init__(
        self, session: ClientSession, pacer: Pacer, admission: Admission, reply: Reply, release: Callable[[], None]
    ) -> None:
        """`release` gives the frame's buffer back."""
        self.session = session
        self.is_closed = False
        self._pacer = pacer
        self._admission = admission
        self.reply = reply
        self._release: Callable[[], None] | None = release
        self._handed_over = False
        self._is_muted = True
        self._changed = asyncio.Event()
        session.closed_listeners[self] = None

    async def paced(self, work: Work[T]) -> T:
        """The result of `work`, done in slices: in the client's lane, or as the node's own for another node."""
        return await self._pacer.run(work, self.session.lane, own=self.session.internal)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """One of the places for long requests of clients; nodes need none."""
        if self.session.internal:
            yield
            return
        async with self._admission.place(self.session.lane.group):
            yield

    def frame_is_read(self) -> None:
        """Nothing of the frame is needed any more, and no view of it is left."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def go_on(self) -> None:
        """The next request of the connection may be served: what remains of this one is to wait, and to answer.

        Until then the end of the connection is not noticed either.
        """
        if self._is_muted:
            self._is_muted = False
            connection: Connection = self.session.connection
            connection.unmute()

    def wake(self) -> None:
        """What `changed` waits for has come about."""
        self._changed.set()

    async def changed(self, timeout_s: float) -> bool:
        """Wait for `wake`, for the end of the connection, or for so long; whether it was not the time that ended it."""
        try:
            async with asyncio.timeout(max(timeout_s, 0)):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    def connection_closed(self) -> None:
        self.is_closed = True
        self._changed.set()

    def answer(self, parts: list[Part], pause_ms: int) -> None:
        """Send the answer, or none; the connection goes on after `pause_ms`."""
        connection: Connection = self.session.connection
        self.reply.send(parts)
        if pause_ms:
            connection.mute_for(pause_ms / 1000)

    def hand_over(self) -> None:
        """The answer is somebody else's to give, after the end of the connection too."""
        self._handed_over = True

    def end(self) -> None:
        """Give up what the request still has: its place in the order of replies counts as answered with nothing."""
        self.frame_is_read()
        self.session.closed_listeners.pop(self, None)
        if self.reply.parts is None and not self._handed_over:
            self.reply.send([])


LongServing = Callable[[LongRequest], Awaitable[None]]
"""Serves a long request to its end. Raises MalformedFrame: close the connection."""
