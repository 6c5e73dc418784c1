"""A Spark session in which tasks run in this process, one after another: no Java, and nothing is pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any


class Rows:
    """As much of an RDD as `run_tasks` asks for."""

    def __init__(self, rows: Iterable[Any]) -> None:
        self._rows = rows

    def map(self, work: Callable[[Any], Any]) -> Rows:
        return Rows(map(work, self._rows))

    def collect(self) -> list[Any]:
        return list(self._rows)


class ContextHere:
    """As much of a SparkContext; nobody can look at the jobs, for they last no longer than a call."""

    def parallelize(self, pieces: Sequence[Any], _slices: int) -> Rows:
        return Rows(pieces)

    def setJobGroup(self, group: str, text: str, interruptOnCancel: bool) -> None:  # noqa: N802, N803  Spark's names
        pass

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        pass

    def statusTracker(self) -> ContextHere:  # noqa: N802
        return self

    def getJobIdsForGroup(self, group: str) -> list[int]:  # noqa: N802
        return []


class SessionHere:
    def __init__(self) -> None:
        self.sparkContext = ContextHere()


HERE: Any = SessionHere()
