"""Takes the samples of `loop_watch` in a node's process: a signal after each few milliseconds of CPU time.

The kernel sends the signal to a thread that uses CPU; its handler runs on the main thread, between two instructions of
the loop's callback. An idle process gets no signal.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import time
from collections.abc import Callable
from types import FrameType

from tidelog.nodes.loop_watch import Held, LoopWatch

logger = logging.getLogger(__name__)
LOOP_MODULES = ("asyncio.base_events", "asyncio.events")


class StackSampling:
    """Samples whatever loop runs on the main thread, until `stop`. One per process; make it on the main thread.

    `noticed` gets each callback that held the loop, when it has ended. `loop_modules` are those of the loop itself.
    """

    def __init__(
        self, watch: LoopWatch, noticed: Callable[[Held], None], loop_modules: tuple[str, ...] = LOOP_MODULES
    ) -> None:
        self._watch = watch
        self._noticed = noticed
        self._loop_modules = loop_modules
        self._turn = 0
        self._switches = 0
        self._marked: asyncio.AbstractEventLoop | None = None
        self._held: list[Held] = []
        signal.signal(signal.SIGPROF, self._sample)
        signal.siginterrupt(signal.SIGPROF, False)
        signal.setitimer(signal.ITIMER_PROF, watch.interval_s, watch.interval_s)

    def __enter__(self) -> StackSampling:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take no more samples. A process that ends without this dies of the signal."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        signal.signal(signal.SIGPROF, signal.SIG_IGN)

    def _sample(self, _: int, frame: FrameType | None) -> None:
        loop = asyncio._get_running_loop()
        frames = [] if loop is None else callback_frames(frame, self._loop_modules)
        held = self._watch.sample(frames, self._turn, time.thread_time(), self._has_switched())
        if held is not None:
            self._held.append(held)
        if loop is not None and self._marked is not loop:
            self._marked = loop
            loop.call_soon_threadsafe(self._turned)

    def _has_switched(self) -> bool:
        """Whether this thread has waited or yielded since the last call."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        before, self._switches = self._switches, usage.ru_nvcsw + usage.ru_nivcsw
        return self._switches != before

    def _turned(self) -> None:
        """The turn in which the last sample was taken is over."""
        self._marked = None
        self._turn += 1
        ended = self._watch.settle()
        if ended is not None:
            self._held.append(ended)
        held, self._held = self._held, []
        for one in held:
            self._noticed(one)


def callback_frames(frame: FrameType | None, loop_modules: tuple[str, ...]) -> list[FrameType]:
    """The frames of the callback that the loop runs, outermost first; none when the loop itself is at work."""
    frames: list[FrameType] = []
    while frame is not None and frame.f_globals.get("__name__") != "asyncio.runners":
        frames.append(frame)
        frame = frame.f_back
    if frame is None:
        return []
    frames.reverse()
    own = 0
    while own < len(frames) and frames[own].f_globals.get("__name__") in loop_modules:
        own += 1
    return frames[own:]


def log_held(watch: LoopWatch) -> Callable[[Held], None]:
    """Log a callback that held the loop, with its stack, less and less often for each place."""

    def noticed(held: Held) -> None:
        if watch.take_log(held):
            fields = {
                "what": held.what,
                "cpu_ms": round(held.seconds * 1000),
                "samples": held.samples,
                "times": watch.places[held.what].count,
                "stack": " > ".join(held.stack),
            }
            logger.warning("the event loop was held", extra=fields)

    return noticed
