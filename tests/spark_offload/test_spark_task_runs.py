"""One task per piece of work: results in order, progress of the whole, errors of tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from spark_offload.running.task_runs import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Counted:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def advance(self, by: int = 1) -> None:
        self.steps.append(by)


def slow_square(number: int) -> int:
    import time  # noqa: PLC0415  runs in a worker

    time.sleep(0.2)
    return number * number


def test_results_come_in_order_and_progress_adds_up(spark: SparkSession) -> None:
    stage = Counted()
    assert run_tasks(spark, slow_square, range(8), stage) == [number * number for number in range(8)]
    assert sum(stage.steps) == 8
    assert len(stage.steps) > 1  # while it ran, not only at the end


def test_no_work_is_no_job(spark: SparkSession) -> None:
    assert run_tasks(spark, slow_square, [], Counted()) == []


def test_a_task_takes_several_pieces_when_there_are_too_many(spark: SparkSession) -> None:
    stage = Counted()
    assert run_tasks(spark, abs, range(-10, 0), stage, tasks_max=3) == list(range(10, 0, -1))
    assert sum(stage.steps) == 10


def test_what_a_task_raises_ends_the_job(spark: SparkSession) -> None:
    stage = Counted()
    with pytest.raises(Exception, match="ZeroDivisionError"):
        run_tasks(spark, (1).__truediv__, [1, 0], stage)
    assert run_tasks(spark, abs, [-1], stage) == [1]  # the session goes on
