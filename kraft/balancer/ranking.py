"""Replicas of one broker in the order in which a goal tries them. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from heapq import merge

from common.pacing import Work

CHUNK = 250  # entries sorted between two yields
SORT_COST, MERGE_COST = 3, 2  # of one entry, in units of `common.pacing`

Entry = tuple[float, float, float, int]
"""What is tried first has the smallest one: minus the goal's amount, minus the load, the bytes to copy, the replica."""


def ranked(replicas: Iterable[int], entry: Callable[[int], Entry | None]) -> Work[array[int]]:
    """The replicas that have an entry, in its order. They are in an array and entries are freed one by one, because to
    free hundreds of thousands of objects at once takes as long as a slice."""
    chunks: list[list[Entry]] = []
    chunk: list[Entry] = []
    for number, replica in enumerate(replicas, 1):
        found = entry(replica)
        if found is not None:
            chunk.append(found)
        if number % CHUNK == 0:
            chunk.sort()
            chunks.append(chunk)
            chunk = []
            yield CHUNK * SORT_COST
    chunk.sort()
    chunks.append(chunk)
    order = array("i")
    for number, found in enumerate(merge(*map(_taken_from, chunks)), 1):
        order.append(found[3])
        if number % CHUNK == 0:
            yield CHUNK * MERGE_COST
    return order


def _taken_from(chunk: list[Entry]) -> Iterator[Entry]:
    chunk.reverse()
    while chunk:
        yield chunk.pop()
