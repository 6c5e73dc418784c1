"""A steady trickle of records whose way from produce() to consume() is timed while conditions alternate.

Conditions change every few seconds under one probe, so that what else the machine does falls on all of them alike.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, field

from bench.load import percentile
from bench.tier.topics import Topics, finish_load, start_load

START_S = 30.0
SAMPLES_MIN = 50


@dataclass(slots=True)
class Probe:
    """`with Probe(…) as probe`: records flow. After the block `latencies` has (monotonic time sent, seconds)."""

    topics: Topics
    topic: str
    partitions: int
    rate: int
    size: int
    seconds: float
    latencies: list[tuple[float, float]] = field(default_factory=list)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Probe:
        arguments = {"topic": self.topic, "partitions": self.partitions, "rate": self.rate, "size": self.size}
        self._process = start_load(
            "bench.tier.loads", "probe", self.topics.bootstrap, {**arguments, "seconds": self.seconds}
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline().strip() != "flowing":
            finish_load(self._process)
            raise RuntimeError("the probe did not begin")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process is not None
        if kind is not None:
            self._process.kill()
            self._process.communicate()
            return
        found = finish_load(self._process)
        self.latencies = list(zip(found["sent"], found["latencies"], strict=True))

    def p99_ms(self, window: tuple[float, float]) -> float:
        """Of the records sent in a window of monotonic time."""
        inside = [latency for sent, latency in self.latencies if window[0] <= sent < window[1]]
        if len(inside) < SAMPLES_MIN:
            raise RuntimeError(f"only {len(inside)} records were sent in a window")
        return percentile(inside, 0.99)


def sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
