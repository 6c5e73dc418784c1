"""How the secret of the digests reaches the tasks: as a local property of the driver's thread.

Spark sends these with each task, over its own connections and in memory alone: no block manager, broadcast file or
spill holds them. The one place that would write them down is the event log. It blackens what `spark.redaction.regex`
matches, as this name, but only if the session's own settings have a property of that name too, whatever its value.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from spark_offload.options import OptionError

if TYPE_CHECKING:
    from pyspark import SparkContext

PROPERTY = "spark.tidelog.erase.secret"
_EVENT_LOG = "spark.eventLog.enabled"


@contextmanager
def secret_for_tasks(context: SparkContext, secret: bytes) -> Iterator[None]:
    """Tasks of jobs that are started in the block can read it. OptionError when an event log would keep it."""
    conf = context.getConf()
    if conf.get(_EVENT_LOG, "false") == "true" and not conf.contains(PROPERTY):
        raise OptionError(f"Spark's event log would keep secrets: start the session with some {PROPERTY}")
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
