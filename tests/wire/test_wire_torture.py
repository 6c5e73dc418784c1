"""Many connections under one small budget, with everything that can interrupt them: nothing lost, nothing reordered."""

from __future__ import annotations

import asyncio
import random
from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from common.node_settings.connections import ConnectionSettings
from tests.wire.fakes import Bench, CountingPool, FakeFile, FakeRegion, FakeSocket, frame, turns
from wire.connection import Connection
from wire.outgoing import Reply

SIZES = [1, 50, 3000, 60_000, 70_000, 300_000, 600_000]
ROUNDS_WITHOUT_PROGRESS_MAX = 500  # a muted connection is unmuted in one round of six
DISK = FakeFile(random.Random(0).randbytes(1 << 20))


class Talk:
    """One connection: numbered requests of random sizes, answered at once, later, from a file, or not at all."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.rng = rng
        limits = ConnectionSettings(
            replies_pending_max=rng.choice([2, 16]),
            held_bytes_max=rng.choice([1000, 1 << 20]),
            unsent_bytes_max=rng.choice([10_000, 1 << 20]),
            stall_s=1000,
            idle_s=0,
        )
        self.connection, self.peer = bench.connect(self.frame, limits, pipe_bytes=rng.choice([100, 5000, 1 << 20]))
        self.socket: FakeSocket = self.peer.other
        self.socket.receive_max = rng.choice([5000, 20_000, 1 << 30])
        self.requests = [rng.randbytes(rng.choice(SIZES)) for _ in range(rng.randint(1, 12))]
        self.to_send = b"".join(frame(request) for request in self.requests)
        self.handled = 0
        self.expected = bytearray()
        self.got = bytearray()
        self.waiting: deque[tuple[Reply, list[bytes | bytearray | FakeRegion]]] = deque()
        self.regions: list[FakeRegion] = []
        self.muted = False

    def frame(self, connection: Connection, _: bytearray, view: memoryview, at: int, end: int) -> None:
        assert not self.muted, "a frame was handled while muted"
        assert view[at:end] == self.requests[self.handled]
        self.handled += 1
        kind = self.rng.randrange(5)
        if kind == 0:
            connection.reply_later(end - at).send([])
            return
        answer: list[bytes | bytearray | FakeRegion] = [self.rng.randbytes(self.rng.choice(SIZES[:5]))]
        if kind == 1:
            answer.append(self.region())
        self.expected += b"".join(
            DISK.pread(part.length, part.position) if isinstance(part, FakeRegion) else bytes(part) for part in answer
        )
        if kind == 2:
            self.waiting.append((connection.reply_later(self.rng.choice([0, end - at])), answer))
        else:
            connection.reply(list(answer))
        if self.rng.random() < 0.2:
            self.mute()

    def region(self) -> FakeRegion:
        position = self.rng.randrange(1 << 19)
        self.regions.append(FakeRegion(DISK, position, self.rng.choice(SIZES[:6])))
        return self.regions[-1]

    def mute(self) -> None:
        if not self.muted:
            self.muted = True
            self.connection.mute()

    def step(self) -> None:
        """Something happens to this connection."""
        kind = self.rng.randrange(6)
        if kind == 0 and self.waiting:
            reply, answer = self.waiting[self.rng.randrange(len(self.waiting))]
            self.waiting.remove((reply, answer))
            reply.send(list(answer))
        elif kind == 1 and self.muted:
            self.muted = False
            self.connection.unmute()
        elif kind == 2 and self.rng.random() < 0.2:
            self.mute()
        elif kind == 3 and self.to_send:
            size = self.rng.choice([3, 1000, 100_000, 1 << 20])
            self.socket.inbox += self.to_send[:size]
            self.to_send = self.to_send[size:]
            self.socket.poll()
        else:
            self.drain()

    def drain(self) -> None:
        self.got += self.peer.inbox
        self.peer.inbox.clear()
        self.socket.poll()

    @property
    def progress(self) -> int:
        """Grows with every byte that moves."""
        return self.handled + len(self.got) - len(self.to_send) - len(self.socket.inbox)

    @property
    def is_done(self) -> bool:
        return self.handled == len(self.requests) and not self.waiting and len(self.got) == len(self.expected)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_lost_or_reordered_under_memory_pressure(seed: int) -> None:
    rng = random.Random(seed)

    async def run() -> None:
        pool = CountingPool(
            held_bytes_max=rng.choice([1, 100_000, 1 << 20]), unsent_bytes_max=rng.choice([1, 100_000, 1 << 20])
        )
        bench = Bench(pool=pool)
        talks = [Talk(bench, random.Random(rng.random())) for _ in range(rng.randint(1, 8))]
        rounds_without_progress, progress = 0, 0
        while rounds_without_progress < ROUNDS_WITHOUT_PROGRESS_MAX:
            left = [talk for talk in talks if not talk.is_done]
            if not left:
                break
            for talk in left:
                talk.step()
            await turns(1)
            before, progress = progress, sum(talk.progress for talk in talks)
            rounds_without_progress = 0 if progress != before else rounds_without_progress + 1
        assert [(talk.handled, len(talk.waiting), len(talk.got)) for talk in talks] == [
            (len(talk.requests), 0, len(talk.expected)) for talk in talks
        ]
        assert all(talk.got == talk.expected for talk in talks)
        assert all(region.released == 1 for talk in talks for region in talk.regions)
        assert (pool.held, pool.unsent) == (0, 0)
        assert bench.violations == []
        assert pool.lent == 0
        bench.watch.close()

    asyncio.run(run())


async def test_the_right_to_pass_the_budget_goes_round() -> None:
    """A peer whose half frames never end must not keep another's from ever being received."""
    bench = Bench(pool=CountingPool(held_bytes_max=1))
    (_, streaming), (_, single) = (bench.connect(pipe_bytes=1 << 24) for _ in range(2))
    endless, once = frame(b"e" * 30_000), frame(b"o" * 300_000)  # short ones: part of the next is always there
    streaming.other.receive_max = 11_000
    single.other.inbox += once
    for _ in range(300):
        if len(streaming.other.inbox) < 2 * len(endless):
            streaming.other.inbox += endless * 3
        streaming.other.poll()
        single.other.poll()
        await turns(1)
    payloads = {bytes(payload[:1]) for payload in bench.frames}
    assert payloads == {b"e", b"o"}
    bench.watch.close()
