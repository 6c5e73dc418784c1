"""Renamed files and directories that a thread deletes after a delay.

A reader of a deleted segment keeps its open file; the delay is for readers that look it up again (Kafka's
file.delete.delay.ms). The next start deletes leftovers of a crash by their names.
"""

import heapq
from typing import NamedTuple

from common.ports import Disk

TAKEN_MAX = 1_000  # per round: a deleted topic may have 100,000 partitions


class _Discarded(NamedTuple):
    due_s: float
    number: int  # keeps the order of equal times
    path: str
    is_directory: bool


class Trash:
    """`add` runs on the loop; deletion runs in a thread, on what `take_due` returned."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[_Discarded] = []
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, path: str, due_s: float, *, is_directory: bool = False) -> None:
        self._count += 1
        heapq.heappush(self._heap, _Discarded(due_s, self._count, path, is_directory))

    def is_due(self, now_s: float) -> bool:
        """Whether anything is due."""
        return bool(self._heap) and self._heap[0].due_s <= now_s

    def take_due(self, now_s: float) -> list[tuple[str, bool]]:
        """(path, is directory) of what is due, at most TAKEN_MAX; the caller deletes it."""
        due: list[tuple[str, bool]] = []
        while len(due) < TAKEN_MAX and self.is_due(now_s):
            discarded = heapq.heappop(self._heap)
            due.append((discarded.path, discarded.is_directory))
        return due


def remove_all(disk: Disk, discarded: list[tuple[str, bool]]) -> None:
    """Runs in a thread. Missing files are ignored; OSError for anything else."""
    for path, is_directory in discarded:
        try:
            if is_directory:
                disk.remove_tree(path)
            else:
                disk.remove(path)
        except FileNotFoundError:
            continue
