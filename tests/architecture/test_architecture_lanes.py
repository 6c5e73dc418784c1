"""The quick lane takes what is quick by its kind, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lanes import is_quick_file, part_of

QUICK = ["import asyncio", "await asyncio.sleep(0)", "from wire.codec import decode_request"]
SLOW = [
    "import subprocess",
    "from bench.embedded import EmbeddedCluster",
    "from tests.sim.loop import SimLoop",
    "from tests.broker import replication_lab",
    "from tests.broker.replication_lab import Lab",
    "await asyncio.sleep(0.01)",
    "time.sleep(pause_s)",
    "sys.settrace(None)",
]


@pytest.mark.parametrize("source", QUICK)
def test_what_takes_no_time_is_quick(tmp_path: Path, source: str) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text(f"async def test_it():\n    {source}\n")
    assert is_quick_file(file)


@pytest.mark.parametrize("source", SLOW)
def test_what_waits_or_starts_something_is_slow(tmp_path: Path, source: str) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text(f"async def test_it():\n    {source}\n")
    assert not is_quick_file(file)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_parts_of_a_lane_are_the_lane(count: int) -> None:
    parts = [part_of(range(20), f"{part}/{count}") for part in range(1, count + 1)]
    assert sorted(number for part in parts for number in part) == list(range(20))


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "1/0", "-1/4", "a/b", ""])
def test_what_names_no_part_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="a part is written as 2/4"):
        part_of(range(20), part)
