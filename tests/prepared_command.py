"""`tidelog …` in a process of its own that need not import anything: it is forked from one that has.

Python and the imports of a command take some tenths of a second, much longer than what most commands do then, and the
tests give hundreds of them. The command is the real one, with its own signals, files and exit status. That it starts
from nothing, too, is shown by the tests that begin a process themselves, and by those of the pages.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

PRELOADED = [
    "tests.prepared_command",
    "tidelog.__main__",
    "tidelog.command_line",
    "tidelog.admin.library_client",
    "kafka.admin",
    "kafka.consumer",
]
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


def prepared(
    words: Sequence[str], timeout_s: float = 150.0, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What `tidelog …` says and ends with. Raises TimeoutExpired."""
    with tempfile.TemporaryDirectory(prefix="tidelog-command-") as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        given = dict(os.environ if environment is None else environment)
        process = CONTEXT.Process(target=_work, args=(list(words), given, str(Path.cwd()), str(out), str(err)))
        process.start()
        process.join(timeout_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(words), timeout_s, out.read_bytes(), err.read_bytes())
        return subprocess.CompletedProcess(list(words), process.exitcode, out.read_text(), err.read_text())


def _work(words: list[str], environment: dict[str, str], folder: str, out: str, err: str) -> None:
    """The whole life of the forked process."""
    from tidelog.__main__ import main  # noqa: PLC0415  not in the process that only asks

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path, flags in ((0, os.devnull, os.O_RDONLY), (1, out, os.O_WRONLY), (2, err, os.O_WRONLY)):
        opened = os.open(path, flags | os.O_CREAT if number else flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = ["tidelog", *words]
    main()
