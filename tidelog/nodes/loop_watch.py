"""Finds callbacks that hold a node's event loop for too long, by samples of its stack.

A sample is taken after each `INTERVAL_S` of CPU time, so an idle node takes none. Two samples of the same callback in
the same turn of the loop show that it has held the loop for the CPU time between them; the innermost frame in both is
the slow function. A late sample shows a call into C that let no Python code run.

This file decides; `tidelog/nodes/stack_sampling.py` takes the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import FrameType

from msgspec import Struct, field

from common.metrics import Metrics

INTERVAL_S = 0.010  # of CPU time, between samples
HELD_S = 0.020  # of CPU time; no callback of a node may take longer
OVERLOOKED_S = 0.100  # the kernel counts CPU time by ticks, and may miss this much of a thread that often waits
PLACES_MAX = 100  # counted separately; further places count as OTHER
OTHER = "other"


class Place(Struct):
    """A function that held the loop. Seconds are CPU time: in all, of the longest, and of the longest logged."""

    count: int = 0
    seconds: float = 0.0
    longest_s: float = 0.0
    logged_s: float = 0.0


class Held(Struct):
    """One callback that held the loop. `stack` is outermost first; `samples` is how many found it.

    A single sample shows a call into C, or a paused virtual machine, which counts stolen time as CPU time.
    """

    what: str
    seconds: float
    samples: int
    stack: tuple[str, ...]


class _Stay(Struct):
    """The callback of the last sample, and the frames common to all samples of it."""

    turn: int
    common: list[FrameType]
    began_s: float
    seen_s: float
    samples: int = 1


class LoopWatch(Struct):
    """The held callbacks of one loop, by where they were held. `sample` is called on that loop's thread."""

    held_s: float = HELD_S
    interval_s: float = INTERVAL_S
    places: dict[str, Place] = field(default_factory=dict)
    _stay: _Stay | None = None
    _last_s: float | None = None

    def sample(self, frames: list[FrameType], turn: int, cpu_s: float, switched: bool = False) -> Held | None:
        """Note a stack, outermost frame first, without the frames that run the loop; empty between callbacks.

        `turn` counts the turns of the loop, `cpu_s` is the CPU time of its thread, `switched` is whether that thread
        has waited or was preempted since the last sample. Returns the previous callback if it had held the loop for too
        long.
        """
        since_last = cpu_s - (cpu_s if self._last_s is None else self._last_s)
        self._last_s = cpu_s
        stay = self._stay
        if stay is not None and stay.turn == turn and frames and stay.common[0] is frames[0]:
            stay.common = _shared(stay.common, frames)
            stay.seen_s = cpu_s
            stay.samples += 1
            return None
        ended = self._ended()
        if frames:
            in_c_s = max(0.0, since_last - self.interval_s)
            if switched and in_c_s < OVERLOOKED_S:
                in_c_s = 0.0
            self._stay = _Stay(turn, list(frames), cpu_s - in_c_s, cpu_s)
        return ended

    def settle(self) -> Held | None:
        """The callback of the last sample, if it has ended and had held the loop for too long."""
        return self._ended()

    def _ended(self) -> Held | None:
        stay, self._stay = self._stay, None
        if stay is None or stay.seen_s - stay.began_s < self.held_s:
            return None
        seconds = stay.seen_s - stay.began_s
        stack = _described(stay.common)  # only now: nearly no sample finds a callback that held the loop
        what = stack[-1] if stack else OTHER
        if what not in self.places and len(self.places) >= PLACES_MAX:
            what = OTHER
        place = self.places.setdefault(what, Place())
        place.count += 1
        place.seconds += seconds
        place.longest_s = max(place.longest_s, seconds)
        return Held(what, seconds, stay.samples, stack)

    def take_log(self, held: Held) -> bool:
        """Whether to log it: the first, second, fourth, eighth … of a place, and any twice as long as those logged."""
        place = self.places[held.what]
        if place.count & (place.count - 1) and held.seconds < 2 * place.logged_s:
            return False
        place.logged_s = max(place.logged_s, held.seconds)
        return True

    def register(self, metrics: Metrics) -> None:
        """Callbacks that held the loop, by the function in which they did."""
        metrics.summary("tidelog_loop_held_seconds", self._samples)

    def _samples(self) -> Iterable[tuple[Mapping[str, str], tuple[int, float]]]:
        for what, place in self.places.items():
            yield {"what": what}, (place.count, place.seconds)


def _shared(before: list[FrameType], now: list[FrameType]) -> list[FrameType]:
    """The frames, from the outermost, that are the same in both."""
    length = 0
    for one, other in zip(before, now, strict=False):
        if one is not other:
            break
        length += 1
    return before[:length]


def _described(frames: list[FrameType]) -> tuple[str, ...]:
    return tuple(f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}" for frame in frames)
