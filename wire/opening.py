"""A connection from accept to its first Kafka byte: PROXY header, TLS handshake, the peer's identity.

It is a few callbacks, and costs no TLS state before its first bytes arrive. A listener makes one handshake step per
turn of the loop; otherwise the cryptography of many new connections would stall the open ones. Their number is bounded:
above the limit the listener closes the oldest connection that has been silent for `GRACE_S`. If all are making
progress, it stops accepting for a while.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Generator
from ipaddress import ip_address

from common.errors import MalformedFrame
from common.node_settings.listeners import AcceptSettings
from common.ports import Address, SecureSocket, Socket, Wants
from common.queue_time import QueueTime
from wire.identity import PROXY_ROLE, PeerIdentity, distinguished_name, has_role
from wire.listeners import ListenerConfig, ListenerKind, ProxyForm
from wire.principal_mapping import NoRuleMatches
from wire.proxy_protocol import HEADER_BYTES_MAX, ProxyHeader, parse
from wire.tick import Tick

_DEFAULTS = AcceptSettings()
GRACE_S = 0.25  # a connection that sent bytes within this time is never evicted
_HEAD_BYTES = 16  # of a PROXY header, including the length of its rest

_Steps = Generator[Wants | None, None, PeerIdentity]  # None: wait for a turn of the loop, before an expensive step


class PeerRefused(Exception):
    """The peer may not connect to this listener; the text is for the log."""


class Openings:
    """All connections of one listener that are not open yet. Calls `opened` or `failed` once for each.

    `failed` gets the peer of the closed socket, a cause in a few words, and the error's own text. `pause` is called
    with True to stop accepting, and with False to resume.
    """

    def __init__(
        self,
        opened: Callable[[Socket, PeerIdentity], None],
        failed: Callable[[Address, str, str], None],
        pause: Callable[[bool], None],
        openings_max: int = _DEFAULTS.openings_max,
        opening_s: float = _DEFAULTS.opening_s,
        tick: Tick | None = None,
    ) -> None:
        self._opened = opened
        self._failed = failed
        self._pause = pause
        self._openings_max = openings_max
        self._opening_s = opening_s
        self._loop = asyncio.get_running_loop()
        self._tick = Tick() if tick is None else tick
        self._waiting = QueueTime(self._loop.time)
        self._all: dict[_Opening, None] = {}  # oldest first
        self._line: deque[_Opening] = deque()  # waiting for a turn of the loop
        self._stepping = False
        self._retry: asyncio.TimerHandle | None = None  # set while accepting is paused

    @property
    def waited_s(self) -> float:
        """Seconds that connections have waited for a turn of the loop, added up."""
        return self._waiting.seconds

    def __len__(self) -> int:
        return len(self._all)

    def begin(self, socket: Socket, listener: ListenerConfig) -> None:
        opening = _Opening(self, socket, listener)
        self._all[opening] = None
        opening.advance()
        if len(self._all) > self._openings_max and not self._evict(self._openings_max) and self._retry is None:
            self._retry = self._loop.call_later(GRACE_S, self._retry_eviction)
            self._pause(True)

    def _evict(self, most: int) -> bool:
        """Close silent connections, oldest first, until `most` are left. Returns whether that succeeded."""
        heard_before = self._loop.time() - GRACE_S
        for one in list(self._all):
            if len(self._all) <= most:
                break
            if one.waits_since is not None and one.waits_since <= heard_before:
                one.fail("evicted", "it was silent while other connections arrived")
        return len(self._all) <= most

    def _retry_eviction(self) -> None:
        if self._evict(self._openings_max // 2):
            self._go_on()
        else:
            self._retry = self._loop.call_later(GRACE_S, self._retry_eviction)

    def _go_on(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
            self._pause(False)

    def close(self) -> None:
        """Close all of them without a report."""
        for opening in list(self._all):
            opening.drop()
        self._line.clear()
        self._waiting.is_now(0)
        if self._retry is not None:
            self._retry.cancel()

    # for openings

    def expire_later(self, opening: _Opening) -> asyncio.TimerHandle:
        return self._loop.call_later(self._opening_s, opening.expire)

    def now(self) -> float:
        return self._loop.time()

    def leave(self, opening: _Opening) -> None:
        self._all.pop(opening, None)
        if self._retry is not None and len(self._all) <= self._openings_max // 2:
            self._loop.call_soon(self._go_on)

    def enqueue(self, opening: _Opening) -> None:
        self._line.append(opening)
        self._waiting.changed(1)
        if not self._stepping:
            self._stepping = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        while self._line and self._line[0].is_over:
            self._line.popleft()
        if self._line:
            opening = self._line.popleft()
            self._waiting.is_now(len(self._line))
            self._tick.meter.begin()
            opening.advance()
            self._tick.meter.job()
            self._tick.end_turn()
        else:
            self._waiting.is_now(0)
        self._stepping = bool(self._line)
        if self._stepping:
            self._loop.call_soon(self._step)

    def finish(self, socket: Socket, identity: PeerIdentity) -> None:
        self._opened(socket, identity)

    def report(self, peer: Address, cause: str, detail: str) -> None:
        self._failed(peer, cause, detail)


class _Opening:
    __slots__ = ("_listener", "_openings", "_socket", "_steps", "_timer", "is_over", "waits_since")

    def __init__(self, openings: Openings, socket: Socket, listener: ListenerConfig) -> None:
        self._openings = openings
        self._socket = socket
        self._listener = listener
        self._timer = openings.expire_later(self)
        self._steps = self._all_steps()
        self.is_over = False
        self.waits_since: float | None = None
        """Loop time since which it waits for its peer; None while it waits for a turn of the loop."""

    def advance(self) -> None:
        """Continue as far as possible without waiting."""
        try:
            wants = next(self._steps)
        except StopIteration as end:
            self._end()
            self._openings.finish(self._socket, end.value)
        except ssl.SSLError as error:
            self.fail("TLS handshake failed", error.reason or str(error))
        except OSError as error:
            self.fail("connection lost", error.strerror or str(error))
        except (MalformedFrame, PeerRefused, NoRuleMatches) as error:
            self.fail("refused", str(error))
        else:
            if wants is None:
                self._openings.enqueue(self)
                return
            self.waits_since = self._openings.now()
            if wants is Wants.READ:
                self._socket.on_readable(self._ready)
            else:
                self._socket.on_writable(self._ready)

    def _ready(self) -> None:
        self._socket.on_readable(None)
        self._socket.on_writable(None)
        self.waits_since = None
        self.advance()

    def expire(self) -> None:
        self.fail("no handshake in time", "")

    def fail(self, cause: str, detail: str) -> None:
        if not self.is_over:
            peer = self._socket.peer
            self.drop()
            self._openings.report(peer, cause, detail)

    def drop(self) -> None:
        self._end()
        self._socket.close()

    def _end(self) -> None:
        self.is_over = True
        self._timer.cancel()
        self._openings.leave(self)

    # the order of a connection

    def _all_steps(self) -> _Steps:
        listener = self._listener
        client, header = self._socket.peer, None
        if listener.proxies is ProxyForm.PASSED and self._is_of_a_proxy(client):
            client = (yield from self._header()).source
        if listener.tls is None:
            return PeerIdentity(listener.protocol, client)
        yield Wants.READ  # no TLS before there is anything to decrypt
        yield None
        secured = self._socket.secure(listener.tls.server, server_side=True)
        self._socket = secured
        while (wants := secured.handshake()) is not Wants.NOTHING:
            yield wants
            yield None
        principal = self._principal(secured)
        name = secured.server_name
        if listener.proxies is ProxyForm.TERMINATED:
            header = yield from self._header()
            client, name = header.source, header.authority
        cipher, version = secured.cipher
        return PeerIdentity(
            listener.protocol, client, principal, None if name is None else name.lower(), cipher, version
        )

    def _is_of_a_proxy(self, peer: Address) -> bool:
        address = ip_address(peer[0])
        return any(address in network for network in self._listener.proxy_networks)

    def _principal(self, secured: SecureSocket) -> str | None:
        listener = self._listener
        certificate = secured.peer_certificate
        if certificate is None:
            if listener.kind is ListenerKind.INTERNAL or listener.proxies is ProxyForm.TERMINATED:
                raise PeerRefused("it shows no certificate")
            return None
        if listener.proxies is ProxyForm.TERMINATED:
            if not has_role(certificate, PROXY_ROLE):
                raise PeerRefused(f"its certificate is no proxy's: {distinguished_name(certificate)}")
            return None
        if listener.tls is None:
            return None
        return "User:" + listener.tls.principals.name(distinguished_name(certificate))

    def _header(self) -> Generator[Wants | None, None, ProxyHeader]:
        """Read a PROXY header and no byte beyond it."""
        data = bytearray(HEADER_BYTES_MAX)
        have, wanted = 0, _HEAD_BYTES
        while True:
            try:
                received = self._socket.recv_into(memoryview(data)[have:wanted])
            except BlockingIOError:
                yield Wants.READ
                continue
            if not received:
                raise MalformedFrame("it ended before its PROXY header did")
            have += received
            found = parse(memoryview(data)[:have])
            if found is not None:
                return found[0]
            if have == wanted:
                wanted = min(have + int.from_bytes(data[14:16], "big"), HEADER_BYTES_MAX)
