"""How often a region that is sent in many small parts is looked for in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.wire.fakes import FakeFile
from wire.outgoing import LOOK_BYTES_MAX, SendQueue

LENGTH = 3 * LOOK_BYTES_MAX + 5


@dataclass
class Looked:
    """All of it is in memory."""

    file: Any = field(default_factory=lambda: FakeFile(bytes(LENGTH)))
    position: int = 0
    length: int = LENGTH
    looks: list[tuple[int, int]] = field(default_factory=list)

    def in_memory(self, at: int, size: int) -> int:
        self.looks.append((at, size))
        return size


class SlowSocket:
    """Takes `most` bytes, and is full then."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.room = 0
        self.sent = 0

    def sendfile(self, file: FakeFile, position: int, length: int) -> int:
        if not self.room:
            raise BlockingIOError
        assert position == self.sent
        count = min(length, self.room)
        self.room -= count
        self.sent += count
        return count


@pytest.mark.parametrize("most", [10_000, 300_001, LOOK_BYTES_MAX, LENGTH])
def test_no_byte_is_looked_for_twice(most: int) -> None:
    region, socket, queue = Looked(), SlowSocket(most), SendQueue()
    queue.count([region])
    queue.parts.append(region)
    done = False
    while not done:
        socket.room = socket.most
        done = queue.write(socket)  # type: ignore[arg-type]  # all that is used of a socket
    assert socket.sent == LENGTH
    ends = [at + size for at, size in region.looks]
    assert [at for at, _ in region.looks] == [0, *ends[:-1]]
    assert ends[-1] == LENGTH
