"""How a process ends that has opened a store for as long as it lives, such as the one in which Spark plans a stream."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time

import pytest

from tests.spark_offload.conftest import ENVIRONMENT, ROOT

LOOK = """
    import sys
    from object_store.errors import StoreError
    from spark_offload.reading.task import store_at

    store = store_at(sys.argv[1])
    try:
        store.get("nothing")
    except StoreError:
        pass
"""
STUCK = """
    import time

    async def forever():
        time.sleep(600)
    store._off_loop.begin(forever)
"""
FORKED = """
    import atexit
    import os
    import time
    import warnings
    from spark_offload.reading import task

    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads, as this is
    task.CLOSE_AT_EXIT_S = 600
    began_s = time.monotonic()
    child = os.fork()
    if not child:
        atexit._run_exitfuncs()  # the thread with the connections is its parent's
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert time.monotonic() - began_s < 60
    task.CLOSE_AT_EXIT_S = 1
    try:
        store.get("nothing")
    except StoreError as error:
        assert "closed" not in str(error)
"""


def ended(uri: str, *scripts: str) -> tuple[str, float]:
    """What a process says that runs the scripts, and how long its last line was from its end, in seconds."""
    script = "".join(map(textwrap.dedent, scripts)) + "\nprint('done', flush=True)\n"
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", script, uri], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "done\n"
        done_s = time.monotonic()
        said = process.stderr.read()
        assert process.wait(60) == 0, said
        return said, time.monotonic() - done_s


@pytest.mark.processes
@pytest.mark.parametrize("more", [(), (FORKED,)])
def test_a_process_closes_its_store_when_it_ends(moto_endpoint: str, more: tuple[str, ...]) -> None:
    said, took_s = ended(f"s3://nosuch/prefix?endpoint={moto_endpoint}&region=us-east-1", LOOK, *more)
    assert said == ""
    assert took_s < 20


@pytest.mark.processes
def test_a_store_that_cannot_be_closed_holds_up_no_end(moto_endpoint: str) -> None:
    _, took_s = ended(f"s3://nosuch/prefix?endpoint={moto_endpoint}&region=us-east-1", LOOK, STUCK)
    assert took_s < 20
