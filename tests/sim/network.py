"""A simulated TCP at the level of raw sockets, as `common.ports.Network`.

Kept true: order within a direction; no byte lost without an error at the receiver or the sender; nothing heard from a
dead host; bounded buffers, so that `send` takes a part or nothing. Bytes are cut and merged at will. A lost packet is
a stall. A cut link holds bytes and resends them when it is healed. A killed process closes or resets its connections
(its kernel does); a host without power says nothing, so its peer is half-open until it writes to the host's next life.
"""

from __future__ import annotations

import errno
import os
import random
import ssl
from collections import deque
from collections.abc import Callable
from typing import cast

from common.ports import Address, Buffer, File, SecureSocket, Socket
from tests.sim.loop import MS, NS, Scheduler, SimLoop

TIMEOUT_NS = 20 * NS
RESEND_NS = NS // 5
SYN_RESEND_NS = NS // 2
LOCAL_LATENCY_NS = 10_000
LOSS_CHANCE = 0.005
CUT_CHANCE = 0.03
BUFFER_BYTES = (8 * 1024, 64 * 1024, 512 * 1024)
EPHEMERAL_PORT = 40_000


class Flight:
    """Bytes on their way, or the end of the stream in order (EOF) or by force (RESET)."""

    __slots__ = ("arrival_ns", "data", "departure_ns", "end")

    def __init__(self, departure_ns: int, arrival_ns: int, data: bytearray, end: str) -> None:
        self.departure_ns, self.arrival_ns, self.data, self.end = departure_ns, arrival_ns, data, end


EOF, RESET = "EOF", "RESET"


