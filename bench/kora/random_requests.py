"""A client that sends requests at random times, over some connections, and hears when each is answered.

It never sleeps, because a timer of a millisecond would send requests in bursts. It looks for answers every `LOOK_S`
only: one that receives each piece of an answer while the broker still sends the rest slows the broker down, and the
more so the less it is asked.
"""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from typing import NamedTuple

CONNECTIONS = 24
LOOK_S = 100e-6
RECEIVE_BYTES = 1 << 20


class Offered(NamedTuple):
    """What came of the requests that were due in `seconds`: `latencies` of all of them, from when they were due, and
    `lateness`, how long after that each was sent. In seconds. `in_time` were answered in that time, the last one after
    `whole_s`."""

    seconds: float
    whole_s: float
    in_time: int
    latencies: list[float]
    lateness: list[float]

    @property
    def reached(self) -> float:
        """Answers a second."""
        return self.in_time / self.seconds


class Peer:
    """One connection: requests wait until the socket takes them, answers come in order."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self.due: deque[float] = deque()  # of requests without an answer
        self._unsent: deque[memoryview] = deque()
        self._head = bytearray()
        self._left = 0  # of the answer that is being received

    def ask(self, frame: bytes, due: float) -> None:
        self.due.append(due)
        self._unsent.append(memoryview(frame))
        self.send()

    def send(self) -> None:
        while self._unsent:
            part = self._unsent[0]
            try:
                sent = self.socket.send(part)
            except BlockingIOError:
                return
            if sent == len(part):
                self._unsent.popleft()
            else:
                self._unsent[0] = part[sent:]

    def answers(self, buffer: memoryview) -> int:
        """How many answers end in what was received now."""
        try:
            size = self.socket.recv_into(buffer)
        except BlockingIOError:
            return 0
        if not size:
            raise ConnectionError("the broker has closed a connection")
        at = count = 0
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                at += step
                self._left -= step
                count += not self._left
            else:
                step = min(4 - len(self._head), size - at)
                self._head += buffer[at : at + step]
                at += step
                if len(self._head) == 4:
                    self._left = int.from_bytes(self._head, "big")
                    self._head.clear()
        return count

    @property
    def has_unsent(self) -> bool:
        return bool(self._unsent)


class Client:
    def __init__(self, address: tuple[str, int], frames: list[bytes]) -> None:
        self._peers = {peer.socket.fileno(): peer for peer in (Peer(address) for _ in range(CONNECTIONS))}
        self._order = list(self._peers.values())
        self._frames = frames
        self._asked = 0
        self._look_at = 0.0
        self._poll = select.epoll()
        for number in self._peers:
            self._poll.register(number, select.EPOLLIN)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    def _ask(self, due: float, peer: Peer | None = None) -> None:
        (peer or self._order[self._asked % len(self._order)]).ask(self._frames[self._asked % len(self._frames)], due)
        self._asked += 1

    def _look(self, now: float, latencies: list[float]) -> None:
        """If it is time for it."""
        if now < self._look_at:
            return
        for number, _ in self._poll.poll(0):
            peer = self._peers[number]
            count = peer.answers(self._buffer)
            heard = time.perf_counter()
            latencies.extend(heard - peer.due.popleft() for _ in range(count))
        for peer in self._order:
            if peer.has_unsent:
                peer.send()
        self._look_at = time.perf_counter() + LOOK_S

    def in_turns(self, seconds: float, in_flight: int) -> float:
        """Answers a second while each of `in_flight` connections asks again once it is answered."""
        begin = now = time.perf_counter()
        latencies, peers = list[float](), self._order[:in_flight]
        while now < begin + seconds:
            for peer in peers:
                if not peer.due:
                    self._ask(now, peer)
            self._look(now, latencies)
            now = time.perf_counter()
        done = len(latencies)
        self._settle([])
        return done / seconds

    def offer(self, rate: float, seconds: float, rng: random.Random) -> Offered:
        """Requests at random times for so long; return when the last one is answered."""
        begin = now = due = time.perf_counter()
        until, latencies, lateness = now + seconds, list[float](), list[float]()
        while now < until:
            while due <= now:
                lateness.append(now - due)
                self._ask(due)
                due += rng.expovariate(rate)
            self._look(now, latencies)
            now = time.perf_counter()
        in_time = len(latencies)
        self._settle(latencies)
        return Offered(now - begin, time.perf_counter() - begin, in_time, latencies, lateness)

    def _settle(self, latencies: list[float]) -> None:
        while any(peer.due for peer in self._order):
            self._look(time.perf_counter(), latencies)

    def close(self) -> None:
        self._poll.close()
        for peer in self._order:
            peer.socket.close()
