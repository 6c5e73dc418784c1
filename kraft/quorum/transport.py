"""Links between voters over `common.ports.Network`: access, dialing, keep-alives, msgpack frames.

The voter with the greater id dials. A newer link to the same voter replaces the older one, whose peer may be long gone.
A voter that has not joined yet (`join` was not called) answers probes and rejects Raft links.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from common.backoff import Jitter
from common.errors import MalformedFrame
from common.lifecycle import duty
from common.ports import Address, Listener, Ports, Socket
from kraft.quorum.handshake import Acceptor, Dialer, Identity, Purpose, Session
from kraft.quorum.link import Link
from kraft.quorum.message_codec import decoded_map, encoded_parts
from kraft.quorum.message_filter import Message, check_message

SCRATCH_BYTES = 256 << 10
UNAUTHENTICATED_MAX = 64

_log = logging.getLogger(__name__)


REDIAL_JITTER = Jitter(1.0, 1.5)


class TransportConfig(Struct):
    connect_timeout_s: float = 1.0
    handshake_timeout_s: float = 2.0
    redial_interval_s: float = 0.1  # before `REDIAL_JITTER`
    life_interval_s: float = 0.5  # between keep-alives on an idle link
    silence_max_s: float = 3.0
    unsent_bytes_max: int = 128 << 20  # of one link: more, and its peer reads nothing


class TransportEvents(Struct):
    """Events of the transport. Callbacks must not raise: an exception ends the node."""

    connected: Callable[[int], None]
    disconnected: Callable[[int], None]
    received: Callable[[int, Message], None]
    probed: Callable[[int], dict[str, Any]]  # returns the answer for the voter that asks


class QuorumTransport:
    """`voters`: all addresses by node id; `cluster_id` is called for each handshake."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        voters: dict[int, Address],
        secret: bytes,
        cluster_id: Callable[[], bytes],
        config: TransportConfig,
        events: TransportEvents,
    ) -> None:
        self._ports = ports
        self._node_id = node_id
        self._addresses = {peer: voters[peer] for peer in sorted(voters) if peer != node_id}
        self._secret = secret
        self._cluster_id = cluster_id
        self._config = config
        self._events = events
        self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._listener: Listener | None = None
        self._links: dict[int, Link] = {}  # by voter, open for Raft
        self._unauthenticated: dict[int, Link] = {}  # by number: not open yet, or open for a probe
        self._link_number = 0
        self._lost = {peer: asyncio.Event() for peer in self._addresses}
        self._dialing: list[asyncio.Task[None]] = []
        self._life_timer: asyncio.TimerHandle | None = None
        self._life_due = 0.0
        self._is_joined = False
        self._is_closed = False

    @property
    def peers(self) -> list[int]:
        return list(self._addresses)

    @property
    def address(self) -> Address | None:
        return None if self._listener is None else self._listener.address

    def listen(self, address: Address) -> None:
        """Raises OSError with a message that names the address."""
        try:
            self._listener = self._ports.network.listen(address, self._accepted)
        except OSError as error:
            where = f"tidelog.quorum.voters: {address[0]}:{address[1]}"
            raise OSError(error.errno, f"{where} cannot be bound: {error.strerror or error}") from error
        self._schedule_life()

    def join(self) -> None:
        """From now on open Raft links."""
        self._is_joined = True
        loop = asyncio.get_running_loop()
        self._dialing += [
            loop.create_task(self._keep_dialing(p), name=duty("dial")) for p in self._addresses if p < self._node_id
        ]

    def send(self, peer: int, message: Message) -> None:
        """Queue for the next `flush`; lost if there is no link."""
        link = self._links.get(peer)
        if link is not None:
            link.send(*encoded_parts(message))

    def flush(self) -> None:
        for link in list(self._links.values()):
            link.flush()

    def is_linked(self, peer: int) -> bool:
        return peer in self._links

    def unsent_bytes(self, peer: int) -> int:
        link = self._links.get(peer)
        return 0 if link is None else link.unsent_bytes

    async def probe(self, peer: int, timeout_s: float) -> dict[str, Any] | None:
        """Ask one voter for its `probed` status of this one; None if it does not answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes | None] = loop.create_future()

        def settle(value: bytes | None) -> None:
            if not answer.done():
                answer.set_result(value)

        link: Link | None = None
        try:
            async with asyncio.timeout(timeout_s):
                socket = await self._ports.network.connect(self._addresses[peer])
                link = self._make_link(
                    socket,
                    Dialer(self._identity(), peer, Purpose.PROBE, self._ports.random),
                    opened=lambda link, session: None,
                    received=lambda link, payload: settle(bytes(payload)),
                    closed=lambda link, reason: settle(None),
                )
                payload = await answer
            return None if payload is None else decoded_map(payload)
        except (OSError, TimeoutError, MalformedFrame):
            return None
        finally:
            if link is not None:
                link.close()

    async def stop(self) -> None:
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        if self._life_timer is not None:
            self._life_timer.cancel()
        for task in self._dialing:
            task.cancel()
        await asyncio.gather(*self._dialing, return_exceptions=True)
        self.close()

    def close(self) -> None:
        """Cut every link and accept none, at once and without notifying the node."""
        self._is_closed = True
        if self._listener is not None:
            self._listener.close()
        links, self._links = self._links, {}
        unauthenticated, self._unauthenticated = self._unauthenticated, {}
        for link in (*links.values(), *unauthenticated.values()):
            link.flush()
            link.close()

    # -- links

    def _identity(self) -> Identity:
        return Identity(self._node_id, self._cluster_id(), self._secret)

    def _make_link(
        self,
        socket: Socket,
        handshake: Acceptor | Dialer,
        opened: Callable[[Link, Session], None],
        received: Callable[[Link, memoryview], None],
        closed: Callable[[Link, str], None],
    ) -> Link:
        now = self._ports.clock.monotonic
        return Link(
            socket,
            handshake,
            self._scratch,
            now,
            unsent_bytes_max=self._config.unsent_bytes_max,
            opened=opened,
            received=received,
            closed=closed,
        )

    def _accepted(self, socket: Socket) -> None:
        if self._is_closed:
            socket.abort()
            return
        if len(self._unauthenticated) >= UNAUTHENTICATED_MAX:  # the oldest has had the most time to authenticate
            next(iter(self._unauthenticated.values())).fail("too many unauthenticated connections")
        self._link_number += 1
        number = self._link_number

        def opened(link: Link, session: Session) -> None:
            if session.purpose is Purpose.PROBE:
                link.send(*encoded_parts(self._events.probed(session.peer)))
                link.flush()
            else:
                self._unauthenticated.pop(number, None)
                self._open(link, session.peer)

        def closed(link: Link, reason: str) -> None:
            if self._unauthenticated.pop(number, None) is None:
                self._close(link, reason)
            elif link.session is None:
                _log.info("a connection to the quorum was refused", extra={"peer": socket.peer[0], "reason": reason})

        purposes = (Purpose.PROBE, Purpose.RAFT) if self._is_joined else (Purpose.PROBE,)
        acceptor = Acceptor(self._identity(), self._addresses, purposes, self._ports.random)
        self._unauthenticated[number] = self._make_link(socket, acceptor, opened, self._received, closed)

    async def _keep_dialing(self, peer: int) -> None:
        while True:
            if peer not in self._links:
                await self._dial(peer)
            if peer in self._links:
                self._lost[peer].clear()
                await self._lost[peer].wait()
            await asyncio.sleep(REDIAL_JITTER.spread(self._config.redial_interval_s, self._ports.random))

    async def _dial(self, peer: int) -> None:
        """Returns when the link is open or has failed."""
        settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failure: list[str] = []
        link: Link | None = None

        def opened(link: Link, session: Session) -> None:
            self._open(link, peer)
            if not settled.done():
                settled.set_result(None)

        def closed(link: Link, reason: str) -> None:
            failure.append(reason)
            self._close(link, reason)
            if not settled.done():
                settled.set_result(None)

        try:
            async with asyncio.timeout(self._config.connect_timeout_s):
                socket = await self._ports.network.connect(self._addresses[peer])
            dialer = Dialer(self._identity(), peer, Purpose.RAFT, self._ports.random)
            link = self._make_link(socket, dialer, opened, self._received, closed)
            async with asyncio.timeout(self._config.handshake_timeout_s):
                await settled
        except (OSError, TimeoutError) as error:
            failure.append(str(error) or "no answer in time")
        finally:
            if link is not None and self._links.get(peer) is not link:
                link.close()
        if failure:
            _log.debug("no link to a voter", extra={"voter": peer, "reason": failure[0]})

    def _open(self, link: Link, peer: int) -> None:
        older = self._links.pop(peer, None)
        if older is not None:
            older.close()
            self._events.disconnected(peer)
        self._links[peer] = link
        self._events.connected(peer)

    def _close(self, link: Link, reason: str) -> None:
        peer = link.session.peer if link.session is not None else None
        if peer is None or self._links.get(peer) is not link:
            return
        del self._links[peer]
        self._lost[peer].set()
        _log.info("lost the link to a voter", extra={"voter": peer, "reason": reason})
        self._events.disconnected(peer)

    def _received(self, link: Link, payload: memoryview) -> None:
        session = link.session
        if session is None or session.purpose is not Purpose.RAFT:
            raise MalformedFrame("no message was due")
        if self._links.get(session.peer) is link:
            self._events.received(session.peer, check_message(decoded_map(payload)))

    # -- signs of life

    def _schedule_life(self) -> None:
        self._life_due = self._ports.clock.monotonic() + self._config.life_interval_s
        self._life_timer = asyncio.get_running_loop().call_later(self._config.life_interval_s, self._check_life)

    def _check_life(self) -> None:
        now = self._ports.clock.monotonic()
        was_away = now - self._life_due > self._config.silence_max_s / 2
        for link in list(self._unauthenticated.values()):
            if now - link.began > self._config.handshake_timeout_s and not was_away:
                link.fail("no handshake in time")
        for link in list(self._links.values()):
            if was_away:
                link.excuse_silence()
            if now - link.last_heard > self._config.silence_max_s:
                link.fail("silent")
            elif now - link.last_sent >= self._config.life_interval_s / 2:
                link.send(b"")
                link.flush()
        if not self._is_closed:
            self._schedule_life()
