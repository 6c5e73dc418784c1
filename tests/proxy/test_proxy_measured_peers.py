"""What the proxy is measured beside: both proxies on a core that nothing else uses, in every row."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from bench.proxy.peers import Peers


def test_cores_are_divided_anew_for_each_row(tmp_path: Path) -> None:
    found: list[tuple[set[int], set[int]]] = []

    def measure() -> None:
        """In a thread of its own: cores are a thread's, and this one's are the other tests'."""
        for _ in range(2):
            with Peers(tmp_path) as peers:
                found.append(({peers.proxy_core}, os.sched_getaffinity(0)))
        found.append((set(), os.sched_getaffinity(0)))

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join()
    assert found[0] == found[1]
    assert found[2][1] == os.sched_getaffinity(0)
