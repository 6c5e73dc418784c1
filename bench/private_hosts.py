"""A hosts file of one's own over /etc/hosts, for a program and what it starts: a private mount namespace (unshare -rm).

Tenants' host names need somebody who knows them, and the machine's hosts file is not ours. A program here either begins
itself again inside (`enter`), or starts another one inside (`inside`). The file may grow while they run: each look-up
reads it anew. Java reads the same file where `-Djdk.net.hosts.file` names it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tidelog.cluster.local_names import hosts_line, resolves

VARIABLE = "TIDELOG_PRIVATE_HOSTS"
HOSTS = Path("/etc/hosts")
_BIND = 'mount --bind "$0" /etc/hosts && exec "$@"'
SOME_NAME = "lkc-000000.tidelog.localhost"  # whoever knows *.localhost knows this one


def inside(file: Path, command: Sequence[str]) -> list[str]:
    """The words that run `command` with `file` in the place of /etc/hosts."""
    return ["unshare", "-rm", "sh", "-c", _BIND, str(file), *command]


def new_file(directory: Path) -> Path:
    """A copy of the machine's hosts file, to which `add` adds."""
    file = directory / "hosts"
    file.write_text((HOSTS.read_text() if HOSTS.exists() else "").rstrip("\n") + "\n")
    return file


def add(file: Path, names: Iterable[str]) -> None:
    """In place: who has the file mounted sees it."""
    with open(file, "a") as lines:
        lines.write(hosts_line(names) + "\n")


def names_resolve() -> bool:
    """Whether every name below tidelog.localhost leads to this machine without our doing."""
    return resolves(SOME_NAME)


def problem() -> str | None:
    """Why no private hosts file can be had, in one line; None where it can."""
    with tempfile.TemporaryDirectory(prefix="tidelog-hosts-") as folder:
        file = new_file(Path(folder))
        words = inside(file, ["true"])
        if shutil.which(words[0]) is None:
            return "names below tidelog.localhost do not resolve here, and there is no unshare (util-linux)"
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["it failed"])[-1]
        return f"names below tidelog.localhost do not resolve here, and no private mount namespace can be had: {said}"
    return None


def enter(program: str, arguments: Sequence[str]) -> Path | None:
    """Begin `python -m program` again with a hosts file of its own; the file, once inside. None where all names
    resolve anyway. Ends the program with one line where neither can be had."""
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given)
    if names_resolve():
        return None
    reason = problem()
    if reason is not None:
        raise SystemExit(f"{program}: {reason}")
    with tempfile.TemporaryDirectory(prefix="tidelog-hosts-") as folder:
        file = new_file(Path(folder))
        words = inside(file, [sys.executable, "-m", program, *arguments])
        raise SystemExit(subprocess.run(words, env=os.environ | {VARIABLE: str(file)}, check=False).returncode)
