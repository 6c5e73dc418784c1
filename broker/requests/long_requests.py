"""Produce and Fetch requests with so many partitions that they are served in slices of the node's pacer.

The two handlers serve an ordinary request at once, from its frame, and return a longer one as work. The connection is
muted until that request has taken effect. Its frame stays in the buffer until it is decoded. Like other long requests,
it holds one of a few places (`Admission`) while it is in decoded form.
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
    """One long request: its reply's position on the connection, its frame, its slices. The owner must call `end`.

    The creator mutes the connection.
    """

    def __init__(
        self, session: ClientSession, pacer: Pacer, admission: Admission, reply: Reply, release: Callable[[], None]
    ) -> None:
        """`release` frees the frame's buffer."""
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
        """Run `work` in slices, in the client's lane, or as the node's own work for another node. Returns its
        result."""
        return await self._pacer.run(work, self.session.lane, own=self.session.internal)

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold one of the places for long requests of clients; nodes need none."""
        if self.session.internal:
            yield
            return
        async with self._admission.place(self.session.lane.group):
            yield

    def frame_is_read(self) -> None:
        """The frame and all views of it are no longer needed."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def go_on(self) -> None:
        """Let the connection serve its next request: what remains of this one is waiting and responding.

        Until then a closed connection is not noticed either.
        """
        if self._is_muted:
            self._is_muted = False
            connection: Connection = self.session.connection
            connection.unmute()

    def wake(self) -> None:
        """Wake `changed`."""
        self._changed.set()

    async def changed(self, timeout_s: float) -> bool:
        """Wait for `wake` or for the end of the connection. Returns False after `timeout_s`."""
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
        """Send the response, or none; unmute the connection after `pause_ms`."""
        connection: Connection = self.session.connection
        self.reply.send(parts)
        if pause_ms:
            connection.mute_for(pause_ms / 1000)

    def hand_over(self) -> None:
        """Another object sends the response, even after the end of the connection."""
        self._handed_over = True

    def end(self) -> None:
        """Release everything that the request still holds; without a response its reply counts as empty."""
        self.frame_is_read()
        self.session.closed_listeners.pop(self, None)
        if self.reply.parts is None and not self._handed_over:
            self.reply.send([])


LongServing = Callable[[LongRequest], Awaitable[None]]
"""Serves a long request to its end. MalformedFrame closes the connection."""
