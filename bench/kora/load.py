"""Load and latency as more is asked of a broker (Kora, Fig. 3): `python -m bench.kora.load [SHAPE …]`.

One broker is asked for 10 to 95 % of what it can do, at random times (Poisson), in three shapes. For each step the load
follows from the broker's own counters over that step, and latencies count from the time at which a request was due.
The load should be a straight line while latencies explode. Client and controller have a processor of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import socket
import statistics
import sys
import time
import urllib.request
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

from bench.embedded import EmbeddedCluster
from common.loop_load import ARRIVAL_VARIATION, LoadMeans, LoopCounters, sample
from records.builder import build_batch
from records.record import Record
from tidelog.cluster.layout import load_layout
from wire.codec import encode_request
from wire.messages import FetchRequest, ProduceRequest

RESULT = Path(__file__).parent.parent / "results" / "kora_load.json"
STEPS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REPORTS_S = 0.5
SETTINGS = {"log.dir.free.bytes.min": "0", "tidelog.usage.report.interval.ms": str(int(REPORTS_S * 1000))}
CONNECTIONS, IN_FLIGHT = 24, 4  # the second while the capacity is sought
RECEIVE_BYTES = 1 << 20
COUNTERS = ("jobs", "wait_seconds", "service_seconds", "service_squares", "busy_seconds")


class Shape(NamedTuple):
    """Requests are produced batches of `batch_bytes`, each with `reads` fetches of `read_bytes`."""

    batch_bytes: int
    reads: int = 0
    read_bytes: int = 0


SHAPES = {"tiny": Shape(200), "1 MB": Shape(1_000_000), "fan-out": Shape(16_000, reads=4, read_bytes=64_000)}


def produce_frame(topic: str, size: int) -> bytes:
    data = ProduceRequest.TopicProduceData
    value = random.Random(1).randbytes(size)
    batch = build_batch([Record(0, int(time.time() * 1_000), b"k", value)])
    part = data.PartitionProduceData(index=0, records=bytes(batch))
    request = ProduceRequest(
        transactional_id=None, acks=1, timeout_ms=10_000, topic_data=[data(name=topic, partition_data=[part])]
    )
    return encode_request(request, 9, 1, "load")


def fetch_frame(topic: str, size: int) -> bytes:
    of = FetchRequest.FetchTopic
    part = of.FetchPartition(
        partition=0, current_leader_epoch=-1, fetch_offset=0, last_fetched_epoch=-1, log_start_offset=-1,
        partition_max_bytes=size,
    )  # fmt: skip
    request = FetchRequest(
        replica_id=-1, max_wait_ms=100, min_bytes=1, max_bytes=size, isolation_level=0, session_id=0, session_epoch=-1,
        topics=[of(topic=topic, partitions=[part])], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return encode_request(request, 11, 1, "load")


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

    def capacity(self, seconds: float) -> float:
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

    def offer(self, rate: float, seconds: float, rng: random.Random) -> list[float]:
        """Latencies of the requests of so many seconds, in seconds."""
        now = time.perf_counter()
        until, due, latencies = now + seconds, now, list[float]()
        while now < until:
            while due <= now:
                self._ask(due)
                due += rng.expovariate(rate)
            self._look(now, latencies)
            now = time.perf_counter()
        return latencies

    def settle(self) -> None:
        """Wait until all is answered."""
        while any(peer.due for peer in self._order):
            self._look(time.perf_counter(), [])


def counters(port: int) -> LoopCounters:
    """The broker's, as of its last report."""
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10).read().decode()
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("tidelog_loop_"))
    jobs, *times = (float(values[f"tidelog_loop_{name}_total"]) for name in COUNTERS)
    return LoopCounters(int(jobs), *times)


def step_at(client: Client, port: int, offered: float, rate: float, seconds: float) -> dict[str, float]:
    rng = random.Random(int(offered * 100))
    client.offer(rate, 2 * REPORTS_S, rng)
    before, began = counters(port), time.perf_counter()
    latencies = sorted(client.offer(rate, seconds, rng))
    added, passed_s = counters(port).since(before), time.perf_counter() - began
    client.settle()
    one = None if added is None else sample(added, passed_s)
    if one is None or len(latencies) < 2:
        raise RuntimeError("the broker has counted nothing")
    means = LoadMeans().with_sample(one, passed_s)
    cuts = statistics.quantiles(latencies, n=1000)
    return {
        "offered": offered,
        "rate": round(rate, 1),
        "load": round(means.load, 3),
        "busy": round(means.busy, 3),
        "wait_ms": round(means.wait_s * 1e3, 4),
        "service_ms": round(means.job_s * 1e3, 4),
        "service_variation": round(means.service_variation, 3),
        "p50_ms": round(cuts[499] * 1e3, 3),
        "p99_ms": round(cuts[989] * 1e3, 3),
    }


def line_through(steps: list[dict[str, float]]) -> dict[str, float]:
    """How near the loads are to the best straight line and to what was offered."""
    offered, loads = [step["offered"] for step in steps], [step["load"] for step in steps]
    return {
        "r_squared": round(statistics.correlation(offered, loads) ** 2, 4),
        "error_max": round(max(abs(load - one) for load, one in zip(loads, offered, strict=True)), 3),
        "p99_growth": round(steps[-1]["p99_ms"] / steps[0]["p99_ms"], 1),
    }


def measure(name: str, seconds: float) -> dict[str, Any]:
    shape = SHAPES[name]
    own, brokers = sorted(os.sched_getaffinity(0))[:2]
    with EmbeddedCluster(brokers=1, controllers=1, settings=SETTINGS) as cluster:
        cluster.command_of("topics", "create", "load", "--partitions", "1")
        for row in cluster.nodes():
            if row["pid"]:
                os.sched_setaffinity(row["pid"], {brokers if row["role"] == "broker" else own})
        os.sched_setaffinity(0, {own})
        layout = load_layout(cluster.data)
        if layout is None:
            raise RuntimeError("the cluster has no layout")
        port = next(node.metrics_port for node in layout.nodes if node.role == "broker")
        host, client_port = cluster.bootstrap.rsplit(":", 1)
        frames = [produce_frame("load", shape.batch_bytes)]
        frames += [fetch_frame("load", shape.read_bytes)] * shape.reads
        client = Client((host, int(client_port)), frames)
        client.offer(50, 2.0, random.Random(0))
        client.settle()
        capacity = client.capacity(6.0)
        steps = [step_at(client, port, offered, capacity * offered, seconds) for offered in STEPS]
    os.sched_setaffinity(0, {own, brokers})
    return {"shape": shape._asdict(), "capacity": round(capacity, 1), "steps": steps, "line": line_through(steps)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="*", choices=[*SHAPES, []], help="of tiny, 1 MB, fan-out; all by default")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a step")
    given = parser.parse_args()
    found: dict[str, Any] = json.loads(RESULT.read_text()) if RESULT.exists() else {"shapes": {}}
    found |= {"arrival_variation": ARRIVAL_VARIATION, "step_s": given.seconds}
    for name in given.shapes or SHAPES:
        found["shapes"][name] = measure(name, given.seconds)
        print(json.dumps({name: found["shapes"][name]["line"]}), flush=True)
        RESULT.write_text(json.dumps(found, indent=1) + "\n")
    lines = [shape["line"] for shape in found["shapes"].values()]
    return 0 if all(line["r_squared"] >= 0.95 and line["error_max"] <= 0.1 for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
