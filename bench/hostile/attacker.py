"""Sends one frame to a broker again and again: `python -m bench.hostile.attacker PORT < FRAME`.

A process of its own, so that it shares no interpreter with the client whose latencies are measured. Ends when its
output is closed or at SIGTERM; says then how many answers it took and how many connections ended.
"""

from __future__ import annotations

import signal
import socket
import sys
import time

READ_BYTES = 1 << 18
CONNECT_S = 5.0


class Stopped(Exception):
    pass


def _stop(*_: object) -> None:
    raise Stopped


def attack(port: int, frame: bytes) -> tuple[int, int]:
    """Until SIGTERM: the number of answers, and of connections that the broker closed."""
    answers = closed = 0
    room = memoryview(bytearray(READ_BYTES))
    try:
        while True:
            try:
                with socket.create_connection(("127.0.0.1", port), CONNECT_S) as connection:
                    connection.settimeout(None)
                    while True:
                        connection.sendall(frame)
                        left = int.from_bytes(_read(connection, room[:4]), "big")
                        while left:
                            left -= len(_read(connection, room[: min(left, READ_BYTES)]))
                        answers += 1
            except OSError:
                closed += 1
                time.sleep(0.05)
    except Stopped:
        return answers, closed


def _read(connection: socket.socket, room: memoryview) -> memoryview:
    at = 0
    while at < len(room):
        count = connection.recv_into(room[at:])
        if not count:
            raise ConnectionError
        at += count
    return room


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    print(*attack(int(sys.argv[1]), sys.stdin.buffer.read()))
