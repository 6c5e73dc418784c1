"""What the controllers commit, as it is committed: `python -m bench.metadata_watch DATA` follows a cluster's metadata.

A process of its own, which follows as a broker does. It prints one JSON object for each step: when (the machine's
monotonic clock, which all processes share), the controllers' epoch, the fenced brokers, how many partitions each
broker leads and how many nobody leads.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from common.machine import machine_ports
from common.pacing import Pacer
from kraft.image.delta import MetadataDelta
from kraft.image.metadata import MetadataImage
from kraft.links import NodeLinks
from kraft.observers.observer import MetadataObserver, ObserverConfig
from tidelog.cluster.embedded_place import HOST
from tidelog.cluster.layout import SECRET_FILE, load_layout
from wire.buffers import BufferPool
from wire.tick import Tick
from wire.watch import Watch

WATCHER_ID = 90_000  # no broker's


@dataclass(frozen=True, slots=True)
class Step:
    """The cluster as of one step of the metadata."""

    at: float  # seconds of the monotonic clock
    epoch: int  # of the active controller: it grows with each election
    controller: int
    fenced: tuple[int, ...]
    led: dict[int, int]  # by broker; -1 is nobody
    whole: int  # partitions with all replicas in sync

    @property
    def total(self) -> int:
        return sum(self.led.values())


class MetadataWatch:
    """Reads what the process prints; `last` is the newest step, `steps` all since `forget`."""

    def __init__(self, data: Path) -> None:
        self.steps: list[Step] = []
        self.last = Step(0.0, -1, -1, (), {}, 0)
        self._moved = threading.Condition()
        line = [sys.executable, "-m", "bench.metadata_watch", str(data)]
        self._process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            raw = json.loads(line)
            led = {int(broker): count for broker, count in raw["led"].items()}
            step = Step(raw["at"], raw["epoch"], raw["controller"], tuple(raw["fenced"]), led, raw["whole"])
            with self._moved:
                self.last = step
                self.steps.append(step)
                self._moved.notify_all()

    def forget(self) -> None:
        with self._moved:
            self.steps = [self.last]

    def wait(self, holds: Callable[[Step], bool], timeout_s: float) -> Step:
        """The first step from `forget` on that `holds`. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        seen = 0
        with self._moved:
            while True:
                for step in self.steps[seen:]:
                    if holds(step):
                        return step
                seen = len(self.steps)
                left = deadline - time.monotonic()
                if left <= 0 or self._process.poll() is not None:
                    raise TimeoutError(f"the metadata stands at {self.last}")
                self._moved.wait(min(left, 1.0))

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class _Printer:
    """Counts leaderships by the changes alone."""

    def __init__(self) -> None:
        self._led: Counter[int] = Counter()
        self._whole = 0

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        at = time.monotonic()
        for topic in delta.topics_deleted.values():
            for old in topic.partitions.values():
                self._led[old.leader] -= 1
                self._whole -= len(old.isr) == len(old.replicas)
        for key, before in delta.partitions_changed.items():
            now = image.partition(*key)
            if before is not None:
                self._led[before.leader] -= 1
                self._whole -= len(before.isr) == len(before.replicas)
            if now is not None:
                self._led[now.leader] += 1
                self._whole += len(now.isr) == len(now.replicas)
        step = {
            "at": at,
            "epoch": image.epoch,
            "controller": image.leader_id,
            "fenced": [broker.broker_id for broker in image.brokers.values() if broker.fenced],
            "led": {broker: count for broker, count in self._led.items() if count},
            "whole": self._whole,
        }
        print(json.dumps(step), flush=True)


async def _follow(data: Path) -> None:
    layout = load_layout(data)
    if layout is None:
        raise SystemExit(f"no cluster in {data}")
    with tempfile.TemporaryDirectory(prefix="tidelog-watch-") as directory:
        ports = machine_ports(Path(directory))
        secret = (data / SECRET_FILE).read_bytes().strip()
        links = NodeLinks(ports, Tick(), BufferPool(), Watch(), "metadata-watch", secret)
        controllers = {node.node_id: (HOST, node.internal_port) for node in layout.controllers}
        config = ObserverConfig(WATCHER_ID, "metadata")
        observer = MetadataObserver(ports, links, controllers, config, Pacer(), sys.exit)
        observer.subscribe(_Printer().metadata_changed)
        await observer.start()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)  # until whoever started this ends


if __name__ == "__main__":
    asyncio.run(_follow(Path(sys.argv[1])))
