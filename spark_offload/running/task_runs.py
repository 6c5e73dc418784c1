"""One Spark task per piece of work, with results in order and the progress of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from common.machine import machine_random
from spark_offload.running.job import Stage

if TYPE_CHECKING:
    from pyspark import SparkContext, StatusTracker
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

TASKS_MAX = 10_000  # of one Spark job; beyond it a task takes several pieces
LOOK_S = 0.2


def run_tasks(
    spark: SparkSession, work: Callable[[T], R], pieces: Sequence[T], stage: Stage, tasks_max: int = TASKS_MAX
) -> list[R]:
    """`work(piece)` for each piece in the executors; the results in the order of the pieces, `stage` advanced by one
    for each that is done.

    `work`, pieces and results are pickled. `work` reports damage in its result: what it raises ends the job, after
    the retries that Spark makes on a cluster, where a task may run more than once and twice at a time.
    """
    if not pieces:
        return []
    context = spark.sparkContext
    slices = min(len(pieces), tasks_max)
    group = f"tidelog-{machine_random().getrandbits(64):016x}"
    with _followed(context, group, len(pieces) / slices, stage) as finish:
        found: list[R] = context.parallelize(pieces, slices).map(work).collect()
        finish(len(pieces))
    return found


@contextmanager
def _followed(context: SparkContext, group: str, weight: float, stage: Stage) -> Iterator[Callable[[int], None]]:
    """Advance `stage` while tasks end. A job that is broken off by an exception (Ctrl-C) is cancelled."""
    ended: Future[None] = Future()
    shown = 0

    def tell(done: int) -> None:
        nonlocal shown
        if done > shown:
            stage.advance(done - shown)
            shown = done

    def follow() -> None:
        tracker = context.statusTracker()
        while True:
            try:
                ended.result(LOOK_S)
                return
            except TimeoutError:
                tell(int(_tasks_done(tracker, group) * weight))

    context.setJobGroup(group, "tidelog", interruptOnCancel=True)
    finished: list[int] = []
    with ThreadPoolExecutor(1, "tidelog-progress") as threads:
        following = threads.submit(follow)
        try:
            yield finished.append
        except BaseException:
            context.cancelJobGroup(group)
            raise
        finally:
            ended.set_result(None)
            following.result()
            if finished:
                tell(finished[0])


def _tasks_done(tracker: StatusTracker, group: str) -> int:
    done = 0
    for job in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(job)
        for stage_id in info.stageIds if info is not None else ():
            stage = tracker.getStageInfo(stage_id)
            done += stage.numCompletedTasks if stage is not None else 0
    return done