class Fabric:
    """All hosts, links and connections of the world. Only the nemesis and the nodes' networks see it."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, trace: Callable[[str], None]) -> None:
        self.scheduler, self.random, self.trace = scheduler, rng, trace
        self.listeners: dict[Address, SimListener] = {}
        self.hosts_up: dict[str, bool] = {}
        self.cut: dict[tuple[str, str], int] = {}  # (from, to): how many faults cut it
        self.slow: dict[tuple[str, str], int] = {}  # (from, to): extra nanoseconds
        self.unheard: dict[Address, int] = {}  # listener: how many faults keep it from being reached
        self.sockets: dict[int, SimSocket] = {}
        self.base_latency_ns = 200_000
        self.holds: Callable[[SimSocket, bytearray], int] | None = None  # extra nanoseconds for what is sent
        self.connection_count = 0
        self.reset_count = 0

    def latency_ns(self, source: str, target: str) -> int:
        if source == target:
            return LOCAL_LATENCY_NS
        rng = self.random
        latency = self.base_latency_ns + int(rng.random() ** 3 * 4 * self.base_latency_ns)
        if rng.random() < LOSS_CHANCE:
            latency += rng.randint(5 * MS, 50 * MS)  # a lost packet, sent again
        return latency + self.slow.get((source, target), 0)

    def passes(self, source: str, target: str) -> bool:
        return not self.cut.get((source, target)) and self.hosts_up.get(target, False)

    def change_cut(self, pairs: list[tuple[str, str]], by: int) -> None:
        for pair in pairs:
            self.cut[pair] = self.cut.get(pair, 0) + by
        if by < 0:
            for socket in list(self.sockets.values()):
                if socket.flights and (socket.loop.name, socket.twin.loop.name) in pairs:
                    self.scheduler.after(self.random.randint(MS, RESEND_NS), socket.arrive)

    def change_unheard(self, address: Address, by: int) -> None:
        """Nothing passes between a listener and who connects to it, while its host hears all else."""
        self.unheard[address] = self.unheard.get(address, 0) + by
        if by < 0:
            for socket in list(self.sockets.values()):
                if socket.flights and socket.served == address:
                    self.scheduler.after(self.random.randint(MS, RESEND_NS), socket.arrive)

    def pair(self, client: SimLoop, server: SimLoop, address: Address) -> SimSocket:
        """The client's end; its twin is the server's."""
        self.connection_count += 1
        number = self.connection_count
        capacity = self.random.choice(BUFFER_BYTES)
        here = SimSocket(self, client, 2 * number, address, capacity)
        there = SimSocket(self, server, 2 * number + 1, (client.name, EPHEMERAL_PORT + number), capacity)
        here.twin, there.twin = there, here
        self.sockets[here.number], self.sockets[there.number] = here, there
        return here

    def reset_some(self, rng: random.Random, host: str, other: str) -> int:
        """Break about half of the connections between two hosts; both ends learn of it later."""
        broken = 0
        for socket in list(self.sockets.values()):
            ends = (socket.loop.name, socket.twin.loop.name)
            if ends == (host, other) and not socket.gone and rng.random() < 0.6:
                broken += 1
                for end in (socket, socket.twin):
                    self.scheduler.after(rng.randint(0, 2 * MS), end.break_off, errno.ECONNRESET)
        self.reset_count += broken
        return broken

    def stall_some(self, rng: random.Random, host: str, other: str, until_ns: int) -> int:
        """About half of the connections from one host to another get nothing through until then; others do."""
        stalled = 0
        for socket in list(self.sockets.values()):
            if (socket.loop.name, socket.twin.loop.name) == (host, other) and not socket.gone and rng.random() < 0.6:
                stalled += 1
                socket.stall(until_ns)
        return stalled

    def host_down(self, loop: SimLoop, *, silent: bool) -> None:
        for address in [a for a, listener in self.listeners.items() if listener.loop is loop]:
            del self.listeners[address]
        for socket in [s for s in self.sockets.values() if s.loop is loop]:
            if silent:
                socket.flights.clear()
            elif not socket.gone:
                in_order = not socket.inbox and self.random.random() < 0.5
                socket.depart(bytearray(), EOF if in_order else RESET)
            socket.gone = True
            self.forget(socket)

    def forget(self, socket: SimSocket) -> None:
        if socket.gone and socket.twin.gone:
            self.sockets.pop(socket.number, None)
            self.sockets.pop(socket.twin.number, None)


def broken(code: int) -> OSError:
    return OSError(code, os.strerror(code))


class SimSocket:
    """One end of a connection. `flights` is what this end sent and the other end's kernel has not got."""

    def __init__(self, fabric: Fabric, loop: SimLoop, number: int, peer: Address, capacity: int) -> None:
        self.fabric, self.loop, self.number, self.peer = fabric, loop, number, peer
        self.twin: SimSocket = cast("SimSocket", None)  # set by Fabric.pair
        self.flights: deque[Flight] = deque()
        self.inbox = bytearray()
        self.gone = False  # this end no longer exists
        self._ended = False  # the other end closed in order
        self._error = 0  # an errno: the connection is broken
        self._capacity = capacity
        self._outstanding = 0  # bytes sent that the other end's reader has not taken
        self._last_arrival_ns = 0
        self._held_since_ns = -1
        self._resending = False
        self._readable: Callable[[], None] | None = None
        self._writable: Callable[[], None] | None = None

    def __hash__(self) -> int:
        return self.number

    # -- the port

    def recv_into(self, view: memoryview) -> int:
        self.loop.check_alive()
        if self.gone:
            raise broken(errno.EBADF)
        if not self.inbox:
            if self._error:
                raise broken(self._error)
            if self._ended:
                return 0
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        count = min(len(view), len(self.inbox))
        view[:count] = self.inbox[:count]
        del self.inbox[:count]
        twin = self.twin
        if twin._outstanding * 2 < twin._capacity:
            twin._outstanding -= count
        else:
            delay_ns = self.fabric.latency_ns(self.loop.name, twin.loop.name)
            self.fabric.scheduler.after(delay_ns, twin.acknowledged, count)
        return count

    def send(self, data: Buffer, more: bool = False) -> int:
        self.loop.check_alive()
        if self.gone:
            raise broken(errno.EBADF)
        if self._error:
            raise broken(self._error)
        room = self._capacity - self._outstanding
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        count = min(room, len(data))
        if count > 1 and self.fabric.random.random() < 0.01:
            count = self.fabric.random.randrange(1, count)
        if count:
            with memoryview(data) as view:
                self.depart(bytearray(view[:count]), "")
        return count

    def sendfile(self, file: File, position: int, length: int) -> int:
        room = self._capacity - self._outstanding
        if room <= 0 and not (self.gone or self._error):
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        data = file.pread(min(length, max(room, 1)), position)
        return self.send(data) if data else 0

    def on_readable(self, callback: Callable[[], None] | None) -> None:
        self.loop.check_alive()
        if not self.gone:
            self._readable = callback
            if callback is not None and self.has_input():
                self.loop.make_hot(self)

    def on_writable(self, callback: Callable[[], None] | None) -> None:
        self.loop.check_alive()
        if not self.gone:
            self._writable = callback
            if callback is not None and self.has_room():
                self.loop.make_hot(self)

    def close(self) -> None:
        self.loop.check_alive()
        self._leave(RESET if self.inbox else EOF)

    def abort(self) -> None:
        self.loop.check_alive()
        if not self.gone:
            self.flights.clear()
            self._leave(RESET)

    def secure(self, context: ssl.SSLContext, *, server_side: bool, server_hostname: str | None = None) -> SecureSocket:
        raise NotImplementedError("the simulated world has no TLS: its draws are not the seed's, and its peers agree")

    def _leave(self, how: str) -> None:
        if not self.gone:
            self.gone = True
            self._readable = self._writable = None
            if not self._error:
                self.depart(bytearray(), how)
            self.fabric.forget(self)

    @property
    def served(self) -> Address:
        """The listener's address, at either end."""
        return self.peer if self.peer[1] < EPHEMERAL_PORT else self.twin.peer

    # -- readiness, level-triggered

    def has_input(self) -> bool:
        return bool(self.inbox or self._ended or self._error)

    def has_room(self) -> bool:
        return bool(self._error) or self._outstanding * 3 < self._capacity * 2

    def poll(self) -> bool:
        readable = self._readable is not None and self.has_input()
        writable = self._writable is not None and self.has_room()
        if readable:
            self.loop.poll_callback(self._call_readable)
        if writable:
            self.loop.poll_callback(self._call_writable)
        return readable or writable

    def _call_readable(self) -> None:
        if self._readable is not None:
            self._readable()

    def _call_writable(self) -> None:
        if self._writable is not None:
            self._writable()

    # -- the wire

    def depart(self, data: bytearray, end: str) -> None:
        fabric, now_ns = self.fabric, self.loop.now_ns()
        self._outstanding += len(data)
        held_ns = 0 if fabric.holds is None else fabric.holds(self, data)
        last = self.flights[-1] if self.flights and not held_ns else None
        if last is not None and last.departure_ns == now_ns and not last.end:
            last.data += data
            last.end = end
            return
        arrival_ns = now_ns + fabric.latency_ns(self.loop.name, self.twin.loop.name) + held_ns
        self._last_arrival_ns = arrival_ns = max(arrival_ns, self._last_arrival_ns)
        self.flights.append(Flight(now_ns, arrival_ns, data, end))
        fabric.scheduler.at(arrival_ns, self.arrive)

    def stall(self, until_ns: int) -> None:
        """What this end sends arrives then at the earliest."""
        self._last_arrival_ns = max(self._last_arrival_ns, until_ns)
        for flight in self.flights:
            flight.arrival_ns = max(flight.arrival_ns, until_ns)
        self.fabric.scheduler.at(until_ns, self.arrive)

    def arrive(self) -> None:
        """Move what is due to the other end's kernel, if the link and the host let it."""
        fabric, twin, now_ns = self.fabric, self.twin, self.fabric.scheduler.now_ns
        if not self.flights or self.flights[0].arrival_ns > now_ns:
            return
        if not fabric.passes(self.loop.name, twin.loop.name) or fabric.unheard.get(self.served):
            self._hold(now_ns)
            return
        self._held_since_ns = -1
        while self.flights and self.flights[0].arrival_ns <= now_ns:
            flight = self.flights[0]
            if len(flight.data) > 1 and fabric.random.random() < CUT_CHANCE:
                cut = fabric.random.randrange(1, len(flight.data))
                twin.receive(flight.data[:cut], "")
                del flight.data[:cut]
                flight.arrival_ns = now_ns + fabric.random.randint(1, MS)
                fabric.scheduler.at(flight.arrival_ns, self.arrive)
                return
            self.flights.popleft()
            twin.receive(flight.data, flight.end)

    def receive(self, data: bytearray, end: str) -> None:
        """At this end's kernel; one that knows nothing of the connection answers with a reset."""
        fabric, twin = self.fabric, self.twin
        if self.gone:
            if end != RESET and not twin.gone and fabric.passes(self.loop.name, twin.loop.name):
                delay_ns = fabric.latency_ns(self.loop.name, twin.loop.name)
                fabric.scheduler.after(delay_ns, twin.break_off, errno.ECONNRESET)
            return
        self.inbox += data
        if end == EOF:
            self._ended = True
        elif end == RESET:
            self.break_off(errno.ECONNRESET)
        self.loop.make_hot(self)

    def break_off(self, code: int) -> None:
        if not self.gone and not self._error:
            self._error = code
            if self.fabric.random.random() < 0.5:  # what was not yet read may be lost with it
                self.inbox.clear()
            self.flights.clear()
            self.loop.make_hot(self)

    def acknowledged(self, count: int) -> None:
        if not self.fabric.passes(self.twin.loop.name, self.loop.name):
            self.fabric.scheduler.after(RESEND_NS, self.acknowledged, count)
            return
        self._outstanding -= count
        if not self.gone:
            self.loop.make_hot(self)

    def _hold(self, now_ns: int) -> None:
        if self._held_since_ns < 0:
            self._held_since_ns = now_ns
            self.fabric.scheduler.after(TIMEOUT_NS, self._give_up, now_ns)
        if self.flights[-1].end == RESET:  # a reset is never sent again: the peer stays half-open until it writes
            self.flights.clear()
        elif not self._resending:
            self._resending = True
            self.fabric.scheduler.after(RESEND_NS, self._resend)

    def _resend(self) -> None:
        self._resending = False
        self.arrive()

    def _give_up(self, since_ns: int) -> None:
        if self._held_since_ns == since_ns:
            self.break_off(errno.ETIMEDOUT)


