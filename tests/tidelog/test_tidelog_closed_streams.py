"""Commands that a shell starts without a standard stream: `>&-`, `<&-`."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("consume t >&-", "standard output is closed"),
        ("consume t >&- <&-", "standard output is closed"),
        ("topics tail t >&-", "standard output is closed"),
        ("produce t <&-", "standard input is closed"),
        ("produce t <&- >&-", "standard input is closed"),
    ],
)
def test_a_stream_that_a_command_needs_is_missed_in_a_line(line: str, said: str) -> None:
    words = ["sh", "-c", f'exec "$0" -m tidelog {line}', sys.executable]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (2, f"tidelog: {said}\n")


@pytest.mark.parametrize("option", ["", "--json"])
def test_a_list_that_nobody_can_read_is_no_error(option: str) -> None:
    code = (
        "import sys\n"
        "from tidelog.output import is_terminal, show\n"
        "assert sys.stdout is None and sys.stderr is not None and not is_terminal(sys.stdout)\n"
        "show([{'name': 'a'}], as_json=len(sys.argv) > 1, columns=['name'])\n"
    )
    words = ["sh", "-c", f'exec "$0" -c "$1" {option} >&-', sys.executable, code]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
