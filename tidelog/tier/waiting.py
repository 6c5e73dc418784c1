"""Reports long waits to the user."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_S = 1.0
EVERY_S = 10.0


@contextmanager
def reported_wait(
    say: Callable[[str], None], what: str, limit_s: float = 0.0, *, first_s: float = FIRST_S, every_s: float = EVERY_S
) -> Iterator[None]:
    """Call `say` from a thread with what the block waits for, after `first_s` and then each `every_s`, until it ends.

    `limit_s`: the longest possible wait, 0 if unknown.
    """
    ended = threading.Event()
    limit = f", for up to {limit_s:.0f} s" if limit_s else ""
    began = time.monotonic()

    def report() -> None:
        for number in itertools.count():
            if ended.wait(every_s if number else first_s):
                return
            so_far = f" ({time.monotonic() - began:.0f} s so far)" if number else ""
            say(f"waiting for {what}{limit}{so_far}")

    reporter = threading.Thread(target=report, name="reported-wait", daemon=True)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
