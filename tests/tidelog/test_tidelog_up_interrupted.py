"""Ctrl-C in the first moments of `tidelog up`: a quiet end, and a directory that the next one starts from."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.embedded import free_ports

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

FIRST_S = 2.0
MOMENTS = 8
WAIT_S = 120
# What Python itself does before its first line is not ours to keep quiet.
COMMAND = """
import signal
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("begun", flush=True)
from tidelog.__main__ import main
main()
"""
ENDS = {0, -signal.SIGINT}
"""In order, once the supervisor is there; before that as a program ends that handles no signal (a shell tells 130)."""


def begin(data: Path, port: int, *words: str) -> subprocess.Popen[str]:
    """A group of processes of its own, as a terminal has it."""
    line = [sys.executable, "-c", COMMAND, "up", "--data", str(data), "--brokers", "1", "--controllers", "1"]
    process = subprocess.Popen(
        [*line, "--port", str(port), "--set", "log.dir.free.bytes.min=0", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str]:
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=WAIT_S)
    return process.returncode, said


@pytest.mark.parametrize("words", [(), ("--tls", "--proxies", "1", "--tenants", "demo")], ids=["plain", "tenants"])
def test_an_interruption_at_any_moment_is_quiet_and_harmless(tmp_path: Path, words: tuple[str, ...]) -> None:
    chance, port = random.Random(len(words)), free_ports(10)
    for index in range(MOMENTS):
        process = begin(tmp_path / "data", port, *words)
        time.sleep((index + chance.random()) * FIRST_S / MOMENTS)
        status, said = interrupt(process)
        assert "Traceback" not in said and "Error" not in said, said
        assert status in ENDS, said
    process = begin(tmp_path / "data", port, *words)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready "), process.communicate()[1]
    status, said = interrupt(process)
    assert (status, "Traceback" in said) == (0, False), said


INTERRUPTER = """
import os, signal, sys

signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run without it, in the background

class Interrupter:
    def find_spec(name, path=None, target=None):
        program, module = os.environ["INTERRUPTED_AT"].split(" ")
        if name == module and program in sys.orig_argv:
            os.killpg(0, signal.SIGINT)

sys.meta_path.insert(0, Interrupter)
"""


@pytest.mark.parametrize(
    ("program", "module", "status"),
    [
        ("up", "tidelog.command_line", -signal.SIGINT),
        ("up", "typer", -signal.SIGINT),
        ("up", "tidelog.commands.cluster", -signal.SIGINT),
        ("up", "tidelog.cluster.embedded_tenants", -signal.SIGINT),
        ("tidelog.cluster.supervisor", "tidelog.cluster.supervisor", 0),
        ("tidelog.cluster.supervisor", "tidelog.cluster.control", 0),
        ("tidelog.cluster.supervisor", "kraft.controller.node", 0),
        ("tidelog.cluster.supervisor", "broker.node", 0),
    ],
)
def test_an_interruption_while_something_is_imported_is_quiet(
    tmp_path: Path, program: str, module: str, status: int
) -> None:
    (tmp_path / "sitecustomize.py").write_text(INTERRUPTER)
    data = tmp_path / "data"
    path = os.pathsep.join([str(tmp_path), *sys.path[1:]])
    done = subprocess.run(
        [sys.executable, "-m", "tidelog", "up", "--data", data, "--brokers", "1", "--port", str(free_ports(10))],
        env=os.environ | {"PYTHONPATH": path, "INTERRUPTED_AT": f"{program} {module}"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        start_new_session=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
    started = list(data.glob("logs/*-*.log"))
    assert bool(started) == (module == "broker.node"), "what is to end soon is not started"