class SimListener:
    def __init__(self, fabric: Fabric, loop: SimLoop, address: Address, accepted: Callable[[Socket], None]) -> None:
        self.fabric, self.loop, self.address, self._accepted = fabric, loop, address, accepted
        self._closed = self._paused = False
        self._waiting: deque[SimSocket] = deque()

    def accept(self, socket: SimSocket) -> None:
        if self._closed:
            socket.abort()
        elif self._paused:
            self._waiting.append(socket)
        elif not socket.gone:
            self._accepted(socket)

    def pause(self) -> None:
        self.loop.check_alive()
        self._paused = True

    def resume(self) -> None:
        self.loop.check_alive()
        self._paused = False
        while self._waiting:
            self.loop.deliver(self.accept, self._waiting.popleft())

    def close(self) -> None:
        self.loop.check_alive()
        self._closed = True
        while self._waiting:
            self._waiting.popleft().abort()
        if self.fabric.listeners.get((self.loop.name, self.address[1])) is self:
            del self.fabric.listeners[(self.loop.name, self.address[1])]


class SimNetwork:
    """A node's view. Host names are node names; a listener is bound at its own node, whatever host it names."""

    def __init__(self, fabric: Fabric, loop: SimLoop) -> None:
        self._fabric, self._loop = fabric, loop

    def listen(self, address: Address, accepted: Callable[[Socket], None]) -> SimListener:
        self._loop.check_alive()
        name, port = self._loop.name, address[1]
        if port == 0:
            port = next(p for p in range(30_000, EPHEMERAL_PORT) if (name, p) not in self._fabric.listeners)
        if (name, port) in self._fabric.listeners:
            raise broken(errno.EADDRINUSE)
        listener = SimListener(self._fabric, self._loop, (address[0], port), accepted)
        self._fabric.listeners[(name, port)] = listener
        return listener

    async def connect(self, address: Address) -> Socket:
        self._loop.check_alive()
        attempt = Attempt(self._fabric, self._loop, address)
        self._fabric.scheduler.after(self._fabric.latency_ns(self._loop.name, address[0]), attempt.reach)
        try:
            await attempt.answer
        finally:
            attempt.ended = True
            if attempt.socket is not None and attempt.answer.cancelled():
                attempt.socket.abort()
        return cast(SimSocket, attempt.socket)


