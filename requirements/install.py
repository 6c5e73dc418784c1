"""`install.py FILE.lock`: install what the lock file names into the Python that runs this, and say how far it is.

pip is silent for minutes here otherwise, or prints a line for each file. Words go to standard error.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

PINNED = re.compile(r"^[a-zA-Z0-9][\w.-]*(?:\[[^]]*\])?==", re.MULTILINE)
BEGUN = re.compile(r"^(?:Collecting|Requirement already satisfied:) ")
PIP = ["-m", "pip", "--disable-pip-version-check", "install", "--progress-bar=off", "--require-hashes",
       "--no-build-isolation"]  # fmt: skip
LINES_KEPT = 20


def main(lock: Path) -> int:
    count = len(PINNED.findall(lock.read_text()))
    say = sys.stderr.write
    begin = time.monotonic()
    say(f"installing the {count} packages of {lock} into {sys.prefix}\n")
    command = [sys.executable, *PIP, "-r", str(lock)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    begun, last = 0, []
    for line in process.stdout:
        last = [*last[-LINES_KEPT + 1 :], line]
        if BEGUN.match(line):
            begun += 1
            name = line.split()[1 if line.startswith("Coll") else 3].split("==")[0]
            _show(f"  {min(begun, count)} of {count}: {name}")
        elif line.startswith("Installing collected"):
            _show("  unpacking")
    _show("")
    if process.wait():
        say("".join(last))
        return process.returncode
    say(f"done in {time.monotonic() - begin:.0f} s\n")
    return 0


def _show(text: str) -> None:
    """Over the line before it, where somebody looks at a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
