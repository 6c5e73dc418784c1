"""Values by a schema that names itself, which a record nests as deep as it wants."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tidelog.streams.avro_text import HEADER, AvroText
from tidelog.streams.schema_registry import Schema

NODES = {
    "type": "record",
    "name": "N",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "N"]}],
}
"""A schema that names itself."""


def chained(levels: int) -> bytes:
    return HEADER.pack(0, 1) + b"\0\2" * (levels - 1) + b"\0\0"


def test_a_value_may_be_nested() -> None:
    found, depth = json.loads(AvroText(lambda number: Schema(number, json.dumps(NODES)))(chained(20))), 0
    while found is not None:
        found, depth = found["next"], depth + 1
    assert depth == 20


@pytest.mark.parametrize("levels", [100, 200, 300, 400, 600, 900, 5_000, 1_000_000])
def test_no_depth_of_a_value_ends_the_command(levels: int) -> None:
    """In a process of its own: what goes beyond the end of the stack ends that."""
    code = (
        "import json, sys\n"
        "from tidelog.streams.avro_text import AvroText\n"
        "from tidelog.streams.schema_registry import Schema\n"
        "decode = AvroText(lambda number: Schema(number, sys.argv[1]))\n"
        "line = decode(sys.stdin.buffer.read())\n"
        "assert line.startswith(b'{\"undecoded\":' if decode.undecoded else b'{\"v\":0'), line[:200]\n"
    )
    words = [sys.executable, "-c", code, json.dumps(NODES)]
    done = subprocess.run(words, input=chained(levels), capture_output=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, b"")
