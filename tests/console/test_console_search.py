"""What a search asks for, and what it shows."""

from __future__ import annotations

import tracemalloc

import pytest

from common.settings import INT_MAX
from console.access.trouble import Trouble
from console.pages.records import PARTITIONS_MAX, partitions_of


def test_partitions_are_written_as_numbers_and_ranges() -> None:
    assert partitions_of("") is None
    assert partitions_of(" 7, 0,3-5 ,4") == [0, 3, 4, 5, 7]
    assert partitions_of(f"{INT_MAX}-{INT_MAX}") == [INT_MAX]
    assert partitions_of(f"0-{PARTITIONS_MAX - 1}") == list(range(PARTITIONS_MAX))


@pytest.mark.parametrize(
    "text",
    [
        ",".join(f"{at}00000-{at}99999" for at in range(1, 101)),
        f"0-{PARTITIONS_MAX}",
        ",".join(["0-99999"] * 1_000),
        f"0-{INT_MAX}",
        str(INT_MAX + 1),
        f"{INT_MAX}-{INT_MAX + 1}",
        "99999999999999999999",
        "0," * 1_000_000,
        "5-3",
        "-1",
        "1-",
        "x",
    ],
)
def test_partitions_that_cannot_be_there_are_refused_before_their_numbers_are_made(text: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Trouble):
            partitions_of(text)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