class Attempt:
    """A connect on its way: the SYN is sent again until the host answers or the time is up."""

    def __init__(self, fabric: Fabric, loop: SimLoop, address: Address) -> None:
        self.fabric, self.loop, self.address = fabric, loop, address
        self.answer = loop.create_future()
        self.socket: SimSocket | None = None
        self.ended = False
        self._deadline_ns = fabric.scheduler.now_ns + TIMEOUT_NS

    def reach(self) -> None:
        fabric, loop, host = self.fabric, self.loop, self.address[0]
        if loop.dead or self.ended:
            return
        heard = not fabric.unheard.get(self.address)
        if not (heard and fabric.passes(loop.name, host) and fabric.passes(host, loop.name)):
            if fabric.scheduler.now_ns > self._deadline_ns:
                loop.deliver(self._refuse, errno.ETIMEDOUT)
            else:
                fabric.scheduler.after(SYN_RESEND_NS, self.reach)
            return
        back_ns = fabric.latency_ns(host, loop.name)
        listener = fabric.listeners.get(self.address)
        if listener is None:
            fabric.scheduler.after(back_ns, loop.deliver, self._refuse, errno.ECONNREFUSED)
            return
        client = fabric.pair(loop, listener.loop, self.address)
        listener.loop.deliver(listener.accept, client.twin)
        fabric.scheduler.after(back_ns, loop.deliver, self._connected, client)

    def _refuse(self, code: int) -> None:
        if not self.answer.done():
            self.answer.set_exception(broken(code))

    def _connected(self, client: SimSocket) -> None:
        if self.ended or self.answer.done():
            client.abort()
            return
        self.socket = client
        self.answer.set_result(None)
