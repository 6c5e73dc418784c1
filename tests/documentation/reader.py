"""Somebody who types a page's blocks one after another: a terminal in which a cluster stays, another, and a Python.

    python -m tests.documentation.reader DIRECTORY PAGE…

goes to DIRECTORY, which looks like a fresh clone, and prints a line of JSON for each block. It ends with 1 at the first
that does not do what the page says. Meant for a network namespace of its own, in which the pages' ports are free.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.documentation.pages import AGAIN, OUTPUT, ROOT, STAYS, Block, blocks_of, commands

LIMIT_S = 600.0
STOP_S = 90.0
AGAIN_S = 0.5
OPTIONAL = {"kcat"}  # programs that a page itself calls optional
NOISE = (
    "Using incubator modules",
    "%4|",
    "NativeCodeLoader",
    "Using Spark's default log4j",
    "DeprecationWarning",
    "[Stage ",
)
LOOPBACK_UP = 0x8914, struct.pack("16sh", b"lo", 0x41)  # SIOCSIFFLAGS with IFF_UP and IFF_RUNNING
PYTHON = """
import json, sys, traceback
names = {"__name__": "__main__"}
answer = open(int(sys.argv[1]), "w")
for line in sys.stdin:
    name, code = json.loads(line)
    try:
        exec(compile(code, name, "exec"), names)
        status = 0
    except BaseException:
        traceback.print_exc()
        status = 1
    sys.stdout.flush(); sys.stderr.flush()
    print(status, file=answer, flush=True)
"""
SHELL = """
set -o pipefail
trap 'first=${first:-$?}' ERR
while read -r block said; do
    first=
    source "$block" >>"$said" 2>&1 </dev/null
    echo "${first:-0}" >&"$ANSWER"
done
"""


class Failed(Exception):
    """A block did not do what its page says."""


class Fellow:
    """A process that does one block after another: the second terminal, or Python."""

    def __init__(self, words: list[str], said: Path) -> None:
        self.said = said
        read, write = os.pipe()
        self._answers = read
        with open(said, "ab") as out:
            self._process = subprocess.Popen(
                [*words, str(write)], stdin=subprocess.PIPE, stdout=out, stderr=out, text=True, pass_fds=(write,),
                env=os.environ | {"ANSWER": str(write)},
            )  # fmt: skip
        os.close(write)

    def do(self, line: str) -> str:
        """What was said meanwhile. Raises Failed."""
        begin = self.said.stat().st_size
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._answers], [], [], LIMIT_S)
        status = os.read(self._answers, 64).decode().strip() if ready else f"nothing within {LIMIT_S:g} s"
        said = self.said.read_bytes()[begin:].decode(errors="replace")
        if status != "0":
            raise Failed(f"ended with {status or 'nothing'}:\n{said}")
        return said

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


class Terminal:
    """Where a cluster stays."""

    def __init__(self, text: str, said: Path) -> None:
        with open(said, "ab") as out:
            self._process = subprocess.Popen(
                ["bash", "-c", text], stdout=subprocess.PIPE, stderr=out, text=True, start_new_session=True
            )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline()
        if not self.said.startswith("ready "):
            raise Failed(f"printed {self.said!r}: {said.read_text()}")

    def interrupt(self) -> None:
        """Ctrl-C, and the end."""
        os.killpg(self._process.pid, signal.SIGINT)
        more, _ = self._process.communicate(timeout=STOP_S)
        if more:
            raise Failed(f"standard output has more than one line: {more}")


class Reader:
    def __init__(self, work: Path) -> None:
        self._work = work
        self._terminal: Terminal | None = None
        self._shell = Fellow(["bash", "-c", SHELL, "bash"], work / "shell.said")
        self._python = Fellow([".venv/bin/python", "-u", "-c", PYTHON], work / "python.said")
        self._printed = ""

    def read(self, block: Block) -> str:
        """`ran`, `shown`, or `without PROGRAM`. Raises Failed."""
        if block.mark == OUTPUT:
            missing = [line for line in block.text.splitlines() if line not in self._printed]
            if missing:
                raise Failed(f"not printed: {missing}, but {self._printed}")
            return "ran"
        if not block.is_run:
            return "shown"
        if block.language == "sh":
            programs = {shlex.split(line, comments=True)[0] for line in commands(block) if "=" not in line.split()[0]}
            absent = [name for name in programs & OPTIONAL if shutil.which(name) is None]
            if absent:
                return f"without {absent[0]}"
        self._printed = self._done(block)
        heard = [words for words in NOISE if words in self._printed]
        if heard:
            raise Failed(f"noise {heard}: {self._printed}")
        return "ran"

    def _done(self, block: Block) -> str:
        if block.language == "python":
            return self._python.do(json.dumps([block.name, block.text]))
        if block.mark == STAYS:
            self.interrupt()
            self._terminal = Terminal(block.text, self._work / "terminal.said")
            return self._terminal.said
        path = self._work / "block.sh"
        path.write_text(block.text)
        deadline = time.monotonic() + LIMIT_S
        while True:
            said = self._shell.do(f"{path} {self._shell.said}")
            wanted = block.mark.removeprefix(AGAIN) if block.mark.startswith(AGAIN) else ""
            if wanted in said:
                return said
            if time.monotonic() > deadline:
                raise Failed(f"never printed {wanted}: {said}")
            time.sleep(AGAIN_S)

    def interrupt(self) -> None:
        if self._terminal is not None:
            terminal, self._terminal = self._terminal, None
            terminal.interrupt()

    def close(self) -> None:
        self._python.close()
        self._shell.close()
        self.interrupt()


@contextlib.contextmanager
def reader(work: Path) -> Iterator[Reader]:
    one = Reader(work)
    try:
        yield one
    finally:
        one.close()


def main(directory: str, pages: list[str]) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(PermissionError):
        fcntl.ioctl(probe, *LOOPBACK_UP)
    os.chdir(directory)
    work = Path(directory).parent / "reader"
    work.mkdir()
    with reader(work) as one:
        for block in (block for page in pages for block in blocks_of(ROOT / page)):
            begin, why = time.monotonic(), ""
            try:
                outcome = one.read(block)
            except Failed as error:
                outcome, why = "failed", str(error)
            seconds = round(time.monotonic() - begin, 1)
            print(json.dumps({"block": block.name, "outcome": outcome, "seconds": seconds, "why": why}), flush=True)
            if why:
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
