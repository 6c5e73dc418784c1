"""How the secret of the digests reaches the tasks: as a local property of the driver's thread.

Spark sends these with each task, over its own connections and in memory alone: no block manager, broadcast file or
spill holds them. The one place that would write them down is the event log, where `spark.redaction.regex` blackens
names with `secret` in them, as this one has.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from pyspark import SparkContext

PROPERTY = "tidelog.erase.secret"


@contextmanager
def secret_for_tasks(context: SparkContext, secret: bytes) -> Iterator[None]:
    """Tasks of jobs that are started in the block can read it."""
    context.setLocalProperty(PROPERTY, secret.hex())
    try:
        yield
    finally:
        context.setLocalProperty(PROPERTY, cast(str, None))  # takes it away


def secret_of_this_task() -> bytes:
    from pyspark import TaskContext  # noqa: PLC0415  a task alone has one

    task = TaskContext.get()
    text = task.getLocalProperty(PROPERTY) if task is not None else None
    if text is None:
        raise RuntimeError("no erasure is under way in this task")
    return bytes.fromhex(text)
