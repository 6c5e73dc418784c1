"""A client that sends requests at random times, over some connections, and hears when each is answered."""

from __future__ import annotations

import random
import select
import socket
import time
from collections import deque
from typing import NamedTuple

CONNECTIONS, IN_FLIGHT = 24, 4  # the second while requests follow answers
RECEIVE_BYTES = 1 << 20


class Offered(NamedTuple):
    """What came of the requests that were due in `seconds`: `latencies` of those that were answered in that time, from
    when they were due, and `lateness`, how long after that each was sent. In seconds."""

    due: int
    seconds: float
    latencies: list[float]
    lateness: list[float]

    @property
    def reached(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    @property
    def answered_share(self) -> float:
        return len(self.latencies) / self.due if self.due else 1.0


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
            part = self._unsent.popleft()
            try:
                sent = self.socket.send(part)
            except BlockingIOError:
                sent = 0
            if sent < len(part):
                self._unsent.appendleft(part[sent:])
                return

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
    """Never sleeps: a timer of a millisecond would send requests in bursts."""

    def __init__(self, address: tuple[str, int], frames: list[bytes]) -> None:
        self._peers = {peer.socket.fileno(): peer for peer in (Peer(address) for _ in range(CONNECTIONS))}
        self._order = list(self._peers.values())
        self._frames = frames
        self._asked = 0
        self._poll = select.epoll()
        for number in self._peers:
            self._poll.register(number, select.EPOLLIN)
        self._buffer = memoryview(bytearray(RECEIVE_BYTES))

    def _ask(self, due: float, peer: Peer | None = None) -> None:
        (peer or self._order[self._asked % len(self._order)]).ask(self._frames[self._asked % len(self._frames)], due)
        self._asked += 1

    def _look(self, now: float, latencies: list[float]) -> int:
        count = 0
        for number, _ in self._poll.poll(0):
            peer = self._peers[number]
            for _ in range(peer.answers(self._buffer)):
                latencies.append(now - peer.due.popleft())
                count += 1
        for peer in self._order:
            if peer.has_unsent:
                peer.send()
        return count

    def in_turns(self, seconds: float) -> float:
        """Answers a second while each connection always has some requests in flight."""
        begin = now = time.perf_counter()
        done, latencies = 0, list[float]()
        for peer in self._order * IN_FLIGHT:
            self._ask(now, peer)
        while now < begin + seconds:
            done += self._look(now, latencies)
            for peer in self._order:
                while len(peer.due) < IN_FLIGHT:
                    self._ask(now, peer)
            now = time.perf_counter()
        self.settle()
        return done / seconds

    def offer(self, rate: float, seconds: float, rng: random.Random) -> Offered:
        begin = now = due = time.perf_counter()
        until, latencies, lateness = now + seconds, list[float](), list[float]()
        while now < until:
            while due <= now:
                lateness.append(now - due)
                self._ask(due)
                due += rng.expovariate(rate)
            self._look(now, latencies)
            now = time.perf_counter()
        return Offered(len(lateness), now - begin, latencies, lateness)

    def settle(self) -> None:
        """Wait until all is answered."""
        while any(peer.due for peer in self._order):
            self._look(time.perf_counter(), [])

    def close(self) -> None:
        self._poll.close()
        for peer in self._order:
            peer.socket.close()
