"""Ctrl-C at any moment of a job: one line, exit status 130, and soon, since what is broken off here would never end."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, signal, socket, sys, tempfile, threading, time
from unittest.mock import MagicMock
import typer
from tidelog.spark_jobs import spark_job

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def interrupt_unheard():
    '''By a thread: no wait of the main thread is broken off by the signal itself.'''
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

def unheard_soon():
    threading.Thread(target=interrupt_unheard).start()

def hang():
    socket.socketpair()[0].recv(1)

class Session:
    sparkContext = MagicMock()  # whose Java has started nothing
    def stop(self): pass

real = spark_job.open_session
spark_job.open_session = lambda *words, **options: Session()
before = during = lambda job: None

{moment}

def command():
    with spark_job.spark_job("test", spark_job.SparkOptions(master="local[1]")) as job:
        before(job)
        job.spark
        during(job)

typer.run(command)
"""

MOMENTS = {
    "before the session": "before = lambda job: interrupt()",
    "while nobody hears": "during = lambda job: (unheard_soon(), hang())",
    "while another handler is there": """
def open_session(*words, **options):
    def theirs(number, frame):
        raise KeyboardInterrupt
    signal.signal(signal.SIGINT, theirs)
    interrupt()
spark_job.open_session = open_session
""",
    "after another handler was there": """
def open_session(*words, **options):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return Session()
spark_job.open_session = open_session
during = lambda job: (interrupt(), hang())
""",
    "where the exception goes nowhere": """
def during(job):
    while True:
        try:
            hang()
        except KeyboardInterrupt:
            pass
        unheard_soon()
before = lambda job: unheard_soon()
""",
    "another error comes of it": """
def during(job):
    try:
        interrupt()
    except KeyboardInterrupt:
        import logging, warnings
        logging.error("Traceback")
        warnings.warn("Traceback")
        raise ValueError
""",
    "before a stop that hangs": "during = lambda job: interrupt()\nSession.stop = lambda self: hang()",
    "while it stops": "Session.stop = lambda self: (unheard_soon(), hang())",
    "while it stops after a failure": """
Session.stop = lambda self: interrupt()
def during(job):
    job.failed = True
""",
    "twice": "during = lambda job: interrupt()\nSession.stop = lambda self: (interrupt(), interrupt())",
    "while nobody reads": """
class Full:
    def flush(self):
        hang()
def during(job):
    sys.stdout = Full()
    interrupt()
""",
    "after the reader is gone": """
def during(job):
    reading, writing = os.pipe()
    os.close(reading)
    sys.stdout = open(writing, "w", buffering=1000)
    print("lost")
    interrupt()
""",
}

JAVA = """
spark_job.open_session = real
fifo = tempfile.mkdtemp() + "/fifo"
os.mkfifo(fifo)

def slow(rows):
    open(fifo, "w").close()
    time.sleep(3600)
    return rows

def count(job):
    job.spark.sparkContext.parallelize([1], 1).mapPartitions(slow).count()

def when_it_works():
    open(fifo).close()
    interrupt_unheard()
"""
JAVA_MOMENTS = {
    "while Java starts": """
import pyspark.java_gateway
started = pyspark.java_gateway.Popen
def start(*words, **options):
    process = started(*words, **options)
    threading.Thread(target=interrupt_unheard).start()
    return process
pyspark.java_gateway.Popen = start
""",
    "while PySpark handles it": """
from pyspark.sql import SparkSession
made = SparkSession.__init__
def make(*words, **options):
    assert signal.getsignal(signal.SIGINT).__module__ == "pyspark.core.context"
    interrupt()
    made(*words, **options)
SparkSession.__init__ = make
""",
    "while Java works": "during = lambda job: (threading.Thread(target=when_it_works).start(), count(job))",
    "while Java stops": """
from pyspark.core.context import SparkContext
stopped = SparkContext.stop
def stop(self):
    unheard_soon()
    stopped(self)
SparkContext.stop = stop
""",
}


def check(moment: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.replace("{moment}", moment)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, "tidelog: interrupted\n")


@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interruption_ends_the_command_in_one_line(moment: str) -> None:
    check(MOMENTS[moment])


@pytest.mark.timeout(300)
@pytest.mark.processes
@pytest.mark.parametrize("moment", JAVA_MOMENTS)
def test_an_interruption_in_the_midst_of_java(moment: str) -> None:
    check(JAVA + JAVA_MOMENTS[moment])
