"""Who waits for long is told what for, beside the answer."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FIRST_S = 1.0
EVERY_S = 10.0


@contextmanager
def told(
    say: Callable[[str], None], what: str, limit_s: float = 0.0, *, first_s: float = FIRST_S, every_s: float = EVERY_S
) -> Iterator[None]:
    """`say`, from a thread of its own, what the block waits for once it has taken `first_s`, and again each `every_s`.

    `limit_s` is for how long it may wait; 0: that is not known. Nothing is said after the block's end.
    """
    ended = threading.Event()
    limit = f", for up to {limit_s:.0f} s" if limit_s else ""
    began = time.monotonic()

    def tell() -> None:
        for number in itertools.count():
            if ended.wait(every_s if number else first_s):
                return
            so_far = f" ({time.monotonic() - began:.0f} s so far)" if number else ""
            say(f"waiting for {what}{limit}{so_far}")

    teller = threading.Thread(target=tell, name="waiting-told", daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
