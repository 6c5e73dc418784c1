"""A suggested command does what it says when it is pasted, whatever name a client has chosen."""

from __future__ import annotations

import subprocess

import pytest

from tidelog.shell_words import argument

NAMES = [
    "plain-1.2_3",
    "a; touch /tmp/pwned",
    "-dash",
    "--",
    'it\'s $(date) `date` \\ "x" !!',
    "ünïcode",
    "esc\x1b[31m\nnew line\t\x7f1",
    "'\x1b\\n$x'",
    "back\u202ewards \u00a0 \U000e0001",
    "",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_shell_takes_it_as_one_word_and_a_terminal_shows_it(name: str) -> None:
    word = argument(name)
    assert word.isprintable()
    shell = ["bash", "-c", f"printf '%s\\0' {word}"]
    given = subprocess.run(shell, check=True, capture_output=True).stdout.decode().split("\0")[:-1]
    assert given in ([name], ["--", name])
    assert given[0] == "--" or not name.startswith("-")


def test_a_plain_name_stands_as_it_is() -> None:
    assert argument("orders.v1_a-b") == "orders.v1_a-b"
    assert argument("a; touch x") == "-- 'a; touch x'"
