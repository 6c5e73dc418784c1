"""What the measurements do to a proxy from outside: requests, streams, handshakes, storms, idle connections.

A request is `length, reply length, filler`, as `bench.proxy.backend` understands it. All of this runs in the measuring
process; the proxy's CPU is read from the kernel's clock of its process.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.proxy.names import HOST

LOOPBACK = "127.0.0.1"
ROOM_BYTES = 256 * 1024
WAIT_S = 20.0


@dataclass(frozen=True, slots=True)
class Target:
    """A proxy to measure. `tls` "terminated": the client speaks TLS with it; "passed": it gets a hello, then clear
    bytes that it passes on; "none": no proxy at all."""

    name: str
    port: int
    pids: Sequence[int]
    tls: str = "terminated"

    def cpu(self) -> float:
        """Seconds of CPU that its processes have used."""
        return sum(time.clock_gettime(~pid << 3 | 2) for pid in self.pids)

    def resident_kb(self) -> int:
        """Resident memory of its processes."""
        total = 0
        for pid in self.pids:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Rss:"):
                    total += int(line.split()[1])
        return total


def client_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def hello() -> bytes:
    """A real ClientHello."""
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        client_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname=HOST).do_handshake()
    return out.read()


def connect(target: Target, context: ssl.SSLContext | None = None) -> socket.socket:
    sock = socket.create_connection((LOOPBACK, target.port), WAIT_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if target.tls == "passed":
        sock.sendall(hello())
    elif target.tls == "terminated":
        sock = (context or client_context()).wrap_socket(sock, server_hostname=HOST)
    return sock


def request(size: int, answer: int) -> bytes:
    return struct.pack(">II", size, answer) + bytes(size - 8)


def exchange(sock: socket.socket, words: bytes, answer: int, room: memoryview) -> None:
    sock.sendall(words)
    got = 0
    while got < answer:
        count = sock.recv_into(room, min(len(room), answer - got))
        if not count:
            raise EOFError("the connection ended inside an answer")
        got += count


def pings(target: Target, seconds: float, size: int = 1024) -> dict[str, float]:
    """One connection, one request after the other: requests/s, p50 and p99 in µs, CPU µs per request."""
    words, room, took = request(size, size), memoryview(bytearray(65_536)), list[float]()
    with connect(target) as sock:
        for _ in range(20):
            exchange(sock, words, size, room)
        cpu, began = target.cpu(), time.perf_counter()
        at = began
        while at - began < seconds:
            exchange(sock, words, size, room)
            now = time.perf_counter()
            took.append(now - at)
            at = now
        used = target.cpu() - cpu
    took.sort()
    count = len(took)
    return {
        "rps": count / (at - began),
        "p50_us": took[count // 2] * 1e6,
        "p99_us": took[int(count * 0.99)] * 1e6,
        "cpu_us": used / count * 1e6,
    }


def stream(target: Target, up: int, down: int, seconds: float, connections: int = 4) -> dict[str, float]:
    """Large requests or answers on some connections: MB/s, and CPU seconds per GB."""
    words = request(up, down)
    socks = [connect(target) for _ in range(connections)]
    for sock in socks:
        exchange(sock, words, down, memoryview(bytearray(ROOM_BYTES)))
    counts = [0] * connections
    cpu, began = target.cpu(), time.perf_counter()

    def work(number: int) -> None:
        room = memoryview(bytearray(ROOM_BYTES))
        while time.perf_counter() - began < seconds:
            exchange(socks[number], words, down, room)
            counts[number] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used, took = target.cpu() - cpu, time.perf_counter() - began
    for sock in socks:
        sock.close()
    total = sum(counts) * (up + down)
    return {"mb_s": total / took / 1e6, "cpu_s_gb": used / total * 1e9}


def handshakes(target: Target, seconds: float) -> dict[str, float]:
    """Connections one after the other, each with a full handshake, a broker connection and one request."""
    context, words, room = client_context(), request(64, 64), memoryview(bytearray(65_536))
    count, cpu, began = 0, target.cpu(), time.perf_counter()
    while time.perf_counter() - began < seconds:
        with connect(target, context) as sock:
            exchange(sock, words, 64, room)
        count += 1
    used = target.cpu() - cpu
    return {"per_s": count / (time.perf_counter() - began), "cpu_us": used / count * 1e6}


def storm(target: Target, seconds: float, rate: float, parallel: int = 64) -> float:
    """Strangers that send a hello, take the answer and go; answers per second. Runs in a process of its own."""
    poll, socks, done = select.epoll(), dict[int, socket.socket](), 0
    words, began, started = hello(), time.perf_counter(), 0
    while time.perf_counter() < began + seconds:
        while len(socks) < parallel and started < (time.perf_counter() - began) * rate:
            sock = socket.socket()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.connect((LOOPBACK, target.port))
            sock.setblocking(False)
            sock.send(words)
            socks[sock.fileno()] = sock
            poll.register(sock.fileno(), select.EPOLLIN)
            started += 1
        for fd, _ in poll.poll(0.002):
            sock = socks.pop(fd)
            with contextlib.suppress(OSError):
                done += len(sock.recv(65_536)) > 100
            sock.close()
    return done / seconds


def pings_in_a_storm(target: Target, seconds: float, rate: float) -> dict[str, float]:
    """The pings of somebody who is connected, while strangers knock; with the hellos that were answered a second."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            os.write(writing, f"{storm(target, seconds + 0.6, rate):.0f}".encode())
        os._exit(0)
    time.sleep(0.3)
    found = pings(target, seconds)
    os.waitpid(child, 0)
    found["hellos_s"] = float(os.read(reading, 32) or b"0")
    os.close(reading)
    os.close(writing)
    return found


def idle(target: Target, count: int) -> dict[str, float]:
    """kB of resident memory per connection: after one small request, and after 64 KB each way."""
    room, small, large = memoryview(bytearray(ROOM_BYTES)), request(1024, 1024), request(65_536, 65_536)
    context = client_context()
    for _ in range(50):
        with connect(target, context) as sock:
            exchange(sock, large, 65_536, room)
    base, socks = target.resident_kb(), list[socket.socket]()
    try:
        for _ in range(count):
            sock = connect(target, context)
            exchange(sock, small, 1024, room)
            socks.append(sock)
        before = target.resident_kb()
        for sock in socks:
            exchange(sock, large, 65_536, room)
        after = target.resident_kb()
    finally:
        for sock in socks:
            sock.close()
    return {"before_kb": (before - base) / count, "after_kb": (after - base) / count}
