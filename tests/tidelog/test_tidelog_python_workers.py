"""How a job ends: first Spark's workers, then its session, and what the command has to say comes last."""

from __future__ import annotations

import subprocess
import sys
from typing import Any
from unittest.mock import MagicMock

import pytest
import typer
from py4j.protocol import Py4JNetworkError

from object_store.errors import StoreUnavailable
from tidelog.spark_jobs.python_workers import end_python_workers
from tidelog.spark_jobs.spark_job import SparkOptions, spark_job

JOB = """
import os
from pathlib import Path
from tidelog.spark_jobs.spark_job import SparkOptions, spark_job

def alive(number):
    '''Also not as a process that has ended and whose parent has yet to ask.'''
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

def pid(batches):
    import os, pyarrow
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"id": [os.getpid()]})

with spark_job("test", SparkOptions(master="local[2]")) as job:
    spark = job.spark
    numbers = spark.range(2, numPartitions=2)
    workers = {row["id"] for row in numbers.mapInArrow(pid, numbers.schema).collect()}
    before = [alive(number) for number in workers]
    stop = spark.stop

    def look():
        print(any(before), all(before), [number for number in workers if alive(number)])
        stop()

    spark.stop = look
"""


@pytest.mark.timeout(300)
@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="it looks for processes in /proc")
def test_no_worker_sees_its_session_stop() -> None:
    done = subprocess.run([sys.executable, "-c", JOB], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (0, "True True []\n"), done.stderr
    assert "Traceback" not in done.stderr


class Session:
    def __init__(self, *, has_java: bool = True) -> None:
        self.sparkContext = MagicMock()
        self.stopped = False
        self._has_java = has_java

    def stop(self) -> None:
        if not self._has_java:
            raise Py4JNetworkError("no Java")
        self.stopped = True
        print("a worker has ended", file=sys.stderr)


def job_that_fails(session: Any) -> None:
    """It has a session by then."""
    with pytest.raises(typer.Exit), spark_job("test", SparkOptions(), opens=lambda *_, **__: session) as job:
        raise StoreUnavailable("file:///x", "get", "key", f"it is down, says {job.spark}")


def test_an_error_is_told_when_spark_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    session = Session()
    job_that_fails(session)
    assert session.stopped
    first, last = capsys.readouterr().err.splitlines()
    assert first == "a worker has ended"
    assert last.startswith("tidelog: ") and "it is down" in last


def test_what_went_wrong_first_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    job_that_fails(Session(has_java=False))
    (line,) = capsys.readouterr().err.splitlines()
    assert "it is down" in line


def process(line: str) -> MagicMock:
    found = MagicMock()
    found.info().commandLine().get.return_value = line
    found.info().commandLine().isPresent.return_value = bool(line)
    return found


def test_daemons_alone_are_ended() -> None:
    daemon, driver, unknown = (
        process("python3 -m pyspark.daemon pyspark.worker"),
        process("python3 job.py"),
        process(""),
    )
    session = MagicMock()
    handles = session.sparkContext._jvm.java.lang.ProcessHandle.current().children()
    handles.toArray.return_value = [driver, daemon, unknown]
    end_python_workers(session)
    daemon.destroy.assert_called_once_with()
    driver.destroy.assert_not_called()
    unknown.destroy.assert_not_called()
    handles.toArray.side_effect = Py4JNetworkError("no Java")
    end_python_workers(session)
