"""How a process ends that has opened a store for as long as it lives, such as the one in which Spark plans a stream."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

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
    import threading

    async def forever():
        threading.Event().wait()
    store._off_loop.begin(forever)
"""
FORKED = """
    import atexit
    import os
    import warnings
    from spark_offload.reading import task

    warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks beside threads, as this is
    task.CLOSE_AT_EXIT_S = 10**6
    child = os.fork()
    if not child:
        atexit._run_exitfuncs()  # the thread with the connections is its parent's
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "it has ended, so it has not waited for that thread"
    task.CLOSE_AT_EXIT_S = 1
    try:
        store.get("nothing")
    except StoreError as error:
        assert "closed" not in str(error)
"""
HANGS_S = 120  # no test waits for it unless the process hangs


def ended(uri: str, *scripts: str) -> str:
    """What a process says on standard error that runs the scripts and ends."""
    script = "".join(map(textwrap.dedent, scripts)) + "\nprint('done', flush=True)\n"
    environment = os.environ | ENVIRONMENT | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, uri]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=HANGS_S, check=False)
    assert (process.returncode, process.stdout) == (0, "done\n"), process.stderr
    return process.stderr


@pytest.mark.processes
@pytest.mark.parametrize("more", [(), (FORKED,)])
def test_a_process_closes_its_store_when_it_ends(moto_endpoint: str, more: tuple[str, ...]) -> None:
    assert ended(f"s3://nosuch/prefix?endpoint={moto_endpoint}&region=us-east-1", LOOK, *more) == ""


@pytest.mark.processes
def test_a_store_that_cannot_be_closed_holds_up_no_end(moto_endpoint: str) -> None:
    ended(f"s3://nosuch/prefix?endpoint={moto_endpoint}&region=us-east-1", LOOK, STUCK)
