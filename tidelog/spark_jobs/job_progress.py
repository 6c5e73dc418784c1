"""Progress of a long job: bars on a terminal, otherwise a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tidelog.output import is_terminal

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from spark_offload.running.job import Progress, Stage

LINE_EVERY_S = 10.0


@contextmanager
def open_progress(now_s: Callable[[], float] = time.monotonic) -> Iterator[Progress]:
    """Bars on standard error when it is a terminal, else lines."""
    if not is_terminal(sys.stderr):
        yield LineProgress(now_s)
        return
    from rich.console import Console  # noqa: PLC0415  heavy, and only people need it
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn  # noqa: PLC0415
    from rich.progress import Progress as Bars  # noqa: PLC0415

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield BarProgress(bars)


class BarProgress:
    """A bar per stage."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._last: BarStage | None = None

    def stage(self, title: str, total: int, unit: str = "partitions") -> Stage:
        if self._last is not None:
            self._last.end()
        self._last = BarStage(self._bars, title, total, unit)
        return self._last

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)


class BarStage:
    def __init__(self, bars: Bars, title: str, total: int, unit: str) -> None:
        self._bars, self._total, self._unit, self._done = bars, total, unit, 0
        self._task: TaskID = bars.add_task(title, total=max(total, 1), amount=amount(0, total, unit))

    def advance(self, by: int = 1) -> None:
        self._done += by
        text = amount(self._done, self._total, self._unit)
        self._bars.update(self._task, completed=self._done, amount=text)

    def end(self) -> None:
        self._bars.update(self._task, completed=max(self._total, 1))


class LineProgress:
    """For logs: the stage's name when it begins, then a line each `LINE_EVERY_S` and one at its end."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s

    def stage(self, title: str, total: int, unit: str = "partitions") -> Stage:
        return LineStage(title, total, unit, self._now_s)

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class LineStage:
    def __init__(self, title: str, total: int, unit: str, now_s: Callable[[], float]) -> None:
        self._title, self._total, self._unit, self._done = title, total, unit, 0
        self._now_s = now_s
        self._shown_at = now_s()

    def advance(self, by: int = 1) -> None:
        self._done += by
        now = self._now_s()
        if self._done >= self._total or now - self._shown_at >= LINE_EVERY_S:
            self._shown_at = now
            print(f"{self._title}: {amount(self._done, self._total, self._unit)}", file=sys.stderr, flush=True)


def amount(done: int, total: int, unit: str) -> str:
    """`3 of 12 partitions`, `1.2 of 3.4 GB`."""
    if unit != "bytes":
        return f"{done:,} of {total:,} {unit}"
    scale, name = next(((scale, name) for scale, name in _SCALES if total >= scale), (1, "bytes"))
    return f"{done / scale:.{1 if scale > 1 else 0}f} of {total / scale:.{1 if scale > 1 else 0}f} {name}"


_SCALES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB"))
