"""Bytes between a client and a broker: two one-way flows over raw non-blocking sockets, either of which may be TLS.

A connection has no transport and no buffer of its own. OpenSSL reads and writes the descriptor itself, every flow of
the process receives into one `Room`, and sends the received bytes before the callback returns. Only when the sink is
full does a flow copy the rest (at most the room's size) and stop reading; that is the only backpressure.
"""

from __future__ import annotations

import contextlib
import mmap
import ssl
from collections.abc import Callable

from proxy.sockets import FULL, Connection, Readiness, Receive, say_end

RECORD_BYTES = 16 * 1024  # the most plaintext of a TLS record; reads of this size leave nothing inside OpenSSL

# Both are a little less than a multiple of 64 KB, which the kernel sends in one piece. A whole multiple would leave a
# last piece of a few bytes, which costs as much as a full one, and often a timer. OpenSSL returns records one by one,
# so a longer burst saves nothing and leaves the core's cache. Bytes in the clear are received all at once.
BURST_RECORDS = 7
ROOM_BYTES = 31 * RECORD_BYTES


class Room:
    """The receive buffer of a process, overwritten by the next callback. `records`: its parts for the records of one
    burst after the first."""

    __slots__ = ("records", "whole")

    def __init__(self, size: int = ROOM_BYTES) -> None:
        # Whole pages: an array may begin anywhere in a cache line, and copying to it would cost accordingly.
        self.whole = memoryview(mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
        count = min(size // RECORD_BYTES, BURST_RECORDS)
        self.records = [self.whole[one * RECORD_BYTES : (one + 1) * RECORD_BYTES] for one in range(1, count)]


class Flow:
    """One direction of a relay.

    `rest`: received bytes that the full sink has not taken. `ended`: the source has reached its end. `unannounced`: the
    source has an end or an error that no event announces, because OpenSSL read it together with what came before.
    `ragged`: the source ended without close_notify, so none may be sent to it either. `parked`: TLS has to write (the
    answer to a key update) before it can read on, and the descriptor takes nothing.
    """

    __slots__ = (
        "_receive",
        "_send",
        "_take",
        "ended",
        "moved",
        "parked",
        "ragged",
        "relay",
        "rest",
        "room",
        "sink",
        "source",
        "unannounced",
    )

    def __init__(self, relay: Relay, source: Connection, sink: Connection, room: Room) -> None:
        self.relay, self.source, self.sink, self.room = relay, source, sink, room
        self._receive: Callable[[memoryview], int] = source.recv_into
        if source.tls is not None:
            self._take: Receive = source.tls.read
            self._receive = self._receive_records
        self._send: Callable[[memoryview], int] = sink.send if sink.tls is None else sink.tls.write
        self.rest: memoryview | None = None
        self.ended = self.ragged = self.unannounced = self.parked = False
        self.moved = 0

    def pump(self) -> None:
        relay, whole = self.relay, self.room.whole
        try:
            count = self._receive(whole)
        except ssl.SSLWantWriteError:
            self._park()
            return
        except FULL:
            return
        except OSError:
            relay.close()
            return
        relay.quiet = 0
        if not count:
            self._end()
            return
        self.moved += count
        try:
            sent = self._send(whole[:count])
        except FULL:
            sent = 0
        except OSError:
            relay.close()
            return
        if sent < count:
            self._hold(memoryview(bytes(whole[sent:count])))
        elif self.unannounced:
            self.pump()

    def _receive_records(self, whole: memoryview) -> int:
        """Receive a burst of full records. A short one ends it, so that a small request costs one read."""
        take = self._take
        try:
            count = take(RECORD_BYTES, whole)
        except ssl.SSLEOFError:  # as many clients end
            self.ragged = True
            return 0
        if count < RECORD_BYTES:
            return count
        more = RECORD_BYTES
        try:
            for record in self.room.records:
                more = take(RECORD_BYTES, record)
                count += more
                if more < RECORD_BYTES:
                    break
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return count
        except OSError:
            more = 0
        if not more:
            self.unannounced = True
        return count

    def _hold(self, rest: memoryview) -> None:
        self.rest = rest
        self.relay.ready.remove_reader(self.source.fileno())
        self.relay.ready.add_writer(self.sink.fileno(), self.flush)

    def flush(self) -> None:
        """Send `rest`. TLS requires that a blocked write is repeated with the same bytes, which `rest` holds."""
        rest, relay = self.rest, self.relay
        if rest is None or relay.closed:
            return
        try:
            sent = self._send(rest)
        except FULL:
            return
        except OSError:
            relay.close()
            return
        relay.quiet = 0
        if sent < len(rest):
            self.rest = rest[sent:]
            return
        self.rest = None
        relay.ready.remove_writer(self.sink.fileno())
        self._resume()
        if not relay.closed and self.rest is None:
            back = relay.other(self)
            if back.parked:
                back._resume()

    def _park(self) -> None:
        """Wait until TLS can write. A held flush of the other flow goes first: the descriptor has one writer."""
        self.parked = True
        self.relay.ready.remove_reader(self.source.fileno())
        if self.relay.other(self).rest is None:
            self.relay.ready.add_writer(self.source.fileno(), self._unpark)

    def _unpark(self) -> None:
        self.relay.ready.remove_writer(self.source.fileno())
        self._resume()

    def _resume(self) -> None:
        self.parked = False
        if self.ended:
            return
        self.relay.ready.add_reader(self.source.fileno(), self.pump)
        if self.unannounced:
            self.pump()

    def _end(self) -> None:
        """Forward the source's end to the sink; the other direction may still finish."""
        self.ended = True
        self.relay.ready.remove_reader(self.source.fileno())
        if self.relay.other(self).ended or not say_end(self.sink):
            self.relay.close()

    def leave(self) -> None:
        """Stop watching and drop the sockets. The flow is not used again."""
        ready = self.relay.ready
        if not self.ended and not self.parked and self.rest is None:
            ready.remove_reader(self.source.fileno())
        if self.rest is not None:
            ready.remove_writer(self.sink.fileno())
        if self.parked:
            ready.remove_writer(self.source.fileno())
        del self._receive, self._send  # a reference cycle would stay until the garbage collector runs
        if self.source.tls is not None:
            del self._take


class Relay:
    """Owns both sockets from here on. `quiet` counts sweeps since bytes last moved; limits count the relay by `tenant`
    and `address`. The flows' `moved` is final when `on_close` is called."""

    __slots__ = ("address", "broker", "client", "closed", "down", "on_close", "quiet", "ready", "tenant", "up")

    def __init__(
        self,
        ready: Readiness,
        client: Connection,
        broker: Connection,
        room: Room,
        tenant: str,
        address: str,
    ) -> None:
        self.ready, self.client, self.broker = ready, client, broker
        self.on_close: Callable[[Relay], None] | None = None
        self.tenant, self.address = tenant, address
        self.quiet, self.closed = 0, False
        self.up, self.down = Flow(self, client, broker, room), Flow(self, broker, client, room)

    def start(self) -> None:
        """Begin to relay bytes, as the reader of both sockets."""
        self.ready.add_reader(self.client.fileno(), self.up.pump)
        self.ready.add_reader(self.broker.fileno(), self.down.pump)

    def other(self, flow: Flow) -> Flow:
        return self.down if flow is self.up else self.up

    @property
    def is_half_closed(self) -> bool:
        return self.up.ended or self.down.ended

    def close(self) -> None:
        """Close both sockets; bytes that a full sink has not taken are lost. Idempotent."""
        if self.closed:
            return
        self.closed = True
        up, down = self.up, self.down
        held = up.rest is not None or down.rest is not None
        up.leave()
        down.leave()
        for sock, ragged in ((self.client, up.ragged), (self.broker, down.ragged)):
            if not held and sock.tls is not None and not ragged:
                say_end(sock)  # in the clear the close itself is the end
            with contextlib.suppress(OSError):  # the descriptor is closed even so
                sock.close()
        if self.on_close is not None:
            self.on_close(self)
        del self.up, self.down  # a reference cycle, as in `leave`
